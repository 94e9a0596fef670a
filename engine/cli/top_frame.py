"""One frame of `top`: figures of a cluster and of servers, and their table for terminals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from koordpolicy.engine.escaping import one_line
from koordpolicy.engine.explanation import counted
from koordpolicy.engine.kubernetes.times import rfc3339
from koordpolicy.engine.monitoring.figures import ServerFigures

from .sparks import time_of
from .terminal import bar
from .top_screen import HELP, Part, TopScreen
from .top_servers import server_lines

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from koordpolicy.engine.cluster.cluster import Cluster
    from koordpolicy.engine.cluster.objects.pods import PodInfo
    from koordpolicy.engine.cluster.snapshot import Snapshot
    from koordpolicy.engine.console.models.servers import ServersView

T = TypeVar("T")
_RESOURCES: Final = ("cpu", "memory")
_MEBIBYTE: Final = 1024 * 1024
_LEAST_ROWS: Final = 3


@dataclass(frozen=True, slots=True)
class NodeHeat:
    """A node: percent of its allocatable amounts that pods request and that were measured (None: not measured)."""

    name: str
    pods: int
    requested: Mapping[str, float]
    measured: Mapping[str, float] | None
    unschedulable: bool

    @property
    def heat(self) -> tuple[float, float]:
        """The order of nodes: the highest measured share, then the highest requested one."""
        return max((self.measured or {}).values(), default=0.0), max(self.requested.values())

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"name": self.name, "pods": self.pods, "requested": dict(self.requested),
                "measured": None if self.measured is None else dict(self.measured),
                "unschedulable": self.unschedulable}


@dataclass(frozen=True, slots=True)
class PodWait:
    """A pod without a node: its requests in milli-cores and bytes, since when it exists, and the reason."""

    pod: str
    priority: int
    cpu: int
    memory: int
    seconds: float | None
    """None if the time of its creation is not known."""
    reason: str
    nominated: str

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"pod": self.pod, "priority": self.priority, "requests": {"cpu": self.cpu, "memory": self.memory},
                "seconds": self.seconds, "reason": self.reason, "nominatedNode": self.nominated or None}


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """Figures of a cluster at a time in ns since the epoch: hot nodes first, waiting pods by priority and age."""

    source: str
    now: int
    bound: int
    nodes: tuple[NodeHeat, ...]
    waiting: tuple[PodWait, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "source": self.source, "time": rfc3339(self.now), "boundPods": self.bound,
            "measuredNodes": sum(each.measured is not None for each in self.nodes),
            "nodes": [each.to_json() for each in self.nodes], "waitingPods": [each.to_json() for each in self.waiting],
        }


@dataclass(frozen=True, slots=True)
class TopFrame:
    """The content of the screen; `cluster` is None if only servers are shown."""

    servers: tuple[ServerFigures, ...] = ()
    cluster: ClusterFigures | None = None
    note: str = ""
    """The reason why figures are missing or old."""
    view: ServersView | None = None
    """The servers as lines of the console's overview: with figures over the last minutes, and alerts."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"servers": [each.to_json() for each in self.servers],
                "cluster": None if self.cluster is None else self.cluster.to_json()}


def cluster_figures(cluster: Cluster, now: int, source: str) -> ClusterFigures:
    """Return the figures of a cluster at a time in ns since the epoch."""
    snapshot = cluster.snapshot(now)
    nodes = sorted(_loads(snapshot), key=lambda each: (-each.heat[0], -each.heat[1], each.name))
    waiting = sorted((_wait(pod, now) for pod in cluster.pending),
                     key=lambda each: (-each.priority, -(each.seconds or 0), each.pod))
    return ClusterFigures(source, now, len(cluster.bound_pods()), tuple(nodes), tuple(waiting))


def _loads(snapshot: Snapshot) -> Iterator[NodeHeat]:
    for number, name in enumerate(snapshot.names):
        row = snapshot.row(number)
        usage = row.metric.usage if row.metric is not None and snapshot.is_fresh(number) else None
        measured = None
        if usage is not None:
            measured = {each: _share(usage[each], row.allocatable[each]) for each in _RESOURCES if each in usage}
        yield NodeHeat(
            name, len(row.pods), {each: _share(row.requested[each], row.allocatable[each]) for each in _RESOURCES},
            measured, bool((row.node.get("spec") or {}).get("unschedulable")),
        )


def _share(amount: float, whole: float) -> float:
    return round(100 * amount / whole, 1) if whole else 0.0


def _wait(pod: PodInfo, now: int) -> PodWait:
    from koordpolicy.engine.cluster.objects.metrics import nanoseconds  # numpy

    metadata, status = pod.object.get("metadata") or {}, pod.object.get("status") or {}
    try:
        seconds: float | None = max(0.0, round((now - nanoseconds(metadata["creationTimestamp"], "")) / 1e9, 3))
    except (KeyError, TypeError, ValueError):
        seconds = None
    gates = [str(each.get("name")) for each in (pod.object.get("spec") or {}).get("schedulingGates") or ()]
    reasons = [str(each.get("message") or each.get("reason") or "") for each in status.get("conditions") or ()
               if each.get("type") == "PodScheduled" and each.get("status") != "True"]
    reason = f"gates: {', '.join(gates)}" if gates else next(iter(reasons), "")
    return PodWait(pod.key, pod.priority, pod.requests["cpu"], pod.requests["memory"], seconds, reason,
                   str(status.get("nominatedNodeName") or ""))


def rendered(
    frame: TopFrame, *, height: int | None, width: int, live: bool, screen: TopScreen | None = None,
) -> RenderableType:
    """Return a frame for a terminal of some lines (None: all rows) and columns; `live` adds a line about keys.

    `screen` is the part that is shown, all by default.
    """
    from rich.console import Group
    from rich.text import Text

    shown = screen or TopScreen()
    if shown.helping:
        return Group(*map(Text, HELP))
    room = None if height is None else max(1, height - bool(frame.note) - live)
    parts = list(_PAINTERS[shown.part](frame, room, width, shown))
    if frame.note:
        parts.append(Text(one_line(frame.note), style="red", no_wrap=True, overflow="ellipsis"))
    if live:
        rows = shown.last + shown.page
        place = f"  rows {shown.offset + 1}-{min(rows, shown.offset + shown.page)} of {rows:,}" if shown.last else ""
        parts.append(Text(f"q: quit  ?: keys  {_TABS}{place}", style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


_TABS: Final = "1: all  2: servers  3: nodes  4: pods"


def _all(frame: TopFrame, room: int | None, width: int, screen: TopScreen) -> Iterator[RenderableType]:
    from rich.text import Text

    if frame.view is not None and frame.view.servers:
        lines = list(server_lines(frame.view))
        if room is not None:
            most = room if frame.cluster is None else max(_LEAST_ROWS, room // 3)
            if len(lines) > most:
                lines[most - 1:] = [Text(f"... {counted(len(lines) - most + 1, 'more line')}: press 2", style="dim")]
            room -= len(lines) + 1
        yield from (*lines, Text())
    if (cluster := frame.cluster) is None:
        return
    yield from _heading(cluster, one_line_only=room is not None)
    rows = None if room is None else max(2 * _LEAST_ROWS, room - _HEADS_OF_BOTH)
    of_pods = None if rows is None else min(rows // 2, len(cluster.waiting))
    of_nodes = None if rows is None or of_pods is None else rows - of_pods
    if of_nodes is not None and of_pods is not None:
        screen.fit(max(len(cluster.nodes), len(cluster.waiting) + of_nodes - of_pods), of_nodes)
    yield from (_nodes(_part(cluster.nodes, screen, of_nodes), width), Text(),
                _pods(_part(cluster.waiting, screen, of_pods)))


_HEADS_OF_BOTH: Final = 5
"""The lines of a cluster that are neither nodes nor pods: headings, and empty lines."""


def _all_servers(frame: TopFrame, room: int | None, _: int, screen: TopScreen) -> Iterator[RenderableType]:
    from rich.text import Text

    if frame.view is None or not frame.view.servers:
        yield Text("no servers are shown: name them with `--endpoints`")
        return
    lines = list(server_lines(frame.view, whole=True))
    screen.fit(len(lines), len(lines) if room is None else room)
    yield from _part(lines, screen, room)


def _all_nodes(frame: TopFrame, room: int | None, width: int, screen: TopScreen) -> Iterator[RenderableType]:
    yield from _table(frame, room, screen, lambda cluster: cluster.nodes, lambda nodes: _nodes(nodes, width))


def _all_pods(frame: TopFrame, room: int | None, _: int, screen: TopScreen) -> Iterator[RenderableType]:
    yield from _table(frame, room, screen, lambda cluster: cluster.waiting, _pods)


_PAINTERS: Final = {Part.ALL: _all, Part.SERVERS: _all_servers, Part.NODES: _all_nodes, Part.PODS: _all_pods}


def _table(
    frame: TopFrame, room: int | None, screen: TopScreen, rows_of: Callable[[ClusterFigures], Sequence[T]],
    table: Callable[[Sequence[T]], RenderableType],
) -> Iterator[RenderableType]:
    from rich.text import Text

    if frame.cluster is None:
        yield Text("no cluster is shown: name one with `--cluster`")
        return
    rows = rows_of(frame.cluster)
    fitting = len(rows) if room is None else max(_LEAST_ROWS, room - 3)
    screen.fit(len(rows), fitting)
    yield from _heading(frame.cluster, one_line_only=room is not None)
    yield table(_part(rows, screen, fitting))


def _part(rows: Sequence[T], screen: TopScreen, most: int | None) -> Sequence[T]:
    """Return the rows that are shown; the last ones where a list is shorter than the other one beside it."""
    if most is None:
        return rows
    first = min(screen.offset, max(0, len(rows) - most))
    return rows[first:first + most]


def _heading(cluster: ClusterFigures, *, one_line_only: bool) -> Iterator[Text]:
    from rich.text import Text

    measured = sum(each.measured is not None for each in cluster.nodes)
    figures = (f"{counted(len(cluster.nodes), 'node')} ({measured} measured), "
               f"{counted(cluster.bound, 'pod')} bound, {len(cluster.waiting)} waiting")
    yield Text(one_line(f"{figures}: {cluster.source} at {rfc3339(cluster.now)}"), style="bold",
               no_wrap=one_line_only, overflow="ellipsis")
    yield Text()


def _grid(*heads: tuple[str, str]) -> Table:
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name, justify in heads:
        last = name in ("reason", "node")
        grid.add_column(name, justify=justify, no_wrap=True,  # type: ignore[arg-type]
                        overflow="ellipsis" if last else "fold")
    return grid


_WITHOUT_BARS: Final = 54
"""The characters of a row of nodes beside the name and both bars: figures, titles and the blanks between them."""
_SHORTEST_BAR: Final = 4


def _nodes(nodes: Sequence[NodeHeat], width: int) -> RenderableType:
    shown = {f"{each.name} (cordoned)" if each.unschedulable else each.name: each for each in nodes}
    # Where not all fits, bars and titles are shortened, then bars left out: they repeat what the numbers say.
    room = width - max(map(len, shown), default=0) - _WITHOUT_BARS
    requested, cells_of_bar = "requested", min(10, room // 2)
    if cells_of_bar < 10:
        requested, cells_of_bar = "req.", min(10, (room + 2 * (len("requested") - len("req."))) // 2)
    bars = cells_of_bar >= _SHORTEST_BAR
    measured = [(head, "right") for head in ("cpu", "mem")]
    grid = _grid(("node", "left"), ("pods", "right"),
                 *(each for head in measured for each in (head, ("", "left"))[:1 + bars]),
                 (f"cpu {requested}", "right"), (f"mem {requested}", "right"))
    for name, each in shown.items():
        cells: list[Any] = [_plain(name), str(each.pods)]
        for resource in _RESOURCES:
            share = (each.measured or {}).get(resource)
            cells.append("-" if share is None else f"{share:.0f} %")
            if bars:
                cells.append("" if share is None else bar(share, cells_of_bar))
        grid.add_row(*cells, *(f"{each.requested[resource]:.0f} %" for resource in _RESOURCES))
    return grid


def _pods(pods: Sequence[PodWait]) -> RenderableType:
    grid = _grid(("waiting pod", "left"), ("priority", "right"), ("cpu", "right"), ("mem", "right"), ("since", "right"),
                 ("reason", "left"))
    for each in pods:
        reason = f"nominated to {each.nominated}" if each.nominated else each.reason or "no attempt is reported"
        grid.add_row(_plain(each.pod), str(each.priority), f"{each.cpu}m", f"{each.memory // _MEBIBYTE}Mi",
                     "?" if each.seconds is None else time_of(each.seconds), _plain(reason))
    return grid


def _plain(text: str) -> Text:
    from rich.text import Text

    return Text(one_line(text))
