"""No list of the JSON that rooms of the engine make is cut without a field, or a last entry, that says so.

`texts.first_of` returns the number of the others with the first ones; `source.first_problems` ends with a problem that
says so. A slice by a constant does neither.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOMS: Final = ("comparison", "console", "descheduler", "flight_recorder", "lint", "reload", "scheduler/live")
"""The rooms that make JSON of lists which have no natural bound."""

EXCEPTIONS: Final = {
    ("comparison/audit.py", "_EXAMPLES"): "the others are counted in `others`",
    ("console/change_plans.py", "_MOST_FILES"): "the names of the others follow",
    ("console/node_time.py", "_MOST_CHANGES"): "the problem of the source says so",
    ("console/node_time.py", "_SHOWN_FILES"): "the others are counted in `more`",
    ("console/nodes.py", "_MOST_OPINIONS"): "all pending pods without an opinion are counted in `opinions_left_out`",
    ("console/pods.py", "_MOST_NEAR"): "proposals for a name that nothing has",
    ("console/policies.py", "_MOST_WAITING"): "all other pending pods are counted in `waiting_left_out`",
    ("console/state.py", "MOST_PENDING"): "`decided` and `pending` of the view say so",
    ("descheduler/pods.py", "_BLOCK"): "blocks of rows, one after the other",
    ("descheduler/proof/successors.py", "_SUFFIX"): "a part of a name",
    ("descheduler/proof/verdicts.py", "_MOST_REASONS"): "the text says how many more there are",
    ("descheduler/templates.py", "_MOST_OF_OWNER"): "a bound of a cache",
    ("flight_recorder/moments.py", "_MOST_SEGMENTS"): "a bound of what is read",
    ("lint/across.py", "_MOST_LISTED"): "a last violation says so",
    ("reload/journal.py", "_NAMES_SHOWN"): "the text says how many more there are",
    ("reload/vet.py", "_MOST_REFUSED"): "a bound of a cache",
    ("scheduler/live/waiting.py", "MOST_PODS"): "the others are counted in `leftOut`",
}
"""Cuts by other means, with the reason why no reader is misled."""

ENGINE: Final = Path(__file__).parents[1] / "engine"
_CONSTANT: Final = re.compile(r"_?[A-Z][A-Z_]*\Z")
_OF_TEXTS: Final = re.compile("LONGEST|LENGTH|PIECE")
_TAKERS: Final = frozenset({"islice", "nlargest", "nsmallest"})


def constants(node: ast.AST | None) -> Iterator[str]:
    for each in ast.walk(node) if node is not None else ():
        if isinstance(each, ast.Name) and _CONSTANT.match(each.id) and not _OF_TEXTS.search(each.id):
            yield each.id


def cuts(text: str) -> Iterator[str]:
    """Yield the constants by which the text of a module cuts lists."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Slice):
            yield from (*constants(node.lower), *constants(node.upper))
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in _TAKERS:
                yield from (each for argument in node.args for each in constants(argument))


def test_no_list_is_cut_without_a_field_that_says_so():
    found = {
        (str(path.relative_to(ENGINE)), constant)
        for room in ROOMS for path in (ENGINE / room).rglob("*.py")
        for constant in cuts(path.read_text(encoding="utf-8"))
    }
    assert found == EXCEPTIONS.keys()


def test_cuts_are_found_in_slices_and_calls():
    text = "a[:_MOST]\nb[-_MOST_X:]\nitertools.islice(c, _FIRST)\nd[:_LONGEST]\ne[:3]\nheapq.nsmallest(_NEAR, f)\n"
    assert sorted(cuts(text)) == ["_FIRST", "_MOST", "_MOST_X", "_NEAR"]


def test_the_number_of_the_others_is_never_thrown_away():
    """`first_of(...)[0]` and `shown, _ = first_of(...)` would be silent cuts."""
    thrown = []
    for path in ENGINE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            calls = isinstance(node, ast.Assign | ast.Subscript) and isinstance(node.value, ast.Call) and (
                getattr(node.value.func, "id", "") == "first_of")
            if calls and (isinstance(node, ast.Subscript) or not _uses_both(node)):
                thrown.append(f"{path}:{node.lineno}")
    assert not thrown


def _uses_both(node: ast.Assign) -> bool:
    (target,) = node.targets
    return isinstance(target, ast.Tuple) and not any(
        isinstance(each, ast.Name) and each.id.startswith("_") for each in target.elts)
