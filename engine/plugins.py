"""What a Python plugin is: a class that fulfils one or more of these small protocols, and how it is found.

The same protocols hold for what documents compile to. A plugin may answer per column (`filter`, `score`: one answer
for all nodes) or per node (`filter_node`, `score_node`); the frameworks ask whichever it has. Classes become registry
entries by `python_plugin`; those of other distributions are found by `discover`, and so are functions that expressions
may call, made by `cel_function`.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from .cel.ast import Macro
from .cel.environment import Cost, Function, Overload, Reads
from .cel.lexer import RESERVED
from .cel.types import Type, parse_type
from .cel.values import INT64_MAX, INT64_MIN, EvaluationError
from .points import Framework, Point, functions
from .registry import Plugin
from .source import Problem

if TYPE_CHECKING:
    import logging
    from importlib.metadata import EntryPoint

    from .cel.frame import Rows
    from .cluster.pods import PodInfo
    from .cluster.snapshot import Snapshot
    from .points import Answer, Refusal, Scores


class CycleState(dict[object, Any]):
    """What plugins remember during one decision, under keys of their own (use a class as the key)."""


@runtime_checkable
class PreFilter(Protocol):
    """Asked once per pod, before any node: a refusal ends the decision."""

    def pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return why this pod cannot be placed at all, or None."""
        ...


@runtime_checkable
class Filter(Protocol):
    """Asked once per pod for all nodes."""

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Return which nodes the pod may run on; only `rows` (ascending row numbers) need an answer."""
        ...


@runtime_checkable
class FilterNode(Protocol):
    """Asked per node; simpler to write than `Filter`, and much slower on large clusters."""

    def filter_node(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Return why the pod may not run on the node at this row, or None."""
        ...


@runtime_checkable
class Score(Protocol):
    """Asked once per pod for the nodes that passed."""

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Return 0..100 for `rows`, normalised over them; the framework checks the range."""
        ...


@runtime_checkable
class ScoreNode(Protocol):
    """Asked per node; see `FilterNode`."""

    def score_node(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> int:
        """Return 0..100 for the node at this row."""
        ...


@runtime_checkable
class Reserve(Protocol):
    """Takes what the pod needs on the chosen node (devices, for example) and can give it back."""

    def reserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Reserve for the pod on the node; a refusal undoes what others reserved."""
        ...

    def unreserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> None:
        """Undo `reserve`; idempotent, and may come without it."""
        ...


@dataclass(frozen=True, slots=True)
class Adjustment:
    """What a QoS plugin wants done on a node: an action by its kind, what it is done to, and why.

    `values` are the numbers that led to it, for people. `writes` are the control group files to write, in this order,
    each with its text; an empty tuple for actions that write none. An eviction's `subject` is the pod's key. `recovers`
    marks what gives back an earlier adjustment.
    """

    kind: str
    subject: str
    reason: str
    item: str = ""
    values: Mapping[str, object] = field(default_factory=dict)
    writes: tuple[tuple[str, str], ...] = ()
    recovers: bool = False


class Readings(Protocol):
    """One node at one moment: its objects, what was measured on it up to then, and its control group files.

    Usages are in canonical units (cpu in milli-cores, all else in base units). `statistic` is `avg`, `p50`, `p90`,
    `p95`, `p99`, `last` or `count`; `window` reaches back from `now`, in nanoseconds (0: two collection intervals). A
    usage that was not measured within the window raises `EvaluationError` with reason `NoMetric`: it is never 0.
    """

    @property
    def now(self) -> int:
        """The moment, in nanoseconds since the epoch."""
        ...

    @property
    def node(self) -> Mapping[str, Any]:
        """The node as the API server serves it."""
        ...

    @property
    def pods(self) -> tuple[PodInfo, ...]:
        """The pods on the node."""
        ...

    @property
    def files(self) -> Mapping[str, str]:
        """The control group files by logical name (`besteffort/cpu.cfs_quota_us`) with their text."""
        ...

    def object(self, kind: str) -> Mapping[str, Any] | None:
        """Return the object of that kind with the node's name (`NodeSLO`, `NodeResourceTopology`), if there is one."""
        ...

    def node_usage(self, resource: str, statistic: str = "last", window: int = 0) -> float:
        """Return what the node used."""
        ...

    def pod_usage(self, key: str, resource: str, statistic: str = "last", window: int = 0) -> float:
        """Return what the pod used."""
        ...

    def application_usage(self, name: str, resource: str, statistic: str = "last", window: int = 0) -> float:
        """Return what a declared host application used."""
        ...


@runtime_checkable
class Strategy(Protocol):
    """Asked once per interval and node: what is to be adjusted for the sake of the quality of service."""

    @property
    def interval(self) -> int:
        """How long the QoS manager waits between two rounds, in nanoseconds, above 0."""
        ...

    def adjust(self, readings: Readings) -> Sequence[Adjustment]:
        """Return what to do now; raises `EvaluationError` where that cannot be told, and then nothing is done."""
        ...

    def recover(self, readings: Readings) -> Sequence[Adjustment]:
        """Return what gives back all that this strategy changed on the node; idempotent."""
        ...


class Evictor(Protocol):
    """What a descheduling plugin sees of its framework: whether a pod may go, and the way to let it go.

    Everything asked here is remembered per candidate, so that a cycle can say what stopped which pod.
    """

    def filter(self, pod: PodInfo) -> Refusal | None:
        """Return why the pod may never be evicted, or None."""
        ...

    def pre_eviction_filter(self, pod: PodInfo) -> Refusal | None:
        """Return why the pod may not be evicted right now, or None."""
        ...

    def evict(self, pod: PodInfo, reason: str, *, rule: str = "") -> bool:
        """Evict the pod (in a dry run: note that it would be) unless a limit stops it; does not ask the filters.

        `rule` names the criterion or the phase that chose the pod.
        """
        ...

    def keep(self, pod: PodInfo, refusal: Refusal, *, rule: str = "") -> None:
        """Note that a candidate that `rule` chose stays, and why, where the plugin itself decided that."""
        ...

    def observe(self, node: str, role: str, message: str = "") -> None:
        """Note what a node was found to be: `source`, `target`, `waiting` (not a source yet) or `unmeasured`."""
        ...

    def fail(self, rule: str, subject: str, message: str) -> None:
        """Note that a rule failed on a pod or a node."""
        ...

    def node_limit_exceeded(self, node: str) -> bool:
        """Return whether no more pods may be evicted from the node in this cycle."""
        ...

    def is_leaving(self, pod: PodInfo) -> bool:
        """Return whether the pod was evicted in this cycle already, by whichever plugin."""
        ...


@runtime_checkable
class Deschedule(Protocol):
    """Repairs single pods that are wrong where they are; asked before all `Balance` plugins of all profiles."""

    def deschedule(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> None:
        """Evict what must go from the nodes at `rows`; an exception is this plugin's failure and stops no other one."""
        ...


@runtime_checkable
class Balance(Protocol):
    """Optimises over a set of nodes."""

    def balance(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> None:
        """Evict what the balance over the nodes at `rows` needs; see `Deschedule` for failures."""
        ...


@runtime_checkable
class EvictionFilter(Protocol):
    """A veto: which pods may never be evicted, whoever asks."""

    def eviction_filter(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return why the pod must stay, or None."""
        ...


@runtime_checkable
class PreEvictionFilter(Protocol):
    """A veto on this eviction now (no other node takes the pod, for example)."""

    def pre_eviction_filter(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return why the pod must stay for now, or None."""
        ...


@runtime_checkable
class Evict(Protocol):
    """Carries evictions out; a profile has exactly one."""

    def evict(self, pod: PodInfo, reason: str) -> bool:
        """Evict the pod and return whether that worked; asks no filter."""
        ...


@runtime_checkable
class Startable(Protocol):
    """Has something to set up once it is made and before it is asked anything."""

    def start(self) -> None:
        """Set up; called once. If it raises, the generation that wanted the plugin does not run."""
        ...


@runtime_checkable
class Closeable(Protocol):
    """Has something to give back when the last decision that holds its generation is done."""

    def close(self) -> None:
        """Release what the instance holds; called once."""
        ...


Arguments = Mapping[str, Any]

ENTRY_POINTS: Final = "koordpolicy.plugins"
"""The entry-point group by which distributions offer plugins."""


class Count(Protocol):
    """Adds to a counter of the framework's metrics; a name that does not exist yet begins at 0."""

    def __call__(self, name: str, amount: float = 1, /, **labels: str) -> None:
        """Add `amount` (0 or more) to the counter `name` under these labels."""
        ...


def _uncounted(_name: str, _amount: float = 1, /, **_labels: str) -> None:
    return


@dataclass(frozen=True, slots=True)
class Handle:
    """What a plugin is given when it is made: `factory(args, handle)`.

    `profile` is empty in the QoS manager, which has none. `snapshot` returns the cluster as it is at the moment (what a
    decision asks about comes as an argument instead); only while a plugin is asked something, never while it is made or
    started, which happens beside running decisions. `now` is the framework's clock, in nanoseconds since the epoch;
    `seed` is what all chance in a run follows from.
    """

    profile: str
    snapshot: Callable[[], Snapshot]
    now: Callable[[], int]
    log: logging.Logger
    count: Count = _uncounted
    seed: int = 0


PROTOCOLS: Final[Mapping[Point, tuple[type, ...]]] = {
    Point.PRE_FILTER: (PreFilter,),
    Point.FILTER: (Filter, FilterNode),
    Point.SCORE: (Score, ScoreNode),
    Point.RESERVE: (Reserve,),
    Point.STRATEGY: (Strategy,),
    Point.DESCHEDULE: (Deschedule,),
    Point.BALANCE: (Balance,),
    Point.EVICTION_FILTER: (EvictionFilter, PreEvictionFilter),
}
"""What a plugin must fulfil to be asked at a point: one of these."""

FRAMEWORKS: Final[Mapping[Framework, tuple[Point, ...]]] = {
    Framework.SCHEDULER: (Point.PRE_FILTER, Point.FILTER, Point.SCORE, Point.RESERVE),
    Framework.QOS: (Point.STRATEGY,),
    Framework.DESCHEDULER: (Point.DESCHEDULE, Point.BALANCE, Point.EVICTION_FILTER),
}
"""The points that Python plugins can be asked at."""


def points_of(plugin: type, framework: Framework) -> tuple[Point, ...]:
    """Return the points of the framework whose protocols a class (or protocol) fulfils, by the names of its methods."""
    return tuple(point for point in FRAMEWORKS[framework]
                 if any(all(callable(getattr(plugin, name, None)) for name in _methods(protocol))
                        for protocol in PROTOCOLS[point]))


def _methods(protocol: type) -> tuple[str, ...]:
    return tuple(name for name, value in vars(protocol).items() if inspect.isfunction(value) and name[0] != "_")


def python_plugin(
    name: str,
    framework: Framework,
    make: Callable[[Mapping[str, Any], Any], Any],
    *,
    check_args: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    points: Sequence[Point] | None = None,
    description: str = "",
    order: int = 0,
    weight: int = 1,
    enabled: bool = False,
    version: str = "1",
) -> Plugin:
    """Return the registry entry of a Python plugin.

    `make` is a class whose instances are made with `(args, handle)`, or a factory that returns them. `points` are
    those that the class fulfils the protocols of; a factory must name them, unless its return annotation is a class.
    `version` is to be raised whenever the plugin decides differently, so that a reload makes it anew. The other
    arguments are those of `Plugin`. Raises `ValueError` if the plugin cannot be asked at any point.
    """
    if points is None:
        kind = make if isinstance(make, type) else inspect.get_annotations(make, eval_str=True).get("return")
        points = points_of(kind, framework) if isinstance(kind, type) else ()
    if not points:
        raise ValueError(f"the {framework.value} plugin `{name}` can be asked at no extension point: it fulfils none "
                         "of the protocols, or its factory does not say what it returns")
    if foreign := [point.value for point in points if point not in FRAMEWORKS[framework]]:
        raise ValueError(f"the {framework.value} plugin `{name}` names points that its framework does not ask at: "
                         f"{', '.join(foreign)}")
    where = f"{make.__module__}:{getattr(make, '__qualname__', name)}"
    digest = hashlib.sha256(f"{where} {name} {version}".encode()).hexdigest()[:16]
    summary = description or next(iter((inspect.getdoc(make) or "").splitlines()), "")
    return Plugin(name, framework, tuple(points), make, where, digest, description=summary, order=order,
                  weight=weight, enabled=enabled, check_args=check_args)


_MACROS: Final = frozenset((
    *(each.value for each in Macro), "existsOne", "has", "optMap", "optFlatMap", "bind",
))
_RESULTS: Final[Mapping[str, type]] = {
    "bool": bool, "int": int, "double": float, "string": str, "bytes": bytes, "list": list, "map": dict,
}


def cel_function(
    name: str,
    evaluate: Callable[..., object],
    parameters: Sequence[str],
    result: str,
    *,
    doc: str,
    example: str = "",
    member: bool = False,
    cost: Cost | None = None,
    pure: bool = True,
    reads: Reads | None = None,
    by_column: Callable[..., tuple[Any, Any]] | None = None,
) -> Function:
    """Return a function that expressions may call, to be offered as plugins are (see `discover`).

    `parameters` and `result` are types as the language spells them (`int`, `list(string)`, `kubernetes.Pod`); of a
    `member` function the first is the receiver. `evaluate` takes and returns plain values of these types (objects as
    JSON, never to be changed) and raises `EvaluationError` with what people should read; anything else that it raises,
    and a result of another type, is such an error too. `pure` is false for what may answer differently for the same
    arguments: it is asked anew for each row. `cost` is that of a call in Kubernetes' units, 1 where it is left out.
    `example` is an expression that is true. The rest is as in
    `environment.Overload`. Functions of one name with several signatures are joined by giving all of them to
    `Function`. Raises `ValueError` for a name or a type that cannot be.
    """
    if fault := _fault_of_name(name):
        raise ValueError(f"`{name}` cannot be a function: {fault}")
    types = tuple(map(parse_type, parameters))
    returned = parse_type(result)
    if member and not types:
        raise ValueError(f"`{name}` is a member function without a receiver: name its type as the first parameter")
    identity = f"{name}_{'_'.join(parameters)}"
    overload = Overload(
        identity, types, returned, _guarded(name, evaluate, returned), member=member, cost=cost or Cost(),
        pure=pure, reads=reads, by_column=by_column,
    )
    return Function(name, (overload,), doc, example)


def _fault_of_name(name: str) -> str:
    """Return why a function cannot have a name; empty where it can."""
    parts = name.split(".")
    for part in parts:
        if not (part.isascii() and part.isidentifier()):
            return "a name is letters, digits and `_`, and may have a prefix with a dot"
        if part in RESERVED or part in {"true", "false", "null", "in"}:
            return f"`{part}` is a reserved word"
    if parts[-1] in _MACROS:
        return f"`{parts[-1]}` is a macro of the language"
    return f"there is a function `{name}` already" if name in functions() else ""


def _guarded(name: str, evaluate: Callable[..., object], result: Type) -> Callable[..., object]:
    expected = _RESULTS.get(result.name)

    def call(*arguments: object) -> object:
        try:
            value = evaluate(*arguments)
        except EvaluationError:
            raise
        except Exception as error:  # foreign code: what it raises is an error of the expression that calls it
            raise EvaluationError(f"`{name}` failed: {type(error).__name__}: {error}") from error
        if expected is not None and type(value) is not expected:
            raise EvaluationError(f"`{name}` gave {type(value).__name__}, not {result}")
        if expected is int and not INT64_MIN <= value <= INT64_MAX:  # type: ignore[operator]
            raise EvaluationError("integer overflow")
        return value

    return call


@dataclass(frozen=True, slots=True)
class Offers:
    """What installed distributions bring: plugins by framework and name, and functions for expressions by name."""

    plugins: tuple[Plugin, ...] = ()
    functions: tuple[Function, ...] = ()


def discover(
    report: Callable[[Problem], None], entry_points: Iterable[EntryPoint] | None = None
) -> Offers:
    """Return what installed distributions offer in the group `koordpolicy.plugins`.

    An entry point names a `Plugin`, a function for expressions (see `cel_function`), a sequence of these, a module with
    a sequence `PLUGINS` or `FUNCTIONS`, or a Python function without arguments that returns one of these. What cannot
    be loaded is told to `report` and stops nothing else; where two distributions offer the same name, that is told, and
    neither is taken, and so it is with a function whose name is taken already.
    """
    found: dict[tuple[Framework, str], list[Plugin]] = {}
    offered: dict[str, list[tuple[str, Function]]] = {}
    if entry_points is None:
        from importlib import metadata  # noqa: PLC0415 - 25 ms that only those pay who run plugins

        entry_points = metadata.entry_points(group=ENTRY_POINTS)
    for point in sorted(entry_points, key=lambda each: (each.name, each.value)):
        origin = f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
        try:
            plugins, brought = _offered(point.load())
        except Exception as error:  # foreign code: whatever it raises is no reason to lose the others
            report(Problem(f"the plugin `{point.name}` of {origin} cannot be loaded: {type(error).__name__}: {error}",
                           help=f"repair or uninstall it; its entry point is `{point.value}`", code="plugin-load"))
            continue
        for plugin in plugins:
            digest = hashlib.sha256(f"{plugin.digest} {origin}".encode()).hexdigest()[:16]
            found.setdefault((plugin.framework, plugin.name), []).append(replace(plugin, origin=origin, digest=digest))
        for function in brought:
            offered.setdefault(function.name, []).append((origin, function))
    for (framework, name), offers in found.items():
        if len(offers) > 1:
            report(Problem(f"the {framework.value} plugin `{name}` is offered more than once: "
                           f"{', '.join(sorted(offer.origin for offer in offers))}",
                           help="uninstall all but one", code="duplicate-name"))
    taken = [offers[0] for offers in found.values() if len(offers) == 1]
    return Offers(
        tuple(sorted(taken, key=lambda plugin: (plugin.framework.value, plugin.name))),
        tuple(_without_collisions(offered, report)),
    )


def _without_collisions(
    offered: Mapping[str, Sequence[tuple[str, Function]]], report: Callable[[Problem], None],
) -> Iterator[Function]:
    for name, offers in sorted(offered.items()):
        origins = ", ".join(sorted(origin for origin, _ in offers))
        if fault := _fault_of_name(name):
            report(Problem(f"the function `{name}` of {origins} cannot be offered: {fault}",
                           help="give it another name, for example with a prefix", code="duplicate-name"))
        elif len(offers) > 1:
            report(Problem(f"the function `{name}` is offered more than once: {origins}",
                           help="uninstall all but one", code="duplicate-name"))
        else:
            yield offers[0][1]


def _offered(offer: Any) -> tuple[list[Plugin], list[Function]]:
    if inspect.ismodule(offer):
        parts = [getattr(offer, name) for name in ("PLUGINS", "FUNCTIONS") if hasattr(offer, name)]
        if not parts:
            raise AttributeError(f"module `{offer.__name__}` has neither `PLUGINS` nor `FUNCTIONS`")
        offer = [each for part in parts for each in part]
    if callable(offer) and not isinstance(offer, Plugin):
        offer = offer()
    offers = (offer,) if isinstance(offer, Plugin | Function) else tuple(offer)
    for each in offers:
        if not isinstance(each, Plugin | Function):
            raise TypeError(f"it offers {each!r}, which is no plugin")
    plugins = [each for each in offers if isinstance(each, Plugin)]
    return plugins, [each for each in offers if isinstance(each, Function)]
