from __future__ import annotations

import itertools

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster.sources.trace import ClusterRecording, Stay, TraceNode, TracePod
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.recorded.replay import replay
from koordpolicy.engine.reports.recording import recording_page

HOSTILE = "<script>alert(1)</script>\"'"
HOSTILE_NAME = HOSTILE.replace("/", "|")  # no object's name holds a slash
NODES = (TraceNode("a", 4000, 8192, 1, "T4"),)
STAYS = (
    Stay(TracePod("first", 3000, 1024, 1, 1000), 0, 100), Stay(TracePod("second", 3000, 1024), 20, 180),
    Stay(TracePod(HOSTILE_NAME, 9000, 1024), 50, 60),
)


def replayed(nodes=NODES, stays=STAYS):
    return replay(
        ClusterRecording(nodes, stays), Live(Registry.of(PLUGINS, generation=1)), clock=itertools.count().__next__,
    )


def seconds(value: float) -> str:
    return f"{value:g}s"


def test_the_page_tells_use_and_waits_over_time_as_the_json_output_does(taken_to_pieces):
    result = replayed()
    page, told = taken_to_pieces(recording_page("a recording", "by hand", result, 9, seconds)), result.to_json(9)
    assert page.tiles == {
        "pods came": "3", "never ran": "1", "waited, on average": "40s", "waited longest": "80s",
        "cpu taken, on average": f"{told['use']['mean']['cpu']:.2f} %",
        "memory taken": f"{told['use']['mean']['memory']:.2f} %",
        "GPU taken": f"{told['use']['mean']['gpu']:.2f} %"}
    assert page.data["taken"]["series"] == [
        [label, [f"{span[name]:.2f}" for span in told["series"]]]
        for label, name in (("GPU", "gpu"), ("cpu", "cpu"), ("memory", "memory"))]
    assert page.data["waiting"]["series"] == [
        ["on average", [f"{span['pending']:.2f}" for span in told["series"]]],
        ["most at once", [f"{span['mostPending']:.2f}" for span in told["series"]]]]
    assert page.data["waited"]["series"] == [
        [name, ["0.00 seconds", "-", "-", "-", "-", "80.00 seconds", "-", "-", "-"]] for name in ("mean", "longest")]
    assert page.table("waited")[0]["pods"] == "2"
    assert page.table("reason at first") == [{"reason at first": "Insufficient cpu", "pods": "1"}]


def test_a_recording_needs_nothing_but_its_page_and_hostile_names_are_text(taken_to_pieces):
    text = recording_page(HOSTILE, HOSTILE, replayed(), 5, seconds)
    page = taken_to_pieces(text)
    assert (page.links(), page.headings[0], len(page.scripts)) == ([], HOSTILE, 1)
    assert "alert(1)</script>" not in text


def test_an_empty_recording_and_one_without_gpus_have_a_page(taken_to_pieces):
    assert taken_to_pieces(recording_page("nothing", "", replayed(stays=()), 5, seconds)).tiles["pods came"] == "0"
    page = taken_to_pieces(
        recording_page("no GPU", "", replayed((TraceNode("a", 4000, 8192, 0),), STAYS[1:]), 5, seconds),
    )
    assert [label for label, _ in page.data["taken"]["series"]] == ["cpu", "memory"]
