"""Verdicts as people read them: the choice, the scores behind it, and who refused what."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..kubernetes.vocabulary import GPU_CORE, GPU_MEMORY_RATIO
from ..points import Code, Enforcement, Refusal
from .terminal import amount, heading, plain, table, write

if TYPE_CHECKING:
    from ..cluster.pods import PodInfo
    from ..scheduler.verdict import Refused, Verdict

_NAMES_SHOWN = 3
_VALUE_WIDTH = 100
_ERRORS_SHOWN = 20
_SHORT_OF = {"requested", "used", "capacity"}
"""What NodeResourcesFit tells of a resource."""


def names(nodes: Sequence[str], shown: int = _NAMES_SHOWN, *, all_of: int = 0) -> str:
    """Return the first names and how many more there are; `all` where several are all of `all_of`."""
    if len(nodes) == all_of > 1:
        return "all"
    rest = len(nodes) - shown
    return ", ".join(nodes[:shown]) + (f" and {rest} more" if rest > 0 else "")


def request(pod: PodInfo) -> str:
    """Return what a pod asks for: `cpu 0.5, memory 1Gi, gpu 2`; resources without their domain."""
    requests = pod.requests
    asked = [
        f"{name.rpartition('/')[2]} {amount(name, value)}" for name, value in sorted(requests.items())
        # Koordinator's pods always ask for both; a share of a GPU is one thing to people.
        if value and not (name == GPU_MEMORY_RATIO and value == requests[GPU_CORE])
    ]
    return ", ".join(asked) or "nothing"


def show_values(
    values: Iterable[tuple[str, object]], indent: str, *, leaves: bool = False, node: str = "", reason: str = "",
) -> None:
    """Print sub-expressions with what they were, each on its line; with `leaves` only the innermost, on one line.

    `node` says whose values they are, where the refusal is about several; of resources that are short, those count that
    the `reason` names.
    """
    values = list(values)
    whose = f"{node}: " if node else ""
    short_of = [(name, value) for name, value in values if isinstance(value, dict) and value.keys() == _SHORT_OF]
    if short_of:
        named = [each for each in short_of if reason.endswith(f" {each[0]}")] or short_of
        texts = [_shortage(name, value) for name, value in named]
        for text in [", ".join(texts)] if leaves else texts:
            write(indent + whose + text)
        return
    shown = [(text, value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False))
             for text, value in values]
    short = [(text, value if len(value) <= _VALUE_WIDTH else value[:_VALUE_WIDTH] + "...") for text, value in shown]
    if not leaves:
        for text, value in short:
            write(f"{indent}{text} = {value}")
        return
    inner = [(text, value) for text, value in short
             if not any(other != text and other in text for other, _ in short)]
    if inner:
        write(indent + whose + ", ".join(f"{text} = {value}" for text, value in inner))


def _shortage(name: str, value: dict[str, int]) -> str:
    capacity = value["capacity"]
    free = f"{amount(name, capacity - value['used'])} of {amount(name, capacity)} free"
    return f"{name} {amount(name, value['requested'])} requested, {free}"


def reason_of(refusal: Refused | Refusal) -> str:
    """Return why something was refused; an expression that failed is told apart from one that said no."""
    text = refusal.message if isinstance(refusal, Refusal) else refusal.reason
    return f"{refusal.code.value}: {text}" if refusal.code is Code.ERROR else text


def show_choice(verdict: Verdict) -> None:
    """Print where the pod goes and how that was decided, in one or two lines."""
    passed, size = len(verdict.passed), len(verdict.names)
    if verdict.node is None:
        write(f"no node fits {verdict.pod.key}: none of {size} passed")
        return
    devices = f", GPUs {', '.join(map(str, verdict.devices))}" if verdict.devices else ""
    write(f"{verdict.pod.key} runs on {verdict.node}{devices}: {passed} of {size} nodes passed")
    tie = verdict.tie
    if tie is not None and tie.among > 1:
        rule = "the first by name was taken" if tie.rule == "first" else f"one was drawn with seed {tie.seed}"
        write(f"{tie.among} nodes share the best score: {rule}")


def show_scores(verdict: Verdict, limit: int) -> None:
    """Print the scores of the best nodes by plugin, unweighted, with the weights of the profile and the totals."""
    if not verdict.scores:
        if len(verdict.passed):
            write("no plugin scores")
        return
    best = verdict.best(limit)
    columns = [verdict.score_of(name) for name, _ in best]
    rows: list[list[object]] = [
        [step.plugin + _mark(step.enforcement), step.weight, *(column[step.plugin] for column in columns)]
        for step in verdict.scores
    ]
    rows.append(["total", sum(step.weight for step in verdict.scores if step.enforcement is Enforcement.ENFORCE),
                 *(total for _, total in best)])
    table(["plugin", "weight", *(name for name, _ in best)], rows)
    rest = len(verdict.passed) - len(best)
    if rest > 0:
        write(f"... and {rest} more nodes that passed")


def _mark(enforcement: Enforcement) -> str:
    return "" if enforcement is Enforcement.ENFORCE else f" [{enforcement.value.lower()} only]"


def show_refusals(verdict: Verdict) -> None:
    """Print which nodes were refused, by plugin and rule, then by reason with the values that led to it."""
    if verdict.refusal is not None:
        plugin, point, refusal = verdict.refusal
        write(f"`{plugin}` refuses the pod at {point.value}: {reason_of(refusal)}")
        show_values(refusal.values, "  ")
        return
    groups: dict[tuple[str, str, Enforcement], list[Refused]] = {}
    for refused in verdict.refusals():
        groups.setdefault((refused.plugin, refused.rule, refused.enforcement), []).append(refused)
    for (plugin, rule, enforcement), reasons in groups.items():
        count = len({node for refused in reasons for node in refused.nodes})
        write(f"{count:>4}  {plugin}{f' ({rule})' if rule else ''}{_mark(enforcement)}")
        for refused in reasons:
            write(f"      {reason_of(refused)}: {names(refused.nodes, all_of=len(verdict.names))}")
            node = refused.nodes[0] if len(refused.nodes) > 1 else ""
            show_values(refused.values, "        ", leaves=True, node=node, reason=refused.reason)


def show_errors(*verdicts: Verdict) -> None:
    """Print what failed while deciding, if anything did; the same failure once, with how many pods it befell."""
    found: dict[tuple[str, str, str, str], list[tuple[str, Sequence[str]]]] = {}
    for verdict in verdicts:
        for error in verdict.errors():
            key = error.plugin, error.rule, error.point.value, error.message
            found.setdefault(key, []).append((verdict.pod.key, error.nodes))
    if not found:
        return
    heading("errors")
    for (plugin, rule, point, message), befell in [*found.items()][:_ERRORS_SHOWN]:
        nodes = list(dict.fromkeys(node for _, each in befell for node in each))
        where = f" on {names(nodes)}" if nodes else ""
        pods = len({pod for pod, _ in befell})
        times = f", for {pods} pods" if pods > 1 else ""
        write(f"  {plugin}{f' ({rule})' if rule else ''} at {point}: {message}{where}{times}")
    if len(found) > _ERRORS_SHOWN:
        write(f"  ... and {len(found) - _ERRORS_SHOWN} more")
    if any(message.startswith("no such key") for _, _, _, message in found):
        write("  what may be missing is tested with `has(x.y)` or `'key' in x`, or read as `x.?y.orValue(z)`")


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
