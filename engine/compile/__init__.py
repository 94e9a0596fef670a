"""Compilation of documents to registry entries: every expression parsed, checked, bounded and planned.

Nothing here runs per decision: frameworks run the entries. Commands that only check documents do not import numpy.
"""

from __future__ import annotations

from .effects import PERCENTAGES as PERCENTAGES
from .effects import settings_of as settings_of
from .plugins import check_names as check_names
from .plugins import compile_documents as compile_documents
from .plugins import reads_of_paths as reads_of_paths
from .programs import ActionProgram as ActionProgram
from .programs import AggregateProgram as AggregateProgram
from .programs import BlkIOProgram as BlkIOProgram
from .programs import CgroupProgram as CgroupProgram
from .programs import Compiled as Compiled
from .programs import CompiledDescheduler as CompiledDescheduler
from .programs import CompiledQoS as CompiledQoS
from .programs import CompiledScheduler as CompiledScheduler
from .programs import CPUBurstProgram as CPUBurstProgram
from .programs import EffectProgram as EffectProgram
from .programs import EvictProgram as EvictProgram
from .programs import ResctrlProgram as ResctrlProgram
from .programs import Rule as Rule
from .programs import ScoreProgram as ScoreProgram
from .programs import SortProgram as SortProgram
from .programs import SuppressCPUProgram as SuppressCPUProgram
from .programs import SysctlProgram as SysctlProgram
from .programs import ThresholdProgram as ThresholdProgram
