"""The models of the views: what the server answers, as JSON with keys in camel case; a module for each view.

`schemas/console/v1.json` and the front end's types are generated from them.
"""

from __future__ import annotations

from typing import Final

from .analysis import AnalysisView
from .changes import ChangePlan, ChangeResult, ChangesView, GenerationDifference
from .evictions import EvictionsView, EvictionView
from .map import ColourView, MapView, NodeDetails, NodePolicies
from .model import RefusalView
from .node_time import NodeTimeView
from .overview import ClusterOverview
from .playground import (
    CheckView,
    CompletionView,
    DescriptionView,
    EvaluationView,
    RenameView,
    TestsView,
)
from .pod import PodNodeView, PodView
from .policies import FileView, PoliciesView
from .search import SearchView
from .servers import RuleRatesView, ServersView, Versions, WaitingView
from .session import Session
from .time import MomentView, RecordedDecisionView, ReplayView, TimelineView

VIEWS: Final = (
    RefusalView,
    Session,
    ClusterOverview,
    MapView, ColourView, NodeDetails, NodePolicies,
    PodView, PodNodeView,
    EvictionsView, EvictionView,
    PoliciesView, FileView,
    CheckView, EvaluationView, TestsView, CompletionView, DescriptionView, RenameView,
    AnalysisView,
    SearchView,
    ChangesView, ChangePlan, ChangeResult, GenerationDifference,
    ServersView, WaitingView, RuleRatesView, Versions,
    TimelineView, MomentView, RecordedDecisionView, ReplayView, NodeTimeView,
)
"""The models of whole answers."""
