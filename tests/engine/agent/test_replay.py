from __future__ import annotations

import pytest

from koordpolicy.builtin_plugins.qos import PLUGINS
from koordpolicy.engine.agent.qos_manager.documents import RoundError
from koordpolicy.engine.agent.replay import replay
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import PolicyError
from koordpolicy.plugin import Adjustment, python_plugin
from tests.engine.agent.qos_manager.test_documents import load_of, quotas, squeeze

STEADY = squeeze().replace("    when: thresholds.hot\n", "")


def test_what_a_document_changed_is_recovered_when_it_goes_away(registry, recording):
    changes = {3_000_000_000: Registry.of([], generation=2)}
    rounds = list(replay(recording(*load_of(*[6000] * 6)), registry(STEADY), changes=changes))
    assert quotas(rounds) == [(0, "200000", False), (3, "-1", True)]
    assert rounds[-1].adjustments[0].reason == "its document went away or changed"


def test_what_is_only_watched_from_now_on_is_recovered_first_and_adjusts_nothing(registry, recording):
    audited = STEADY.replace("interval: 1s", "interval: 1s\n  enforcement: Audit")
    changes = {3_000_000_000: registry(audited, generation=2)}
    rounds = list(replay(recording(*load_of(*[6000] * 6)), registry(STEADY), changes=changes))
    assert [(int(each.elapsed / 1e9), each.enforced, len(each.adjustments)) for each in rounds if each.adjustments] == [
        (0, True, 1), (3, True, 1), (3, False, 1), (4, False, 1), (5, False, 1),
    ]


def test_two_documents_that_write_one_file_are_refused(registry, recording):
    other = STEADY.replace("name: squeeze", "name: press").replace("8000 -", "7000 -")
    with pytest.raises(PolicyError) as refused:
        replay(recording(*load_of(6000)), registry(STEADY, other))
    (problem,) = refused.value.problems
    assert problem.code == "conflict"
    assert problem.message == (
        "action `bound` of `squeeze` may write `besteffort/cpu.cfs_quota_us`, which action `bound` of `press` "
        "(1.yaml:12) writes too: each would undo what the other does"
    )


class Quota:
    """A strategy that does not say which files it writes."""

    interval = 1_000_000_000

    def adjust(self, readings):
        return (Adjustment("quota", "n", "because", writes=(("besteffort/cpu.cfs_quota_us", "7000"),)),)

    def recover(self, readings):
        return ()


def test_two_plugins_that_turn_out_to_write_one_file_are_told_once_of_each_node(registry, recording):
    plugin = python_plugin("Quota", Framework.QOS, lambda args, handle: Quota(), enabled=True, points=[Point.STRATEGY])
    documents = registry(STEADY).of_framework(Framework.QOS)
    rounds = list(replay(recording(*load_of(*[6000] * 4)), Registry.of([plugin, *documents], generation=1)))
    message = (
        "`Quota` writes `besteffort/cpu.cfs_quota_us` too, and each undoes what the other does: turn one of them off"
    )
    assert [(each.elapsed, each.plugin, error) for each in rounds for error in each.errors] == [
        (0, "squeeze", RoundError("bound", "n", message, "Conflict")),
    ]


def test_plugins_that_write_one_after_the_other_do_not_conflict(registry, recording):
    other = STEADY.replace("name: squeeze", "name: press")
    changes = {2_000_000_000: registry(other, generation=2)}
    rounds = list(replay(recording(*load_of(*[6000] * 6)), registry(STEADY), changes=changes))
    assert [error for each in rounds for error in each.errors] == []
    audited = other.replace("interval: 1s", "interval: 1s\n  enforcement: Audit")
    rounds = list(replay(recording(*load_of(*[6000] * 3)), registry(STEADY, audited)))
    assert [error for each in rounds for error in each.errors] == []


def test_a_timer_goes_on_when_another_item_of_its_document_changes(registry, recording):
    other = squeeze().replace("staleAfter: 3s", "staleAfter: 4s")
    changes = {1_000_000_000: registry(other, generation=2)}
    rounds = list(replay(recording(*load_of(*[6000] * 4)), registry(squeeze()), changes=changes))
    assert [(int(each.elapsed / 1e9), state.holds) for each in rounds for state in each.thresholds] == [
        (0, False), (1, False), (2, True), (3, True),
    ]


def test_a_feature_gate_turns_a_document_off(registry, recording):
    text = STEADY.replace("interval: 1s", "interval: 1s\n  featureGate: BECPUSuppress")
    series = recording(*load_of(6000))
    assert list(replay(series, registry(text), gates={"BECPUSuppress": False})) == []
    assert len(list(replay(series, registry(text)))) == 1


def test_a_gate_that_nobody_knows_is_refused(registry, recording):
    own = STEADY.replace("interval: 1s", "interval: 1s\n  featureGate: OurOwn")
    with pytest.raises(
        PolicyError, match="there is no feature gate `OurOwm`, and no document names it\n  = did you mean",
    ):
        replay(recording(*load_of(1)), registry(own), gates={"OurOwm": True})
    assert list(replay(recording(*load_of(1)), registry(own), gates={"OurOwn": False, "CPUEvict": True})) == []


def test_a_python_strategy_runs_where_it_is_enabled_and_its_failure_does_nothing(recording):
    rounds = list(replay(recording(*load_of(6000)), Registry.of(PLUGINS, generation=1), enable=["BECPUSuppress"]))
    assert [(each.plugin, [error.message for error in each.errors]) for each in rounds] == [
        ("BECPUSuppress", ["node `n` has no NodeSLO"]),
    ]


class Stubborn:
    """A strategy that may have an interval of any kind, and fails to recover."""

    def __init__(self, interval: object = 1_000_000_000) -> None:
        self.interval = interval

    def adjust(self, readings):
        return ()

    def recover(self, readings):
        raise RuntimeError("the file is away")


@pytest.mark.parametrize("interval", [0, -1, 1.5, True, None])
def test_a_python_strategy_without_a_valid_interval_cannot_be_activated(recording, interval):
    plugin = python_plugin("Stubborn", Framework.QOS, lambda args, handle: Stubborn(interval), enabled=True,
                           points=[Point.STRATEGY])
    with pytest.raises(PolicyError) as refused:
        next(replay(recording(*load_of(6000)), Registry.of([plugin], generation=1)))
    assert [problem.message for problem in refused.value.problems] == [
        f"plugin `Stubborn`: its interval must be a whole number of nanoseconds above 0, not {interval!r}"]


def test_a_strategy_that_cannot_recover_is_reported_and_others_do(registry, recording):
    plugin = python_plugin("Stubborn", Framework.QOS, lambda args, handle: Stubborn(), enabled=True,
                           points=[Point.STRATEGY])
    documents = registry(STEADY).of_framework(Framework.QOS)
    changes = {3_000_000_000: Registry.of([], generation=2)}
    rounds = list(replay(recording(*load_of(*[6000] * 6)), Registry.of([plugin, *documents], generation=1),
                         changes=changes))
    assert [(each.plugin, each.adjustments, each.errors) for each in rounds if each.errors] == [
        ("Stubborn", (), (RoundError("", "n", "recovering failed: RuntimeError: the file is away"),))]
    assert quotas(rounds) == [(0, "200000", False), (3, "-1", True)]


def test_a_plugin_that_there_is_not_cannot_be_enabled(recording):
    with pytest.raises(PolicyError, match=r"there is no QoS plugin `BECPUSupress`\n  = did you mean `BECPUSuppress`\?"):
        replay(recording(*load_of(1)), Registry.of(PLUGINS, generation=1), enable=["BECPUSupress"])


def test_a_round_is_plain_data(registry, recording):
    (first, *_) = replay(recording(*load_of(6000)), registry(STEADY))
    assert first.to_json() == {
        "time": "1970-01-01T00:00:00Z", "elapsedSeconds": 0.0, "node": "n", "plugin": "squeeze", "enforced": True,
        "actions": [{
            "kind": "suppressCPU", "subject": "n", "reason": "best-effort pods may use 2000m of cpu", "recovers": False,
            "item": "bound",
            "values": {"target": 2000, "policy": "CFSQuota", "nonBestEffortUsage.cpu": 6000},
            "writes": [{"file": "besteffort/cpu.cfs_quota_us", "text": "200000"}],
        }],
        "thresholds": [{"name": "hot", "subject": "n", "true": True, "holds": False, "message": "it is hot"}],
        "errors": [],
    }


def test_a_python_strategy_is_given_the_recorded_nodes_and_the_moment_of_the_round(recording):
    seen = []

    class Asks:
        interval = 1_000_000_000

        def __init__(self, args, handle):
            self.handle = handle

        def adjust(self, readings):
            seen.append((self.handle.profile, self.handle.snapshot().names, self.handle.now() == readings.now))
            return ()

        def recover(self, readings):
            return ()

    registry = Registry.of([python_plugin("Asks", Framework.QOS, Asks, enabled=True)], generation=1)
    assert len(list(replay(recording(*load_of(1, 2)), registry))) == 2
    assert seen == [("", ["n"], True)] * 2
