"""The models of the views: what the server answers, as JSON with keys in camel case.

`schemas/console/v1.json` and the front end's types are generated from them.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec


class Model(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The base of all models. Type checkers want its settings at each of them, too."""


class Fault(Model, frozen=True, kw_only=True, rename="camel"):
    """A problem in a policy, or a finding of a lint rule. Lines and columns are 1-based, in code points."""

    severity: str
    """`error`, `warning` or `note`."""
    code: str
    message: str
    help: str = ""
    file: str = ""
    line: int = 0
    """0 without a place."""
    column: int = 0
    end_line: int = 0
    end_column: int = 0


class RefusalView(Model, frozen=True, kw_only=True, rename="camel"):
    """The answer about an invalid expression or draft (status 200), and to refused requests (400 and above)."""

    error: str
    faults: list[Fault] = []


class Group(Model, frozen=True, kw_only=True, rename="camel"):
    """Nodes that are drawn together."""

    name: str
    nodes: int


class Colouring(Model, frozen=True, kw_only=True, rename="camel"):
    """A colouring of the map that is offered by name."""

    name: str
    expression: str
    unit: str = ""


class MapView(Model, frozen=True, kw_only=True, rename="camel"):
    """The nodes of the cluster map, by row; rows are sorted by name."""

    now: str
    """The time of the snapshot, RFC 3339."""
    nodes: list[str]
    grouping: str
    """`zone`, `region`, `none`, or a label's key."""
    groupings: list[str]
    """The groupings that are offered: the label keys with few values."""
    groups: list[Group]
    group_of: list[int]
    """The group of each row."""
    colourings: list[Colouring]


class ColourView(Model, frozen=True, kw_only=True, rename="camel"):
    """The value of an expression on each node, for the map.

    Either `numbers` or `classes` and `codes` have one entry per row: null and -1 where the expression failed.
    """

    expression: str
    type: str
    numbers: list[int | float | None] = []
    lowest: int | float | None = None
    highest: int | float | None = None
    classes: list[str] = []
    codes: list[int] = []
    failed: int = 0
    failure: str = ""
    """The commonest error."""


class Amount(Model, frozen=True, kw_only=True, rename="camel"):
    """One resource of a node: cpu in milli-cores, all else in base units."""

    resource: str
    unit: str
    allocatable: int
    requested: int
    used: int | float | None = None


class PodLine(Model, frozen=True, kw_only=True, rename="camel"):
    """A pod in a list."""

    key: str
    node: str = ""
    qos_class: str = ""
    priority_band: str = ""
    requests: dict[str, int] = {}


class Opinion(Model, frozen=True, kw_only=True, rename="camel"):
    """The result of all plugins about one pending pod and one node."""

    pod: str
    passed: bool
    plugin: str = ""
    """The first plugin that refused the node, or the pod as a whole."""
    rule: str = ""
    reason: str = ""


class Taint(Model, frozen=True, kw_only=True, rename="camel"):
    """A taint of a node."""

    key: str
    value: str = ""
    effect: str = ""


class NodeCondition(Model, frozen=True, kw_only=True, rename="camel"):
    """A condition of a node."""

    type: str
    status: str
    reason: str = ""


class NodeDetails(Model, frozen=True, kw_only=True, rename="camel"):
    """One node."""

    name: str
    zone: str
    region: str
    unschedulable: bool
    measured: bool
    metric_age: float | None
    """Seconds; null if it never had a metric."""
    labels: dict[str, str]
    taints: list[Taint]
    conditions: list[NodeCondition]
    amounts: list[Amount]
    pods: list[PodLine]
    opinions: list[Opinion]
    opinions_left_out: int = 0


class PluginColumn(Model, frozen=True, kw_only=True, rename="camel"):
    """A filter or a scorer in the decision matrix."""

    name: str
    origin: str
    document: bool
    """True for a policy document, false for a plugin in Python."""
    enforcement: str
    weight: int = 0
    refused: int = 0
    """The number of nodes that a filter refused."""


class MatrixRow(Model, frozen=True, kw_only=True, rename="camel"):
    """One node in the decision matrix."""

    node: str
    refused: list[int] = []
    """The filters that refused it and count, by number, first one first."""
    watched: list[int] = []
    """The filters that would have refused it, but only warn or audit."""
    total: int | None = None
    scores: list[int] = []
    """The score of each scorer, 0 to 100, if it passed."""


class PodView(Model, frozen=True, kw_only=True, rename="camel"):
    """A decision about a pod, for all nodes: made now, as if the pod were pending."""

    key: str
    node: str
    """The node that it is on; empty for a pending pod."""
    qos_class: str
    priority_band: str
    profile: str
    requests: dict[str, int]
    chosen: str | None
    passed: int
    message: str
    """Kube-scheduler's message; empty if a node was chosen."""
    refused_whole: str
    """The plugin that refused the pod before any node was looked at; else empty."""
    filters: list[PluginColumn]
    scorers: list[PluginColumn]
    rows: list[MatrixRow]
    """Nodes that pass, best first, then the others, fewest refusals first."""
    explanation: dict[str, Any]
    """The tree of findings that `koord-policy explain --output json` has."""


class PodNodeView(Model, frozen=True, kw_only=True, rename="camel"):
    """A pod on one node: plugin by plugin, with values, distances and counterfactuals."""

    pod: str
    node: str
    passed: bool
    explanation: dict[str, Any]


class RuleView(Model, frozen=True, kw_only=True, rename="camel"):
    """An expression of a policy, with its place."""

    point: str
    name: str
    expression: str
    line: int
    column: int


class PolicyView(Model, frozen=True, kw_only=True, rename="camel"):
    """One policy document."""

    name: str
    kind: str
    file: str
    line: int
    description: str
    enforcement: str
    points: list[str]
    profiles: list[str]
    """The profiles that it is limited to; empty for all."""
    active: bool
    """False if no profile of the cluster's pods has it."""
    reads: list[str]
    params: dict[str, Any]
    rules: list[RuleView]
    refuses: int
    """The number of pairs of a pending pod and a node that it refuses first."""


class PoliciesView(Model, frozen=True, kw_only=True, rename="camel"):
    """All policy documents, and what is wrong with them."""

    policies: list[PolicyView]
    files: list[str]
    faults: list[Fault]
    pending: int
    """The number of pending pods that `refuses` was counted for."""
    pairs: int


class FileView(Model, frozen=True, kw_only=True, rename="camel"):
    """The text of a policy file."""

    file: str
    text: str
    faults: list[Fault]


class CheckView(Model, frozen=True, kw_only=True, rename="camel"):
    """The problems and findings of a draft."""

    faults: list[Fault]
    policies: list[str]
    tests: int
    """The number of PolicyTests."""


class Verdicts(Model, frozen=True, kw_only=True, rename="camel"):
    """The results of a draft about a pod on each node, without all other plugins."""

    refused_by: list[int]
    """By row: the rule that refused the node, by number; -1 if none did."""
    rules: list[str]
    totals: list[int]
    """By row: the weighted sum of the scores."""
    passed: int


class EvaluationView(Model, frozen=True, kw_only=True, rename="camel"):
    """The expression at the cursor, on all nodes for a pod; `verdicts` of the whole draft."""

    expression: str
    """Empty if there is none at the cursor."""
    field: str
    line: int
    colours: ColourView | None
    verdicts: Verdicts | None
    failure: str = ""


class BudgetView(Model, frozen=True, kw_only=True, rename="camel"):
    """A budget of a change and what is spent of it."""

    name: str
    budget: str
    count: int
    of: int
    within: bool


class EffectView(Model, frozen=True, kw_only=True, rename="camel"):
    """The effect of a draft on the cluster, as `koord-policy diff --output json`."""

    difference: dict[str, Any]
    budgets: list[BudgetView]
    replaced: list[str]
    """The policies that the draft replaces."""


class Miss(Model, frozen=True, kw_only=True, rename="camel"):
    """An expectation of a test that was not met."""

    about: str
    expected: str
    got: str
    line: int = 0


class CaseView(Model, frozen=True, kw_only=True, rename="camel"):
    """The result of a test case."""

    suite: str
    name: str
    line: int
    passed: bool
    misses: list[Miss] = []


class TestsView(Model, frozen=True, kw_only=True, rename="camel"):
    """The results of a draft's PolicyTests, with coverage: the lines with an outcome that no case has shown."""

    cases: list[CaseView]
    missed: list[Fault]
    coverage: float
    """Percent of the outcomes of conditions that the cases have shown."""


class Completion(Model, frozen=True, kw_only=True, rename="camel"):
    """A word that may follow."""

    label: str
    kind: str
    """`field`, `value`, `variable`, `function` or `keyword`."""
    detail: str = ""
    doc: str = ""


class CompletionView(Model, frozen=True, kw_only=True, rename="camel"):
    """The words that may follow at an offset; `start` is the offset of the word that they replace."""

    start: int
    items: list[Completion]


class DescriptionView(Model, frozen=True, kw_only=True, rename="camel"):
    """The description of what is at an offset, as Markdown; empty if there is nothing to say."""

    markdown: str


class Waiting(Model, frozen=True, kw_only=True, rename="camel"):
    """A pending pod with the reason."""

    pod: str
    node: str | None
    """The node that it would get now; null if no node takes it."""
    message: str


class Gauge(Model, frozen=True, kw_only=True, rename="camel"):
    """One resource of the whole cluster."""

    resource: str
    unit: str
    allocatable: int
    requested: int
    used: int | float


class ClusterOverview(Model, frozen=True, kw_only=True, rename="camel"):
    """The state of the cluster and of the policies."""

    now: str
    source: str
    nodes: int
    unschedulable: int
    measured: int
    running: int
    pending: int
    gauges: list[Gauge]
    policies: dict[str, int]
    """The number of policies by kind."""
    digest: str
    """A hash of the files: of their names and texts."""
    errors: int
    warnings: int
    waiting: list[Waiting]
    waiting_left_out: int
    lacking: list[str]
    """Kinds that plugins read and that the dump lacks."""


class SearchResult(Model, frozen=True, kw_only=True, rename="camel"):
    """A search result."""

    kind: str
    """`node`, `pod` or `policy`."""
    name: str


class SearchView(Model, frozen=True, kw_only=True, rename="camel"):
    """The first results of a search, best first."""

    found: list[SearchResult]


class Session(Model, frozen=True, kw_only=True, rename="camel"):
    """The state of a page's access."""

    version: str
    protected: bool
    """True if a token is needed."""
    user: str
    seconds: float
    """The time that an evaluation may take."""


VIEWS: Final = (
    RefusalView, Session, ClusterOverview, MapView, ColourView, NodeDetails, PodView, PodNodeView, PoliciesView,
    FileView, CheckView, EvaluationView, EffectView, TestsView, CompletionView, DescriptionView,
    SearchView,
)
"""The models of whole answers."""
