from __future__ import annotations

import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.descheduler.framework import run_cycle
from koordpolicy.engine.descheduler.profile import DeschedulerProfileSpec, build_profiles
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import PolicyError
from koordpolicy.plugin import EvictionMode, Point, python_plugin

from .fake_plugins import OBJECTS, REGISTRY


def test_every_fault_of_every_profile_is_told_at_once():
    with pytest.raises(PolicyError) as caught:
        build_profiles([
            DeschedulerProfileSpec(
                "p", balance=("LowNodeLoda", "KeepsWeb"), deschedule=("Everyone", "Everyone"),
                disabled=frozenset({"Secnd", "*", "Second"}), args={"LowNodeLoda": {}, "Everone": {}, "Second": {}},
            ),
            DeschedulerProfileSpec(
                "p", evict=("KeepsWeb",), args={"LowNodeLoad": {"numberOfNodes": -1}},
                balance=("LowNodeLoad",),
            ),
            DeschedulerProfileSpec("", evict=("MigrationController", "DefaultEvictor")),
        ], REGISTRY, dry_run=False)
    assert [(problem.message, problem.help) for problem in caught.value.problems] == [
        ("descheduler name is needed", "give each profile a `name`"),
        ("duplicate profile with descheduler name `p`", ""),
        ("profile ``: only one evict plugin can be enabled",
         '`MigrationController` is, too; `disabled: [{name: "*"}]` at `evict` drops the default one'),
        ("profile `p`: BalancePlugin `LowNodeLoda` does not exist", "did you mean `LowNodeLoad`?"),
        ("profile `p`: initializing plugin `LowNodeLoad`: numberOfNodes: must be greater than or equal to 0", ""),
        ("profile `p`: it disables the plugin `Secnd`, which does not exist", "did you mean `Second`?"),
        ("profile `p`: it has arguments for the plugin `Everone`, which does not exist", "did you mean `Everyone`?"),
        ("profile `p`: no evict plugin is enabled", ""),
        ("profile `p`: plugin `Everyone` already registered as `DeschedulePlugin`", ""),
        ("profile `p`: plugin `KeepsWeb` does not extend BalancePlugin plugin", "name it under `filter`"),
        ("profile `p`: plugin `KeepsWeb` does not extend EvictPlugin plugin",
         "`DefaultEvictor` and `MigrationController` evict pods; in a dry run any filter suffices"),
    ]


def test_a_plugin_is_given_the_profile_the_cluster_and_the_moment():
    seen = []

    class Asks:
        def __init__(self, args, handle):
            self.handle = handle

        def balance(self, snapshot, rows, evictor):
            handle = self.handle
            seen.append((handle.profile, handle.snapshot().names, handle.now(), handle.log.name))

    registry = Registry.of([python_plugin("Asks", Framework.DESCHEDULER, Asks)], generation=1)
    snapshot = Cluster(OBJECTS).snapshot(7)
    profiles = build_profiles(
        [DeschedulerProfileSpec("p", balance=("Asks",))], registry, dry_run=True, snapshot=lambda: snapshot,
    )
    run_cycle(profiles, snapshot)
    assert seen == [("p", ["a", "b"], 7, "koordpolicy.descheduler.p")]


def test_a_class_that_only_evicts_is_an_evict_plugin():
    class OnlyEvicts:
        eviction_modes = frozenset({EvictionMode.DELETE})

        def __init__(self, args, handle):
            pass

        def evict_with_options(self, pod, options):
            return True

    plugin = python_plugin("OnlyEvicts", Framework.DESCHEDULER, OnlyEvicts)
    assert plugin.points == (Point.EVICTION_FILTER,)
    spec = DeschedulerProfileSpec("p", evict=("OnlyEvicts",))
    (profile,) = build_profiles([spec], Registry.of([plugin], generation=1), dry_run=False)
    assert (profile.evict.name, profile.filters) == ("OnlyEvicts", ())
