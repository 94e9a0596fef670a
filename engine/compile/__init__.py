"""Documents to registry entries: every expression parsed, checked, bounded and planned."""

from __future__ import annotations

from .aggregation import Facts as Facts
from .aggregation import summarize as summarize
from .plugins import compile_documents as compile_documents
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
from .scheduling import CompiledScheduler as CompiledScheduler
from .scheduling import DocumentScheduler as DocumentScheduler
from .scheduling import bindings_of as bindings_of
from .scheduling import pod_facts as pod_facts
from .scheduling import pod_values as pod_values
from .scheduling import refusal_of as refusal_of
from .scheduling import values_of as values_of
from .selection import accepts_pod as accepts_pod
from .selection import exempt as exempt
from .selection import node_mask as node_mask
