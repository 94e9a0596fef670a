"""Documents to registry entries: every expression parsed, checked, bounded and planned."""

from __future__ import annotations

from .programs import ActionProgram as ActionProgram
from .programs import AggregateProgram as AggregateProgram
from .programs import CompiledDescheduler as CompiledDescheduler
from .programs import CompiledQoS as CompiledQoS
from .programs import EffectProgram as EffectProgram
from .programs import EvictProgram as EvictProgram
from .programs import Rule as Rule
from .programs import SortProgram as SortProgram
from .programs import SuppressCPUProgram as SuppressCPUProgram
from .programs import ThresholdProgram as ThresholdProgram
