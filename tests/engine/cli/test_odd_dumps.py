"""Objects that a dump has twice, or with a time far from the others, are reported."""

from __future__ import annotations

from typing import Any

import pytest

from koordpolicy.engine.cli.cluster_loading import cluster_from, moment_of
from koordpolicy.engine.cluster.kinds import Objects
from tests.engine.cli.conftest import node, pod

METRIC = {
    "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {"name": "a"},
    "status": {"updateTime": "2026-01-01T00:00:00Z"},
}


def created(each: dict[str, Any], at: str) -> dict[str, Any]:
    return each | {"metadata": each["metadata"] | {"creationTimestamp": at}}


def test_objects_of_one_name_with_unlike_contents_are_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [created(node(name), f"2026-01-0{day}T00:00:00Z") for day in (1, 2, 3) for name in "abcd"]
    cluster = cluster_from(Objects.of([*nodes, pod("one", "1"), pod("one", "1")]), "dump.json")
    assert cluster.names == ["a", "b", "c", "d"]
    assert capsys.readouterr().err == (
        "warning: more than once and with unlike contents the dump has Node `a`, Node `b`, Node `c` and 1 more: the "
        "last one of each counts\n"
    )


def test_a_dump_that_repeats_itself_is_no_odd_one(capsys: pytest.CaptureFixture[str]) -> None:
    cluster_from(Objects.of([node("a"), node("a")]), "dump.json")
    assert capsys.readouterr().err == ""


def test_one_object_from_the_future_that_sets_the_time_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    odd = created(pod("one", "1"), "2100-01-01T00:00:00Z")
    cluster = cluster_from(Objects.of([node("a"), METRIC, odd]), "dump.json")
    assert moment_of(None, "dump.json", cluster) == 4_102_444_800_000_000_000
    assert capsys.readouterr().err == (
        "warning: the time of the decision is 2100-01-01T00:00:00Z, of Pod `shop/one`, 38920320 min after all "
        "else in the dump: metrics of then have expired (`--now` sets another time)\n"
    )


def test_an_object_that_is_little_newer_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    later = created(pod("one", "1"), "2026-01-01T01:00:00Z")
    cluster = cluster_from(Objects.of([node("a"), METRIC, later]), "dump.json")
    assert moment_of(None, "dump.json", cluster) == 1_767_229_200_000_000_000
    assert capsys.readouterr().err == ""
