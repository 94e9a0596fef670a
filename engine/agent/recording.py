"""Recorded measurements of nodes and pods: reads a recording into series, which return aggregates over a window.

A recording is YAML (one mapping) or, if the file's name ends in `.jsonl`, JSON lines:

    interval: 1s                     # between two collections; default 1s
    start: 2026-01-01T00:00:00Z      # what the samples' times are counted from; default 1970
    objects: [Node, Pod, NodeSLO, NodeResourceTopology, ...]  # as the API server serves them
    files: {node: {besteffort/cpu.cfs_quota_us: "-1"}}        # control group files at the start, by logical name
    hosts: {node: {processors: [[0, 0, 0, 0]], cgroupVersion: 1}}   # CPU, core, socket, NUMA node
    samples:
    - {time: 0s, node: n, usage: {cpu: 7, memory: 20Gi}, pods: {shop/web: {cpu: 4}}, applications: {backup: {cpu: 1}},
       containers: {shop/web/main: {cpu: 4, throttled: 0.1}}, bestEffort: {usage: 2, request: 4, realLimit: 3}}

Usages are quantities, or in a sample with `canonical: true` numbers in canonical units (cpu in milli-cores); a
container is named `namespace/pod/container`, its `throttled` is a share from 0 to 1. An object that comes again
replaces the former one, a file that comes again does not. In JSON lines every line is an object (it has a `kind`), a
sample (it has a `time`), or one with `interval`, `start`, `files` or `hosts`. Reading a value that was not measured is
an error with reason `NoMetric`, never 0.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from koordpolicy.engine.cel.values.values import EvaluationError, Timestamp
from koordpolicy.engine.cluster.objects.pods import PodInfo, canonical_amount
from koordpolicy.engine.documents import parse_duration
from koordpolicy.engine.documents.nodes import YamlNode, read, read_file, to_plain
from koordpolicy.engine.explanation import shortened
from koordpolicy.engine.framework.qos import Evictions, Host, Processor, Storage
from koordpolicy.engine.kubernetes.objects import parse_fault
from koordpolicy.engine.source import PolicyError, Problem, Source, Span
from koordpolicy.engine.texts import camel

from .logical_directory import logical_directory
from .metric_cache.readings import MetricReadings
from .metric_cache.series import MetricSeries
from .node_variables import NodeVariables

if TYPE_CHECKING:
    from koordpolicy.engine.cluster.cluster import Cluster
    from koordpolicy.engine.cluster.snapshot import Snapshot

_T = TypeVar("_T")
_SECOND: Final = 1_000_000_000
_LARGEST: Final = 256 * 1024 * 1024
_MOST_SECONDS: Final = 2**63 // _SECOND
_LONGEST: Final = 31 * 86_400 * _SECOND
"""The longest time from the first sample to the last one: each second may be a round of each strategy."""
_WITH_PLACES: Final = frozenset({"NodeSLO", "ConfigMap"})
"""Kinds whose fields are settings, which problems may be about."""
_KEYS: Final = ("interval", "start", "objects", "files", "hosts", "samples")
_SAMPLE_KEYS: Final = ("time", "node", "usage", "pods", "containers", "applications", "bestEffort", "canonical")
_THROTTLED: Final = "throttled"
_UNKNOWN_HOST: Final = Host()
_NO_EVICTIONS: Final = Evictions()


@dataclass(slots=True)
class MetricsRecording:
    """The content of a recording, per node. `files` are the control group files at the start."""

    interval: int = _SECOND
    nodes: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    pods: dict[str, dict[str, PodInfo]] = field(default_factory=dict)
    objects: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    series: dict[tuple[str, str, str], dict[str, MetricSeries]] = field(default_factory=dict)
    """The series by (node, `node`, `pod`, `container`, `application` or `bestEffort`, name), and then by resource."""
    hosts: dict[str, Host] = field(default_factory=dict)
    written: dict[tuple[str, str], YamlNode] = field(default_factory=dict)
    """The nodes of NodeSLOs and ConfigMaps in their file, by kind and name, as in `objects`."""
    times: list[int] = field(default_factory=list)
    """The times of all samples, ascending, without repetitions."""
    _cluster: Cluster | None = None
    _variables: dict[str, NodeVariables] = field(default_factory=dict)
    _of_all: tuple[list[Mapping[str, Any]], frozenset[str]] | None = None
    """The namespaces and the kinds, once variables were read: as many objects as nodes must not be read per node."""

    def of(self, node: str, what: str, name: str) -> Mapping[str, MetricSeries]:
        """Return the series of a subject on a node, by resource."""
        return self.series.get((node, what, name), {})

    @property
    def settings(self) -> Iterator[tuple[Mapping[str, Any], YamlNode | None]]:
        """NodeSLOs and ConfigMaps, with their nodes in the file."""
        for key, each in self.objects.items():
            if key[0] in _WITH_PLACES:
                yield each, self.written.get(key)

    @property
    def snapshot(self) -> Snapshot:
        """The objects as a cluster, for derived facts of nodes."""
        from koordpolicy.engine.cluster.cluster import Cluster  # noqa: PLC0415 - numpy, which only documents need

        if self._cluster is None:
            pods = [pod.object for of_node in self.pods.values() for pod in of_node.values()]
            others = [each for each in self.objects.values() if each.get("kind") == "Namespace"]
            self._cluster = Cluster([*self.nodes.values(), *pods, *others], kinds=self._kinds)
        return self._cluster.snapshot()

    def variables(self, node: str) -> NodeVariables:
        """Return the variables of a node."""
        found = self._variables.get(node)
        if found is None:
            if self._of_all is None:
                namespaces = [each for (kind, _), each in self.objects.items() if kind == "Namespace"]
                self._of_all = namespaces, self._kinds
            found = self._variables[node] = NodeVariables(
                self.nodes[node], self.pods.get(node, {}).values(), *self._of_all)
        return found

    @property
    def _kinds(self) -> frozenset[str]:
        """The kinds that the recording contains."""
        return frozenset(str(each.get("kind")) for each in self.objects.values()) | {"Node", "Pod"}

    @property
    def start(self) -> int:
        """The time of the first sample."""
        return self.times[0]

    @property
    def end(self) -> int:
        """The time of the last sample."""
        return self.times[-1]


def load(path: Path, *, cut_off: bool = False) -> MetricsRecording:
    """Read a recording. With `cut_off` the last one of its JSON lines may be incomplete, as while it is written.

    Raises:
        PolicyError: it cannot be read; with the positions of all malformed objects and samples.
    """
    source = read_file(path, limit=_LARGEST)
    parts = _json_lines(source, cut_off=cut_off) if path.suffix == ".jsonl" else _yaml(source)
    return _Builder(source).build(parts)


_Part = tuple[str, Any, "Span", str, "Callable[[], YamlNode]"]
"""Its kind (a key of the file), its value, its place, its path for messages, and its node."""


def _yaml(source: Source) -> Iterator[_Part]:
    documents = read(source)
    if len(documents) != 1 or not documents[0].fields:
        raise PolicyError([Problem(
            "a recording is one mapping with `objects` and `samples`", source.span(0), code="recording",
        )])
    for key, node in documents[0].fields.items():
        if key in ("objects", "samples"):
            yield from ((key, to_plain(each), each.span, f"{key}[{number}]", partial(_same, each))
                        for number, each in enumerate(node.items))
        else:
            yield key, to_plain(node), node.place, key, partial(_same, node)


def _same(node: YamlNode) -> YamlNode:
    return node


def _of_line(span: Span) -> YamlNode:
    """Return the YAML node of a JSON line; of JSON that is not valid YAML, a node without fields."""
    text = span.source.text[span.start : span.end]
    try:
        return read(span.source.part(text, range(span.start, span.end + 1)))[0]
    except PolicyError:
        return YamlNode(span.source, span.start, span.end, None)


def _json_lines(source: Source, *, cut_off: bool) -> Iterator[_Part]:
    offset = 0
    lines = source.text.split("\n")
    for number, line in enumerate(lines[:-1] if cut_off else lines, start=1):
        span = Span(source, offset, offset + len(line))
        offset += len(line) + 1
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            fault = f"line {number} is not JSON: {parse_fault(error)}"
            raise PolicyError([Problem(fault, span, code="json-syntax")]) from None
        if not isinstance(content, dict):
            raise PolicyError([Problem(f"line {number} must be an object", span)])
        node = partial(_of_line, span)
        if "kind" in content:
            yield "objects", content, span, f"line {number}", node
        elif "time" in content:
            yield "samples", content, span, f"line {number}", node
        else:
            yield from ((key, value, span, f"line {number}", node) for key, value in content.items())


class _Builder:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._found: list[Problem] = []
        self._recording = MetricsRecording()
        self._zero = 0
        self._interval: int | None = None

    def build(self, parts: Iterator[_Part]) -> MetricsRecording:
        gathered: dict[str, list[_Part]] = {}
        for part in parts:
            gathered.setdefault(part[0], []).append(part)
            if part[0] not in _KEYS:
                self._complain(part, f"unknown key, known are {', '.join(f'`{key}`' for key in _KEYS)}")
        for key, take in (("interval", self._take_interval), ("start", self._take_start), ("objects", self._object),
                          ("files", self._take_files), ("hosts", self._take_hosts), ("samples", self._sample)):
            for part in gathered.get(key, ()):
                try:
                    take(part)
                except (ValueError, TypeError, KeyError, AttributeError) as error:
                    self._complain(part, str(error))
        recording = self._recording
        recording.times = sorted(set(recording.times))
        if not recording.times and not self._found:
            self._found.append(Problem("this recording has no samples", self._source.span(0), code="no-samples"))
        if recording.times and recording.end - recording.start > _LONGEST:
            self._found.append(Problem(
                f"the samples are from {Timestamp(recording.start)} to {Timestamp(recording.end)}, and a recording may "
                "be of 31 days: correct `time` of the first or of the last one, or replay a part of it",
                self._source.span(0), code="recording",
            ))
        if self._found:
            raise PolicyError(self._found)
        if self._interval is None:
            # Derived from the samples: the smallest distance between two of them.
            gaps = [after - before for before, after in pairwise(recording.times)]
            self._interval = max(min(gaps, default=_SECOND), 1)
        recording.interval = self._interval
        return recording

    def _complain(self, part: _Part, message: str) -> None:
        self._found.append(Problem(f"`{part[3]}`: {message}", part[2], code="recording"))

    def _take_interval(self, part: _Part) -> None:
        self._interval = parse_duration(str(part[1]))
        if self._interval <= 0:
            raise ValueError("the interval must be above 0")

    def _take_start(self, part: _Part) -> None:
        self._zero = _moment(part[1])

    def _object(self, part: _Part) -> None:
        value = part[1]
        kind, metadata = value.get("kind"), value.get("metadata") or {}
        name = metadata.get("name")
        if not isinstance(kind, str) or not isinstance(name, str):
            raise ValueError("an object needs `kind` and `metadata.name`")  # noqa: TRY004 - a complaint about content
        if kind == "Node":
            self._recording.nodes[name] = value
        elif kind == "Pod":
            pod = PodInfo.of(value)
            self._recording.pods.setdefault(pod.node_name, {})[pod.key] = pod
        else:
            self._recording.objects[kind, name] = value
            if kind in _WITH_PLACES:
                self._recording.written[kind, name] = part[4]()

    def _take_files(self, part: _Part) -> None:
        for node, files in part[1].items():
            known = self._recording.files.setdefault(node, {})
            for name, text in files.items():
                known.setdefault(str(name), str(text))

    def _take_hosts(self, part: _Part) -> None:
        self._recording.hosts |= {str(node): host_of(_mapping(facts, str(node))) for node, facts in part[1].items()}

    def _sample(self, part: _Part) -> None:
        value = part[1]
        unknown = sorted(set(value) - set(_SAMPLE_KEYS))
        if unknown:
            raise ValueError(f"unknown key `{unknown[0]}`, known are {', '.join(f'`{key}`' for key in _SAMPLE_KEYS)}")
        node = value.get("node")
        if node not in self._recording.nodes:
            raise ValueError(f"there is no node `{node}` among the objects")
        time = self._time(value.get("time"))
        amounts = [("node", node, value.get("usage") or {})]
        amounts += [("pod", key, used) for key, used in (value.get("pods") or {}).items()]
        for what in ("container", "application"):
            amounts += [(what, key, used) for key, used in (value.get(f"{what}s") or {}).items()]
        canonical = value.get("canonical") is True
        read = [
            ((node, what, name), resource,
             _number(quantity, f"{name}.{resource}") if canonical
             else measured_amount(resource, quantity, f"{name}.{resource}"))
            for what, name, used in amounts for resource, quantity in used.items()
        ]
        read += [
            ((node, "bestEffort", node), allocation,
             _number(quantity, f"bestEffort.{allocation}") if canonical
             else canonical_amount("cpu", quantity, f"bestEffort.{allocation}"))
            for allocation, quantity in (value.get("bestEffort") or {}).items()
        ]
        for key, resource, amount in read:
            self._recording.series.setdefault(key, {}).setdefault(resource, MetricSeries()).add(time, amount)
        self._recording.times.append(time)

    def _time(self, value: Any) -> int:
        if isinstance(value, str):
            return _moment(value) if "T" in value else self._zero + parse_duration(value)
        seconds = _number(value, "time")
        if abs(seconds) > _MOST_SECONDS:
            raise ValueError(f"`time` must be at most {_MOST_SECONDS} seconds, not {seconds:g}")
        return self._zero + int(seconds * _SECOND)


def _number(value: Any, path: str) -> float:
    """Return a finite number; raise `ValueError` for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
        return float(value)
    raise ValueError(f"`{path}` must be a finite number, not {shortened(repr(value))}")


def measured_amount(resource: str, quantity: Any, path: str) -> float:
    """Return a measured amount in its canonical unit: a share from 0 to 1 of `throttled`, else that of a quantity.

    Raises:
        ValueError: it is no such amount; the message begins with `path`.
    """
    if resource != _THROTTLED:
        return canonical_amount(resource, quantity, path)
    try:
        share = float(quantity)
    except (TypeError, ValueError):
        raise ValueError(f"`{path}` must be a number from 0 to 1, not {quantity!r}") from None
    if not 0 <= share <= 1:
        raise ValueError(f"`{path}` must be from 0 to 1, not {share:g}")
    return share


def _moment(value: Any) -> int:
    try:
        return Timestamp.parse(str(value)).ns
    except EvaluationError as error:
        raise ValueError(error.message) from None


def host_of(facts: Mapping[str, Any]) -> Host:
    """Return a machine from plain data: the fields of `Host` in camel case.

    Raises:
        ValueError: a field is unknown or malformed; the message has its path.
    """
    known = _known_fields(Host, facts)
    return Host(**{known[key]: _FACTS[known[key]](value, key) for key, value in facts.items()})


def _known_fields(of: type[Host | Storage], facts: Mapping[str, Any]) -> dict[str, str]:
    known = {camel(each.name): each.name for each in fields(of)}
    unknown = sorted(facts.keys() - known)
    if unknown:
        raise ValueError(f"unknown key `{unknown[0]}`, known are {', '.join(f'`{key}`' for key in known)}")
    return known


def _whole(value: Any, path: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"`{path}` must be a whole number, not {shortened(repr(value))}")


def _text(value: Any, path: str) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(f"`{path}` must be a text, not {shortened(repr(value))}")


def _list_of(read: Callable[[Any, str], _T]) -> Callable[[Any, str], tuple[_T, ...]]:
    def read_all(value: Any, path: str) -> tuple[_T, ...]:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"`{path}` must be a list, not {shortened(repr(value))}")  # noqa: TRY004 - about content
        return tuple(read(each, f"{path}[{number}]") for number, each in enumerate(value))

    return read_all


def _processor(value: Any, path: str) -> Processor:
    numbers = _list_of(_whole)(value, path)
    if len(numbers) != 4:
        raise ValueError(f"`{path}` must be four numbers: of the CPU, its core, its socket and its NUMA node")
    return Processor(*numbers)


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise ValueError(f"`{path}` must be a mapping, not {shortened(repr(value))}")


def _storage(value: Any, path: str) -> Storage:
    known = _known_fields(Storage, _mapping(value, path))
    return Storage(**{
        known[key]: {str(name): _text(disk, f"{path}.{key}.{name}")
                     for name, disk in _mapping(names, f"{path}.{key}").items()}
        for key, names in value.items()
    })


_FACTS: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "processors": _list_of(_processor), "vendor": _text,
    "flags": lambda value, path: frozenset(_list_of(_text)(value, path)), "cbm_mask": _text,
    "l3_caches": _list_of(_whole), "cgroup_version": _whole, "page_size": _whole, "storage": _storage,
}
"""The readers of the fields of `Host`."""


class RecordedReadings(MetricReadings):
    """One node of a recording at one time (implements `NodeReadings`).

    `files` is owned and updated by the caller, who also says which pods were evicted before.
    """

    def __init__(
        self, recording: MetricsRecording, node: str, now: int, files: Mapping[str, str],
        evictions: Evictions = _NO_EVICTIONS,
    ) -> None:
        super().__init__(node, now, recording.interval)
        self._recording = recording
        self._files = files
        self._evictions = evictions

    @property
    def node(self) -> Mapping[str, Any]:
        """The node as it was recorded."""
        return self._recording.nodes[self._node]

    @property
    def pods(self) -> tuple[PodInfo, ...]:
        """The pods recorded on the node."""
        return tuple(self._recording.pods.get(self._node, {}).values())

    @property
    def files(self) -> Mapping[str, str]:
        """The current control group files."""
        return self._files

    @property
    def host(self) -> Host:
        """The machine; without facts if none were recorded."""
        return self._recording.hosts.get(self._node, _UNKNOWN_HOST)

    @property
    def evictions(self) -> Evictions:
        """The earlier evictions on the node."""
        return self._evictions

    def directory(self, pod: PodInfo, container: str = "") -> str:
        """Return the logical directory of a pod or of one of its containers."""
        return logical_directory(pod, container)

    def object(self, kind: str) -> Mapping[str, Any] | None:
        """Return the object of that kind with the node's name, if there is one."""
        return self._recording.objects.get((kind, self._node))

    @property
    def variables(self) -> NodeVariables:
        """The node and its pods as expressions see them, without measurements."""
        return self._recording.variables(self._node)

    def _series(self, what: str, name: str) -> Mapping[str, MetricSeries]:
        return self._recording.of(self._node, what, name)
