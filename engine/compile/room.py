"""Compilation of the room that the targets of a DeschedulerPlugin share."""

from __future__ import annotations

from collections.abc import Mapping

from koordpolicy.engine.cel.syntax.ast import Expr, Literal, MapLiteral
from koordpolicy.engine.documents import RoomExpressions
from koordpolicy.engine.framework.slots import Slot
from koordpolicy.engine.source import did_you_mean

from .expressions import Expressions
from .programs import RoomPrograms


def compile_room(room: RoomExpressions | None, expressions: Expressions) -> RoomPrograms | None:
    """Return the compiled room; None if there is none, or one of its expressions is invalid.

    A name that only one of two written maps has is a problem: an amount that no pod takes is never used up.
    """
    if room is None:
        return None
    of_target = expressions.program(room.of_target, Slot.ROOM)
    of_pod = expressions.program(room.of_pod, Slot.TAKEN)
    if of_target is None or of_pod is None:
        return None
    added, taken = entries(of_target.checked.root), entries(of_pod.checked.root)
    if added is not None and taken is not None:
        for names, others, expression, message in (
            (added, taken, room.of_target, "no pod takes anything of `{}`: `ofPod` has no such name"),
            (taken, added, room.of_pod, "no target adds anything to `{}`: `ofTarget` has no such name"),
        ):
            for name, (key, _) in names.items():
                if name not in others:
                    expressions.problems.add(
                        message.format(name), expression.source.span(key.start, key.end),
                        help=did_you_mean(name, others) or "write the same names in both", code="invalid-value",
                    )
    return RoomPrograms(of_target, of_pod)


def entries(root: Expr) -> Mapping[str, tuple[Expr, Expr]] | None:
    """Return keys and values of a written map by name; None for another expression, and if a key is not constant."""
    if not isinstance(root, MapLiteral):
        return None
    found = {}
    for each in root.entries:
        if not isinstance(each.key, Literal) or not isinstance(each.key.value, str):
            return None
        found[each.key.value] = each.key, each.value
    return found
