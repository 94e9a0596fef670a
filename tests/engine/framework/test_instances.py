from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.derived import Derived
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Plugin, Registry
from koordpolicy.engine.reload import Instances


class Noted:
    """A plugin instance that notes its life in a list."""

    def __init__(self, name: str, args: Any, life: list[str]) -> None:
        self.name, self.life = f"{name}{dict(args) or ''}", life
        life.append(f"make {self.name}")

    def start(self) -> None:
        self.life.append(f"start {self.name}")
        if "fails-to-start" in self.name:
            raise RuntimeError(self.name)

    def close(self) -> None:
        self.life.append(f"close {self.name}")
        if "fails-to-close" in self.name:
            raise RuntimeError(self.name)


def plugin(name: str, life: list[str], digest: str = "1") -> Plugin:
    return Plugin(
        name, Framework.SCHEDULER, (Point.FILTER,), lambda args, handle: Noted(name, args, life), "test", digest,
    )


def registry(generation: int, *plugins: Plugin) -> Registry:
    return Registry.of(plugins, generation=generation)


def adopt(instances: Instances, registry: Registry, args: dict[str, Any] | None = None) -> dict[str, Any]:
    with instances.adopting(registry) as adoption:
        return {p.name: adoption.get("default", p, (args or {}).get(p.name, {})) for p in registry.plugins.values()}


def test_an_instance_is_taken_over_by_the_next_generation_and_closed_when_nothing_wants_it() -> None:
    life: list[str] = []
    instances = Instances(lambda profile, plugin: None)
    first = adopt(instances, registry(1, plugin("a", life), plugin("b", life)))
    second = adopt(instances, registry(2, plugin("a", life), plugin("c", life)))
    assert second["a"] is first["a"]
    assert life == ["make a", "start a", "make b", "start b", "make c", "start c", "close b"]


def test_other_args_or_another_digest_make_another_instance() -> None:
    life: list[str] = []
    instances = Instances(lambda profile, plugin: None)
    adopt(instances, registry(1, plugin("a", life)), {"a": {"x": 1}})
    adopt(instances, registry(2, plugin("a", life)), {"a": {"x": 2}})
    adopt(instances, registry(3, plugin("a", life, digest="2")), {"a": {"x": 2}})
    assert life == ["make a{'x': 1}", "start a{'x': 1}", "make a{'x': 2}", "start a{'x': 2}", "close a{'x': 1}",
                    "make a{'x': 2}", "start a{'x': 2}", "close a{'x': 2}"]


def test_each_profile_has_its_own_instance() -> None:
    life: list[str] = []
    instances = Instances(lambda profile, plugin: None)
    a = plugin("a", life)
    with instances.adopting(registry(1, a)) as adoption:
        assert adoption.get("one", a, {}) is not adoption.get("two", a, {})
        assert adoption.get("one", a, {}) is adoption.get("one", a, {})


def test_a_leased_generation_keeps_its_instances_until_the_last_lease_is_given_back() -> None:
    life: list[str] = []
    instances = Instances(lambda profile, plugin: None)
    old = registry(1, plugin("a", life))
    adopt(instances, old)
    waiting = instances.lease(old)
    with instances.lease(old):
        adopt(instances, registry(2))
    assert "close a" not in life
    waiting.release()
    waiting.release()
    assert life == ["make a", "start a", "close a"]
    with pytest.raises(LookupError, match="generation 1 is not running"):
        instances.lease(old)


def test_an_instance_that_only_a_lease_kept_can_be_taken_over_again() -> None:
    life: list[str] = []
    instances = Instances(lambda profile, plugin: None)
    old, a = registry(1, plugin("a", life)), plugin("a", life)
    first = adopt(instances, old)
    waiting = instances.lease(old)
    adopt(instances, registry(2))
    with instances.adopting(registry(3, a)) as adoption:
        again = adoption.get("default", a, {})
        waiting.release()
    assert again is first["a"]
    assert life == ["make a", "start a"]


def test_a_generation_that_cannot_be_made_leaves_the_one_before() -> None:
    life: list[str] = []
    instances = Instances(lambda profile, plugin: None)
    old = registry(1, plugin("a", life))
    adopt(instances, old)
    with pytest.raises(RuntimeError):
        adopt(instances, registry(2, plugin("b", life), plugin("fails-to-start", life)))
    assert life == ["make a", "start a", "make b", "start b", "make fails-to-start", "start fails-to-start",
                    "close b", "close fails-to-start"]
    instances.lease(old).release()
    assert "close a" not in life


def test_one_that_fails_to_close_is_told_and_keeps_no_other_open() -> None:
    life: list[str] = []
    failed: list[str] = []
    instances = Instances(lambda profile, plugin: None, failed=lambda key, error: failed.append(f"{key[2]}: {error}"))
    adopt(instances, registry(1, plugin("fails-to-close", life), plugin("b", life)))
    instances.close()
    assert failed == ["fails-to-close: fails-to-close"]
    assert life[-2:] == ["close fails-to-close", "close b"]


def prepare(instances: Instances, registry: Registry) -> dict[str, Any]:
    with instances.staging(registry) as adoption:
        return {p.name: adoption.get("default", p, {}) for p in registry.plugins.values()}


def test_a_staged_generation_runs_beside_the_current_one_until_it_is_adopted() -> None:
    life: list[str] = []
    instances = Instances(lambda profile, plugin: None)
    first, second = registry(1, plugin("a", life), plugin("b", life)), registry(2, plugin("a", life), plugin("c", life))
    before = adopt(instances, first)
    made = prepare(instances, second)
    assert (made["a"] is before["a"], life) == (True, ["make a", "start a", "make b", "start b", "make c", "start c"])
    instances.adopt(second)
    assert life[6:] == ["close b"]
    with pytest.raises(LookupError, match="generation 2 is not staged"):
        instances.adopt(second)


def test_only_the_generation_staged_last_is_kept() -> None:
    life: list[str] = []
    instances = Instances(lambda profile, plugin: None)
    adopt(instances, registry(1, plugin("a", life)))
    superseded = registry(2, plugin("b", life), plugin("c", life))
    prepare(instances, superseded)
    last = registry(3, plugin("c", life))
    prepare(instances, last)
    assert life == ["make a", "start a", "make b", "start b", "make c", "start c", "close b"]
    with pytest.raises(LookupError, match="generation 2 is not staged"):
        instances.adopt(superseded)
    instances.adopt(last)
    assert life[7:] == ["close a"]


def test_a_generation_that_cannot_be_staged_leaves_the_one_staged_before() -> None:
    life: list[str] = []
    instances = Instances(lambda profile, plugin: None)
    second = registry(2, plugin("a", life))
    prepare(instances, second)
    with pytest.raises(RuntimeError, match="fails-to-start"):
        prepare(instances, registry(3, plugin("b", life), plugin("fails-to-start", life)))
    instances.adopt(second)
    assert life == ["make a", "start a", "make b", "start b", "make fails-to-start", "start fails-to-start",
                    "close b", "close fails-to-start"]


def test_a_handle_whose_plugin_cannot_be_made_is_released() -> None:
    def fails(args: Any, handle: Any) -> Any:
        raise RuntimeError(f"no {handle}")

    life: list[str] = []
    released: list[str] = []
    instances = Instances(lambda profile, plugin: f"handle of {plugin}", released=released.append)
    broken = Plugin("broken", Framework.SCHEDULER, (Point.FILTER,), fails, "test", "1")
    with pytest.raises(RuntimeError, match="no handle of broken"):
        adopt(instances, registry(1, plugin("a", life), broken))
    assert sorted(released) == ["handle of a", "handle of broken"]


class Counts:
    """A plugin instance with a derived column of its own, made when the instance is."""

    def __init__(self) -> None:
        self.column = Derived(frozenset({("nodeInfo", "pods")}), np.int64, lambda snapshot, row: row)


_SHARED = Derived(frozenset({("nodeInfo", "pods")}), np.int64, lambda snapshot, row: row)


def test_columns_of_an_instance_are_dropped_when_it_is_closed() -> None:
    cluster = Cluster({"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {}}} for name in "ab")
    instances = Instances(lambda profile, plugin: None)
    both = [Plugin(name, Framework.SCHEDULER, (Point.FILTER,), lambda args, handle: Counts(), "test", "1")
            for name in "ab"]
    made = adopt(instances, registry(1, *both))

    def cached() -> int:
        return len(cluster.cross_version_cache)

    for column in (made["a"].column, made["b"].column, _SHARED):
        assert column.of(cluster.snapshot()).tolist() == [0, 1]
    assert cached() == 3
    with instances.lease(registry(1, *both)):
        adopt(instances, registry(2, both[0]))
        assert cached() == 3
    assert cached() == 2
    instances.close()
    assert cached() == 1, "nobody owns a column of a module"
    assert made["b"].column.of(cluster.snapshot()).tolist() == [0, 1]
