"""Wrong uses of the order of sources, of `fit`, and of the room that targets share are refused at their place."""

from __future__ import annotations

import pytest

from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.source import PolicyError, Source

HEAD = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: x}
spec:
  type: Balance
  nodes:
    source: "true"
"""
TARGET = """    target: "true"\n"""
ROOM = """    room: {{ofTarget: "{}", ofPod: "{}"}}\n"""


def problems(nodes: str) -> list[tuple[str, str, str]]:
    """The problems: what they point at, their messages and their help."""
    with pytest.raises(PolicyError) as raised:
        compile_documents(load([Source("a.yaml", HEAD + nodes)]))
    spans = [each.span.root() for each in raised.value.problems]
    return [(span.source.text[span.start:span.end], each.message, each.help)
            for span, each in zip(spans, raised.value.problems, strict=True)]


def room(of_target: str, of_pod: str) -> str:
    return TARGET + ROOM.format(of_target, of_pod)


NEEDS = "add `target`, which says what nodes may take pods"
NUMBERS = "map(string, int) or map(string, double) or ResourceList or MeasuredList"


@pytest.mark.parametrize(("nodes", "found"), [
    (ROOM.format("allocatable", "requests"), [
        ("room", "`room` is about targets, and there is no `target`", NEEDS),
    ]),
    ("    fit: 'true'\n", [
        ("fit", "`fit` is about targets, and there is no `target`", NEEDS),
    ]),
    (TARGET + "    room: {ofTarget: allocatable}\n", [
        ("room", "missing field `ofPod` in `spec.nodes.room`", "for example `ofPod: {'cpu': podUsage.cpu}`"),
    ]),
    (room("allocatable.cpu - requested.cpu", "requests"), [
        ("allocatable.cpu - requested.cpu", f"must be {NUMBERS}, not int",
         "write a map with a name for the number, such as `{'cpu': ...}`"),
    ]),
    (room("allocatable", "{'cpu': 'much'}"), [
        ("{'cpu': 'much'}", f"must be {NUMBERS}, not map(string, string)", ""),
    ]),
    (room("{'cpu': 1, 'memory': 2}", "{'cpus': 1, 'memory': 1}"), [
        ("'cpu'", "no pod takes anything of `cpu`: `ofPod` has no such name", "did you mean `cpus`?"),
        ("'cpus'", "no target adds anything to `cpus`: `ofTarget` has no such name", "did you mean `cpu`?"),
    ]),
    (room("{'cpu': podUsage.cpu}", "requests"), [
        ("podUsage", "no variable `podUsage` at nodes.room.ofTarget", "did you mean `usage`?"),
    ]),
    (TARGET + "    fit: podInfo.priority\n", [
        ("podInfo.priority", "must be bool, not int", "compare it with something"),
    ]),
    ("    sort: [{expression: podInfo.priority}]\n", [
        ("podInfo", "no variable `podInfo` at nodes.sort", "did you mean `nodeInfo`?"),
    ]),
    ("    sort: [{expression: allocatable}]\n", [
        ("allocatable", "must be int or double or string or bool, not ResourceList", ""),
    ]),
    ("    sort: [{order: Descending}]\n", [
        ("{order: Descending}", "missing field `expression` in `spec.nodes.sort[0]`",
         "for example `expression: usage.cpu * 100 / allocatable.cpu`"),
    ]),
])
def test_a_wrong_use_is_refused_at_its_place(nodes, found):
    assert problems(nodes) == found


def test_names_of_maps_that_are_not_written_are_not_compared():
    compile_documents(load([Source("a.yaml", HEAD + room("{'cpu': 1}", "requests"))]))
    compile_documents(load([Source("a.yaml", HEAD + room("{nodeInfo.name: 1}", "{'a': 1}"))]))
