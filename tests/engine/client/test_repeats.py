"""Faults that are the same for many objects."""

from __future__ import annotations

from koordpolicy.engine.client.repeats import RepeatedFaults


def test_a_fault_is_due_once_in_ten_minutes_whatever_pod_it_is_about():
    now = [0.0]
    faults = RepeatedFaults(clock=lambda: now[0])
    message = 'pods "{}" is forbidden: cannot patch resource "pods/status"'
    assert [faults.is_due(message.format(name), name) for name in ("a", "a", "b")] == [True, False, False]
    assert faults.is_due("another", "a")
    now[0] = 599.0
    assert not faults.is_due(message.format("c"), "c")
    now[0] = 600.0
    assert faults.is_due(message.format("c"), "c")
