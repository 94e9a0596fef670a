"""Compares the `match` of two documents: they may match the same pods or nodes, or certainly do not."""

from __future__ import annotations

from koordpolicy.engine.kubernetes.vocabulary import QOS_CLASS_LABEL, QOS_CLASSES

from .specs import LabelSelector, NodeMatch, PodMatch, SelectorOperator


def are_apart(first: frozenset[str] | None, second: frozenset[str] | None) -> bool:
    """Return whether two sets of names have none in common; None means all names."""
    return first is not None and second is not None and not first & second


def _required_values(selector: LabelSelector) -> dict[str, frozenset[str]]:
    """Return the values that a selector allows by key, as far as it names them."""
    found = {key: frozenset((value,)) for key, value in selector.match_labels.items()}
    for each in selector.match_expressions:
        if each.operator is SelectorOperator.IN:
            found[each.key] = found.get(each.key, each.values) & each.values
    return found


def _excluded_values(selector: LabelSelector, key: str) -> frozenset[str]:
    return frozenset[str]().union(*(each.values for each in selector.match_expressions
                                    if each.key == key and each.operator is SelectorOperator.NOT_IN))


def _requires_absence(selector: LabelSelector, key: str) -> bool:
    return any(each.key == key and each.operator is SelectorOperator.DOES_NOT_EXIST
               for each in selector.match_expressions)


def _selectors_apart(first: LabelSelector | None, second: LabelSelector | None) -> bool:
    if first is None or second is None:
        return False
    one, other = _required_values(first), _required_values(second)
    for key in one.keys() | other.keys():
        values = one[key] & other[key] if key in one and key in other else one.get(key) or other[key]
        if not values - _excluded_values(first, key) - _excluded_values(second, key):
            return True
        if _requires_absence(first, key) or _requires_absence(second, key):
            return True
    return False


def nodes_meet(first: NodeMatch | None, second: NodeMatch | None) -> bool:
    """Return whether both may match the same node."""
    if first is None or second is None:
        return not any(each is not None and each.names == frozenset() for each in (first, second))
    return not (are_apart(first.names, second.names) or _selectors_apart(first.label_selector, second.label_selector))


def qos_labels(match: PodMatch | None) -> frozenset[str] | None:
    """Return the QoS classes that labels of matched pods may have, empty for none or an unknown one; None for any.

    A pod without the label may be of any class, as its class follows from its resources then.
    """
    if match is None:
        return None
    classes = None if match.qos_classes is None else match.qos_classes | {""}
    if match.label_selector is None:
        return classes
    required = _required_values(match.label_selector).get(QOS_CLASS_LABEL)
    if required is None:
        return classes
    labels = frozenset(each if each in QOS_CLASSES else "" for each in required)
    return labels if classes is None else labels & classes


def pods_meet(first: PodMatch | None, second: PodMatch | None) -> bool:
    """Return whether both may match the same pod."""
    if first is None or second is None:
        return True
    return not (
        are_apart(first.namespaces, second.namespaces) or are_apart(first.qos_classes, second.qos_classes)
        or are_apart(first.priority_classes, second.priority_classes)
        or _selectors_apart(first.label_selector, second.label_selector)
        or _selectors_apart(first.namespace_selector, second.namespace_selector)
    )
