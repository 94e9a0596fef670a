"""The servers of `top` as lines: their state and problems, figures over the last minutes, and alerts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from koordpolicy.engine.escaping import one_line
from koordpolicy.engine.explanation import counted

from .endpoints import short
from .sparks import spark, time_of

if TYPE_CHECKING:
    from rich.text import Text

    from koordpolicy.engine.console.models.model import Fault
    from koordpolicy.engine.console.models.servers import AlertLine, ServerChart, ServerLine, ServersView

_POINTS: Final = 12
"""The last points of a figure that are drawn."""
_OLD_S: Final = 120.0
"""A kind of which nothing was heard for longer is reported: of one that is watched something is heard every minute."""
_CHARTS: Final = {"bound": "bound", "waiting": "waiting", "decision": "decisions", "decision-p99": "p99",
                  "evicted": "evicted"}


def server_lines(view: ServersView, *, whole: bool = False) -> Iterator[Text]:
    """Yield the figures of all servers, their alerts and a line per server with its problems: of alerts and of problems
    the first one, or all of them with `whole`.
    """
    if any(not each.error for each in view.servers):
        yield from _figures(view)
        yield from _alerts(view, whole=whole)
    for each in view.servers:
        yield from _lines(each, whole=whole)


def _lines(server: ServerLine, *, whole: bool) -> Iterator[Text]:
    healthy = server.state == "healthy"
    line = _text(f"{server.endpoint}  ")
    line.append("healthy" if healthy else "NOT HEALTHY", style="green" if healthy else "bold red")
    role = "" if server.leading is None else ", leading" if server.leading else ", standby"
    facts = [
        f"{server.kind}{role}" if server.kind and not server.error else "",
        "" if server.generation is None else f"generation {server.generation}",
        f"hash {short(server.hash)}" if server.hash else "",
        "" if server.nodes is None else counted(server.nodes, "node"),
        f"restarted {counted(server.restarts, 'time')}" if server.restarts else "", _heard(server)]
    if any(facts):
        line.append(one_line(f"  {', '.join(filter(None, facts))}"))
    yield line
    problems = [server.error, *(_stale(server)), *map(_fault, server.refused), *server.problems]
    found = [each for each in problems if each]
    for place, each in enumerate(found if whole else found[:1]):
        more = f" (and {len(found) - 1} more)" if not whole and not place and len(found) > 1 else ""
        yield _text(f"  ! {each}{more}", "red")


def _heard(server: ServerLine) -> str:
    ages = [each.age for each in server.kinds if each.age is not None and not each.fault]
    return f"kinds heard of {time_of(max(ages))} ago" if ages and not server.error else ""


def _stale(server: ServerLine) -> Iterator[str]:
    for each in server.kinds:
        if each.age is not None and (each.fault or each.age > _OLD_S):
            yield f"{each.kind} was heard of {time_of(each.age)} ago{f': {each.fault}' if each.fault else ''}"


def _fault(fault: Fault) -> str:
    place = f"{fault.file}:{fault.line}: " if fault.file and fault.line else f"{fault.file}: " if fault.file else ""
    return f"refused: {place}{fault.message}"


def _figures(view: ServersView) -> Iterator[Text]:
    shown = [f"{_CHARTS[each.name]} {_last(each)}" for each in view.charts if each.name in _CHARTS]
    if shown:
        yield _text("  ".join(shown))


def _last(chart: ServerChart) -> str:
    known = [each for each in chart.points if each is not None]
    # A round without decisions has no duration; of all else the last round counts.
    last = known[-1] if chart.unit == "seconds" else chart.points[-1]
    value = "-" if last is None else _VALUES[chart.unit](last)
    line = spark([each or 0.0 for each in chart.points[-_POINTS:]], max(known)) if len(known) > 1 else ""
    return f"{value} {line}".rstrip()


def _seconds(value: float) -> str:
    return f"{1000 * value:.3g}ms" if value < 1 else time_of(value)


_VALUES: Final[Mapping[str, Callable[[float], str]]] = {
    "per-second": lambda value: f"{value:.3g}/s", "per-minute": lambda value: f"{value:.3g}/min", "seconds": _seconds,
    "pods": lambda value: f"{value:,.0f}",
}


def _alerts(view: ServersView, *, whole: bool) -> Iterator[Text]:
    for kind in view.disagreeing:
        yield _text(f"! the policies of the {kind}s differ", "bold red")
    shown = view.alerts if whole else view.alerts[:1]
    for place, each in enumerate(shown):
        more = f" (and {counted(len(view.alerts) - 1, 'more alert')})" if len(shown) < len(view.alerts) and (
            not place) else ""
        yield _text(f"! {_alert(each)}{more}", "bold red" if each.firing else "yellow")
    if not view.alerts:
        yield _text("no alerts")


def _alert(alert: AlertLine) -> str:
    state = alert.severity if alert.firing else "not yet"
    return f"{alert.name} ({state}, for {time_of(alert.seconds)}): {alert.summary}  {alert.server}".rstrip()


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(one_line(text), style=style, no_wrap=True, overflow="ellipsis")
