"""Output of `diff`: tables for the terminal, Markdown for a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from koordpolicy.engine.comparison.loads import GPU_SPREAD
from koordpolicy.engine.escaping import visible
from koordpolicy.engine.texts import beginning

from .terminal import heading, table, write
from .verdicts import names

if TYPE_CHECKING:
    from koordpolicy.engine.comparison.difference import BoundChange, BudgetSpent, Difference, Eligibility, Stranded
    from koordpolicy.engine.comparison.eligibility import Cause, Misfit
    from koordpolicy.engine.comparison.evictions import PredictedEviction
    from koordpolicy.engine.comparison.outcome import OutcomeSummary

_MARKED: Final = re.compile(r"([\\`*_{}\[\]<>|#~@&])")
_LONGEST: Final = 200
_OUTDONE: Final = "the new node scores higher, or the old one has no room any more"


@dataclass(frozen=True, slots=True)
class Section:
    """A table with its title; `hidden` further rows were omitted."""

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    hidden: int = 0


def show(found: Difference, spent: Sequence[BudgetSpent], top: int, hint: str = "") -> None:
    """Print a difference for the terminal, with the first `top` rows of each list, and a hint after the summary."""
    table(_SUMMARY, summary_rows(found))
    if hint:
        write(f"\n{hint}")
    if found.nothing:
        write("\nnothing changes")
    for section in sections(found, top):
        heading(section.title)
        table(section.headers, section.rows)
        if section.hidden:
            write(f"... and {section.hidden:,} more")
    if spent:
        heading("budgets")
        table(_BUDGETS, list(map(_budget_row, spent)))


def markdown(found: Difference, spent: Sequence[BudgetSpent], top: int, about: str, hint: str = "") -> str:
    """Return a difference as Markdown (as GitHub and GitLab read it); of each list the first `top`.

    Text from the cluster and the policies is escaped, so that it is never markup. `about` describes the comparison;
    `hint` comes after the summary.
    """
    lines = ["## What the policies would change", "", _escaped(about, longest=len(about)), ""]
    if spent:
        held = all(each.within for each in spent)
        lines += ["**All budgets hold.**" if held else "**A budget does not hold.**", "",
                  *_grid(_BUDGETS, map(_budget_row, spent)), ""]
    lines += [*_grid(_SUMMARY, summary_rows(found)), "", *((_escaped(hint, longest=len(hint)), "") if hint else ())]
    if found.nothing:
        lines += ["Nothing changes.", ""]
    for section in sections(found, top):
        lines += ["<details>", f"<summary>{_escaped(section.title)}</summary>", "",
                  *_grid(section.headers, section.rows), ""]
        if section.hidden:
            lines += [f"... and {section.hidden:,} more", ""]
        lines += ["</details>", ""]
    return "\n".join(lines).rstrip() + "\n"


_SPREADS: Final[Mapping[str, tuple[str, ...]]] = {"requested": ("cpu", GPU_SPREAD), "used": ("cpu",)}
_SUMMARY: Final = ("", "old", "new", "change")
_UNPROVED: Final = "evictions that should have been proved, and were not"
_BUDGETS: Final = ("budget", "of", "at most", "now", "")


def _budget_row(each: BudgetSpent) -> list[object]:
    return [each.name, each.whole, str(each.budget), each.count, "holds" if each.within else "EXCEEDED"]


def summary_rows(found: Difference) -> list[list[object]]:
    """Return the numbers of both outcomes side by side."""
    pairs = zip(_numbers(found.old.summary).items(), _numbers(found.new.summary).values(), strict=True)
    return [[name, _number(old), _number(new), _signed(old, new)] for (name, old), new in pairs
            if (old is not None or new is not None) and (name != _UNPROVED or old or new)]


def _numbers(of: OutcomeSummary) -> dict[str, float | None]:
    spreads = {f"spread of {what} {name} (% points)": each.deviation if (each := of_kind.get(name)) else None
               for what, of_kind in (("requested", of.requested), ("used", of.usage)) for name in _SPREADS[what]}
    return {
        "pods placed": of.placed, "pods pending": of.pending,
        "running pods whose node would refuse them": of.misfits, "pods that would be evicted": of.evictions,
        _UNPROVED: of.unproved,
        "nodes whose best-effort pods are held back": of.suppressed, "hot nodes": of.hot,
        **spreads,
        "kinds of failures": of.faults,
    }


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def _signed(old: float | None, new: float | None) -> str:
    if old is None or new is None:
        return ""
    change = round(new - old, 2)
    if not change:
        return ""
    return f"{change:+,}" if isinstance(change, int) else f"{change:+.2f}"


def sections(found: Difference, top: int) -> Iterator[Section]:
    """Yield a table for each kind of change that occurs."""
    added, removed = found.added, found.removed
    yield from _section(f"pods that change node: {len(found.moved):,}", ("pod", "old node", "new node", "because"), [
        (each.pod, each.old, each.new, _cause(each.cause) if each.cause else _OUTDONE) for each in found.moved
    ], top)
    yield from _stranded(f"pods that find no node any more: {len(added.waiting):,}", "was on", added.waiting, top)
    yield from _stranded(f"pods that find a node now: {len(removed.waiting):,}", "goes to", removed.waiting, top)
    yield from _eligibility("nodes that pods lose, by rule", added.refused, top)
    yield from _eligibility("nodes that pods gain, by the rule that refused them", removed.refused, top)
    yield from _misfits(f"running pods whose node would refuse them now: {len(added.misfits):,}", added.misfits, top)
    yield from _misfits(
        f"running pods whose node would take them again: {len(removed.misfits):,}", removed.misfits, top)
    yield from _evicted(f"pods that would be evicted now: {len(added.evicted):,}", added.evicted, top)
    yield from _evicted(f"pods that would not be evicted any more: {len(removed.evicted):,}", removed.evicted, top)
    yield from _evicted(f"pods whose eviction would not help, so that they stay now: {len(added.useless):,}",
                        added.useless, top)
    yield from _evicted(f"pods that no longer stay for that reason: {len(removed.useless):,}", removed.useless, top)
    yield from _held("nodes whose pods are held back now", added.suppressed, top)
    yield from _held("nodes whose pods are not held back any more", removed.suppressed, top)
    yield from _held("nodes whose pods are held back further, or less far", found.bounds, top)
    shift = f"{found.totals_changed:,} of {found.totals:,} weighted sums differ, by {found.mean_shift:+.1f} on average"
    yield from _section(f"scores by plugin, mean over nodes and kinds of pods ({shift})", (
        "plugin", "weight before", "weight now", "mean before", "mean now",
    ), [
        (each.plugin, *(("-" if of is None else of.weight) for of in (each.old, each.new)),
         *(("-" if of is None else f"{of.mean:.1f}") for of in (each.old, each.new)))
        for each in found.rescored
    ], len(found.rescored))
    yield from _section("kinds of pods with another best node", ("pods", "such as", "old best", "new best"), [
        (each.pods, each.pod, each.old, each.new) for each in found.ranked
    ], top)
    yield from _section("only watched: pairs of a pod and a node that would be refused", ("before", "now", "rule"), [
        (each.old, each.new, _cause(each.cause)) for each in found.watched
    ], top)
    for title, faults in (("failures that are new", added.faults), ("failures that are gone", removed.faults)):
        yield from _section(title, ("plugin", "at", "rule", "times", "what failed", "such as"), [
            (each.plugin, each.point, each.rule, each.times, each.message, each.example) for each in faults
        ], top)


def _section(title: str, headers: tuple[str, ...], rows: Sequence[tuple[object, ...]], top: int) -> Iterator[Section]:
    if rows:
        yield Section(title, headers, tuple(rows[:top]), max(0, len(rows) - top))


def _stranded(title: str, where: str, found: Sequence[Stranded], top: int) -> Iterator[Section]:
    yield from _section(title, ("pod", where, "why not under the other policies"), [
        (each.pod, each.node, _reasons(each.reasons)) for each in found
    ], top)


def _reasons(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items())


def _cause(cause: Cause) -> str:
    rule = f" ({cause.rule})" if cause.rule else ""
    return f"{cause.plugin}{rule}: {cause.reason}"


def _eligibility(title: str, found: Sequence[Eligibility], top: int) -> Iterator[Section]:
    yield from _section(title, ("nodes", "pods", "rule", "which nodes", "which pods"), [
        (len(each.nodes), len(each.pods), _cause(each.cause), names(each.nodes), names(each.pods)) for each in found
    ], top)


def _misfits(title: str, found: Sequence[Misfit], top: int) -> Iterator[Section]:
    groups: dict[Cause, list[Misfit]] = {}
    for each in found:
        groups.setdefault(each.cause, []).append(each)
    commonest = sorted(groups.items(), key=lambda item: -len(item[1]))
    yield from _section(title, ("pods", "rule", "such as"), [
        (len(those), _cause(cause), names([f"{each.pod} on {each.node}" for each in those]))
        for cause, those in commonest
    ], top)


def _evicted(title: str, found: Sequence[PredictedEviction], top: int) -> Iterator[Section]:
    """Yield evictions; with what their proofs say, if any was made."""
    proved = any(each.proof is not None for each in found)
    headers = ("pod", "node", "by", "rule", "reason", *(("proof",) if proved else ()))
    yield from _section(title, headers, [
        (each.pod, each.node, each.plugin, each.rule, each.reason,
         *(("" if each.proof is None else each.proof.message,) if proved else ()))
        for each in found
    ], top)


def _held(title: str, found: Sequence[BoundChange], top: int) -> Iterator[Section]:
    rows: list[tuple[object, ...]] = []
    for each in found:
        by = each.new or each.old
        assert by is not None
        subject = "" if each.subject == each.node else each.subject
        rows.append((each.node, subject, by.plugin, by.item, _bound(each, new=False), _bound(each, new=True),
                     by.best_effort))
    headers = ("node", "subject", "plugin", "action", "before", "now", "best-effort pods")
    yield from _section(f"{title}: {len({each.node for each in found}):,}", headers, rows, top)


def _bound(held: BoundChange, *, new: bool) -> str:
    of = held.new if new else held.old
    if of is None:
        return "-"
    target: Any = of.values.get("target")
    return f"{target}m" if isinstance(target, int | float) else of.reason


# Text from the cluster and the policies


def _escaped(value: object, longest: int = _LONGEST) -> str:
    text = beginning(visible(" ".join(str(value).split())), longest)
    return _MARKED.sub(lambda found: f"&#{ord(found[1])};", text)


def _grid(headers: Iterable[str], rows: Iterable[Sequence[object]]) -> list[str]:
    titles = list(headers)
    return [_row(titles), _row(["---"] * len(titles)), *(_row([_escaped(each) for each in row]) for row in rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
