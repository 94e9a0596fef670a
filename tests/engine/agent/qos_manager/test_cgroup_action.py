"""The action `cgroup`: files of subjects, named as in control groups v2, and their recovery."""

from __future__ import annotations

import itertools

import pytest

from koordpolicy.engine.agent.qos_manager.cgroup_action import logical_values
from koordpolicy.engine.agent.replay import replay
from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.compile.plugins import compile_documents
from koordpolicy.engine.documents.loader import load
from koordpolicy.engine.framework.discovery import cel_function
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import PolicyError, Source
from tests.engine.agent.conftest import pod

TEXT = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: QoSPlugin
metadata: {{name: files}}
spec:
  interval: 1s
  window: 1s
  staleAfter: 2s
  forEach: {subject}
  actions:
  - name: set
    cgroup: {{file: {file}, value: "{value}"}}
    {more}
"""


def text(file: str, value: str, subject: str = "pod", more: str = "otherwise: Recover") -> str:
    return TEXT.format(file=file, value=value, subject=subject, more=more)


def writes(rounds) -> list[tuple[int, str, str, bool]]:
    return [(int(each.elapsed / 1e9), file, value, adjustment.recovers)
            for each in rounds for adjustment in each.adjustments for file, value in adjustment.writes]


@pytest.mark.parametrize(("file", "value", "found"), [
    ("cpu.weight", "100", [("cpu.shares", "2597")]),
    ("cpu.shares", "1024", [("cpu.shares", "1024")]),
    ("cpu.max", "max", [("cpu.cfs_quota_us", "-1")]),
    ("cpu.max", "50000", [("cpu.cfs_quota_us", "50000")]),
    ("cpu.max", "50000 20000", [("cpu.cfs_period_us", "20000"), ("cpu.cfs_quota_us", "50000")]),
    ("memory.max", "max", [("memory.limit_in_bytes", "9223372036854771712")]),
    ("memory.high", "4096", [("memory.high", "4096")]),
    ("cpu.max.burst", "7", [("cpu.cfs_burst_us", "7")]),
])
def test_files_and_values_are_those_of_control_groups_v2(file, value, found):
    assert logical_values(file, value) == tuple(found)


@pytest.mark.parametrize(("file", "value"), [
    ("cpu.weight", "0"), ("cpu.weight", "x"), ("memory.high", "much"), ("cpu.idle", "2"), ("cpu.max", ""),
])
def test_a_value_that_the_file_cannot_have_is_an_error(file, value):
    with pytest.raises(ValueError, match=r"."):
        logical_values(file, value)


def test_a_file_is_set_while_the_condition_is_true_and_then_has_its_former_text_again(registry, recording):
    pods = (pod("web", "LS"),)
    given = recording((0, 6000, {}), (1, 6000, {}), (2, 1000, {}), (3, 1000, {}), (4, 9000, {}), pods=pods)
    given.files["n"] = {"burstable/podd_web/memory.high": "max"}
    found = writes(replay(given, registry(text("memory.high", "8192", more="when: usage.cpu > 4000"))))
    file = "burstable/podd_web/memory.high"
    assert found == [(0, file, "8192", False), (2, file, "max", True), (4, file, "8192", False)]


def test_the_former_text_is_that_before_the_first_of_several_changes(registry, recording):
    given = recording((0, 5000, {}), (2, 6000, {}), (4, 6000, {}), pods=(pod("web", "LS"),))
    given.files["n"] = {"burstable/podd_web/memory.low": "4096"}
    first = registry(text("memory.low", "usage.cpu * 4096"))
    rounds = replay(given, first, changes={3_000_000_000: registry(generation=2)})
    assert [(value, recovers) for _, _, value, recovers in writes(rounds)] == [
        ("20480000", False), ("24576000", False), ("4096", True),
    ]


def test_a_pod_that_the_document_no_longer_matches_gets_its_former_text(registry, recording):
    given = recording((0, 1000, {}), (1, 1000, {}), pods=(pod("web", "LS"),))
    given.files["n"] = {"burstable/podd_web/memory.low": "0"}
    rounds = replay(given, registry(text("memory.low", "4096")))
    assert [(value, recovers) for _, _, value, recovers in writes([next(rounds)])] == [("4096", False)]
    given.pods["n"].clear()
    found = next(rounds).adjustments
    assert [(each.writes, each.recovers, each.reason) for each in found] == [
        ((("burstable/podd_web/memory.low", "0"),), True, "the document does not match it any more"),
    ]


@pytest.mark.parametrize(("subject", "files"), [
    ("node", {"guaranteed"}), ("qosClass", {"burstable", "besteffort"}), ("pod", {"burstable/podd_web"}),
    ("container", {"burstable/podd_web/c"}),
])
def test_each_subject_has_its_own_directory(registry, recording, subject, files):
    given = recording((0, 1000, {}), pods=(pod("web", "LS"),))
    directories = ("guaranteed", "burstable", "besteffort", "burstable/podd_web", "burstable/podd_web/c")
    given.files["n"] = {f"{each}/memory.low": "0" for each in directories}
    found = writes(replay(given, registry(text("memory.low", "4096", subject))))
    assert {file.removesuffix("/memory.low") for _, file, _, _ in found} == files


def test_a_value_out_of_range_is_an_error_of_its_subject_and_nothing_is_written(registry, recording):
    given = recording((0, 1000, {}), pods=(pod("web", "LS"),))
    given.files["n"] = {"burstable/podd_web/cpu.shares": "1024"}
    (found,) = replay(given, registry(text("cpu.weight", "usage.cpu * 100")))
    assert found.adjustments == ()
    assert [(each.item, each.subject, each.reason) for each in found.errors] == [("set", "d/web", "InvalidValue")]
    assert found.errors[0].message.startswith("`cpu.weight` of d/web: ")


def test_a_file_that_a_subject_lacks_is_left_out(registry, recording):
    (found,) = replay(recording((0, 1000, {}), pods=(pod("web", "LS"),)), registry(text("memory.low", "4096")))
    assert not found.eventful


@pytest.mark.parametrize("file", ["memory.hihg", "memory.stat", "cgroup.procs"])
def test_a_file_that_cannot_be_set_is_refused_with_its_place(registry, recording, file):
    with pytest.raises(PolicyError, match=rf"there is no control group file `{file}` that can be set"):
        list(replay(recording((0, 1000, {})), registry(text(file, "1"))))


@pytest.mark.parametrize(("value", "evaluations"), [
    ("podInfo.name == 'web' ? 8192 : 4096", 1), ("size(pod.spec.containers) * 8192", 1), ("usage.cpu * 4", 4)])
def test_what_depends_on_the_version_of_a_pod_alone_is_evaluated_once(
    registry, recording, monkeypatch, value: str, evaluations: int,
):
    evaluated = []
    evaluate = Program.evaluate
    monkeypatch.setattr(Program, "evaluate", lambda self, bindings: [
        evaluated.append(self), evaluate(self, bindings)][1])
    given = recording(*((second, 2048, {}) for second in range(4)), pods=(pod("web", "LS"),))
    given.files["n"] = {"burstable/podd_web/memory.low": "0"}
    assert writes(replay(given, registry(text("memory.low", value)))) == [
        (0, "burstable/podd_web/memory.low", "8192", False)]
    assert len(evaluated) == evaluations


def test_a_function_that_is_not_pure_is_called_in_each_round(recording):
    steps = itertools.count(1)
    step = cel_function("step", lambda _: next(steps) * 4096, ("string",), "int", doc="The next step.", pure=False)
    document = load([Source("files.yaml", text("memory.low", "step(podInfo.name)"))])
    given = recording(*((second, 2048, {}) for second in range(3)), pods=(pod("web", "LS"),))
    file = "burstable/podd_web/memory.low"
    given.files["n"] = {file: "0"}
    registry = Registry.of(compile_documents(document, extensions=(step,)), generation=1)
    found = writes(replay(given, registry))
    assert [(second, name) for second, name, _, _ in found] == [(0, file), (1, file), (2, file)]
    assert len({value for _, _, value, _ in found}) == 3
