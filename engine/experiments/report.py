"""A sweep as one self-contained page: the means, and the plots of the openb study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from koordpolicy.engine.reports.page import page as framed

from .axes import Axis, Value, show
from .plots import svg
from .presentation import Manner, SweepSummary, panels, summary
from .sweep import Swept

_HIGHER_IS_BETTER: Final = frozenset({"gpu_alloc_pct"})
_MOST_FAILED: Final = 20
_POLICY: Final = "policy"


def page(swept: Swept, axes: Sequence[Axis], manner: Manner, *, title: str, about: str) -> str:
    """Return the page. `title` names the sweep, `about` its inputs and the program's version.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    found = summary(swept.finished, manner)
    parts = [_varied(axes)]
    if swept.failed:
        parts.append(_missing(swept))
    if swept.finished:
        parts += ["<h2>Means</h2>", _means(found, manner)]
        for number, (heading, drawn) in enumerate(panels(swept.finished, manner).items()):
            parts.append(f"<h2>{escape(f'Workload {heading}' if heading else 'Overview')}</h2>")
            # The plots are black on white, also in dark mode.
            parts.append(f'<div class="drawn">{svg(drawn, name=f"plot-{number}")}</div>')
    return framed(title, about, parts)


def _varied(axes: Sequence[Axis]) -> str:
    rows = "".join(f"<dt>{escape(axis.name)}</dt><dd>{escape(_values(axis.values))}</dd>" for axis in axes)
    return f"<dl>{rows}</dl>"


def _values(values: Sequence[Value]) -> str:
    whole = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    if len(whole) == len(values) > 2 and whole == list(range(whole[0], whole[-1] + 1)):
        return f"{whole[0]}..{whole[-1]}"
    return ", ".join(map(show, values))


def _missing(swept: Swept) -> str:
    why: dict[str, int] = {}
    for _, text in swept.failed:
        why[text] = why.get(text, 0) + 1
    shown = "<br>".join(f"{count}: {escape(text)}" for text, count in list(why.items())[:_MOST_FAILED])
    return f'<p class="missing">{len(swept.failed)} experiments could not be run.<br>{shown}</p>'


def _means(found: SweepSummary, manner: Manner) -> str:
    best = _best(found)
    head = "".join(f"<th>{escape(name)}</th>" for name in found.axes) + '<th class="number">runs</th>' + "".join(
        f'<th class="number" title="{escape(manner.meanings[name])}">{escape(name)}</th>' for name in found.figures)
    rows = []
    for values, count, figures in found.rows:
        cells = "".join(f"<td>{escape(show(value))}</td>" for value in values) + f'<td class="number">{count}</td>'
        for name, each in zip(found.figures, figures, strict=True):
            if each is None:
                cells += '<td class="number">-</td>'
                continue
            marked = best.get((_rivals(found, values), name)) == each[0]
            spread = f" <small>±{each[1]:.2f}</small>" if count > 1 else ""
            mean = f"{each[0]:.0f}" if count == 1 and name in found.counts else f"{each[0]:.2f}"
            cells += f'<td class="number{" best" if marked else ""}">{mean}{spread}</td>'
        rows.append(f"<tr>{cells}</tr>")
    meanings = "".join(f"<dt>{escape(name)}</dt><dd>{escape(manner.meanings[name])}</dd>" for name in found.figures)
    return (f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
            f"<dl>{meanings}</dl>")


def _best(found: SweepSummary) -> Mapping[tuple[tuple[Value, ...], str], float]:
    """Return the best means of figures for which higher is better, among rows that differ only in the policy."""
    if _POLICY not in found.axes:
        return {}
    best: dict[tuple[tuple[Value, ...], str], float] = {}
    for values, _, figures in found.rows:
        for name, each in zip(found.figures, figures, strict=True):
            if each is not None and name in _HIGHER_IS_BETTER:
                key = _rivals(found, values), name
                best[key] = max(best.get(key, each[0]), each[0])
    return best


def _rivals(found: SweepSummary, values: tuple[Value, ...]) -> tuple[Value, ...]:
    return tuple(value for name, value in zip(found.axes, values, strict=True) if name != _POLICY)
