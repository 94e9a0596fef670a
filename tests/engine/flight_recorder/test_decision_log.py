from __future__ import annotations

import json
import logging
import os

import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.flight_recorder import decision_log
from koordpolicy.engine.flight_recorder.decision_log import DecisionLog, LogLimits
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop

from .recordings import SPREAD, START, make_node, make_pod, registry_of


class Logged:
    def __init__(self, path, *objects, limits=None, sample=1.0):
        self.live = Live(registry_of(SPREAD))
        self.cluster = Cluster(objects)
        self.log = DecisionLog(path, self.live, sample=sample, limits=limits, clock=lambda: START)
        self.loop = SchedulingLoop(self.cluster, self.live, clock=lambda: START, cycle_observers=[self.log])

    def schedule(self, *pods):
        self.cluster.upsert_all(pods)
        return list(self.loop.schedule_all())


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_placed_pod_is_logged_with_the_scores_of_its_node_and_the_next_best(tmp_path):
    path = tmp_path / "log"
    run = Logged(path, make_node("a"), make_node("b", "8"))
    (verdict,) = run.schedule(make_pod("p"))
    run.log.close()
    (line,) = lines_of(path)
    assert line.pop("durationMs") > 0
    scores, other = line.pop("score"), line.pop("next")
    assert line == {
        "time": "2026-09-21T14:13:20.000000Z", "pod": "default/p", "uid": "uid-p", "profile": "default-scheduler",
        "generation": 1, "hash": run.live.registry.digest, "node": "b", "nodes": 2, "passed": 2,
    }
    best = verdict.best(2)
    assert (("b", scores["total"]), (other["node"], other["total"])) == tuple(best)
    assert (scores["plugins"], other["plugins"]) == (verdict.score_of("b"), verdict.score_of("a"))


def test_a_pod_without_a_node_is_logged_with_its_refusals(tmp_path):
    path = tmp_path / "log"
    run = Logged(path, make_node("a"), make_pod("low", "3", "a"))
    run.schedule(make_pod("large", "99"), make_pod("high", "3", priority=10))
    run.log.close()
    high, large = lines_of(path)
    assert large["refusals"] == [
        {"plugin": "NodeResourcesFit", "rule": "resources", "reason": "Insufficient cpu", "nodes": 1}]
    assert (high["nominated"], high["victims"]) == ("a", ["default/low"])


def test_a_share_of_the_pods_is_logged_with_all_their_decisions(tmp_path):
    path = tmp_path / "log"
    run = Logged(path, make_node("a", "999"), sample=0.3)
    run.schedule(*(make_pod(f"p{number}") for number in range(200)))
    run.log.close()
    lines = lines_of(path)
    assert 30 <= len(lines) <= 90
    none = Logged(tmp_path / "none", make_node("a", "999"), sample=0.0)
    none.schedule(make_pod("p"))
    none.log.close()
    assert (tmp_path / "none").read_text() == ""


def test_a_full_log_is_rotated_and_the_oldest_goes(tmp_path):
    path = tmp_path / "log"
    log = decision_log._RotatedFile(path, LogLimits(bytes=100, files=2))
    for number in range(10):
        log.write([{"number": number, "filling": "x" * 60}])
    log.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
    assert [lines_of(tmp_path / name)[0]["number"] for name in ("log", "log.1", "log.2")] == [9, 8, 7]
    assert all(each.stat().st_mode & 0o777 == 0o600 for each in tmp_path.iterdir())


def test_a_line_that_was_cut_off_stays_one_line(tmp_path):
    path = tmp_path / "log"
    path.write_text('{"whole": 1}\n{"cut": ')
    log = decision_log._RotatedFile(path, LogLimits())
    log.write([{"new": 2}])
    log.close()
    assert path.read_text().splitlines() == ['{"whole": 1}', '{"cut": ', '{"new": 2}']


def test_links_are_not_followed(tmp_path):
    target = tmp_path / "target"
    (tmp_path / "log").symlink_to(target)
    with pytest.raises(OSError, match="symbolic link"):
        decision_log._RotatedFile(tmp_path / "log", LogLimits())
    assert not target.exists()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a file"):
        decision_log._RotatedFile(tmp_path / "pipe", LogLimits())


def test_a_disk_that_fails_costs_lines_and_is_tried_again(tmp_path, monkeypatch, caplog):
    path = tmp_path / "log"
    log = decision_log._RotatedFile(path, LogLimits())

    def full(self, content):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(decision_log._RotatedFile, "_append", full)
        log.write([{"a": 1}])
        log.write([{"a": 2}])
    assert log.dropped == 2
    assert caplog.messages == ["the decision log cannot be written, and is tried again: No space left on device"]
    log._failed -= 60
    log.write([{"a": 3}])
    log.close()
    assert lines_of(path) == [{"a": 3}]


def test_names_cannot_break_lines(tmp_path):
    path = tmp_path / "log"
    log = decision_log._RotatedFile(path, LogLimits())
    log.write([{"pod": "a\n\x1b[31m\u2028\ud800"}])
    log.close()
    assert path.read_text() == '{"pod": "a\\n\\u001b[31m\\u2028\\ud800"}\n'
