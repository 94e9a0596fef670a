from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster.sources.trace import TraceNode, TracePod, Workload
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.points import Answer, Framework, Point, Refusal
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.reports.simulation import Replayed, simulation_page
from koordpolicy.engine.scheduler.extensions.fragmentation import typical_pods
from koordpolicy.engine.scheduler.profiling import DecisionMeter
from koordpolicy.engine.scheduler.simulate import simulate
from koordpolicy.engine.source import Problems, Source

HOSTILE = "<script>alert(1)</script>\"'&amp;</style>\u2028${title}"
HOSTILE_NAME = HOSTILE.replace("/", "|")  # no object's name holds a slash
NODES = (
    TraceNode("0000-a", 8000, 16384, 2, "T4"), TraceNode("0001-b", 8000, 16384, 1, "P100"),
    TraceNode("0002-c", 4000, 8192, 0),
)
PODS = (
    *(TracePod(f"p{number}", 1000, 1024, 1, 500) for number in range(8)), TracePod("cpu", 4000, 1024),
    TracePod("more", 6000, 1024), TracePod("last", 3000, 1024), TracePod("huge", 99000, 1024),
)
POLICY = """
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: keep-c-free}
spec:
  filter:
  - {name: not-c, expression: "!node.metadata.name.endsWith('c') || requests.cpu < 0", message: "<i>c</i> is kept free"}
  score:
  - {name: fullest, expression: requested.cpu * 100 / allocatable.cpu}
"""


def replayed(nodes=NODES, pods=PODS, policy=POLICY, plugins=(), title="a trace", about="by hand", measure=True):
    problems = Problems()
    documents = load([Source("policy.yaml", policy)]).documents if policy else ()
    live = Live(Registry.of([*PLUGINS, *plugins, *compile_documents(documents, problems)], generation=1))
    problems.raise_errors()
    workload = Workload(nodes, pods)
    meter = DecisionMeter(itertools.count().__next__) if measure else None
    result = simulate(workload, live, clock=itertools.count().__next__, typical=typical_pods(pods), meter=meter)
    return result if meter is None else Replayed(title, about, workload, result, meter.measured())


def test_the_page_tells_the_figures_of_the_json_output(taken_to_pieces):
    found = replayed()
    page, told = taken_to_pieces(simulation_page(found)), json.loads(json.dumps(found.result.to_json()))
    assert page.tiles == {
        "pods arrived": "12", "found no node": str(told["failed"]), "cpu allocated": f"{told['final']['cpu']:.2f} %",
        "memory allocated": f"{told['final']['memory']:.2f} %", "GPU allocated": f"{told['final']['gpu']:.2f} %",
        "GPU requests arrived": "133.3 %", "GPU fragmented": f"{found.result.fragmentation(133)[0]:.2f} %",
        "pods/s, while measuring": "12"}
    assert {
        row["load"].removesuffix(" %"): {
            name: float(row[shown]) for name, shown in (("cpu", "cpu"), ("memory", "memory"), ("gpu", "GPU"))
        }
        for row in page.table("load")
    } == told["allocation"]
    assert {
        row["load"].removesuffix(" %"): (row["GPU fragmented"], row["of the idle GPU"]) for row in page.table("load")
    } == {
        load: (f"{each['amount']:.2f}", f"{each['ratio']:.2f}") for load, each in told["fragmentation"].items()}
    curves = page.data["allocation"]
    assert [name for name, _ in curves["series"]] == ["GPU", "cpu", "memory"]
    assert curves["series"][0][1] == [f"{value:.2f}" for value in found.result.curves().gpu if not math.isnan(value)]


def test_every_pod_that_found_no_node_is_counted_once_among_the_rules_that_refused_it(taken_to_pieces):
    found = replayed()
    page = taken_to_pieces(simulation_page(found))
    refused = page.data["refusals"]
    shares = sum(float(share.removesuffix(" %")) / 100 for _, values in refused["series"] for share in values)
    assert (len(refused["at"]), round(shares, 1)) == (12, found.result.failed)
    rows = next(table for table in page.tables if table[0][:3] == ["plugin", "rule", "reason"])[1:]
    assert {row[2]: int(row[3]) for row in rows} == found.result.reasons
    assert ["keep-c-free", "not-c", "<i>c</i> is kept free"] in [row[:3] for row in rows]


def test_a_node_has_its_name_and_numbers_before_and_after(taken_to_pieces):
    nodes = taken_to_pieces(simulation_page(replayed())).data["nodes"]
    assert nodes[
        "kinds"
    ] == [["2 x T4, 8 cores, 16 GiB", [8000, 16384, 2000]], ["1 x P100, 8 cores, 16 GiB", [8000, 16384, 1000]],
                              ["4 cores, 8 GiB", [4000, 8192, 0]]]
    assert nodes["nodes"] == [
        ["0000-a", 0, [0, 0, 0], [4000, 4096, 2000], [8000, 5120, 2000]],
        ["0001-b", 1, [0, 0, 0], [2000, 2048, 1000], [8000, 3072, 1000]],
        ["0002-c", 2, [0, 0, 0], [0, 0, 0], [0, 0, 0]]]
    assert len(nodes["blocks"]) == 9, "three kinds, three resources"


def test_plugins_and_expressions_have_their_time_and_calls(taken_to_pieces):
    found = replayed()
    page = taken_to_pieces(simulation_page(found))
    plugins = {row[0]: row for row in next(table for table in page.tables if table[0][1] == "calls")[1:]}
    assert plugins["keep-c-free"][1] == "filter 9, score 5"
    assert plugins["keep-c-free"][5] == "2", "for those pods without GPU for which there was room"
    assert plugins["keep-c-free"][6] == str(
        sum("keep-c-free" in {blame.plugin for blame in each.nodes} for each in found.measured.unplaced),
    )
    expressions = {row["rule"]: row for row in page.table("document")}
    assert set(expressions) == {"filter.not-c", "score.fullest"}
    assert expressions["score.fullest"]["expression"] == "requested.cpu * 100 / allocatable.cpu"
    assert all(
        float(row["seconds"]) > 0 and int(row["evaluations"]) >= int(row["passes"]) > 0 for row in expressions.values()
    )


def test_measuring_changes_no_decision():
    plain, measured = replayed(measure=False), replayed().result
    assert (plain.placed, plain.records, plain.reasons, plain.failed_shapes) == (
        measured.placed, measured.records, measured.reasons, measured.failed_shapes)


def test_what_comes_from_users_files_is_text_on_the_page(taken_to_pieces):
    class Refuses:
        def filter(self, state, pod, snapshot, rows):
            return Answer(np.zeros(snapshot.size, np.bool_), lambda _: Refusal(HOSTILE, HOSTILE))

    nodes = (TraceNode(HOSTILE_NAME, 8000, 16384, 2, HOSTILE),)
    pods = (TracePod(HOSTILE_NAME, 1000, 1024, 1, 500), TracePod("p", 1000, 1024, 1, 500, (HOSTILE,)))
    refuses = Plugin(HOSTILE, Framework.SCHEDULER, (Point.FILTER,), lambda args, handle: Refuses(), "test", "1")
    text = simulation_page(replayed(nodes, pods, plugins=[refuses], title=HOSTILE, about=HOSTILE))
    page = taken_to_pieces(text)
    assert "alert(1)</script>" not in text
    assert [len(page.scripts), page.headings[0]] == [1, HOSTILE]
    assert page.data["nodes"]["nodes"][0][0] == HOSTILE_NAME
    assert any(row[:3] == [HOSTILE, HOSTILE, HOSTILE.replace("\u2028", " ")] for table in page.tables for row in table)


def test_the_page_needs_nothing_but_itself(taken_to_pieces):
    text = simulation_page(replayed())
    page = taken_to_pieces(text)
    assert page.links() == []
    assert not any(word in text for word in ("http:", "https:", "@import", "url(", "fetch(", "innerHTML"))


@pytest.mark.parametrize(("nodes", "pods"), [(NODES, ()), ((), ()), ((), PODS)])
def test_an_empty_trace_has_a_page_too(taken_to_pieces, nodes, pods):
    page = taken_to_pieces(simulation_page(replayed(nodes, pods)))
    assert page.tiles["pods arrived"] == str(len(pods))
    assert page.headings[1:] == [
        "Allocation" if not pods else "Allocation by arrivals", *(["Nodes"] if nodes else []), "Refused pods",
        "Time by plugin",
        *(["Slowest expressions"] if pods else [])]


def test_a_trace_without_gpus_goes_by_arrivals(taken_to_pieces):
    pods = tuple(TracePod(f"p{number}", 1000, 1024) for number in range(7))
    page = taken_to_pieces(simulation_page(replayed(NODES[2:], pods, policy="")))
    assert page.data["allocation"]["series"] == [
        ["cpu", ["25.00", "50.00", "75.00", *["100.00"] * 4]], ["memory", ["12.50", "25.00", "37.50", *["50.00"] * 4]]]
    assert [each[0] for each in page.data["nodes"]["resources"]] == ["cpu", "memory"]
    assert not any("GPU" in name for name in page.tiles)
    assert [
        row["reason"]
        for row in (
            dict(zip(table[0], row, strict=True)) for table in page.tables if "reason" in table[0] for row in table[1:]
        )
    ] == [
        "Insufficient cpu"]
