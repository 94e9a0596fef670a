"""The models of running servers: their state, the pods that wait in them, and the use of rules."""

from __future__ import annotations

from .model import Fault, Model


class KindAge(Model, frozen=True, kw_only=True, rename="camel"):
    """The state of the watch of a kind."""

    kind: str
    age: float | None
    """Seconds since the API server was last heard of it; null for never."""
    fault: str = ""
    """The reason why it is not watched; empty if it is."""


class ServerLine(Model, frozen=True, kw_only=True, rename="camel"):
    """A running server, as it answered last."""

    endpoint: str
    kind: str
    """`scheduler`, `extender`, `descheduler`, `agent`, `manager`; empty while it has never answered."""
    state: str
    """`healthy`, `unhealthy`, `away` if it does not answer, or `pending` before the first answer."""
    error: str = ""
    """The reason why it is away."""
    silent: float | None = None
    """Seconds since its last answer; null before the first one."""
    generation: int | None = None
    hash: str = ""
    leading: bool | None = None
    """Null for servers without a Lease."""
    nodes: int | None = None
    restarts: int = 0
    """The number of restarts that were seen."""
    kinds: list[KindAge] = []
    kinds_left_out: int = 0
    refused: list[Fault] = []
    """The problems of newer policies, and of those in the shadow, with their places."""
    refused_left_out: int = 0
    problems: list[str] = []
    """All else that is wrong."""
    problems_left_out: int = 0


class AlertLine(Model, frozen=True, kw_only=True, rename="camel"):
    """An alert of deploy/monitoring whose condition holds."""

    name: str
    severity: str
    summary: str
    server: str
    """Its address; empty for an alert about several."""
    seconds: float
    """The time for which the condition has held."""
    firing: bool
    """True once it has held for as long as the alert requires."""


class ServerChart(Model, frozen=True, kw_only=True, rename="camel"):
    """A figure of all servers over the last minutes."""

    name: str
    """`bound`, `waiting`, `decision` or `evicted`."""
    unit: str
    points: list[float | None]
    """One per time of `ServersView.times`; null where it is not known."""


class ServersView(Model, frozen=True, kw_only=True, rename="camel"):
    """Running servers, and their figures over the last minutes."""

    interval: float
    """Seconds between two rounds of requests."""
    servers: list[ServerLine]
    disagreeing: list[str]
    """The kinds of servers whose replicas have policies with different hashes."""
    alerts: list[AlertLine]
    alerts_left_out: int
    times: list[float]
    """Seconds before the last round, ascending to 0."""
    charts: list[ServerChart]


class QueuedPodLine(Model, frozen=True, kw_only=True, rename="camel"):
    """A pod that waits, as its scheduler reports it."""

    pod: str
    server: str
    part: str
    """The part of the queue: `active`, `backoff`, `unschedulable`, `gated`; or `permit`, or `binding`."""
    reason: str = ""
    """The message of the last attempt, or of the gate; empty before the first attempt."""
    plugins: list[str] = []
    """The plugins that refused it."""
    plugins_left_out: int = 0
    gates: list[str] = []
    """The scheduling gates of its object."""
    gates_left_out: int = 0
    quota: str = ""
    gang: str = ""
    priority: int = 0
    attempts: int = 0
    seconds: float = 0.0
    """The time in the queue."""
    backoff_seconds: float | None = None
    """Seconds until it may be tried again; null if it does not back off."""
    nominated: str = ""


class WaitingView(Model, frozen=True, kw_only=True, rename="camel"):
    """The pods that wait in running schedulers: `GET /api/v1/waiting`, of one pod with `?key=NAMESPACE/NAME`."""

    known: bool
    """False without a running scheduler that reports them."""
    parts: dict[str, int]
    """The number of pods by part of the queue."""
    pods: list[QueuedPodLine]
    """By priority, then the longest-waiting first."""
    left_out: int


class RuleRate(Model, frozen=True, kw_only=True, rename="camel"):
    """The evaluations of one expression by all servers."""

    plugin: str
    point: str
    rule: str
    evaluations: int
    """The number of evaluations, counted by node, in the time of `RuleRatesView.seconds`."""
    errors: int
    refusals: int
    """The evaluations that refused the node, or the pod."""
    per_second: float
    """Evaluations per second in the last minutes."""


class RuleRatesView(Model, frozen=True, kw_only=True, rename="camel"):
    """The use of rules in running servers, most evaluated first.

    `GET /api/v1/rule-rates`, of one policy with `?policy=NAME`.
    """

    known: bool
    """False without a running server that counts evaluations."""
    seconds: float
    """The time that `evaluations`, `refusals` and `errors` are of: up to an hour."""
    rules: list[RuleRate]
    rules_left_out: int


class Versions(Model, frozen=True, kw_only=True, rename="camel"):
    """The versions of what views are computed of; a view is worth loading again once one of them has changed."""

    boot: str
    """Different after each start of the console."""
    cluster: int
    """The version of cluster and policies."""
    servers: int
    """The version of the figures of running servers."""
