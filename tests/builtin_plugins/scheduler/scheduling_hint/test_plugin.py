from __future__ import annotations

import json

import pytest

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.framework.points import Code
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec
from koordpolicy.plugin import SKIP, CycleState, OnlyNodes
from tests.fake_framework import FakeFramework

NODES = [{"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {}}} for name in "abc"]


def asked(kit, hint, *, rows=None, key="internal.scheduling.koordinator.sh/scheduling-hint", **args):
    """Return the result of preFilter and the preferred nodes."""
    framework, state = FakeFramework(*NODES), CycleState()
    pod = kit.pod(annotations={} if hint is None else {key: hint if isinstance(hint, str) else json.dumps(hint)})
    plugin, snapshot = framework.make("SchedulingHint", **args), framework.snapshot()
    found = plugin.pre_filter(state, pod, snapshot)
    return found, plugin.prefer_nodes(state, pod, snapshot, framework.rows if rows is None else framework.rows[rows])


def test_a_hint_says_which_nodes_are_looked_at_and_which_come_first(kit):
    assert asked(kit, {"nodeNames": ["c", "a"], "preferredNodeNames": ["c"]}) == (OnlyNodes(frozenset("ac")), ["c"])
    assert asked(
        kit, {"preferredNodeNames": ["b", "a"]}, key="scheduling.koordinator.sh/scheduling-hint",
    ) == (SKIP, ["b", "a"])
    assert asked(kit, {"preferredNodeNames": ["b", "a"]}, maxHintNodes=1) == (SKIP, ["b"])


def test_preferred_nodes_that_are_not_looked_at_do_not_count(kit):
    assert asked(kit, {"preferredNodeNames": ["x", "b", "a"]}, rows=[0, 2]) == (SKIP, ["a"])
    assert asked(kit, {"preferredNodeNames": ["x", "b"]}, rows=[0, 2]) == (SKIP, SKIP)
    assert asked(kit, None) == (SKIP, SKIP)


@pytest.mark.parametrize("hint", ["{", "[]", {"nodeNames": "a"}, {"preferredNodeNames": [1]}])
def test_a_broken_hint_is_an_error(kit, hint):
    found, _ = asked(kit, hint)
    assert (
        found.code, found.message.startswith("annotation `internal.scheduling.koordinator.sh/scheduling-hint`"),
    ) == (Code.ERROR, True)


def test_the_number_of_nodes_must_be_one_at_least(kit):
    with pytest.raises(ValueError, match="`maxHintNodes` is 0: it must be at least 1"):
        asked(kit, None, maxHintNodes=0)


@pytest.mark.parametrize(("hint", "chosen"), [
    (None, "a"), ({"preferredNodeNames": ["full", "c", "b"]}, "c"), ({"nodeNames": ["b"]}, "b"),
    ({"nodeNames": ["gone"]}, None),
    ({"nodeNames": ["full"], "preferredNodeNames": ["a"]}, None),
])
def test_a_hinted_pod_goes_where_the_hint_says_as_far_as_the_filters_let_it(kit, hint, chosen):
    nodes = [kit.node(name) for name in "abc"] + [kit.node("full", unschedulable=True)]
    scheduler = Scheduler(
        Cluster(nodes), Live(Registry.of(PLUGINS, generation=1)),
        Settings((ProfileSpec(enabled=(PluginChoice("SchedulingHint"),)),)),
    )
    annotations = {} if hint is None else {"internal.scheduling.koordinator.sh/scheduling-hint": json.dumps(hint)}
    assert scheduler.schedule(kit.pod(annotations=annotations)).node == chosen
