"""Rules about PolicyTests: names and keys in fixtures and cases that are probably misspelt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from koordpolicy.engine.documents import YamlNode
from koordpolicy.engine.kubernetes import vocabulary
from koordpolicy.engine.source import did_you_mean

from .declarations import misspelling, near_key, near_priority_class
from .subject import LintSubject, Violation

_KINDS: Final[Mapping[str, str]] = {
    "labels": "labels", "matchLabels": "labels", "nodeSelector": "labels", "annotations": "annotations",
    **dict.fromkeys(("allocatable", "capacity", "requests", "limits", "usage"), "resources"),
}
"""Fields of fixtures and API objects whose keys are labels, annotations or resources."""
_OF_TAINTS: Final = ("taints", "tolerations")


def _fields(suite: LintSubject) -> Iterator[tuple[str, YamlNode]]:
    """Yield name and node of all fields in fixtures and cases; params and documents in strings are not among them."""
    document = suite.node
    for part in ("fixtures", "cases"):
        root = document.at("spec", part) if document is not None else None
        pending = [root] if root is not None else []
        while pending:
            node = pending.pop()
            yield from node.fields.items()
            below = [each for name, each in node.fields.items() if name != "params"]
            pending.extend(reversed((*below, *node.items)))


def misspelt_priority_classes(suite: LintSubject) -> Iterator[Violation]:
    """Find misspelt priority classes of Koordinator or Kubernetes, which give a fixture no priority and no band."""
    for name, node in _fields(suite):
        if name in ("priorityClass", "priorityClassName") and isinstance(node.scalar, str):
            near = near_priority_class(node.text)
            if near:
                yield Violation(
                    f"the priority class `{node.text}` is almost `{near}`, and is none of Koordinator or Kubernetes",
                    node.span, f"did you mean `{near}`?",
                )


def unknown_classes(suite: LintSubject) -> Iterator[Violation]:
    """Find QoS classes that are nearly one of Koordinator's; others may be tested on purpose."""
    for name, node in _fields(suite):
        if name in ("qosClass", vocabulary.QOS_CLASS_LABEL) and isinstance(node.scalar, str):
            known = sorted(each for each in vocabulary.QOS_CLASSES if each)
            hint = did_you_mean(node.text, known) if node.text and node.text not in known else ""
            if hint:
                yield Violation(f"there is no QoS class `{node.text}`", node.span, hint)


def misspelt_keys(suite: LintSubject) -> Iterator[Violation]:
    """Find keys that are nearly, but not quite, one of Koordinator's or Kubernetes'."""
    for name, node in _fields(suite):
        if name in _KINDS:
            for key, each in node.fields.items():
                near = near_key(key, _KINDS[name])
                if near:
                    yield misspelling(key, near, _KINDS[name], each.place)
        elif name in _OF_TAINTS:
            for item in node.items:
                found = item.at("key") or item
                key = found.text.partition(":")[0].partition("=")[0] if isinstance(found.scalar, str) else ""
                near = near_key(key, "taints") if key else ""
                if near:
                    yield misspelling(key, near, "taints", found.span)
