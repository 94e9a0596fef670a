"""Views of running servers: their state, pods that wait in them, and the use of rules. For the console and `top`.

Servers are not trusted: only values of the expected type are taken from their answers, and no more than fit on a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from koordpolicy.engine.monitoring.monitor import MonitorView, ServerState
from koordpolicy.engine.texts import first_of

from .models.model import Fault
from .models.servers import (
    AlertLine,
    KindAge,
    QueuedPodLine,
    RuleRate,
    RuleRatesView,
    ServerChart,
    ServerLine,
    ServersView,
    WaitingView,
)

_LONGEST_TEXT: Final = 2000
_MOST_KINDS: Final = 100
_MOST_PROBLEMS: Final = 50
_MOST_ITEMS: Final = 20
_MOST_PODS: Final = 200
_MOST_RULES: Final = 5000
_MOST_ALERTS: Final = 200
_SEVERITIES: Final = ("error", "warning", "note")


def servers_view(view: MonitorView, interval: float) -> ServersView:
    """Return the state of all servers after a round."""
    alerts, alerts_left_out = first_of(view.alerts, _MOST_ALERTS)
    return ServersView(
        interval=interval, servers=[_line(each, view.at) for each in view.servers],
        disagreeing=disagreeing(view.servers),
        alerts=[AlertLine(name=each.alert.name, severity=each.alert.severity, summary=_text(each.summary),
                          server=each.instance, seconds=max(0.0, round(view.at - each.since, 1)), firing=each.firing)
                for each in alerts],
        alerts_left_out=alerts_left_out,
        times=[round(each.at - view.at, 1) + 0.0 for each in view.points],
        charts=[
            ServerChart(name=name, unit=unit, points=[
                None if (value := getattr(each, field)) is None else round(value, 6) for each in view.points])
            for name, unit, field in (("bound", "per-second", "bound"), ("waiting", "pods", "waiting"),
                                      ("decision", "seconds", "decision_s"),
                                      ("decision-p99", "seconds", "decision_p99_s"),
                                      ("evicted", "per-minute", "evicted"))
            if any(getattr(each, field) is not None for each in view.points)])


def disagreeing(servers: Iterable[ServerState]) -> list[str]:
    """Return the kinds of servers that answer and whose policies have different hashes."""
    hashes: dict[str, set[str]] = {}
    for each in servers:
        if not each.error and (digest := _text(_of(each, "policies").get("digest"))):
            hashes.setdefault(each.kind, set()).add(digest)
    return sorted(kind for kind, found in hashes.items() if len(found) > 1)


def waiting_view(view: MonitorView, key: str = "") -> WaitingView:
    """Return the pods that wait in the schedulers that lead; with a key, of that pod alone."""
    reporting = [each for each in view.servers if each.waiting and not each.error]
    parts: dict[str, int] = {}
    left_out = 0
    pods: list[QueuedPodLine] = []
    for server in reporting:
        for part, count in _mapping(server.waiting.get("parts")).items():
            parts[_text(part)] = parts.get(_text(part), 0) + int(_number(count))
        left_out += int(_number(server.waiting.get("leftOut")))
        listed, rest = first_of(_list(server.waiting.get("pods")), _MOST_PODS)
        found, left_out = [_mapping(each) for each in listed], left_out + rest
        pods += [_pod(each, server.endpoint, view.at, server) for each in found if not key or each.get("pod") == key]
    pods.sort(key=lambda each: (-each.priority, -each.seconds, each.pod))
    shown, rest = first_of(pods, _MOST_PODS)
    return WaitingView(known=bool(reporting), parts=parts, pods=list(shown), left_out=0 if key else left_out + rest)


def rule_rates_view(view: MonitorView, policy: str = "") -> RuleRatesView:
    """Return the use of all rules, or of those of one policy."""
    shown, left_out = first_of([each for each in view.rules if not policy or each.plugin == policy], _MOST_RULES)
    return RuleRatesView(
        known=bool(view.rules), seconds=round(view.rules_s, 1),
        rules=[RuleRate(plugin=_text(each.plugin), point=_text(each.point), rule=_text(each.rule),
                        evaluations=round(each.evaluations), errors=round(each.errors), refusals=round(each.refusals),
                        per_second=round(each.per_second, 3))
               for each in shown],
        rules_left_out=left_out)


def _line(state: ServerState, now: float) -> ServerLine:
    policies, cluster = _of(state, "policies"), _of(state, "cluster")
    watches = {kind: _mapping(each) for kind, each in _mapping(cluster.get("kinds")).items()}
    kinds = [KindAge(kind=_text(kind), age=_optional(each.get("age")), fault=_text(each.get("fault")))
             for kind, each in watches.items()]
    kinds.sort(key=lambda each: (not each.fault, -(each.age or 0.0), each.kind))
    shown_kinds, kinds_left_out = first_of(kinds, _MOST_KINDS)
    shadow = _mapping(_of(state, "shadow").get("policies"))
    refused = [*_refused(policies), *(replace(each, message=f"in the shadow: {each.message}")
                                      for each in _refused(shadow))]
    generation = _optional(policies.get("generation"))
    if generation is None:
        generation = _optional(state.metrics.total("koord_policy_agent_generation"))
    shown_refused, refused_left_out = first_of(refused, _MOST_PROBLEMS)
    problems, problems_left_out = first_of(_problems(state), _MOST_PROBLEMS)
    if state.heard is None:
        shown = "away" if state.error else "pending"
    else:
        shown = "away" if state.error else "healthy" if is_well(state) else "unhealthy"
    nodes = cluster.get("nodes", None if state.answer is None else state.answer.data.get("nodes"))
    return ServerLine(
        endpoint=state.endpoint, kind=state.kind, state=shown, error=_text(state.error),
        silent=None if state.heard is None else max(0.0, round(now - state.heard, 1)),
        generation=None if generation is None else int(generation),
        hash=_text(policies.get("digest")), leading=state.leading,
        nodes=nodes if isinstance(nodes, int) else None, restarts=state.restarts,
        kinds=list(shown_kinds), kinds_left_out=kinds_left_out, refused=list(shown_refused),
        refused_left_out=refused_left_out, problems=list(problems), problems_left_out=problems_left_out)


def is_well(state: ServerState) -> bool:
    """Return whether the last answers of a server report no trouble: it is ready, and has what its sources have."""
    if state.answer is not None and state.answer.data:
        policies, cluster = _of(state, "policies"), _of(state, "cluster")
        return (bool(state.answer.data.get("ready")) and bool(policies.get("healthy")) and not cluster.get("stale"))
    ready = state.metrics.total("koord_policy_agent_ready")
    return ready is None or bool(ready)


def _refused(policies: Mapping[str, Any]) -> list[Fault]:
    """Return the problems of newer versions of policies, or of those in a shadow."""
    return [_fault(_mapping(problem)) for source in _list(policies.get("sources"))
            for problem in _list(_mapping(source).get("problems"))]


def _warnings(policies: Mapping[str, Any]) -> list[Any]:
    return [*_list(policies.get("warnings")), *(warning for source in _list(policies.get("sources"))
                                                for warning in _list(_mapping(source).get("warnings")))]


def _problems(state: ServerState) -> list[str]:
    data: Mapping[str, Any] = {} if state.answer is None else state.answer.data
    policies, shadow = _mapping(data.get("policies")), _of(state, "shadow")
    found = [*_warnings(policies), *_list(data.get("fault")), *_list(data.get("trouble"))]
    found += [f"in the shadow: {each}" for each in _warnings(_mapping(shadow.get("policies")))]
    if shadow.get("ready") is False:
        found.append("in the shadow: no valid policies, so that nothing is compared")
    configuration = _mapping(data.get("configuration"))
    found += [configuration["fault"]] if configuration.get("fault") else []
    if state.heard is not None and data and not data.get("ready") and "policies" not in data:
        found.append("policies and cluster are not loaded yet")
    if state.metrics.left_out:
        found.append(f"{state.metrics.left_out} series of its metrics are not read")
    return [_text(each) for each in found]


def _pod(found: Mapping[str, Any], endpoint: str, now: float, server: ServerState) -> QueuedPodLine:
    backoff = _optional(found.get("backoffSeconds"))
    age = max(0.0, now - (server.heard or now))
    plugins, plugins_left_out = first_of(_list(found.get("plugins")), _MOST_ITEMS)
    gates, gates_left_out = first_of(_list(found.get("gates")), _MOST_ITEMS)
    return QueuedPodLine(
        pod=_text(found.get("pod")), server=endpoint, part=_text(found.get("part")), reason=_text(found.get("reason")),
        plugins=[*map(_text, plugins)], plugins_left_out=plugins_left_out + _count(found.get("pluginsLeftOut")),
        gates=[*map(_text, gates)], gates_left_out=gates_left_out + _count(found.get("gatesLeftOut")),
        quota=_text(found.get("quota")),
        gang=_text(found.get("gang")), priority=int(_number(found.get("priority"))),
        attempts=int(_number(found.get("attempts"))), seconds=round(_number(found.get("seconds")) + age, 1),
        backoff_seconds=None if backoff is None else max(0.0, round(backoff - age, 1)),
        nominated=_text(found.get("nominatedNode")))


def _fault(problem: Mapping[str, Any]) -> Fault:
    severity = _text(problem.get("severity"))
    return Fault(
        severity=severity if severity in _SEVERITIES else "error", code=_text(problem.get("code")),
        message=_text(problem.get("message")), help=_text(problem.get("help")), file=_text(problem.get("file")),
        **{name: int(_number(problem.get(key))) for name, key in (
            ("line", "line"), ("column", "column"), ("end_line", "endLine"), ("end_column", "endColumn"))})


def _of(state: ServerState, key: str) -> Mapping[str, Any]:
    return {} if state.answer is None else _mapping(state.answer.data.get(key))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _text(value: object) -> str:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else ""


def _count(value: object) -> int:
    return max(0, int(_number(value)))


def _number(value: object) -> float:
    return _optional(value) or 0.0


def _optional(value: object) -> float | None:
    """Return a number, or None for all else; also for one that JSON does not have."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e15:
        return None
    return float(value)
