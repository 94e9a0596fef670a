"""The timeline of nodes: recordings of node agents and their audit logs, read in a thread of their own."""

from __future__ import annotations

import bisect
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from koordpolicy.engine.agent.node_timeline import AgentChange, audited_change, replayed_changes, usage_of
from koordpolicy.engine.agent.recording import MetricsRecording, load
from koordpolicy.engine.agent.replay import replay
from koordpolicy.engine.client.server_calls import Caller
from koordpolicy.engine.cluster.objects.pods import canonical_amount
from koordpolicy.engine.escaping import visible
from koordpolicy.engine.explanation import shortened
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import PolicyError, did_you_mean
from koordpolicy.engine.texts import first_of

from .models.node_time import ChangedFile, NodeChangeLine, NodeTimeView, UsageLine
from .state import UnknownNameError

LONGEST_ANSWER: Final = 8 * 1024 * 1024
"""The maximum size of an answer of an agent that is read, in bytes: a page of its log has a tenth of that."""
_POINTS: Final = 240
_PAUSE_S: Final = 30.0
"""The time after which recordings that have grown, and audit logs, are read again."""
SUFFIXES: Final = (".jsonl", ".yaml", ".yml")
_MOST_CHANGES: Final = 100_000
"""The number of changes of one recording, or of one agent, in memory."""
_SHOWN_CHANGES: Final = 500
_SHOWN_FILES: Final = 20
_MOST_PROBLEMS: Final = 20
_PAGE: Final = 2048
_MOST_PAGES: Final = 64
_MILLISECOND: Final = 1_000_000
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeSource:
    """The content of one recording or of the log of one agent: its nodes, and the changes in order of time."""

    name: str
    recording: MetricsRecording | None = None
    changes: Mapping[str, Sequence[AgentChange]] = field(default_factory=dict)
    """By node."""
    problem: str = ""


class NodeTimes:
    """The recordings of node agents, and running agents. `start` begins to read them, `close` ends that."""

    def __init__(
        self, paths: Sequence[Path], agents: Sequence[str], caller: Callable[[], Caller], *, pause: float = _PAUSE_S,
    ) -> None:
        """`paths` are recordings, or directories of them; `agents` are the addresses of endpoints."""
        self._paths, self._agents, self._caller = tuple(paths), tuple(agents), caller
        self._pause = pause
        self._sources: dict[str, NodeSource] = {}
        self._read_as: dict[str, tuple[int, int, str]] = {}
        """Size, time and policies of what was read of each file."""
        self._registry: Callable[[], Registry] = Registry
        self._complete = not (paths or agents)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="node-times", daemon=True)

    def start(self, registry: Callable[[], Registry]) -> None:
        """Begin to read; `registry` returns the policies, whose QoSPlugins are replayed."""
        self._registry = registry
        if self._paths or self._agents:
            self._thread.start()

    def close(self) -> None:
        """End the reading; waits for nothing."""
        self._ended.set()

    def view(self, node: str, start: int, end: int) -> NodeTimeView:
        """Return the timeline of a node, the first one without a name, from `start` to `end` (ns since the epoch).

        Raises:
            UnknownNameError: no source has such a node.
        """
        return node_time_view(tuple(self._sources.values()), node, start, end, complete=self._complete,
                              sources=len(self._paths) + len(self._agents))

    def _follow(self) -> None:
        while not self._ended.is_set():
            for directory in self._paths:
                self._read_all(directory)
            for address in self._agents:
                if self._ended.is_set():
                    return
                self._sources[address] = self._agent(address)
            self._complete = True
            self._ended.wait(self._pause)

    def _read_all(self, path: Path) -> None:
        """Read a recording, or those in a directory."""
        try:
            files = _files_of(path)
        except OSError as error:
            self._sources[str(path)] = NodeSource(str(path), problem=f"it cannot be read: {error.strerror}")
            return
        if path not in files:
            self._sources.pop(str(path), None)  # what was wrong with the directory
        for each in files:
            self._read(each)

    def _agent(self, address: str) -> NodeSource:
        try:
            return read_agent(self._caller(), address)
        except Exception as error:  # a token that is being replaced, for instance: the next round may have it
            _LOG.warning("the audit log of %s cannot be read: %s", address, error)
            return NodeSource(address, problem="its audit log cannot be read; the log of the console says why")

    def _read(self, path: Path) -> None:
        try:
            found = path.stat()
        except OSError as error:
            self._sources[str(path)] = NodeSource(str(path), problem=f"it cannot be read: {error.strerror}")
            return
        registry = self._registry()
        read_as = found.st_size, found.st_mtime_ns, registry.digest
        if self._read_as.get(str(path)) == read_as or self._ended.is_set():
            return
        try:
            source = read_recording(path, registry, self._ended.is_set)
        except Exception:
            _LOG.exception("the recording %s cannot be shown", path)
            source = NodeSource(str(path), problem="it cannot be shown; the log of the console says why")
        self._read_as[str(path)] = read_as
        self._sources[str(path)] = source


def read_recording(path: Path, registry: Registry, ended: Callable[[], bool] = lambda: False) -> NodeSource:
    """Return a recording with the changes that its strategies make when they are replayed."""
    try:
        recording = load(path, cut_off=True)
    except PolicyError as error:
        return NodeSource(str(path), problem=f"it is no recording: {visible(error.problems[0].message)}")
    changes: dict[str, list[AgentChange]] = {node: [] for node in recording.nodes}
    problem = ""
    count = 0
    try:
        for count, each in enumerate(replayed_changes(recording, replay(recording, registry)), start=1):
            if count > _MOST_CHANGES or ended():
                problem = f"only its first {_MOST_CHANGES:,} changes are shown"
                break
            changes[each.node].append(each)
    except PolicyError as error:
        problem = f"its changes are unknown: {visible(error.problems[0].message)}"
    return NodeSource(str(path), recording, changes, problem)


def read_agent(caller: Caller, address: str) -> NodeSource:
    """Return the changes in the audit log of a running agent, the newest ones."""
    token = ""
    events: list[object] = []
    for _ in range(_MOST_PAGES):  # to the end: the agent has few readers at a time, and drops one that ends
        answer = caller.ask(address, f"/events?size={_PAGE}" + (f"&pageToken={token}" if token else ""))
        if not answer.ok:
            why = answer.error if answer.code != 404 else "it has no audit log: start it with `--audit-log-dir`"
            return NodeSource(address, problem=visible(why))
        found = answer.data.get("Events")
        events += found if isinstance(found, list) else []
        token = str(answer.data.get("NextPageToken") or "")
        if not token or not token.replace("-", "").replace("_", "").isalnum():
            break
    known = [each for each in events if isinstance(each, dict)]
    node = next((str(each.get("name")) for each in known if each.get("type") == "node" and each.get("name")), address)
    changes = [change for each in known if (change := audited_change(each, node)) is not None]
    changes.sort(key=lambda change: change.time)
    newest = changes[-_MOST_CHANGES:]
    problem = f"only its newest {len(newest):,} changes are shown" if token or len(newest) < len(changes) else ""
    return NodeSource(address, changes={node: newest}, problem=problem)


def node_time_view(
    found: Sequence[NodeSource], node: str, start: int, end: int, *, complete: bool = True, sources: int = 0,
) -> NodeTimeView:
    """Return the timeline of a node from what was read; see `NodeTimes.view`."""
    nodes = sorted({name for each in found for name in each.changes})
    problems = [f"{each.name}: {each.problem}" for each in found if each.problem]
    if node and node not in nodes and complete:
        raise UnknownNameError(f"no recording and no agent is of a node `{node}`: "
                               f"{did_you_mean(node, nodes) or f'there are {len(nodes)}'}")
    node = node or next(iter(nodes), "")
    own = [each for each in found if node in each.changes]
    recordings = [each.recording for each in own if each.recording is not None]
    changes = sorted((
        (change, "audit" if each.recording is None else "recording") for each in own for change in each.changes[node]),
        key=lambda pair: pair[0].time)
    times = [change.time for change, _ in changes]
    first = min((*(each.start for each in recordings), *times[:1]), default=0)
    last = max((*(each.end for each in recordings), *times[-1:]), default=0)
    low, high = max(start, first), min(end, last)
    recording = max(recordings, key=lambda each: (min(each.end, high) - max(each.start, low), each.end), default=None)
    usage = None if recording is None else usage_of(recording, node, low, high, _POINTS)
    shown, changes_left_out = first_of(
        changes[bisect.bisect_left(times, low) : bisect.bisect_right(times, high)], _SHOWN_CHANGES)
    shown_problems, problems_left_out = first_of(problems, _MOST_PROBLEMS)
    allocatable = [None, None] if recording is None else [_allocatable(recording, node, name)
                                                          for name in ("cpu", "memory")]
    return NodeTimeView(
        sources=sources or len(found), complete=complete, node=node, nodes=nodes, start=_seconds(first),
        end=_seconds(last), times=[] if usage is None else [_seconds(each) for each in usage.times],
        width=1.0 if usage is None else usage.width / 1e9,
        cpu=[] if usage is None else _lines(usage.values["cpu"]),
        memory=[] if usage is None else _lines(usage.values["memory"]),
        limit=[] if usage is None else _limits(usage.times, usage.width, high, [
            change for change, source in changes if source == "recording"]),
        cpu_allocatable=allocatable[0], memory_allocatable=allocatable[1],
        changes=[_line(change, source) for change, source in shown], changes_left_out=changes_left_out,
        problems=list(shown_problems), problems_left_out=problems_left_out,
    )


def _files_of(path: Path) -> list[Path]:
    return sorted(each for each in path.iterdir() if each.suffix in SUFFIXES) if path.is_dir() else [path]


def _lines(values: Mapping[str, Sequence[float | None]]) -> list[UsageLine]:
    return [UsageLine(name=name, values=[None if each is None else round(each, 1) for each in of])
            for name, of in values.items()]


def _limits(times: Sequence[int], width: int, end: int, changes: Sequence[AgentChange]) -> list[float | None]:
    """Return by span the least that suppressions in effect at its end leave; None if there are none."""
    found: list[float | None] = []
    suppressions = [each for each in changes if each.kind == "suppressCPU" and each.enforced]
    in_effect: dict[str, float] = {}
    place = 0
    for time in times:
        while place < len(suppressions) and suppressions[place].time < min(time + width, end + 1):
            each = suppressions[place]
            if each.recovers or each.target is None:
                in_effect.pop(each.plugin, None)
            else:
                in_effect[each.plugin] = each.target
            place += 1
        found.append(min(in_effect.values(), default=None))
    return found


def _line(change: AgentChange, source: str) -> NodeChangeLine:
    return NodeChangeLine(
        time=_seconds(change.time), source=source, plugin=change.plugin, kind=change.kind, subject=change.subject,
        reason=shortened(change.reason), item=change.item,
        files=[ChangedFile(file=shortened(each.file), before=None if each.before is None else shortened(
            each.before.strip()), after=shortened(each.after.strip())) for each in change.writes[:_SHOWN_FILES]],
        more=change.more + max(len(change.writes) - _SHOWN_FILES, 0), recovers=change.recovers,
        enforced=change.enforced)


def _allocatable(recording: MetricsRecording, node: str, resource: str) -> float | None:
    status = recording.nodes[node].get("status")
    amounts = status.get("allocatable") if isinstance(status, dict) else None
    quantity = amounts.get(resource) if isinstance(amounts, dict) else None
    try:
        return None if quantity is None else float(canonical_amount(resource, quantity, resource))
    except ValueError:
        return None


def _seconds(time: int) -> float:
    return time // _MILLISECOND / 1000
