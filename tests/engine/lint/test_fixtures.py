"""Misspelt names and keys in the fixtures and cases of PolicyTests are found where they are written."""

from __future__ import annotations

import pytest

from koordpolicy.engine.lint.edits import apply

from .conftest import findings, marked


def suite(fixtures: str = "nodes: {n: {}}", case: str = "name: one, pod: {}, filter: pass") -> str:
    return (
        "apiVersion: policy.koordinator.sh/v1alpha2\nkind: PolicyTest\n"
        f"metadata: {{name: example}}\nspec:\n  fixtures:\n    {fixtures}\n  cases:\n  - {{{case}}}\n"
    )


def found(text: str) -> list[tuple[str, str, str, str]]:
    return [(each.rule.id, marked(each), each.found.message, each.found.help) for each in findings(text)]


PRIORITY = (
    "KP042", "koord-prd",
    "the priority class `koord-prd` is almost `koord-prod`, and is none of Koordinator or Kubernetes",
    "did you mean `koord-prod`?",
)


@pytest.mark.parametrize("text", [
    suite("pods: {p: {priorityClass: koord-prd}}"),
    suite("pods: {p: {object: {spec: {priorityClassName: koord-prd}}}}"),
    suite("objects: [{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {priorityClassName: koord-prd}}]"),
    suite(case="name: one, pod: {priorityClass: koord-prd}, filter: pass"),
    suite(case="name: one, pod: {}, with: {pods: {p: {priorityClass: koord-prd}}}, filter: pass"),
])
def test_a_misspelt_priority_class_is_found_wherever_a_fixture_has_one(text: str) -> None:
    assert found(text) == [PRIORITY]


@pytest.mark.parametrize(("text", "marked_text", "kind", "known"), [
    (suite("nodes: {n: {labels: {topology.kubernetes.io/zoen: a}}}"), "topology.kubernetes.io/zoen", "labels",
     "topology.kubernetes.io/zone"),
    (suite("nodes: {n: {object: {metadata: {labels: {kubernetes.io/hostnam: a}}}}}"), "kubernetes.io/hostnam", "labels",
     "kubernetes.io/hostname"),
    (suite("nodes: {n: {allocatable: {memroy: 4}}}"), "memroy", "resources", "memory"),
    (suite("nodes: {n: {taints: ['node.kubernetes.io/not-redy:NoExecute']}}"),
     "'node.kubernetes.io/not-redy:NoExecute'", "taints", "node.kubernetes.io/not-ready"),
    (suite("pods: {p: {tolerations: [{key: node.kubernetes.io/not-redy}]}}"), "node.kubernetes.io/not-redy", "taints",
     "node.kubernetes.io/not-ready"),
    (suite("pods: {p: {annotations: {cluster-autoscaler.kubernetes.io/safe-to-evct: a}}}"),
     "cluster-autoscaler.kubernetes.io/safe-to-evct", "annotations", "cluster-autoscaler.kubernetes.io/safe-to-evict"),
])
def test_a_misspelt_key_is_found_and_mended(text: str, marked_text: str, kind: str, known: str) -> None:
    key = marked_text.strip("'").partition(":")[0]
    assert found(text) == [
        ("KP020", marked_text, f"`{key}` is not among the known {kind} of Kubernetes", f"did you mean `{known}`?"),
    ]
    edits = [each.found.fix() for each in findings(text) if each.found.fix is not None]
    assert apply(each for each in edits if each) == {"policy.yaml": text.replace(key, known)}


@pytest.mark.parametrize("text", [
    suite("pods: {p: {qosClass: Lsr}}"), suite("pods: {p: {labels: {koordinator.sh/qosClass: Lsr}}}"),
])
def test_a_misspelt_qos_class_is_found(text: str) -> None:
    assert found(text) == [("KP021", "Lsr", "there is no QoS class `Lsr`", "did you mean `LSR`?")]


@pytest.mark.parametrize("text", [
    suite("pods: {p: {priorityClass: koord-prod}, q: {priorityClass: batch}, r: {priorityClass: koord-prod-a}}"),
    suite("pods: {p: {qosClass: BE}, q: {qosClass: unknown}, r: {qosClass: null}}"),
    suite("nodes: {n: {labels: {pool: a, topology.kubernetes.io/zone: b}, taints: ['dedicated=a:NoSchedule']}}"),
    suite(case="name: one, pod: {}, params: {labels: {kubernetes.io/hostnam: a}}, filter: pass"),
])
def test_known_names_names_of_ones_own_and_params_are_not_found(text: str) -> None:
    assert found(text) == []
