"""The map's colours: an expression on all nodes."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from koordpolicy.engine.cel.check.environment import Environment
from koordpolicy.engine.cel.scalar.program import Program, compile  # noqa: A004 - it is what it does
from koordpolicy.engine.cel.values.types import DOUBLE, INT
from koordpolicy.engine.cel.values.values import Timestamp
from koordpolicy.engine.cel.vector.frame import Frame
from koordpolicy.engine.cel.vector.plan import evaluate
from koordpolicy.engine.cluster.pod_variables import pending_pod_values
from koordpolicy.engine.compile import reads_of_paths
from koordpolicy.engine.explanation import plain, shortened
from koordpolicy.engine.framework.slots import PENDING_POD_VARIABLES, Slot, environment
from koordpolicy.engine.source import PolicyError, Problem, Source

from .models.map import Colouring, ColourView
from .state import ConsoleState

EXPRESSION: Final = "<expression>"
MOST_CLASSES: Final = 12
"""The maximum number of classes of a colouring; all further values are one class."""
OTHERS: Final = "..."
_SHOWN: Final = 60
_SAFE: Final = 2**53
_NOT_FINITE: Final = "the value is infinite, or not a number"
COLOURINGS: Final = (
    Colouring(name="cpuRequested", expression="requested.cpu * 100 / allocatable.cpu", unit="%"),
    Colouring(name="cpuMeasured", expression="usage.cpu * 100 / allocatable.cpu", unit="%"),
    Colouring(name="memoryRequested", expression="requested.memory * 100 / allocatable.memory", unit="%"),
    Colouring(name="memoryMeasured", expression="usage.memory * 100 / allocatable.memory", unit="%"),
    Colouring(name="pods", expression="nodeInfo.pods"),
    Colouring(name="gpuFree", expression="nodeInfo.gpuFree"),
    Colouring(name="schedulable", expression="!nodeInfo.unschedulable"),
)


def scope_of(state: ConsoleState) -> Environment:
    """Return the environment of the map's expressions: that of a filter without params and variables."""
    return environment(Slot.FILTER, extensions=state.policies.discovered.functions)


def colour(state: ConsoleState, expression: str, pod: str = "") -> ColourView:
    """Return the value of an expression on all nodes, for a pod if it reads one.

    Raises:
        PolicyError: the expression is not valid, or reads a pod and none is named.
        UnknownNameError: there is no such pod.
    """
    program = compile(Source(EXPRESSION, expression), scope_of(state))
    state.need(reads_of_paths(program.checked.reads))
    values: dict[str, object] = {"now": Timestamp.of(state.now)}
    if pod:
        values |= pending_pod_values(state.pod(pod))
    elif read := PENDING_POD_VARIABLES & frozenset(program.variables):
        raise PolicyError([Problem(f"the expression reads `{min(read)}`, and no pod is chosen",
                                   Source(EXPRESSION, expression).whole(), "choose a pod", code="no-pod")])
    return replace(coloured(program, state.snapshot.frame(values)), layout=state.layout)


def coloured(program: Program, frame: Frame) -> ColourView:
    """Return the values of a program on all rows of a frame: numbers, or the commonest values as classes.

    A number that is infinite or none counts as no value.
    """
    column = evaluate(program, frame)
    failures = {row: error.message for row, error in column.errors.items()}
    values = column.values.tolist()
    if program.type in (INT, DOUBLE) or column.values.dtype.kind in "if":
        failures |= {row: _NOT_FINITE for row, value in enumerate(values)
                     if row not in failures and isinstance(value, float) and not math.isfinite(value)}
        numbers = [None if row in failures else _number(value) for row, value in enumerate(values)]
        known = [each for each in numbers if each is not None]
        return ColourView(
            expression=program.source.text, type=str(program.type), numbers=numbers, lowest=min(known, default=None),
            highest=max(known, default=None), failed=len(failures), failure=_commonest(failures))
    found = [None if row in failures else _class(value) for row, value in enumerate(values)]
    counts = Counter(each for each in found if each is not None)
    chosen = sorted(each for each, _ in counts.most_common(MOST_CLASSES))
    classes = _told_apart([each.shown for each in chosen])
    if len(counts) > len(chosen):
        classes.append(OTHERS)
    places = {each: place for place, each in enumerate(chosen)}
    codes = [-1 if each is None else places.get(each, len(classes) - 1) for each in found]
    return ColourView(expression=program.source.text, type=str(program.type), classes=classes, codes=codes,
                      failed=len(failures), failure=_commonest(failures))


def _commonest(failures: Mapping[int, str]) -> str:
    return shortened(Counter(failures.values()).most_common(1)[0][0]) if failures else ""


def _number(value: Any) -> int | float | None:
    """Return a number that JavaScript reads without loss, or the nearest one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, float) or abs(value) < _SAFE else float(value)


class _Class(NamedTuple):
    """A value as one of the classes: the beginning of its text, and the hash of one that is longer."""

    shown: str
    rest: bytes


def _class(value: Any) -> _Class:
    """Return the class of a value; a text as it is, all else as JSON."""
    text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
    shown = shortened(text, _SHOWN)
    return _Class(shown, b"" if shown == text else hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())


def _told_apart(names: Sequence[str]) -> list[str]:
    """Return names of which those that are alike, or look like that of all others, have a number."""
    seen: Counter[str] = Counter((OTHERS,))
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return found
