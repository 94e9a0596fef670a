from __future__ import annotations

import pytest

from koordpolicy.builtin_plugins.scheduler import DEFAULT_PLUGINS, PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec


def test_kubernetes_default_plugins_are_active_by_themselves_with_their_weights_and_no_others():
    profile = Scheduler(Cluster(), Live(Registry.of(PLUGINS, generation=1))).profiles[0]
    found = {point: tuple((each.name, each.weight if point is Point.SCORE else 1) for each in active)
             for point, active in profile.at.items() if active}
    assert {point: sorted(enabled) for point, enabled in found.items()} == {
        point: sorted(enabled) for point, enabled in DEFAULT_PLUGINS.items()}
    assert found[Point.FILTER] == DEFAULT_PLUGINS[Point.FILTER]


def test_every_other_built_in_can_be_enabled_and_answers_at_its_points():
    args = {
        "FragmentationGradient": {"typicalPods": [{"cpuMilli": 1000, "gpus": 1, "gpuMilli": 1000, "probability": 1.0}]},
    }
    others = tuple(
        PluginChoice(plugin.name, args=args.get(plugin.name, {})) for plugin in PLUGINS if not plugin.enabled
    )
    scheduler = Scheduler(Cluster(), Live(Registry.of(PLUGINS, generation=1)), Settings((ProfileSpec(enabled=others),)))
    assert set(scheduler.profiles[0].plugins()) == {plugin.name for plugin in PLUGINS}


def test_built_ins_are_asked_in_the_order_of_the_table_and_before_documents():
    registry = Registry.of(reversed(PLUGINS), generation=1)
    assert registry.of_framework(Framework.SCHEDULER) == PLUGINS
    assert all(plugin.order < 0 for plugin in PLUGINS)


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_every_built_in_refuses_arguments_that_it_does_not_know(plugin):
    with pytest.raises(ValueError, match="there is no argument `nonsense`"):
        plugin.check_args({"nonsense": 1})


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_every_built_in_says_what_it_does(plugin):
    assert plugin.description.endswith(".")
