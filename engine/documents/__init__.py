"""YAML text to frozen documents: every field typed, defaults filled in, and every expression knows its place.

bytes -> Source -> nodes with positions -> v1alpha2 schema -> defaults -> internal form -> internal schema -> Document
"""

from __future__ import annotations

from .loading import SUFFIXES as SUFFIXES
from .loading import Documents as Documents
from .loading import files_of as files_of
from .loading import load as load
from .loading import load_paths as load_paths
from .loading import read_configmap as read_configmap
from .nodes import DEEPEST as DEEPEST
from .nodes import LARGEST_FILE as LARGEST_FILE
from .nodes import Node as Node
from .nodes import decode as decode
from .nodes import read as read
from .nodes import read_file as read_file
from .nodes import to_plain as to_plain
from .specs import GROUP as GROUP
from .specs import INTERNAL as INTERNAL
from .specs import VERSION as VERSION
from .specs import Action as Action
from .specs import Aggregate as Aggregate
from .specs import AggregateFunction as AggregateFunction
from .specs import Anomaly as Anomaly
from .specs import BlkIO as BlkIO
from .specs import CgroupFile as CgroupFile
from .specs import Check as Check
from .specs import Condition as Condition
from .specs import CPUBurst as CPUBurst
from .specs import Criterion as Criterion
from .specs import DeschedulerSpec as DeschedulerSpec
from .specs import DeschedulerType as DeschedulerType
from .specs import Document as Document
from .specs import Effect as Effect
from .specs import Evict as Evict
from .specs import EvictionLimits as EvictionLimits
from .specs import Expression as Expression
from .specs import Kind as Kind
from .specs import LabelRequirement as LabelRequirement
from .specs import LabelSelector as LabelSelector
from .specs import Match as Match
from .specs import Metadata as Metadata
from .specs import NamedExpression as NamedExpression
from .specs import NodeMatch as NodeMatch
from .specs import NodeRoles as NodeRoles
from .specs import Normalize as Normalize
from .specs import Operator as Operator
from .specs import Otherwise as Otherwise
from .specs import Over as Over
from .specs import ParamsReference as ParamsReference
from .specs import ParamsSpec as ParamsSpec
from .specs import PluginSpec as PluginSpec
from .specs import PodMatch as PodMatch
from .specs import QoSSpec as QoSSpec
from .specs import Release as Release
from .specs import Resctrl as Resctrl
from .specs import SchedulerSpec as SchedulerSpec
from .specs import ScoreItem as ScoreItem
from .specs import SortKey as SortKey
from .specs import SortOrder as SortOrder
from .specs import Spec as Spec
from .specs import Subject as Subject
from .specs import SuppressCPU as SuppressCPU
from .specs import TestSpec as TestSpec
from .specs import Threshold as Threshold
from .specs import format_duration as format_duration
from .specs import parse_duration as parse_duration
from .validation import schema as schema
from .validation import validate as validate
from .validation import validate_against as validate_against
from .validation import validate_plain as validate_plain
