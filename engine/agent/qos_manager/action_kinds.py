"""Kinds of actions of QoSPlugins: how each adjusts a node, and how it reverts what it did."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.scalar.tracing import explain
from koordpolicy.engine.cel.syntax.ast import Select
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.compile import ActionProgram, CompiledQoS
from koordpolicy.engine.documents import QoSSpec
from koordpolicy.engine.framework.file_sets import FileSet
from koordpolicy.engine.framework.qos import Adjustment

from ..readings import NodeReadings
from .strategy_state import StateKey, StrategyState
from .subjects import QoSSubject, RoundView

Adjustments: TypeAlias = tuple[Adjustment, ...]


@dataclass(frozen=True, slots=True)
class ActionContext:
    """The inputs of an action for one subject in one round.

    `report` takes a pod's key and the error of an expression that failed for this pod only.
    """

    compiled: CompiledQoS
    action: ActionProgram
    subject: QoSSubject
    view: RoundView
    memory: StrategyState
    report: Callable[[str, EvaluationError], None]

    @property
    def readings(self) -> NodeReadings:
        """The readings of the round."""
        return self.view.readings

    @property
    def key(self) -> StateKey:
        """The key of the action's state for the subject."""
        return self.action.key, self.view.node, self.subject.name

    @property
    def item(self) -> str:
        """The action's name."""
        return self.action.name

    def number(self, program: Program, name: str) -> float:
        """Return the value of an expression for the subject; raise `EvaluationError` if it is not finite.

        `name` is the field's name, for the message.
        """
        value: Any = program.evaluate(self.subject.bindings)
        if not math.isfinite(value):
            raise EvaluationError(f"`{name}` of `{self.item}` is not a number: {value}")
        return float(value)

    def values_read(self, program: Program) -> dict[str, object]:
        """Return the values that an expression read, by text."""
        return {
            text: value for expr, text, value in explain(program, self.subject.bindings)
            if isinstance(expr, Select) and isinstance(value, (int, float, str))
        }


@dataclass(frozen=True, slots=True)
class Recovery:
    """The inputs of an action's recovery for one subject.

    `originals` are the texts of the action's files before its first change.
    """

    item: str
    subject: str
    readings: NodeReadings
    reason: str
    originals: Mapping[str, str]


def _no_files(program: object, spec: QoSSpec) -> tuple[FileSet, ...]:  # noqa: ARG001 - one signature for all kinds
    return ()


@dataclass(frozen=True, slots=True)
class ActionKind:
    """A kind of action: its key in documents, and its implementation.

    `adjust` returns the adjustments of one round, none if everything is as it should be; it raises `EvaluationError` if
    a value is unknown. `recover` returns those that revert all changes. `files` returns the files that an effect of a
    document may write, as far as its text says it.
    """

    key: str
    adjust: Callable[[Any, ActionContext], Adjustments]
    recover: Callable[[Any, Recovery], Adjustments]
    files: Callable[[Any, QoSSpec], tuple[FileSet, ...]] = _no_files


def restore_originals(kind: str, recovery: Recovery) -> Adjustments:
    """Return the adjustment that writes the original texts of an action's files, in reverse order.

    Files that are gone, or have their original text, are left out.
    """
    files = recovery.readings.files
    writes = tuple(
        (file, text) for file, text in reversed(tuple(recovery.originals.items()))
        if files.get(file, text).strip() != text.strip()
    )
    if not writes:
        return ()
    return (Adjustment(kind, recovery.subject, recovery.reason, recovery.item, {}, writes, recovers=True),)


def recover_nothing(program: object, recovery: Recovery) -> Adjustments:  # noqa: ARG001 - one signature for all kinds
    """Return no adjustment: the effects of this kind cannot be reverted."""
    return ()
