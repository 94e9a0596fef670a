"""Verdicts as people read them: the choice, the scores behind it, and who refused what."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..points import Enforcement
from .terminal import amount, heading, plain, table, write

if TYPE_CHECKING:
    from ..cluster.pods import PodInfo
    from ..points import Refusal
    from ..scheduler.verdict import Verdict

_NAMES_SHOWN = 4
_VALUE_WIDTH = 60


def names(nodes: Sequence[str], shown: int = _NAMES_SHOWN) -> str:
    """Return the first names and how many more there are."""
    rest = len(nodes) - shown
    return ", ".join(nodes[:shown]) + (f" and {rest} more" if rest > 0 else "")


def request(pod: PodInfo) -> str:
    """Return what a pod asks for: `cpu 0.5, memory 1Gi, gpu 2`; resources without their domain."""
    asked = [
        f"{name.rpartition('/')[2]} {amount(name, value)}" for name, value in sorted(pod.requests.items()) if value
    ]
    return ", ".join(asked) or "nothing"


def show_values(values: Iterable[tuple[str, object]], indent: str = "      ") -> None:
    """Print sub-expressions with what they were."""
    for text, value in values:
        shown = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
        write(f"{indent}{text} = {shown if len(shown) <= _VALUE_WIDTH else shown[:_VALUE_WIDTH] + '...'}")


def show_choice(verdict: Verdict) -> None:
    """Print where the pod goes and how that was decided, in one or two lines."""
    passed, size = len(verdict.passed), len(verdict.names)
    if verdict.node is None:
        write(verdict.summary())
        return
    devices = f", GPUs {', '.join(map(str, verdict.devices))}" if verdict.devices else ""
    write(f"{verdict.pod.key} runs on {verdict.node}{devices}: {passed} of {size} nodes passed")
    tie = verdict.tie
    if tie is not None and tie.among > 1:
        rule = "the first by name was taken" if tie.rule == "first" else f"one was drawn with seed {tie.seed}"
        write(f"{tie.among} nodes share the best score: {rule}")


def show_scores(verdict: Verdict, limit: int) -> None:
    """Print the score of the best nodes by plugin, each with the weight of its profile."""
    if not verdict.scores:
        if len(verdict.passed):
            write("no plugin scores")
        return
    headings = ["node", "total"]
    for step in verdict.scores:
        mark = "" if step.enforcement is Enforcement.ENFORCE else f" ({step.enforcement.value.lower()} only)"
        headings.append(f"{step.plugin}{f' x{step.weight}' if step.weight != 1 else ''}{mark}")
    rows = [[name, total, *verdict.score_of(name).values()] for name, total in verdict.best(limit)]
    table(headings, rows)
    rest = len(verdict.passed) - len(rows)
    if rest > 0:
        write(f"... and {rest} more nodes that passed")


def show_refusals(verdict: Verdict, *, values: bool = True) -> None:
    """Print which nodes were refused, grouped by plugin and reason, with the values that led to it."""
    if verdict.refusal is not None:
        plugin, point, refusal = verdict.refusal
        write(f"`{plugin}` refuses the pod at {point.value}: {refusal.message}")
        show_values(refusal.values)
        return
    for refused in verdict.refusals():
        mark = "" if refused.enforcement is Enforcement.ENFORCE else f" [{refused.enforcement.value.lower()} only]"
        rule = f" ({refused.rule})" if refused.rule else ""
        write(f"{len(refused.nodes):>5}  {refused.plugin}{rule}{mark}: {refused.reason}")
        write(f"       {names(refused.nodes)}")
        if values and refused.values:
            show_values(refused.values, f"       on {refused.nodes[0]}: ")


def show_errors(verdict: Verdict) -> None:
    """Print what failed while deciding, if anything did."""
    errors = verdict.errors()
    if not errors:
        return
    heading("errors")
    for error in errors:
        where = f" on {names(error.nodes)}" if error.nodes else ""
        write(f"  {error.plugin} at {error.point.value}: {error.message}{where}")


def refusal_json(plugin: str, refusal: Refusal) -> dict[str, Any]:
    """Return one refusal as plain data."""
    result: dict[str, Any] = {
        "plugin": plugin, "rule": refusal.rule, "reason": refusal.message, "code": refusal.code.value,
    }
    if refusal.values:
        result["values"] = {text: plain(value) for text, value in refusal.values}
    return result


def verdict_json(verdict: Verdict, nodes: int | None = None) -> dict[str, Any]:
    """Return a verdict as plain data that JSON can hold, whatever the values of expressions are."""
    data: dict[str, Any] = plain(verdict.to_json(nodes=nodes))
    return data
