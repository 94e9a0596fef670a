"""Reloading: what is in force follows what the directories hold, and never leaves the last good state."""

from __future__ import annotations

from koordpolicy.engine.framework.instances import Adoption as Adoption
from koordpolicy.engine.framework.instances import Instances as Instances
from koordpolicy.engine.framework.instances import Lease as Lease

from .build import Builder as Builder
from .reloader import Build as Build
from .reloader import Groups as Groups
from .reloader import InvalidAtStart as InvalidAtStart
from .reloader import Reloader as Reloader
from .reloader import ReloadUnit as ReloadUnit
from .source_state import EMPTY as EMPTY
from .source_state import Mount as Mount
from .source_state import Presence as Presence
from .source_state import SourceLimits as SourceLimits
from .source_state import SourceReading as SourceReading
from .source_state import Version as Version
from .status import SourceStatus as SourceStatus
from .status import Status as Status
