"""The models of the view Time: the timeline of a flight recording, its moments, and replays under other policies."""

from __future__ import annotations

from koordpolicy.engine.flight_recorder.figures import WaitFigures

from .model import JobView, Model


class TimelinePolicies(Model, frozen=True, kw_only=True, rename="camel"):
    """Other policies became active, or the first ones that were recorded."""

    time: float
    generation: int
    digest: str
    added: list[str] = []
    removed: list[str] = []
    changed: list[str] = []


class TimelineGap(Model, frozen=True, kw_only=True, rename="camel"):
    """A time about which the recording knows nothing, or not everything."""

    start: float
    end: float
    dropped: int
    """The number of dropped records; 0 if it is unknown."""
    reason: str


class TimelineView(Model, frozen=True, kw_only=True, rename="camel"):
    """The timeline of a flight recording, in spans of equal length. Times are in seconds since the epoch."""

    recorded: bool
    """False if the console has no recording."""
    complete: bool
    """True if all that is written so far was read; else the timeline ends earlier for now."""
    segments: int
    segments_read: int
    start: float
    """Of the whole recording; 0 while nothing was read."""
    end: float
    width: float
    """The length of a span in seconds."""
    times: list[float]
    """The starts of the spans."""
    nodes: list[int]
    bound: list[int]
    """Pods on a node at the end of the span."""
    waiting: list[int]
    cpu: list[float]
    """Requests of pods on nodes at the end of the span, in percent of what is allocatable."""
    memory: list[float]
    placed: list[int]
    """Scheduling cycles in the span that found a node."""
    refused: list[int]
    """Scheduling cycles in the span that found none."""
    evicted: list[int]
    policies: list[TimelinePolicies]
    """The last ones."""
    policies_left_out: int = 0
    gaps: list[TimelineGap]
    notes: list[str]
    """Faults of segments, the last ones."""
    notes_left_out: int = 0


class RecordedReason(Model, frozen=True, kw_only=True, rename="camel"):
    """A reason why nodes were refused, as recorded."""

    plugin: str
    rule: str
    reason: str
    nodes: int


class RecordedDecision(Model, frozen=True, kw_only=True, rename="camel"):
    """A scheduling cycle, as recorded."""

    time: float
    pod: str
    node: str | None
    passed: int
    """The number of nodes that passed."""
    score: int | None = None
    next_node: str | None = None
    """The second-best node."""
    next_score: int | None = None
    reasons: list[RecordedReason] = []
    reasons_left_out: int = 0
    nominated: str = ""
    victims: list[str] = []
    victims_left_out: int = 0
    generation: int = 0
    milliseconds: float = 0.0


class RecordedDecisionView(Model, frozen=True, kw_only=True, rename="camel"):
    """The last recorded decision about a pod until a time."""

    key: str
    decision: RecordedDecision | None
    """Null if the segments before that time have none."""
    node: str
    """The node of the pod at that time; empty for none."""


class RecordedPolicy(Model, frozen=True, kw_only=True, rename="camel"):
    """A plugin of the scheduler then, compared with the console's policies."""

    name: str
    state: str
    """`same`, `changed`, `absentNow` or `absentThen`."""


class MomentPod(Model, frozen=True, kw_only=True, rename="camel"):
    """A pod that waited."""

    key: str
    reasons: list[RecordedReason]
    """Of its last recorded cycle."""
    reasons_left_out: int = 0


class MomentView(Model, frozen=True, kw_only=True, rename="camel"):
    """The recorded cluster at a time, and what was decided before it."""

    time: float
    nodes: int
    bound: int
    waiting: list[MomentPod]
    """Pods for which no node was found first."""
    waiting_left_out: int
    generation: int
    digest: str
    policies: list[RecordedPolicy]
    """Policies, and all plugins that differ from those of the console."""
    policies_left_out: int = 0
    decisions: list[RecordedDecision]
    """The last ones, newest first; of each pod the last."""
    decisions_left_out: int = 0
    refused: str
    """The reason why the console's policies cannot decide at this time: a field that they read was not recorded."""
    help: str


class ReplayUse(Model, frozen=True, kw_only=True, rename="camel"):
    """Mean requests in percent of what is allocatable, and mean numbers of pods."""

    cpu: float
    memory: float
    gpu: float
    running: float
    pending: float


class ReplayPlacement(Model, frozen=True, kw_only=True, rename="camel"):
    """A pod got a node."""

    node: str
    time: float


class ReplayDifference(Model, frozen=True, kw_only=True, rename="camel"):
    """A pod for which the replay differs from the recording."""

    pod: str
    changes: list[str]
    """`elsewhere`, `later`, `sooner`, `never`, `onlyReplayed`."""
    recorded: ReplayPlacement | None
    replayed: ReplayPlacement | None
    delay: float
    """Seconds by which it was placed later; negative if sooner."""
    reasons: dict[str, int]
    """Why it got no node at first: the number of nodes by reason."""


class ReplayEviction(Model, frozen=True, kw_only=True, rename="camel"):
    """An evicted pod."""

    time: float
    pod: str
    node: str
    by: str
    reason: str


class ReplayResult(Model, frozen=True, kw_only=True, rename="camel"):
    """The result of a replay, as `koord-policy replay --recorded` computes it."""

    pods: int
    counts: dict[str, int]
    """The number of pods by what differs about them."""
    waiting: int
    differences: list[ReplayDifference]
    """The worst first."""
    differences_left_out: int
    recorded_evictions: list[ReplayEviction]
    recorded_evictions_left_out: int
    evictions: list[ReplayEviction]
    evictions_left_out: int
    recorded_preemptions: int
    """The evictions that the recorded scheduler made."""
    preemptions: int
    """Those that the scheduler of the replay made."""
    others_evictions: int
    """The recorded evictions by others, such as a drain; they happen in the replay, too."""
    other_losses: int
    """The pods that only the replay lost, as their node there was deleted or a plugin evicted them."""
    recorded_waits: WaitFigures
    waits: WaitFigures
    recorded_use: ReplayUse
    use: ReplayUse
    times: list[float]
    recorded_series: list[ReplayUse]
    series: list[ReplayUse]
    recorded_decisions: int
    decisions: int
    same_policies: bool
    """True if the policies of the replay are those that decided then."""
    problems: list[str]
    """Errors of expressions, gaps and faults of the recording."""
    problems_left_out: int = 0
    seconds: float


class ReplayView(JobView, frozen=True, kw_only=True, rename="camel"):
    """A replay that was started: how far it is, or its result.

    It is `reading` the recording, then `replaying`; `of` is the number of recorded scheduling cycles.
    """

    start: float
    end: float
    draft: bool
    """True if a draft of the playground is replayed, false for the console's policies."""
    replaced: list[str] = []
    """The policies that the draft replaces."""
    result: ReplayResult | None = None
