"""Label selectors, node affinity and tolerations by Kubernetes' rules, on plain JSON.

All functions take objects as the API server serves them; missing parts have Kubernetes' defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

Json = Mapping[str, Any]

NO_SCHEDULE: Final = "NoSchedule"
NO_EXECUTE: Final = "NoExecute"


def matches_labels(selector: Json | None, labels: Mapping[str, str], *, absent: bool = True) -> bool:
    """Return whether a LabelSelector matches the labels; an empty one matches all, `absent` is the result for none.

    Raises:
        ValueError: an unknown operator, or values that do not match it.
    """
    if selector is None:
        return absent
    match_labels: Mapping[str, str] = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in match_labels.items()) and all(
        _meets(requirement, labels) for requirement in selector.get("matchExpressions") or ()
    )


def _meets(requirement: Json, labels: Mapping[str, str]) -> bool:
    key, operator = str(requirement.get("key", "")), requirement.get("operator")
    values: Sequence[str] = requirement.get("values") or ()
    if operator in ("In", "NotIn") and not values:
        raise ValueError(f"`{operator}` on label `{key}` needs values")
    if operator in ("Exists", "DoesNotExist") and values:
        raise ValueError(f"`{operator}` on label `{key}` takes no values")
    match operator:
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return key not in labels or labels[key] not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt" | "Lt":
            return _compares(operator, labels.get(key), values)
        case _:
            raise ValueError(f"`{operator}` is not an operator of a selector")


def _compares(operator: str, label: str | None, values: Sequence[str]) -> bool:
    # Kubernetes: both must be integers, else the requirement does not match.
    try:
        left, right = int(label or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return left > right if operator == "Gt" else left < right


def check_selector(selector: Json | None) -> None:
    """Raise ValueError for an invalid LabelSelector."""
    if selector is None:
        return
    for requirement in selector.get("matchExpressions") or ():
        if requirement.get("operator") not in ("In", "NotIn", "Exists", "DoesNotExist"):
            raise ValueError(f"`{requirement.get('operator')}` is not a valid label selector operator")
        _meets(requirement, {})


_REQUIREMENT: Final = re.compile(
    r"""\s*(?:(?P<absent>!)\s*(?P<lacking>[^\s,=!<>()]+)
    |(?P<key>[^\s,=!<>()]+)\s*(?:
        (?P<set>in|notin)\s*\((?P<values>[^()]*)\)
        |(?P<sign>==|=|!=|>|<)\s*(?P<value>[^\s,=!<>()]*)
    )?)\s*(?:,|$)""",
    re.VERBOSE,
)
_SIGNS: Final = {"=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt"}


def parse_selector(text: str) -> Json:
    """Return the label selector of a text such as `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1`, as a LabelSelector.

    It may have the operators `Gt` and `Lt` too, which `matches_labels` knows. An empty text matches all.

    Raises:
        ValueError: the text is not a selector.
    """
    found: list[dict[str, Any]] = []
    position = 0
    while position < len(text.rstrip()):
        match = _REQUIREMENT.match(text, position)
        if match is None:
            advice = "write a label selector such as `a=b,c!=d,e in (f,g),!h`"
            raise ValueError(f"`{text}` is malformed from `{text[position:]}` on: {advice}")
        position = match.end()
        if match["absent"]:
            found.append({"key": match["lacking"], "operator": "DoesNotExist"})
        elif match["set"]:
            values = sorted({each.strip() for each in match["values"].split(",")})
            found.append({"key": match["key"], "operator": "In" if match["set"] == "in" else "NotIn", "values": values})
        elif match["sign"]:
            found.append({"key": match["key"], "operator": _SIGNS[match["sign"]], "values": [match["value"]]})
        else:
            found.append({"key": match["key"], "operator": "Exists"})
    return {"matchExpressions": found}


def matches_node(pod: Json, node: Json) -> bool:
    """Return whether the pod's nodeSelector and its required node affinity match the node.

    A required affinity without terms matches no node; an empty term matches none either.
    """
    spec = pod.get("spec") or {}
    labels = (node.get("metadata") or {}).get("labels") or {}
    match_labels: Mapping[str, str] = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in match_labels.items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    return any(_takes(term, node, labels) for term in required.get("nodeSelectorTerms") or ())


def matches_term(term: Json, node: Json) -> bool:
    """Return whether one term of a node selector matches the node; an empty one does not."""
    return _takes(term, node, (node.get("metadata") or {}).get("labels") or {})


def _takes(term: Json, node: Json, labels: Mapping[str, str]) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    names = {"metadata.name": str((node.get("metadata") or {}).get("name", ""))}
    return all(_meets(each, labels) for each in expressions) and all(_meets(each, names) for each in fields)


def tolerates(toleration: Json, taint: Json) -> bool:
    """Return whether a toleration tolerates a taint."""
    effect, key = toleration.get("effect") or "", toleration.get("key") or ""
    if (effect and effect != taint.get("effect")) or (key and key != taint.get("key")):
        return False
    match toleration.get("operator") or "Equal":
        case "Exists":
            return True
        case "Equal":
            return bool((toleration.get("value") or "") == (taint.get("value") or ""))
        case _:
            return False


def untolerated(pod: Json, node: Json, effects: Iterable[str] = (NO_SCHEDULE, NO_EXECUTE)) -> Json | None:
    """Return the node's first taint with one of the effects that the pod does not tolerate, or None."""
    match_labels = frozenset(effects)
    tolerations = (pod.get("spec") or {}).get("tolerations") or ()
    for taint in (node.get("spec") or {}).get("taints") or ():
        if taint.get("effect") in match_labels and not any(tolerates(each, taint) for each in tolerations):
            found: Json = taint
            return found
    return None
