"""Callbacks of plugins: the real daemon with the real states of an API server and a kubelet."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import pytest

from koordpolicy.engine.agent.daemon import Agent
from koordpolicy.engine.agent.parts import AgentParts
from koordpolicy.engine.agent.qos_manager.manager import Manager
from koordpolicy.engine.agent.states_informer.states_informer import StatesInformer
from koordpolicy.engine.framework.discovery import python_plugin
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.qos import Evictions, Host, StrategyContext
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.framework.states import CallbackTarget, States, StateType
from koordpolicy.engine.testing.agent import FakeExecutor, FakeMetricCache
from tests.engine.client.object_server import ObjectServer
from tests.waiting import until

from .conftest import informed, node, of_kind
from .fake_kubelet import FakeKubelet, pod, pod_list


class Follows:
    """Notes each NodeSLO, with the pods of the callback."""

    made: ClassVar[list[Follows]] = []
    failing: ClassVar[bool] = False

    def __init__(self, args: Any = None, handle: Any = None) -> None:
        self.seen: list[tuple[StateType, Any, list[str], int]] = []
        self.made.append(self)

    def enabled(self) -> bool:
        return True

    def setup(self, context: StrategyContext) -> None:
        self.states = context.states
        context.states.register_callback(StateType.NODE_SLO, "settings", "follows the settings", self.changed)
        if self.failing:
            raise RuntimeError("no device")

    def run(self, stop: threading.Event) -> None: ...

    def changed(self, state_type: StateType, spec: Any, target: CallbackTarget) -> None:
        self.seen.append((state_type, spec.get("a"), [each.key for each in target.pods], threading.get_ident()))


class NoEvictor:
    evictions = Evictions()

    def evict(self, pod: object, adjustment: object) -> None: ...


@pytest.fixture(autouse=True)
def none_made(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Follows, "made", [])
    monkeypatch.setattr(Follows, "failing", False)


def follows(version: str = "1", name: str = "Follows") -> Plugin:
    return python_plugin(name, Framework.QOS, Follows, enabled=True, version=version)


def agent_of(states: StatesInformer, live: Live) -> Agent:
    return Agent(AgentParts(
        "node", Host(), states, FakeMetricCache("node"), dict, FakeExecutor(), NoEvictor(),
        is_synced=lambda: states.synced, run_callbacks=states.run_callbacks), live, Manager(on_node=True))


def activate(live: Live, *plugins: Plugin) -> None:
    live.activate(Registry.of(plugins, generation=live.registry.generation + 1))


def steps(agent: Agent, done: Any) -> None:
    def step() -> Any:
        agent.step()
        return done()

    until(step)


def publish(api: ObjectServer, kubelet: FakeKubelet) -> None:
    """Let the API server have a node with its NodeSLO, and the kubelet a pod."""
    api.put(node())
    api.put(of_kind("NodeSLO", spec={"a": 1}))
    kubelet.answer = lambda: pod_list(pod("web"))


def test_a_plugin_is_called_with_the_state_at_its_start_and_with_each_change(
    api: ObjectServer, kubelet: FakeKubelet,
):
    publish(api, kubelet)
    live = Live()
    activate(live, follows())
    with informed(api, kubelet) as states:
        until(lambda: states.synced and states.node_slo)
        states.run_callbacks()  # nobody listened
        agent = agent_of(states, live)
        steps(agent, lambda: Follows.made and Follows.made[0].seen)
        (plugin,) = Follows.made
        api.put(of_kind("NodeSLO", spec={"a": 2}))
        steps(agent, lambda: len(plugin.seen) > 1)
        here = threading.get_ident()
        assert plugin.seen == [(StateType.NODE_SLO, number, ["default/web"], here) for number in (1, 2)]
        public: States = plugin.states
        assert (public.node, public.node_slo, public.pods, public.topology, public.claims, public.pods_stale) == (
            states.node, states.node_slo, states.pods, None, {}, False)
        assert 0 <= public.age("Node") < 60
        assert 0 <= public.pods_age < 60
        agent.close()
        assert states.callbacks.registered(StateType.NODE_SLO) == ()


def test_two_plugins_choose_the_same_name_and_a_new_version_takes_the_place_of_the_old_one(
    api: ObjectServer, kubelet: FakeKubelet, caplog: pytest.LogCaptureFixture,
):
    publish(api, kubelet)
    live = Live()
    activate(live, follows(), follows(name="Other"))
    with informed(api, kubelet) as states:
        until(lambda: states.synced and states.node_slo)
        agent = agent_of(states, live)
        steps(agent, lambda: len(Follows.made) == 2 and all(each.seen for each in Follows.made))
        activate(live, follows("2"))
        steps(agent, lambda: len(Follows.made) == 3 and Follows.made[2].seen)
        assert [each.name for each in states.callbacks.registered(StateType.NODE_SLO)] == ["Follows/settings"]
        old = [len(each.seen) for each in Follows.made[:2]]
        api.put(of_kind("NodeSLO", spec={"a": 2}))
        steps(agent, lambda: Follows.made[2].seen[-1][1] == 2)
        assert [len(each.seen) for each in Follows.made[:2]] == old
        with pytest.raises(ValueError, match="callback `late`: `Other` has ended"):
            Follows.made[1].states.register_callback(StateType.PODS, "late", "", lambda *_: None)
        agent.close()
    messages = [each.getMessage() for each in caplog.records]
    assert [each for each in messages if "callback" in each or "does not run" in each] == []


def test_a_plugin_whose_set_up_failed_is_not_called_and_can_be_set_up_again(
    api: ObjectServer, kubelet: FakeKubelet, monkeypatch: pytest.MonkeyPatch,
):
    publish(api, kubelet)
    live = Live()
    activate(live, follows())
    monkeypatch.setattr(Follows, "failing", True)
    with informed(api, kubelet) as states:
        until(lambda: states.synced and states.node_slo)
        agent = agent_of(states, live)
        agent.step()
        assert states.callbacks.registered(StateType.NODE_SLO) == ()
        monkeypatch.setattr(Follows, "failing", False)
        activate(live, follows(), follows(name="Other"))  # a change of the active set is the occasion
        steps(agent, lambda: len(Follows.made) == 2 and all(each.seen for each in Follows.made))
        assert [each.name for each in states.callbacks.registered(StateType.NODE_SLO)] == [
            "Follows/settings", "Other/settings"]
        agent.close()
