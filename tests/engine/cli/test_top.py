from __future__ import annotations

import argparse
import contextlib
import fcntl
import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from koordpolicy.engine.cli import top, top_source
from koordpolicy.engine.cli.exits import Stop
from koordpolicy.engine.cli.top import show
from koordpolicy.engine.cli.top_frame import ClusterFigures, NodeHeat, PodWait, TopFrame, rendered
from koordpolicy.engine.cli.top_screen import Part, TopScreen
from koordpolicy.engine.cli.top_source import TopSource
from koordpolicy.engine.client.server_calls import EndpointAnswer
from koordpolicy.engine.console.server_views import servers_view
from koordpolicy.engine.monitoring.alerts import ALERTS, RaisedAlert
from koordpolicy.engine.monitoring.figures import ServerFigures, server_figures
from koordpolicy.engine.monitoring.monitor import FigurePoint, MonitorView, ServerState
from tests.engine.client.object_server import ObjectServer
from tests.waiting import until

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
        f"3 nodes (3 measured), 1 pod bound, 5 waiting: {tmp_path}/c.json at 2026-01-02T12:00:00Z",
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


def server(endpoint: str = "http://a:1", **status: object) -> ServerState:
    data = {"ready": True, "leading": True, "policies": POLICIES, "cluster": {"nodes": 5}, **status}
    return ServerState(endpoint, "scheduler", EndpointAnswer(endpoint, 200, data), heard=100.0)


def frame(generation: int) -> TopFrame:
    view = MonitorView(1, 100.0, (server(policies=POLICIES | {"generation": generation}),))
    return TopFrame(view=servers_view(view, 0.0))


def test_frames_follow_each_other_until_q_and_the_screen_is_restored():
    text = shown([frame(1), frame(2), frame(3)], "  q")
    assert [f"generation {number}" in text for number in (1, 2, 3, 4)] == [True, True, True, False]
    assert text.startswith("\x1b[?1049h")
    assert text.endswith("\x1b[?25h\x1b[?1049l")
    assert "\x1b[3" not in text  # no colours


def test_a_frame_that_cannot_be_read_leaves_the_last_one_with_the_reason():
    assert "generation 1" in (text := shown([frame(1), Stop("the cluster does not answer")], " q"))
    assert "the cluster does not answer" in text
    with pytest.raises(Stop, match="nothing"):
        shown([Stop("nothing")], "q")


def lines(frame: TopFrame, screen: TopScreen, height: int = 24, width: int = 80) -> list[str]:
    """Return the lines of a terminal."""
    console = Console(file=io.StringIO(), width=width, height=height)
    with console.capture() as captured:
        console.print(rendered(frame, height=height, width=width, live=True, screen=screen))
    return [line.rstrip() for line in captured.get().splitlines()]


def crowd(nodes: int, pods: int) -> ClusterFigures:
    return ClusterFigures("c", 0, 0, tuple(
        NodeHeat(f"n{number:04d}", 1, {"cpu": 1.0, "memory": 1.0}, None, unschedulable=False)
        for number in range(nodes)), tuple(
        PodWait(f"s/p{number:04d}", 0, 1, 1, 1.0, "why", "") for number in range(pods)))


def names(found: list[str], beginning: str) -> list[str]:
    return [word for line in found for word in line.split()[:1] if word.startswith(beginning) and word[-1].isdigit()]


def test_every_row_can_be_reached_in_a_terminal_of_80_columns_and_24_lines():
    shown, screen = TopFrame(cluster=crowd(500, 300)), TopScreen()
    for key, beginning, total in (("3", "n", 500), ("4", "s/p", 300)):
        screen.press(key)
        seen = names(lines(shown, screen), beginning)
        while screen.offset < screen.last:
            screen.press(" ")
            found = lines(shown, screen)
            assert len(found) <= 24
            seen += names(found, beginning)
        assert sorted(set(seen)) == [f"{beginning}{number:04d}" for number in range(total)]
        assert f"of {total}" in found[-1]


@pytest.mark.parametrize("key", ["1", "3", "4"])
def test_the_keys_are_named_in_the_last_line_whatever_the_cluster_is_called(key: str):
    shown, screen = TopFrame(cluster=replace(crowd(500, 300), source="a-long-name/" * 9)), TopScreen()
    screen.press(key)
    found = lines(shown, screen)
    assert len(found) <= 24
    assert found[-1].startswith("q: quit  ?: keys  1: all")


def test_keys_move_by_rows_and_pages_and_stop_at_the_ends():
    shown, screen = TopFrame(cluster=crowd(100, 0)), TopScreen(Part.NODES)

    def first(*keys: str) -> str:
        for key in keys:
            screen.press(key)
        return names(lines(shown, screen), "n")[0]

    page = len(names(lines(shown, screen), "n"))
    assert page == 20
    assert first("k", "b", "g") == "n0000"
    assert first("j", "\x1b[B", "\x1bOB") == "n0003"
    assert first("k", "\x1b[A") == "n0001"
    assert first("\x1b[6~") == "n0021"
    assert first("\x1b[5~") == "n0001"
    assert first("G", "j", " ") == "n0080"
    assert first("\x1b[H") == "n0000"
    assert first("x", "\x1b") == "n0000"


def test_both_lists_of_a_frame_move_and_the_shorter_one_stays_at_its_end():
    shown, screen = TopFrame(cluster=crowd(100, 30)), TopScreen()
    found = lines(shown, screen)
    assert (names(found, "n")[0], names(found, "s/p")[0], len(found)) == ("n0000", "s/p0000", 24)
    screen.press("G")
    found = lines(shown, screen)
    assert (names(found, "n")[-1], names(found, "s/p")[-1], len(found)) == ("n0099", "s/p0029", 24)


def test_tab_and_numbers_choose_a_part_and_question_mark_lists_the_keys():
    shown, screen = TopFrame(cluster=crowd(2, 2)), TopScreen()
    parts = []
    for key in "\t\t\t\t2":
        screen.press(key)
        parts.append(screen.part)
    assert parts == [Part.SERVERS, Part.NODES, Part.PODS, Part.ALL, Part.SERVERS]
    assert lines(shown, screen)[0] == "no servers are shown: name them with `--endpoints`"
    screen.press("?")
    assert any(line.startswith("k, up") for line in lines(shown, screen))
    screen.press("j")
    assert (screen.helping, screen.offset, screen.part) == (False, 0, Part.SERVERS)


def test_keys_of_several_characters_are_one_key():
    first, writing = os.pipe()
    reading = fcntl.fcntl(first, fcntl.F_DUPFD, 1024)  # beyond what select takes
    os.close(first)
    try:
        os.write(writing, b"\x1b[6~j\x1b[A\x1bOBq\x1b[1~G\x1b")
        assert [top._key_from(reading) for _ in range(8)] == [
            "\x1b[6~", "j", "\x1b[A", "\x1bOB", "q", "\x1b[1~", "G", "\x1b"]
    finally:
        os.close(reading)
        os.close(writing)


def test_a_key_does_not_read_the_frame_again():
    assert "generation 1" in shown([frame(1)], "2?xq")


def monitored(*servers: ServerState, **more: object) -> TopFrame:
    return TopFrame(view=servers_view(MonitorView(1, 100.0, servers, **more), 0.0))  # type: ignore[arg-type]


def test_servers_have_the_figures_the_staleness_and_the_alerts_of_the_overview():
    kinds = {"Node": {"age": 3.0, "fault": None}, "Pod": {"age": 300.0, "fault": "is forbidden"}}
    alert = RaisedAlert(ALERTS[0], (("instance", "http://a:1"),), 40.0, firing=True)
    points = (FigurePoint(95.0, bound=1.0, waiting=2.0, decision_s=0.004), FigurePoint(100.0, bound=2.0, waiting=1.0))
    shown = monitored(server(cluster={"nodes": 5, "kinds": kinds}), server("http://b:1", leading=False),
                      alerts=(alert,), points=points)
    found = lines(shown, TopScreen(), width=120)
    assert found[1].startswith("! KoordPolicyNotReady (critical, for 1m): policies and cluster are not loaded, so ")
    assert [found[0], *found[2:6]] == [
        "bound 2/s ▄█  waiting 1 █▄  decisions 4ms",
        "http://a:1  healthy  scheduler, leading, generation 3, hash abcdef012345, 5 nodes, kinds heard of 3s ago",
        "  ! Pod was heard of 5m ago: is forbidden",
        "http://b:1  healthy  scheduler, standby, generation 3, hash abcdef012345, 5 nodes",
        ""]
    assert lines(monitored(server()), TopScreen())[0] == "no alerts"


def test_all_problems_of_servers_can_be_reached():
    problems = [{"message": f"m{number}", "file": "p.yaml", "line": number} for number in range(1, 40)]
    shown = monitored(server(policies=POLICIES | {"sources": [{"problems": problems, "warnings": []}]}))
    screen = TopScreen()
    assert "  ! refused: p.yaml:1: m1 (and 38 more)" in lines(shown, screen)
    screen.press("2")
    assert len(lines(shown, screen)) == 24
    screen.press("G")
    assert "  ! refused: p.yaml:39: m39" in lines(shown, screen)


def test_many_servers_leave_room_for_the_cluster():
    shown = replace(monitored(*(server(f"http://s{number}:1") for number in range(40))), cluster=crowd(9, 9))
    found = lines(shown, TopScreen())
    assert len(found) <= 24
    assert "... 35 more lines: press 2" in found
    assert names(found, "n")


def test_a_dump_is_read_again_only_if_it_has_changed(tmp_path: Path, monkeypatch):
    reads = []
    read = top_source.cluster_of
    monkeypatch.setattr(top_source, "cluster_of", lambda source: (reads.append(source), read(source))[1])
    for path in (write_dump(tmp_path / "c.json", objects()), str(tmp_path)):
        reads.clear()
        source = source_of(cluster=str(path))
        first = source.read()
        assert source.read() == first
        assert len(reads) == 1
        write_dump(tmp_path / "c.json", [*objects(), pod(f"more-{Path(path).name}", "1")])
        assert source.read() != first
        assert len(reads) == 2
        source.close()


def source_of(**more: object) -> TopSource:
    return TopSource(argparse.Namespace(**{"cluster": None, "endpoints": None, "now": None, "interval": 5.0} | more),
                     watch=True)


def test_a_live_cluster_is_listed_once_and_then_watched(tmp_path: Path, monkeypatch):
    with ObjectServer(streaming=False) as running:
        (tmp_path / "kubeconfig").write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "c", "cluster": {"server": running.server}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}]}), encoding="utf-8")
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        for each in objects()[:1]:
            running.put(each)
        with contextlib.closing(source_of(cluster="kube")) as source:
            first = source.read().cluster
            assert (first.source, [each.name for each in first.nodes], first.waiting) == ("kube", ["cool"], ())
            running.put(pod("new", "1"))
            until(lambda: [each.pod for each in source.read().cluster.waiting] == ["shop/new"])
        assert len(running.requested("Node", watch=False)) == 1
        assert len(running.requested("Pod", watch=False)) == 1


def test_without_a_terminal_one_frame_must_be_demanded(run: Run, dump: Path):
    done = run("top", "--cluster", dump)
    assert (done.exit, done.err) == (
        2, "koord-policy: standard output is not a terminal: print one frame with `--once`\n")
