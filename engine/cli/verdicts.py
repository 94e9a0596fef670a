"""Text of parts of verdicts: names, requests, reasons, errors. Whole verdicts are explained elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from koordpolicy.engine.explanation import listed
from koordpolicy.engine.framework.points import Code, Refusal

from .terminal import heading, write

if TYPE_CHECKING:
    from koordpolicy.engine.scheduler.verdict.verdict import RefusedNodes, Verdict

_NAMES_SHOWN = 3
_ERRORS_SHOWN = 20


def names(nodes: Sequence[str], shown: int = _NAMES_SHOWN, *, all_of: int = 0) -> str:
    """Return the first names and the number of others; `all` for more than one name if there are `all_of`."""
    if len(nodes) == all_of > 1:
        return "all"
    return listed(nodes, shown)


def reason_of(refusal: RefusedNodes | Refusal) -> str:
    """Return the reason of a refusal; a failed expression is distinguished from a false one."""
    text = refusal.message if isinstance(refusal, Refusal) else refusal.reason
    return f"{refusal.code.value}: {text}" if refusal.code is Code.ERROR else text


def show_errors(*verdicts: Verdict) -> None:
    """Print the failures of decisions, each once, with the number of affected pods."""
    found: dict[tuple[str, str, str, str], list[tuple[str, Sequence[str]]]] = {}
    for verdict in verdicts:
        for error in verdict.errors():
            key = error.plugin, error.rule, error.point.value, error.message
            found.setdefault(key, []).append((verdict.pod.key, error.nodes))
    if not found:
        return
    heading("errors")
    for (plugin, rule, point, message), affected in [*found.items()][:_ERRORS_SHOWN]:
        nodes = list(dict.fromkeys(node for _, each in affected for node in each))
        where = f" on {names(nodes)}" if nodes else ""
        pods = len({pod for pod, _ in affected})
        times = f", for {pods} pods" if pods > 1 else ""
        write(f"  {plugin}{f' ({rule})' if rule else ''} at {point}: {message}{where}{times}")
    if len(found) > _ERRORS_SHOWN:
        write(f"  ... and {len(found) - _ERRORS_SHOWN} more")
    if any(message.startswith("no such key") for _, _, _, message in found):
        write("  if a field or key may be absent: `has(x.y)`, `'key' in x` or `x.?y.orValue(z)`")
