"""Reloading: the active set of policies follows the sources, and stays valid at all times."""

from __future__ import annotations

from koordpolicy.engine.framework.instances import Adoption as Adoption
from koordpolicy.engine.framework.instances import Instances as Instances
from koordpolicy.engine.framework.instances import Lease as Lease

from .build import Builder as Builder
from .mount import EMPTY as EMPTY
from .mount import Mount as Mount
from .mount import Presence as Presence
from .mount import SourceLimits as SourceLimits
from .mount import SourceReading as SourceReading
from .mount import Version as Version
from .reloader import PolicyBuilder as PolicyBuilder
from .reloader import Reloader as Reloader
from .select import Groups as Groups
from .settings import ReloadSettings as ReloadSettings
from .source_state import ReloadUnit as ReloadUnit
from .source_state import SourceReader as SourceReader
from .startup import InvalidAtStart as InvalidAtStart
from .status import ReloadStatus as ReloadStatus
from .status import SourceStatus as SourceStatus
from .swap import Build as Build
