"""The eight expressions, by every engine that installs, in one run; and what it costs to make them programs.

Engines take turns, a few milliseconds each, so that a busy moment of the machine falls on all of them. A figure is the
median of the turns, with the least beside it. Ratios and bounds are of the least: other programs can only add to
a time.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from koordpolicy.engine.cel.check.checker import check
from koordpolicy.engine.cel.check.cost import check_cost
from koordpolicy.engine.cel.check.environment import Environment, Scope, Variable
from koordpolicy.engine.cel.library import STANDARD, table
from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.cel.syntax.parser import parse
from koordpolicy.engine.cel.values.types import DYN
from koordpolicy.engine.cel.vector.plan import ColumnPlan, evaluate
from koordpolicy.engine.cel.vector.row_frame import RowFrame
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.slots import Slot, environment
from koordpolicy.engine.source import Problems, Source

from .bench_columns import FILTERS, SCORES
from .figure import Figure, Missing
from .rivals import RIVALS

SIZES = (100, 5_000, 100_000)
NUMERIC = ("E2 fit", "E6 score")
CEL_GO_NS = {
    "E2 fit": 370, "E3 taints": 1340, "E4 labels": 150, "E6 score": 600, "E7 ternary": 330, "E8 selector": 1260,
}
"""Per evaluation of the expressions that read the node, from peers.json: cel-go is not measured here. Where that was
measured, the C++ wrapper took 1.7 to 8.5 us for the eight."""
ENVIRONMENT = Environment(functions=table(STANDARD)).with_variables(
    Variable("pod", DYN, Scope.DECISION), Variable("node", DYN, Scope.ROW),
)


@dataclass
class Turns:
    """Times of one thing, in seconds per call."""

    call: Callable[[], object]
    calls: int = 1
    seconds: list[float] = field(default_factory=list)

    def calibrate(self, budget_s: float) -> None:
        """Choose how many calls make a turn of about that long."""
        self.call()
        started = time.perf_counter()
        self.call()
        self.calls = max(1, min(10_000, int(budget_s / max(time.perf_counter() - started, 1e-7))))

    def take(self) -> None:
        """Take one turn."""
        call, calls = self.call, self.calls
        started = time.perf_counter()
        for _ in range(calls):
            call()
        self.seconds.append((time.perf_counter() - started) / calls)

    @property
    def least(self) -> float:
        """The fastest turn."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """The turn in the middle."""
        return statistics.median(self.seconds)


def take_turns(turns: Sequence[Turns], rounds: int = 25, budget_s: float = 0.004) -> None:
    """Measure several things in turn."""
    for each in turns:
        each.calibrate(budget_s)
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for each in turns:
                each.take()
    finally:
        gc.enable()


def main() -> Iterator[Figure]:
    """Yield evaluations by every engine, columns per node, one changed node, and compiling."""
    cases = os.environ.get("KOORD_POLICY_CASES")
    file = Path(cases or "") / "cel_bench.json"
    if not cases or not file.exists():
        raise Missing("set KOORD_POLICY_CASES to the directory that holds cel_bench.json")
    content = json.loads(file.read_text())
    yield from _rows(content)
    yield from _columns(content)
    yield from _one_node_changed()
    yield from _compiling(content["exprs"])
    missing = [each for each in map(_missing, RIVALS) if each]
    if missing:
        raise Missing("; ".join(missing))


# --- by row ----------------------------------------------------------------------------------------------------------


def _missing(rival: Callable[[], object]) -> str:
    try:
        rival()
    except Missing as missing:
        return str(missing)
    return ""


def _rows(content: Mapping[str, Any]) -> Iterator[Figure]:
    values = {"pod": content["pod"], "node": content["node"]}
    rivals = [each() for each in RIVALS if not _missing(each)]
    converted = [rival.convert(values) for rival in rivals]
    for name, text in content["exprs"].items():
        program = compile_program(text, ENVIRONMENT)
        ours = Turns(called(program, values))
        theirs = []
        for rival, given in zip(rivals, converted, strict=True):
            answer = rival.evaluator(rival.compile(text), given)
            assert rival.plain(answer()) == content["want"][name], f"{rival.name} gives another answer to {name}"
            theirs.append(Turns(answer))
        assert ours.call() == content["want"][name]
        take_turns([ours, *theirs])
        yield from _both(f"{name}: by row", ours, 1e6, "us")
        for rival, turns in zip(rivals, theirs, strict=True):
            yield from _both(f"{name}: {rival.name}", turns, 1e6, "us")
            bound = {"cel-python": 100.0, "C++": 3.0}.get(rival.name.split(" ")[0])
            yield Figure(
                f"{name}: {rival.name} / by row", turns.least / ours.least, "times", bound, more_is_better=True,
            )
    conversions = [Turns(lambda rival=rival: rival.convert(values)) for rival in rivals]
    take_turns(conversions)
    for rival, turns in zip(rivals, conversions, strict=True):
        yield from _both(f"one pod and one node for {rival.name}", turns, 1e6, "us")


def called(program: Program, values: Mapping[str, object]) -> Callable[[], object]:
    """Return a function that evaluates a program over one or two variables by row."""
    call = program.call
    arguments = [values[name] for name in program.variables]
    if len(arguments) == 1:
        (one,) = arguments
        return lambda: call(one)
    one, two = arguments
    return lambda: call(one, two)


def _both(name: str, turns: Turns, factor: float, unit: str, bound: float | None = None) -> Iterator[Figure]:
    yield Figure(name, turns.median * factor, unit)
    yield Figure(f"{name}, least", turns.least * factor, unit, bound)


# --- by column -------------------------------------------------------------------------------------------------------


def _columns(content: Mapping[str, Any]) -> Iterator[Figure]:
    """Every decision is about another pod: with other requests, and then with other texts too."""
    for size in SIZES:
        frame = RowFrame(_nodes_like(content["node"], size), {"pod": content["pod"]})
        for name, text in content["exprs"].items():
            alike, other = (
                Turns(_decisions(compile_program(text, ENVIRONMENT), frame, content["pod"], texts))
                for texts in (False, True)
            )
            take_turns([alike, other], rounds=15 if size < 100_000 else 5)
            bound = None
            if size == 5_000 and name in CEL_GO_NS:
                bound = CEL_GO_NS[name] / 20
                bound = min(bound, 20.0) if name in NUMERIC else bound
            elif size == SIZES[-1] and name in NUMERIC:
                bound = 20.0  # blocks that fit the cache: a node costs what it does in a small cluster
            yield from _both(f"{name}: by column, {size:,} nodes", alike, 1e9 / size, "ns/node", bound)
            yield from _both(f"{name}: by column, {size:,} nodes, unlike pods", other, 1e9 / size, "ns/node", bound)


def _decisions(
    program: Program, frame: RowFrame, pod: Mapping[str, Any], texts: bool,
) -> Callable[[], object]:
    """Return a function that decides about one more pod: its requests are its own, with `texts` so are its labels and
    the like."""
    number = 0

    def decide() -> object:
        nonlocal number
        number += 1
        spec, metadata = pod["spec"], pod["metadata"]
        each = {**pod, "requests": {"cpu": 500 + number % 1000, "memory": 2**29 + number}}
        if texts:
            kind = str(number)
            each["metadata"] = {
                **metadata, "name": f"web-{kind}", "labels": {**metadata["labels"], "pool": f"general-{kind}"},
            }
            tolerations = [*spec["tolerations"][:2], {**spec["tolerations"][2], "value": f"general-{kind}"}]
            each["spec"] = {**spec, "nodeSelector": {"pool": f"general-{kind}"}, "tolerations": tolerations}
        return evaluate(program, frame.with_values({"pod": each}))

    return decide


def _nodes_like(node: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
    random = Random(7)
    rows: list[dict[str, Any]] = []
    for number in range(size):
        each = {**node, "requested": {"cpu": random.randrange(12_000), "memory": random.randrange(2**35)}}
        each["metadata"] = copy.deepcopy(node["metadata"])
        each["metadata"]["labels"] |= {
            "kubernetes.io/hostname": f"node-{number}", "topology.kubernetes.io/zone": f"eu-1{'abc'[number % 3]}",
        }
        rows.append({"node": each})
    return rows


# --- one node changes ------------------------------------------------------------------------------------------------


def _one_node_changed() -> Iterator[Figure]:
    """The same pod asks again after one node has changed: that node is evaluated, whatever the cluster's size."""
    texts = {
        "of numbers": "allocatable.cpu - requested.cpu >= requests.cpu",
        "of a score": "(allocatable.cpu - requested.cpu) * 100 / allocatable.cpu",
        "of texts": "has(node.metadata.labels.pool) && node.metadata.labels.pool == 'general'",
    }
    clusters = [(size, Cluster(_node(number) for number in range(size))) for size in SIZES[1:]]
    for kind, text in texts.items():
        program = compile_program(text, environment(Slot.FILTER if "%" not in text else Slot.SCORE))
        turns = [Turns(_again(program, cluster, kind == "of texts")) for _, cluster in clusters]
        take_turns(turns)
        for (size, _), each in zip(clusters, turns, strict=True):
            yield from _both(f"one of {size:,} nodes changed, {kind}", each, 1e6, "us")
        yield Figure(f"one of 100,000 / one of 5,000, {kind}", turns[1].least / turns[0].least, "times", 2.0)


def _again(program: Program, cluster: Cluster, labels: bool) -> Callable[[], object]:
    """Return a function that changes a node and evaluates again; the time of the change itself, equal for all sizes, is
    part of it."""
    number = 0
    requests = {"cpu": 1000, "memory": 2**30}

    def ask() -> object:
        nonlocal number
        number += 1
        cluster.upsert(_node(7 * number % 5_000, 32 + number % 7, "general" if number % 2 or not labels else "batch"))
        return evaluate(program, cluster.snapshot(0).frame({"requests": requests, "pod": {}}))

    return ask


def _node(number: int, cores: int = 32, pool: str = "general") -> dict[str, Any]:
    name = f"node-{number:06}"
    labels = {"pool": pool, "kubernetes.io/hostname": name}
    return {
        "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {},
        "status": {"allocatable": {"cpu": str(cores), "memory": "256Gi", "pods": "110"}},
    }


# --- compiling -------------------------------------------------------------------------------------------------------


def _compiling(texts: Mapping[str, str]) -> Iterator[Figure]:
    for kind, sources in (
        ("the eight, untyped", [(each, ENVIRONMENT) for each in texts.values()]),
        ("ten policies, typed", [
            *((each, environment(Slot.FILTER)) for each in FILTERS),
            *((each, environment(Slot.SCORE)) for each in SCORES),
        ]),
    ):
        stages: dict[str, list[float]] = {}
        for text, place in sources:
            for stage, turns in _stages(text, place).items():
                stages.setdefault(stage, []).append(turns.least * 1e6)
        for stage, each in stages.items():
            bound = 150.0 if stage == "parse, check and plan" else None
            yield Figure(f"{stage}: {kind}, median", statistics.median(each), "us", bound)
            yield Figure(f"{stage}: {kind}, most", max(each), "us")
    seconds = min((_thousand_documents() for _ in range(3)), key=sum)
    yield Figure("1,000 documents compile, least of three", sum(seconds), "s", 2.0)
    yield Figure("  of which read and validated", seconds[0], "s")


def _stages(text: str, place: Environment) -> Mapping[str, Turns]:
    source = Source("<expression>", text)
    root = parse(source)
    checked = check(source, root, place)

    stages = {
        "parse, check and plan": Turns(lambda: ColumnPlan(check(source, parse(source), place))),
        "parse": Turns(lambda: parse(source)),
        "check": Turns(lambda: check(source, root, place)),
        "plan": Turns(lambda: ColumnPlan(checked)),
        "estimate": Turns(lambda: check_cost(checked)),
        "emit, at the first evaluation": Turns(lambda: Program(checked).call),
    }
    take_turns(list(stages.values()), rounds=15, budget_s=0.001)
    return stages


def _thousand_documents() -> tuple[float, float]:
    rules = [("filter", each) for each in FILTERS] + [("score", each) for each in SCORES]
    texts = []
    for number in range(1_000):
        point, expression = rules[number % len(rules)]
        # Every document's expression is its own.
        expression = (
            f"({expression}) || requests.cpu > {10**6 + number}" if point == "filter"
            else f"({expression}) + {number % 7}"
        )
        quoted = expression.replace("'", "''")
        texts.append(
            "apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\n"
            f"metadata: {{name: policy-{number}}}\nspec:\n  {point}:\n  - name: only\n    expression: '{quoted}'\n",
        )
    source = Source("thousand.yaml", "---\n".join(texts))
    problems = Problems()
    started = time.perf_counter()
    loaded = load([source])
    read = time.perf_counter()
    compile_documents(loaded.documents, problems)
    done = time.perf_counter()
    problems.extend(loaded.problems)
    problems.raise_errors()
    assert len(loaded.documents) == 1_000
    return read - started, done - read
