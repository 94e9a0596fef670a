from __future__ import annotations

from typing import Any

import pytest

from koordpolicy.engine.agent.states_informer.callbacks import StateCallbacks
from koordpolicy.engine.framework.states import CallbackTarget, States, StateType
from koordpolicy.testing import FakeStates


class Calls:
    def __init__(self) -> None:
        self.calls: list[tuple[str, StateType, Any]] = []

    def note(self, name: str) -> Any:
        return lambda state_type, state, target: self.calls.append((name, state_type, state))


def run(callbacks: StateCallbacks, state: Any = None, known: bool = True) -> int:
    return callbacks.run(lambda _: (known, state), CallbackTarget)


def test_callbacks_of_a_type_run_in_the_order_of_their_registration():
    calls, callbacks = Calls(), StateCallbacks()
    for name in ("second", "first", "third"):
        callbacks.register(StateType.NODE_SLO, name, "", calls.note(name))
    callbacks.send(StateType.NODE_SLO)
    assert run(callbacks, {"a": 1}) == 3
    assert calls.calls == [(name, StateType.NODE_SLO, {"a": 1}) for name in ("second", "first", "third")]


def test_a_burst_of_changes_is_one_call_and_one_wake():
    woken: list[int] = []
    calls, callbacks = Calls(), StateCallbacks(lambda: woken.append(1))
    callbacks.register(StateType.PODS, "one", "", calls.note("one"))
    for _ in range(5):
        callbacks.send(StateType.PODS)
    assert callbacks.waiting
    assert (run(callbacks), run(callbacks)) == (1, 0)
    assert (len(calls.calls), len(woken)) == (1, 1)


def test_a_change_during_a_call_is_sent_once_more():
    callbacks = StateCallbacks()
    seen: list[StateType] = []

    def again(state_type: StateType, _state: object, _target: object) -> None:
        if not seen:
            callbacks.send(state_type)
        seen.append(state_type)

    callbacks.register(StateType.NODE_TOPOLOGY, "again", "", again)
    callbacks.send(StateType.NODE_TOPOLOGY)
    assert (run(callbacks), run(callbacks), run(callbacks)) == (1, 1, 0)


def test_a_failing_callback_costs_itself(caplog: pytest.LogCaptureFixture):
    calls, callbacks = Calls(), StateCallbacks()

    def fail(*_: object) -> None:
        raise RuntimeError("broken plugin")

    callbacks.register(StateType.PODS, "fails", "", fail)
    callbacks.register(StateType.PODS, "works", "", calls.note("works"))
    callbacks.send(StateType.PODS)
    assert run(callbacks) == 2
    assert [name for name, _, _ in calls.calls] == ["works"]
    assert callbacks.failures == 1
    assert "`fails` of AllPods failed" in caplog.text


def test_a_state_that_is_not_known_is_left_out():
    calls, callbacks = Calls(), StateCallbacks()
    callbacks.register(StateType.NODE_SLO, "one", "", calls.note("one"))
    callbacks.send(StateType.NODE_SLO)
    assert run(callbacks, known=False) == 0
    assert calls.calls == []


@pytest.mark.parametrize(("state_type", "name", "message"), [
    ("Unknown", "new", "there is no state `Unknown`, only NodeSLOSpec, AllPods, NodeTopology, NodeMetadata"),
    (StateType.PODS, "known", "`AllPods` has a callback `known` already"),
])
def test_unknown_types_and_names_that_exist_are_refused(state_type: Any, name: str, message: str):
    callbacks = StateCallbacks()
    callbacks.register(StateType.PODS, "known", "", lambda *_: None)
    callbacks.register(StateType.NODE_SLO, "known", "", lambda *_: None)
    with pytest.raises(ValueError, match=message):
        callbacks.register(state_type, name, "", lambda *_: None)


def test_the_fake_of_the_test_kit_calls_back_with_what_a_test_sets():
    states: States = FakeStates(node_slo={"spec": {"hostApplications": [{"name": "nginx"}]}}, pods_age=61)
    seen: list[object] = []
    states.register_callback(StateType.NODE_SLO, "one", "", lambda *args: seen.append(args))
    assert isinstance(states, FakeStates)
    states.send(StateType.NODE_SLO)
    applications = ({"name": "nginx"},)
    assert seen == [(StateType.NODE_SLO, {"hostApplications": [{"name": "nginx"}]}, CallbackTarget((), applications))]
    states.unregister_callback(StateType.NODE_SLO, "one")
    states.unregister_callback(StateType.NODE_SLO, "none")
    states.send(StateType.NODE_SLO)
    assert len(seen) == 1
    assert (states.pods_stale, states.age("Pod"), states.age("NodeSLO"), states.age("Node")) == (
        True, 61, 0.0, float("inf"))
