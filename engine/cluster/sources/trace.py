"""A recorded cluster as two CSV lists, and the workload that a replay makes of it.

The node list has the columns `sn, cpu_milli, memory_mib, gpu, model`, the pod list `name, cpu_milli, memory_mib,
num_gpu, gpu_milli` and optionally `gpu_spec` (the openb trace of alibaba/clusterdata); other columns are ignored. The
workload is generated as in the public simulator (hkust-adsl/kubernetes-scheduler-simulator): shuffled, inflated or
thinned out to a given load, with nodes in a random order that decides ties. With Go's generator the same seed gives the
same workload there and here.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from koordpolicy.engine.files import reason_of
from koordpolicy.engine.source import PolicyError, Problem, Problems, Source, did_you_mean

from .go_random import GoRandom

KINDS: Final = frozenset({"Node", "Pod"})
"""The kinds of objects that a trace contains."""
NODE_LIST: Final = "openb_node_list_gpu_node.csv"
POD_LIST: Final = "openb_pod_list_default.csv"
DEVICE: Final = 1000
"""One whole device, in thousandths."""

_NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_TIME_COLUMNS: Final = ("creation_time", "deletion_time")
_LATEST: Final = 4 * 10**9
_LARGEST: Final = 10**12
_MOST_DEVICES: Final = 1024
_MOST_PROBLEMS: Final = 100
_LARGEST_FILE: Final = 256 * 1024 * 1024
_PODS_PER_NODE: Final = 1001
# The number of draws of the simulator's informers between workload and node order, found by comparing with its logs.
# With it, all published runs are reproduced exactly.
_DRAWS_BEFORE_NODE_ORDER: Final = 10


@dataclass(frozen=True, slots=True)
class TraceNode:
    """A node of the list: milli-cores, MiB, whole devices, and the model that all its devices have."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str = ""

    def object(self) -> dict[str, Any]:
        """Return the node as the API server would serve it; its GPUs as the simulator's nodes carry them."""
        labels = {"kubernetes.io/hostname": self.name}
        resources = {"cpu": f"{self.cpu_milli}m", "memory": f"{self.memory_mib}Mi", "pods": str(_PODS_PER_NODE)}
        if self.gpus:
            labels["alibabacloud.com/gpu-card-model"] = self.model
            resources |= {"alibabacloud.com/gpu-count": str(self.gpus), "alibabacloud.com/gpu-milli": str(DEVICE)}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": labels},
            "spec": {},
            "status": {"allocatable": resources, "capacity": resources},
        }


@dataclass(frozen=True, slots=True)
class TracePod:
    """A pod of the list: milli-cores, MiB, `gpus` devices of which it takes `gpu_milli` thousandths each.

    `models` holds the models it may use, in the order written; empty means any.
    """

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int = 0
    gpu_milli: int = 0
    models: tuple[str, ...] = ()

    @property
    def gpu_total(self) -> int:
        """The total of its device requests in thousandths."""
        return self.gpus * self.gpu_milli

    def object(self, namespace: str = "default") -> dict[str, Any]:
        """Return the pod as the API server would serve it; its GPU request as the simulator's pods carry it."""
        annotations: dict[str, str] = {}
        if self.gpu_total:
            annotations = {
                "alibabacloud.com/gpu-count": str(self.gpus),
                "alibabacloud.com/gpu-milli": str(self.gpu_milli),
            }
            if self.models:
                annotations["alibabacloud.com/gpu-card-model"] = "|".join(self.models)
        resources = {"cpu": f"{self.cpu_milli}m", "memory": f"{self.memory_mib}Mi"}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "namespace": namespace, "uid": self.name, "annotations": annotations},
            "spec": {"containers": [{"name": "main", "resources": {"requests": resources, "limits": resources}}]},
        }


@dataclass(frozen=True, slots=True)
class Stay:
    """A pod of the list with its recorded times of creation and deletion, in seconds."""

    pod: TracePod
    created: int
    deleted: int
    """The time of deletion, not before `created`."""
    qos: str = ""
    """The QoS class in the list, Koordinator's or Kubernetes', or empty."""


@dataclass(frozen=True, slots=True)
class ClusterRecording:
    """The recorded cluster of both lists: its nodes, and its pods with creation and deletion."""

    nodes: tuple[TraceNode, ...]
    stays: tuple[Stay, ...]
    """The pods by time of creation; those of one second in the order of the list."""

    @property
    def pods(self) -> tuple[TracePod, ...]:
        """The pods, without the times."""
        return tuple(stay.pod for stay in self.stays)


@dataclass(frozen=True, slots=True)
class Trace:
    """The nodes and pods of both lists, in their order."""

    nodes: tuple[TraceNode, ...]
    pods: tuple[TracePod, ...]

    @property
    def device_capacity(self) -> int:
        """The thousandths of devices in the cluster."""
        return DEVICE * sum(node.gpus for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Workload:
    """One seed's replay: nodes renamed and sorted by their new names, pods in the order of their arrival."""

    nodes: tuple[TraceNode, ...]
    pods: tuple[TracePod, ...]


def load(path: Path, nodes: Path | None = None) -> Trace:
    """Return the trace of a pod list (or of a directory, where that is `openb_pod_list_default.csv`).

    The node list is `openb_node_list_gpu_node.csv` beside it unless another is named.

    Raises:
        PolicyError: a list is missing or malformed; all faults (the first hundred of each list) with their places.
    """
    problems = Problems()
    found_nodes, source = _lists(path, nodes, problems)
    found_pods = tuple(read_pods(source, problems))
    problems.raise_errors()
    return Trace(found_nodes, found_pods)


def load_recording(path: Path, nodes: Path | None = None) -> ClusterRecording:
    """Return the pods of a list with their times, and the nodes; the list needs `creation_time` and `deletion_time`.

    The rest is as in `load`.

    Raises:
        PolicyError: a list is missing or malformed; all faults (the first hundred of each list) with their places.
    """
    problems = Problems()
    found_nodes, source = _lists(path, nodes, problems)
    stays = sorted(read_stays(source, problems), key=lambda stay: stay.created)
    problems.raise_errors()
    return ClusterRecording(found_nodes, tuple(stays))


def _lists(path: Path, nodes: Path | None, problems: Problems) -> tuple[tuple[TraceNode, ...], Source]:
    if path.is_dir():
        path = path / POD_LIST
    return tuple(read_nodes(_open(nodes or path.parent / NODE_LIST), problems)), _open(path)


def read_nodes(source: Source, problems: Problems) -> Iterator[TraceNode]:
    """Yield the valid nodes of a list; problems of the others are added to `problems`."""
    for row in _rows(source, _NODE_COLUMNS, "sn", problems):
        gpus = row.number("gpu", _MOST_DEVICES)
        cpu, memory = row.number("cpu_milli"), row.number("memory_mib")
        if row.valid:
            yield TraceNode(row.text("sn"), cpu, memory, gpus, row.text("model"))


def read_pods(source: Source, problems: Problems) -> Iterator[TracePod]:
    """Yield the valid pods of a list; problems of the others are added to `problems`.

    `gpu_milli` is clipped to 1000; without devices, `gpu_milli` and `gpu_spec` mean nothing and are dropped.
    """
    for row in _rows(source, _POD_COLUMNS, "name", problems):
        pod = row.pod()
        if row.valid:
            yield pod


def read_stays(source: Source, problems: Problems) -> Iterator[Stay]:
    """Yield the valid pods of a list with their times, in its order; problems of the others are added to `problems`."""
    for row in _rows(source, (*_POD_COLUMNS, *_TIME_COLUMNS), "name", problems):
        pod = row.pod()
        created, deleted = (row.number(column, _LATEST) for column in _TIME_COLUMNS)
        if row.valid and deleted < created:
            row.complain(_TIME_COLUMNS[1], f"`{pod.name}` was deleted at {deleted}, before it was created at {created}")
        if row.valid:
            yield Stay(pod, created, deleted, row.text("qos"))


def generate(trace: Trace, *, seed: int, tune: float = 1.3) -> Workload:
    """Return the workload that the public simulator makes of a trace with this seed.

    The pods are shuffled; then the total GPU request is brought to `tune` times the cluster's capacity: random pods are
    taken out while it is above, copies of random pods (`<name>-tuned-<i>`) are appended while it is below. 0 leaves
    the trace as it is. Each node's name gets the prefix `NNNN-` of a random permutation: their order by name is the
    order in which ties are broken.
    """
    random = GoRandom(seed)
    random.uint64()
    population = sorted(trace.pods, key=lambda pod: pod.name)
    pods = list(population)
    random.shuffle(pods)
    target = tune * trace.device_capacity
    if tune > 0:
        _tune(pods, population, target, random)
    for _ in range(_DRAWS_BEFORE_NODE_ORDER):
        random.uint64()
    nodes = sorted(trace.nodes, key=lambda node: node.name)
    renamed = [
        replace(node, name=f"{number:04d}-{node.name}")
        for node, number in zip(nodes, random.permutation(len(nodes)), strict=True)
    ]
    return Workload(tuple(sorted(renamed, key=lambda node: node.name)), tuple(pods))


def _tune(pods: list[TracePod], population: Sequence[TracePod], target: float, random: GoRandom) -> None:
    requested = sum(pod.gpu_total for pod in pods)
    if requested > target:
        while requested > target:
            requested -= pods.pop(random.below(len(pods))).gpu_total
        return
    if not 0 < requested < target:
        return  # copies of pods without GPU requests would never reach the target
    copies = 0
    # A copy for several devices may have overshot the target: the last draw is still made, though it adds nothing, as
    # the order of the nodes depends on it.
    while True:
        pod = population[random.below(len(population))]
        # The simulator compares with the request per device, not with the total: the last copy may overshoot.
        if requested + pod.gpu_milli > target:
            return
        pods.append(replace(pod, name=f"{pod.name}-tuned-{copies}"))
        copies += 1
        requested += pod.gpu_total


class _Row:
    """One line of a list; reading a malformed field records the problem and makes the line invalid."""

    __slots__ = ("_columns", "_fields", "_offset", "_problems", "_source", "valid")

    def __init__(
        self, source: Source, offset: int, fields: Sequence[str], columns: Mapping[str, int], problems: Problems,
    ) -> None:
        self._source, self._offset, self._problems = source, offset, problems
        self._fields, self._columns = fields, columns
        self.valid = True

    def text(self, column: str) -> str:
        index = self._columns.get(column)
        return "" if index is None else self._fields[index].strip()

    def pod(self) -> TracePod:
        """Return the pod of the line; it is undefined unless the line is `valid`."""
        cpu, memory = self.number("cpu_milli"), self.number("memory_mib")
        gpus, milli = self.number("num_gpu", _MOST_DEVICES), min(DEVICE, self.number("gpu_milli"))
        if gpus * milli == 0:
            return TracePod(self.text("name"), cpu, memory)
        models = tuple(part for part in self.text("gpu_spec").split("|") if part)
        return TracePod(self.text("name"), cpu, memory, gpus, milli, models)

    def number(self, column: str, most: int = _LARGEST) -> int:
        text = self.text(column)
        # `isdecimal` alone takes digits of every script.
        if text.isascii() and text.isdecimal() and len(text) < 16 and int(text) <= most:
            return int(text)
        self.complain(column, f"`{column}` is `{text}`" if text else f"`{column}` is empty",
                      f"expected a whole number from 0 to {most}")
        return 0

    def complain(self, column: str, message: str, help: str = "") -> None:  # noqa: A002 - as `Problem` calls it
        self.valid = False
        before = self._fields[: self._columns[column]]
        start = self._offset + sum(len(field) + 1 for field in before)
        width = max(1, len(self._fields[self._columns[column]]))
        self._problems.add(message, self._source.span(start, start + width), help=help, code="trace-field")


def _rows(source: Source, required: Sequence[str], name: str, problems: Problems) -> Iterator[_Row]:
    columns: dict[str, int] = {}
    seen: dict[str, int] = {}
    before = len(problems.found)
    for offset, line in _lines(source):
        if len(problems.found) - before >= _MOST_PROBLEMS:
            return  # in a file of another format every line would be wrong
        fields = next(csv.reader([line])) if '"' in line else line.split(",")
        if not columns:
            columns = {field.strip(): index for index, field in enumerate(fields)}
            missing = [column for column in required if column not in columns]
            for column in missing:
                problems.add(f"the list has no column `{column}`", source.span(offset, offset + len(line)),
                             help=did_you_mean(column, columns), code="trace-header")
            if missing:
                return
            continue
        row = _Row(source, offset, fields, columns, problems)
        if len(fields) != len(columns):
            problems.add(f"the line has {len(fields)} fields, the first line names {len(columns)}",
                         source.span(offset, offset + len(line)), code="trace-line")
            continue
        key = row.text(name)
        if not key:
            row.complain(name, f"`{name}` is empty", "every line needs a name")
        elif key in seen:
            line_before, _ = source.position(seen[key])
            row.complain(name, f"`{key}` stands in the list twice, first in line {line_before}", "rename one")
        seen.setdefault(key, offset)
        yield row
    if not columns:
        problems.add("the list is empty", source.span(0), code="trace-header",
                     help=f"its first line must name the columns {', '.join(required)}")


def _lines(source: Source) -> Iterator[tuple[int, str]]:
    text, start = source.text, 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end == -1 else end
        line = text[start:end].rstrip("\r")
        if line.strip():
            yield start, line
        start = end + 1


def _open(path: Path) -> Source:
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise PolicyError([Problem(f"`{path}` is larger than {_LARGEST_FILE >> 20} MiB", code="file")])
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        reason = reason_of(error)
        raise PolicyError([Problem(f"cannot read `{path}`: {reason}", code="file")]) from error
    except UnicodeDecodeError as error:
        raise PolicyError([
            Problem(f"`{path}` is not a text: byte {error.start} is not UTF-8", help="a trace is a CSV file",
                    code="file"),
        ]) from error
    return Source(str(path), text)
