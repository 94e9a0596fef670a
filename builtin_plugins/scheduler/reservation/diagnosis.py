"""Messages for pods that match no reservation (Koordinator's reservation/diagnosis)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from .matching import Counts

OF_RESERVATIONS: Final = "Reservation(s) "
_NODE_REASON: Final = "for node reason that "
_ITEM: Final = re.compile(r"(\d+) Reservation\(s\) (.*)", re.DOTALL)
_OWNER_TOTAL: Final = "matched owner total"
_FIRST: Final = ("exactly matches the requested reservation name", "didn't match the requested reservation name")


def reasons(
    counts: Mapping[str, Counts], node_reasons: Mapping[str, Iterable[str]], *, has_affinity: bool,
) -> list[str]:
    """Return the reasons of all nodes together; none where no owner matched and the pod requires no reservation.

    `node_reasons` holds the filters' refusals by node. Reasons about reservations have been counted there; each other
    reason counts for all reservations of its node that could have been used.
    """
    total = Counts()
    of_nodes: Counter[str] = Counter()
    taints: Counter[str] = Counter()
    for node, each in counts.items():
        for name in ("owner_matched", "name_matched", "name_unmatched", "affinity_unmatched", "unschedulable",
                     "not_exact"):
            setattr(total, name, getattr(total, name) + getattr(each, name))
        taints.update(each.taints)
        of_node = list(node_reasons.get(node, ()))
        left = each.usable - sum(reason.startswith(OF_RESERVATIONS) for reason in of_node)
        if left > 0:
            for reason in of_node:
                if not reason.startswith(OF_RESERVATIONS):
                    of_nodes[reason] += left
    if total.owner_matched <= 0 and not has_affinity:
        return []
    items: list[tuple[int, str]] = [
        (total.name_matched, _FIRST[0]), (total.name_unmatched, _FIRST[1]),
        (total.affinity_unmatched, "didn't match affinity rules"), (total.unschedulable, "is unschedulable"),
        (total.not_exact, "is not exact matched"),
        *((count, f"had untolerated taint {taint}") for taint, count in sorted(taints.items())),
        *((count, f"{_NODE_REASON}{reason}") for reason, count in sorted(of_nodes.items())),
    ]
    found = [f"{count} {OF_RESERVATIONS}{text}" for count, text in items if count]
    return [*found, f"{total.owner_matched} {OF_RESERVATIONS}{_OWNER_TOTAL}"]


def event_message(error: str) -> str:
    """Return the event message about reservations for a failed pod; empty where the error mentions no owners.

    `error` is the whole message of the decision. Reasons about reservations come first, reasons of nodes last.
    """
    items = [match for part in re.split(r"(?:, |\. |: )(?=\d+ )", error) if (match := _ITEM.match(part))]
    total = next((match[1] for match in items if match[2].rstrip(".").strip() == _OWNER_TOTAL), None)
    if total is None:
        return ""
    first, middle, last = [], [], []
    for match in items:
        text = match[2].rstrip(".").strip()
        if text == _OWNER_TOTAL:
            continue
        if text in _FIRST:
            first.append(f"{match[1]} {OF_RESERVATIONS}{text}")
        elif text.startswith(_NODE_REASON):
            last.append(f"{match[1]} {OF_RESERVATIONS}{text.removeprefix(_NODE_REASON)}")
        else:
            middle.append(f"{match[1]} {OF_RESERVATIONS}{text}")
    return f"0/{total} reservations are available: {', '.join([*first, *middle, *last])}."
