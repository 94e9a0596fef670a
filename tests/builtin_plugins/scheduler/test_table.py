from __future__ import annotations

import pytest

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster.snapshot import Cluster
from koordpolicy.engine.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle import Scheduler


def test_every_built_in_can_be_made_and_answers_at_its_points():
    scheduler = Scheduler(Cluster(), Live(Registry.of(PLUGINS, generation=1)))
    assert scheduler.profiles[0].plugins() == (
        "GpuShare", "NodeAffinity", "NodeName", "NodeResourcesFit", "NodeUnschedulable", "TaintToleration")


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_every_built_in_refuses_arguments_that_it_does_not_know(plugin):
    with pytest.raises(ValueError, match="there is no argument `nonsense`"):
        plugin.check_args({"nonsense": 1})


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_every_built_in_says_what_it_does(plugin):
    assert plugin.description.endswith(".")
