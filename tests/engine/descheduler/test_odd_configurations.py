"""Configurations with one odd value at any place, and hostile texts: each is refused at its place, or cycles run."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.descheduler import config
from koordpolicy.engine.descheduler.documents import SourceStreaks
from koordpolicy.engine.descheduler.framework import run_cycle
from koordpolicy.engine.descheduler.profile import build_profiles
from koordpolicy.engine.documents.nodes import LARGEST_FILE, read_file
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.reload.followed_file import FollowedFile
from koordpolicy.engine.source import PolicyError, Source
from tests.odd_values import ODD, places, with_value

PROJECT = Path(__file__).parents[3]
OURS = Path(__file__).with_name("configurations")
FILES = [
    *(PROJECT / "examples" / each for each in (
        "10-descheduler/config.yaml", "10-descheduler/kubernetes.yaml", "20-live-descheduler/configuration.yaml",
    )),
    OURS / "koordinator.yaml", OURS / "kubernetes.yaml",
]
REGISTRY = Registry.of(PLUGINS, generation=1)
NOW = 1_800_000_000_000_000_000
TRIED = 120
HEAD = "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\n"
TOO_FEW = "the cluster size is 0 or 1 meaning eviction causes service disruption or degradation"


def objects() -> Iterator[dict[str, Any]]:
    for name in ("a", "b"):
        status = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}}
        yield {"kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "status": status}
        used = {"cpu": "3900m", "memory": "1Gi"} if name == "a" else {"cpu": "100m", "memory": "100Mi"}
        yield {"kind": "NodeMetric", "metadata": {"name": name}, "status": {
            "updateTime": "2027-01-15T08:00:00Z", "nodeMetric": {
                "nodeUsage": {"resources": used}, "systemUsage": {"resources": used}},
            "podsMetric": [{"namespace": "shop", "name": "web-0", "podUsage": {"resources": {"cpu": "1"}}}]}}
    for number in range(4):
        yield {
            "kind": "Pod", "status": {"phase": "Running"},
            "metadata": {
                "name": f"web-{number}", "namespace": "shop", "uid": f"{number}", "labels": {"app": "web"},
                "creationTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": [
                    {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": True}],
            },
            "spec": {"nodeName": "a", "containers": [{"name": "c", "resources": {"requests": {"cpu": "900m"}}}]},
        }


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return Cluster(list(objects()))


def outcome(text: str, cluster: Cluster) -> list[str]:
    """Return the faults of a configuration, each with its place; of one that is valid those of a cycle."""
    try:
        read = config.read(Source("c.yaml", text), live=True)
        snapshot = cluster.snapshot(NOW)
        profiles = build_profiles(
            read.profiles, REGISTRY, dry_run=True, snapshot=lambda: snapshot, memory=SourceStreaks(),
        )
    except PolicyError as error:
        return [f"{each.code}: {each.message}" if each.span is None or each.code == "internal"
                else each.render().split("\n")[0] for each in error.problems]
    result = run_cycle(profiles, snapshot, limits=read.limits, node_selector=read.node_selector)
    return [] if result.error == TOO_FEW else [str(failure) for failure in result.failures]


def changed(content: Any, chance: random.Random) -> tuple[Any, object]:
    """Return a copy with an odd value somewhere, and what it is."""
    place, value = chance.choice(list(places(content))), chance.choice(ODD)
    return with_value(content, place, value), (place, value)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_odd_value_anywhere_is_refused_at_its_place_or_cycles_run(path: Path, cluster: Cluster):
    content = yaml.safe_load(path.read_text())
    assert outcome(yaml.safe_dump(content), cluster) == []
    chance = random.Random(path.name)
    for _ in range(TRIED):
        odd, what = changed(content, chance)
        found = outcome(yaml.safe_dump(odd, allow_unicode=True), cluster)
        assert all(each.startswith("c.yaml:") for each in found), (what, found)


@pytest.mark.parametrize("kind", ["koordinator", "kubernetes"])
def test_a_plugin_at_a_point_that_it_does_not_have_is_refused_at_its_place(kind: str, cluster: Cluster):
    content = yaml.safe_load((OURS / f"{kind}.yaml").read_text())
    enabled = {
        point: [each["name"] if isinstance(each, dict) else each for each in of.get("enabled") or ()]
        for point, of in content["profiles"][0]["plugins"].items()
    }
    filters = {"filter", "preevictionfilter"}
    for point, own in enabled.items():
        others = {name for at, names in enabled.items() for name in names if not {at, point} <= filters}
        for name in sorted((others | {"NoSuchPlugin"}) - {*own}):
            odd = copy.deepcopy(content)
            odd["profiles"][0]["plugins"][point]["enabled"] = [{"name": name} if kind == "koordinator" else name]
            (only,) = outcome(yaml.safe_dump(odd), cluster)
            assert re.match(rf"c\.yaml:\d+:\d+: error: profile `[\w-]+`: \w+ `{name}` ", only), (point, name, only)


@pytest.mark.parametrize(("text", "told"), [
    (f"{HEAD}dryRun: true\ndryRun: false\n", "c.yaml:4:1: error: the key `dryRun` is here twice, first at 3:1"),
    (f"{HEAD}profiles: {'[' * 5000}{']' * 5000}\n", "nested deeper than"),
    (f"{HEAD}profiles: [{{name: a, plugins: {{balance: {{enabled: [{{name: LowNodeLaod}}]}}}}}}]\n",
     "c.yaml:3:59: error: profile `a`: BalancePlugin `LowNodeLaod` does not exist"),
    (f"{HEAD}a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n", "unknown field `a`"),
    (f"{HEAD}maxNoOfPodsToEvictTotal: {'9' * 400}\n",
     f"c.yaml:3:26: error: the number {'9' * 40} does not fit in 64 bits"),
    (f"{HEAD}deschedulingInterval: {'9' * 400}h\n", "c.yaml:3:23: error: deschedulingInterval: the duration `99"),
    (f"{HEAD}deschedulingInterval: .nan\n", "c.yaml:3:23: error: the number `.nan` is not finite"),
    (f"{HEAD}---\n{HEAD}", "a configuration file holds one document, not 2"),
    ("", "a configuration file holds one document, not 0"),
    ("- a\n", "this is not a `DeschedulerConfiguration`"),
    ("\x00", "c.yaml:1:1"),
])
def test_a_hostile_text_is_refused_at_its_place(text: str, told: str, cluster: Cluster):
    found = outcome(text, cluster)
    assert any(told in each for each in found), found


@pytest.mark.parametrize("content", [
    b"\xff\xfe\x00", b"dryRun: \xc3\x28\n", b"\xff" * 1000, b"{" * 100_000, HEAD.encode() + b"dryRun: \xed\xa0\x80\n",
    HEAD.encode() + b"#" * LARGEST_FILE, b"",
])
def test_a_followed_file_keeps_its_last_good_content(content: bytes, tmp_path: Path):
    path = tmp_path / "c.yaml"
    path.write_text(f"{HEAD}dryRun: true\n")
    followed = FollowedFile(path, config.read)
    good = followed.value
    path.write_bytes(content)
    assert [followed.look() for _ in range(3)] == [False, False, False]
    assert followed.value is good
    (problem, *_) = followed.status.problems
    assert problem.render()
    path.write_text(f"{HEAD}dryRun: false\n")
    assert [followed.look() for _ in range(3)] == [False, True, False]
    assert (followed.value.dry_run, followed.status.problems) == (False, ())
    assert read_file(path).text == f"{HEAD}dryRun: false\n"
