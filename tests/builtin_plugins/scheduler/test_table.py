from __future__ import annotations

import pytest

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster.snapshot import Cluster
from koordpolicy.engine.points import Framework
from koordpolicy.engine.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle import Scheduler


def test_every_built_in_can_be_made_and_answers_at_its_points():
    scheduler = Scheduler(Cluster(), Live(Registry.of(PLUGINS, generation=1)))
    assert scheduler.profiles[0].plugins() == (
        "GpuShare", "NodeAffinity", "NodeName", "NodeResourcesFit", "NodeUnschedulable", "TaintToleration")


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
