from __future__ import annotations

import pytest

from koordpolicy.builtin_plugins import qos
from koordpolicy.engine.agent.qos_manager.configuration import read
from koordpolicy.engine.agent.qos_manager.manager import Manager
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import PolicyError, Source

HEAD = "apiVersion: policy.koordinator.sh/v1alpha2\nkind: QoSManagerConfiguration\n"
PLUGINS = {plugin.name: plugin for plugin in qos.PLUGINS}


def configured(text: str):
    return read(Source("qos.yaml", HEAD + text), PLUGINS)


def problems(text: str) -> list[tuple[int, str]]:
    with pytest.raises(PolicyError) as raised:
        configured(text)
    return [(problem.span.place[1], problem.message) for problem in raised.value.problems]


def test_arguments_reach_the_strategy():
    manager = Manager({"CPUEvict": True}, frozenset({"CPUEvict"}),
                      configured("strategies:\n  CPUEvict: {hardThresholdPercent: 95, intervalSeconds: 2}\n"))
    manager.use(Registry.of(PLUGINS.values(), generation=1))
    args = manager.running["CPUEvict"].strategy.args
    assert (args.hard_threshold, args.interval, args.features) == (95, 2_000_000_000, {"CPUEvict"})


def test_invalid_arguments_are_at_their_place_and_nothing_changes():
    manager = Manager({}, frozenset({"CPUBurst"}), configured("strategies:\n  CPUBurst: {seed: 1.5}\n"))
    with pytest.raises(PolicyError) as raised:
        manager.use(Registry.of(PLUGINS.values(), generation=1))
    (problem,) = raised.value.problems
    assert (problem.span.place[1], problem.message) == (4, "strategy `CPUBurst`: `seed` must be a whole number")
    assert manager.running == {}


@pytest.mark.parametrize(("text", "found"), [
    ("strategies: {CPUEvct: {}}\n", [(3, "there is no strategy `CPUEvct`")]),
    ("strategies: {CPUEvict: {features: []}}\n", [(3, "`CPUEvict`: its features are chosen by feature gates")]),
    ("strategies: {CPUEvict: 7}\n", [(3, "`strategies.CPUEvict` is the number `7`, not a mapping")]),
    ("strategy: {}\n", [(3, "unknown field `strategy`")]),
    ("strategies: {}\n---\n" + HEAD, [(1, "a configuration file holds one document, not 2")]),
    ("strategies: {CPUEvict: {}, CPUEvict: {}}\n", [(3, "the key `CPUEvict` is here twice, first at 3:14")]),
])
def test_a_file_that_is_not_valid_is_refused_with_the_place(text, found):
    assert problems(text) == found
