from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from koordpolicy.engine.cli.exits import Stop
from koordpolicy.engine.cli.top import show
from koordpolicy.engine.cli.top_frame import ClusterFigures, NodeHeat, TopFrame, rendered
from koordpolicy.engine.client.server_calls import EndpointAnswer
from koordpolicy.engine.monitoring.figures import ServerFigures, server_figures

from .conftest import Run, objects, pod, write_dump

POLICIES = {"generation": 3, "digest": "abcdef0123456789", "healthy": True, "sources": [], "warnings": []}


def status(**more: object) -> EndpointAnswer:
    return EndpointAnswer("http://a:1", 200, {"ready": True, "policies": POLICIES, "cluster": {"nodes": 5}, **more})


def test_a_frame_has_hot_nodes_and_waiting_pods(run: Run, tmp_path: Path):
    held = pod("held", "1")
    held["spec"]["schedulingGates"] = [{"name": "quota"}]
    refused = pod("refused", "1")
    refused["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes fit"}]}
    cordoned = objects()
    cordoned[2]["spec"]["unschedulable"] = True
    done = run("top", "--cluster", write_dump(tmp_path / "c.json", [*cordoned, held, refused]), "--once")
    assert (done.exit, done.err) == (0, "")
    assert done.out.splitlines() == [
        f"{tmp_path}/c.json at 2026-01-02T12:00:00Z: 3 nodes (3 measured), 1 pod bound, 5 waiting",
        "",
        "node              pods   cpu              mem    cpu requested  mem requested",
        "hot                  0  75 %  ███████▌      -              0 %            0 %",
        "cool                 1  25 %  ██▌           -             25 %            0 %",
        "small (cordoned)     0  10 %  █             -              0 %            0 %",
        "",
        "waiting pod   priority     cpu  mem  since  reason",
        "shop/web-3         100   3000m  0Mi    12h  no attempt is reported",
        "shop/held            0   1000m  0Mi    12h  gates: quota",
        "shop/refused         0   1000m  0Mi    12h  0/3 nodes fit",
        "shop/web-2           0   2000m  0Mi    12h  no attempt is reported",
        "shop/web-4           0  64000m  0Mi    12h  no attempt is reported",
    ]


@pytest.mark.parametrize(("width", "wanted"), [
    (90, ["node              pods   cpu                mem              cpu requested  mem requested",
          "hot-1 (cordoned)     3  89 %  ████████▉   100 %  ██████████           41 %           34 %"]),
    (80, ["node              pods   cpu                mem              cpu req.  mem req.",
          "hot-1 (cordoned)     3  89 %  ████████▉   100 %  ██████████      41 %      34 %"]),
    (74, ["node              pods   cpu             mem           cpu req.  mem req.",
          "hot-1 (cordoned)     3  89 %  ██████▏  100 %  ███████      41 %      34 %"]),
    (62, ["node              pods   cpu    mem  cpu req.  mem req.",
          "hot-1 (cordoned)     3  89 %  100 %      41 %      34 %"]),
])
def test_a_narrow_terminal_shows_all_figures_with_shorter_bars_or_none(width: int, wanted: list[str]):
    hot = NodeHeat("hot-1", 3, {"cpu": 41.0, "memory": 34.0}, {"cpu": 89.0, "memory": 100.0}, unschedulable=True)
    console = Console(file=io.StringIO(), width=width)
    frame = TopFrame(cluster=ClusterFigures("c", 0, 3, (hot,), ()))
    with console.capture() as captured:
        console.print(rendered(frame, height=None, width=width, live=False))
    lines = [line.rstrip() for line in captured.get().splitlines()]
    assert lines[lines.index("", 1) + 1:][:2] == wanted


def test_figures_are_plain_data(run: Run, dump: Path):
    data = run("top", "--cluster", dump, "--output", "json").json
    assert data["servers"] == []
    assert data["cluster"]["nodes"][0] == {
        "name": "hot", "pods": 0, "requested": {"cpu": 0.0, "memory": 0.0}, "measured": {"cpu": 75.0},
        "unschedulable": False,
    }
    assert data["cluster"]["waitingPods"][0] == {
        "pod": "shop/web-3", "priority": 100, "requests": {"cpu": 3000, "memory": 0}, "seconds": 43200.0, "reason": "",
        "nominatedNode": None,
    }


def test_a_server_has_its_policies_and_problems():
    assert server_figures(status()) == ServerFigures("http://a:1", True, 3, "abcdef0123456789", 5, ())
    stale = {"nodes": 5, "stale": ["Pod"], "kinds": {"Pod": {"age": 61.0, "fault": "no route"}}}
    assert server_figures(status(cluster=stale, trouble=["slow"])) == ServerFigures(
        "http://a:1", False, 3, "abcdef0123456789", 5, ("slow", "Pod is known as of 61 s ago: no route"))
    assert server_figures(EndpointAnswer("http://b:1", error="no answer within 10 s")) == ServerFigures(
        "http://b:1", False, None, "", None, ("no answer within 10 s",))


def test_a_server_that_is_not_there_is_shown(run: Run):
    done = run("top", "--endpoints", "http://127.0.0.1:1", "--once")
    assert (done.exit, done.out) == (
        6, "http://127.0.0.1:1  NOT HEALTHY\n  ! cannot be reached: connection refused\n\n")
    assert run("top", "--endpoints", "http://127.0.0.1:1", "--output", "json").exit == 6


def shown(frames: list[TopFrame | Exception], keys: str) -> str:
    """Return the text that a terminal without colours receives; a blank is an interval without a key."""
    console = Console(file=io.StringIO(), force_terminal=True, width=60, height=12, no_color=True)
    waiting, typed = iter(frames), iter(keys)

    def read() -> TopFrame:
        found = next(waiting)
        if isinstance(found, Exception):
            raise found
        return found

    show(read, console, lambda _: next(typed).strip(), 1.0)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def frame(generation: int) -> TopFrame:
    return TopFrame((ServerFigures("http://a:1", True, generation, "abcdef0123456789", 5, ()),))


def test_frames_follow_each_other_until_q_and_the_screen_is_restored():
    text = shown([frame(1), frame(2), frame(3)], " xq")
    assert [f"generation {number}" in text for number in (1, 2, 3, 4)] == [True, True, True, False]
    assert text.startswith("\x1b[?1049h")
    assert text.endswith("\x1b[?25h\x1b[?1049l")
    assert "\x1b[3" not in text  # no colours


def test_a_frame_that_cannot_be_read_leaves_the_last_one_with_the_reason():
    assert "generation 1" in (text := shown([frame(1), Stop("the cluster does not answer")], " q"))
    assert "the cluster does not answer" in text
    with pytest.raises(Stop, match="nothing"):
        shown([Stop("nothing")], "q")


def test_without_a_terminal_one_frame_must_be_demanded(run: Run, dump: Path):
    done = run("top", "--cluster", dump)
    assert (done.exit, done.err) == (
        2, "koord-policy: standard output is not a terminal: print one frame with `--once`\n")
