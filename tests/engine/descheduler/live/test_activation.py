"""The active profiles follow policies and configuration; plugins that stay the same keep their state."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.descheduler import config
from koordpolicy.engine.descheduler.live.activation import ProfileActivator, reads_of
from koordpolicy.engine.framework.handle import NOTHING
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.source import PolicyError
from koordpolicy.plugin import python_plugin


class Balances:
    def __init__(self, args: dict[str, Any], handle: Any) -> None:
        if args.get("faulty"):
            raise ValueError("faulty arguments")
        self.closed = False
        MADE.append(self)

    def balance(self, snapshot: Any, rows: Any, evictor: Any) -> None:
        pass

    def eviction_filter(self, pod: Any, snapshot: Any) -> None:
        pass

    def evict(self, pod: Any, reason: str) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


MADE: list[Balances] = []
"""All that were made."""
POINTS = [Point.BALANCE, Point.EVICTION_FILTER]


def registry(generation: int, *names: str) -> Registry:
    return Registry.of([python_plugin(name, Framework.DESCHEDULER, Balances, points=POINTS) for name in names],
                       generation=generation)


def configured(*names: str, **args: Any) -> config.DeschedulerConfiguration:
    plugins = {"balance": {"enabled": [{"name": name} for name in names]}, **{
        point: {"disabled": [{"name": "*"}], "enabled": [{"name": "First"}]} for point in ("evict", "filter")}}
    return config.read_plain({"profiles": [{
        "name": "p", "plugins": plugins, "pluginConfig": [{"name": name, "args": args} for name in names]}]})


class Scene:
    def __init__(self) -> None:
        self.live = Live(registry(1, "First", "Second"))
        self.configuration = configured("First", "Second")
        self.activator = ProfileActivator(
            self.live, lambda: self.configuration, snapshot=Cluster().snapshot, client=NOTHING)
        self.active = self.activator.activate(None)

    def again(self) -> dict[str, Any]:
        """Activate what is newest; return the plugins by name."""
        self.active = self.activator.activate(self.active)
        return {each.name: each.instance for each in self.active.plugins}


def test_plugins_that_stay_the_same_keep_their_state_and_others_are_closed():
    scene = Scene()
    before = scene.again()
    assert scene.active is scene.activator.activate(scene.active)
    scene.configuration = configured("First")
    after = scene.again()
    assert (after, before["First"].closed, before["Second"].closed) == ({"First": before["First"]}, False, True)
    scene.live.activate(registry(2, "First", "Third"))
    scene.configuration = configured("First", "Third")
    assert scene.again()["First"] is before["First"]
    scene.configuration = configured("First", mode="other")
    assert scene.again()["First"] is not before["First"]
    assert before["First"].closed
    scene.activator.close()
    assert all(each.instance.closed for each in scene.active.plugins)


def test_what_cannot_be_made_leaves_the_last_profiles_active_until_it_can(caplog: pytest.LogCaptureFixture):
    scene = Scene()
    good, plugins = scene.active, scene.again()
    scene.configuration = configured("First", faulty=True)
    for _ in range(3):
        assert scene.again() == plugins
    assert scene.active is good
    assert scene.activator.fault == "profile `p`: initializing plugin `First`: faulty arguments"
    assert [record.levelno for record in caplog.records] == [logging.ERROR]  # said once
    assert not plugins["First"].closed
    scene.configuration = configured("First")
    assert (scene.again()["First"], scene.activator.fault) == (plugins["First"], "")


def test_what_is_checked_is_made_apart_and_raises():
    scene = Scene()
    before = scene.again()
    (profile,) = scene.activator.check(scene.live.registry, scene.configuration)
    assert all(each.instance is not before[each.name] for each in profile.plugins)
    with pytest.raises(PolicyError, match="faulty arguments"):
        scene.activator.check(scene.live.registry, configured("First", faulty=True))
    dry = replace(configured("First"), dry_run=True)
    assert {"Node", "Pod", "PodDisruptionBudget"} <= reads_of(
        scene.activator.check(scene.live.registry, dry)).keys()


def test_a_plugin_that_names_no_fields_gets_whole_nodes_and_pods():
    scene = Scene()
    reads = reads_of(scene.activator.check(scene.live.registry, scene.configuration))
    assert (reads["Node"], reads["Pod"]) == (None, None)


def test_what_is_checked_is_closed_also_if_it_cannot_be_made():
    scene = Scene()
    MADE.clear()
    scene.activator.check(scene.live.registry, scene.configuration)
    assert [each.closed for each in MADE] == [True, True]
    MADE.clear()
    faulty = configured("First", "Second")
    profile, = faulty.profiles
    with pytest.raises(PolicyError, match="faulty arguments"):
        scene.activator.check(scene.live.registry, replace(faulty, profiles=(
            replace(profile, args={**profile.args, "Second": {"faulty": True}}),)))
    assert [each.closed for each in MADE] == [True]
    assert not any(each.closed for each in scene.again().values())
