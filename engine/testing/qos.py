"""Cases about QoSPlugins: rounds over measured usage, in virtual time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from koordpolicy.engine.agent.metric_cache.series import MetricSeries
from koordpolicy.engine.agent.qos_manager.documents import RoundError
from koordpolicy.engine.agent.qos_manager.written_files import written_part
from koordpolicy.engine.agent.recording import MetricsRecording, host_of, measured_amount
from koordpolicy.engine.agent.replay import ReplayedRound, replay
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.compile import CompiledQoS
from koordpolicy.engine.documents import (
    ActionExpectation,
    ErrorExpectation,
    MeasuredPeriod,
    RoundExpectation,
    format_duration,
)
from koordpolicy.engine.framework.qos import Adjustment
from koordpolicy.engine.framework.registry import Plugin, Registry

from .case_run import RunningCase, checked_params
from .fixtures import FixtureError, World, unknown
from .instruments import compiled_of

SECOND: Final = 1_000_000_000
LONGEST: Final = 86_400


def run(running: RunningCase, plugin: Plugin) -> None:
    """Replay the measurements through the plugin alone, and compare its rounds."""
    case, world = running.case, running.world()
    running.only_skips = False
    compiled = compiled_of(plugin, {})
    assert isinstance(compiled, CompiledQoS)
    recording = _recording(running, world)
    params = checked_params(plugin, running.params)
    observed = running.suite.registry([plugin], running.observer)
    bound = _with_params(observed.plugins[plugin.framework, plugin.name], params)
    gate = compiled.spec.feature_gate
    rounds = {
        each.elapsed: each for each in replay(recording, Registry.of([bound], generation=1),
                                              gates={gate: True} if gate else {}, enable=[plugin.name])
    }
    names = frozenset(each.rule.name for each in compiled.thresholds)
    items = names | {each.name for each in compiled.actions} | {"matchConditions"}
    for expected in case.rounds:
        _check_names(expected, names, items)
        if expected.at_ns not in rounds:
            last = max(rounds, default=0)
            raise FixtureError(f"there is no round at {format_duration(expected.at_ns)}: one comes every "
                               f"{format_duration(compiled.spec.interval_ns)}, the last at {format_duration(last)}")
        if expected.until_ns not in rounds:
            raise FixtureError(f"there is no round at {format_duration(expected.until_ns)}")
        for elapsed, each in rounds.items():
            if expected.at_ns <= elapsed <= expected.until_ns:
                before = len(running.mismatches)
                _check_round(running, world, expected, each)
                if len(running.mismatches) > before:
                    break  # later rounds differ for the same reason


def _with_params(plugin: Plugin, params: Mapping[str, Any]) -> Plugin:
    return dataclasses.replace(plugin, check_args=lambda _: params)


def _recording(running: RunningCase, world: World) -> MetricsRecording:
    case, spec = running.case, running.suite.spec
    periods = case.metrics or spec.metrics
    if not periods:
        raise FixtureError("nothing is measured: give the case `metrics`")
    nodes = [each for each in world.objects if each["kind"] == "Node"]
    if len(nodes) != 1:
        raise FixtureError(f"a QoS plugin runs on one node, and there are {len(nodes)}: choose one with `nodes: "
                           "[NAME]`")
    node = nodes[0]["metadata"]["name"]
    recording = MetricsRecording(interval=SECOND, nodes={node: nodes[0]})
    for each in world.objects:
        if each["kind"] == "Pod":
            pod = PodInfo.of(_started(each))
            if pod.node_name:
                recording.pods.setdefault(pod.node_name, {})[pod.key] = pod
        elif each["kind"] not in ("Node", "NodeMetric"):
            recording.objects[each["kind"], each["metadata"]["name"]] = each
    cgroups = {**spec.cgroups, **case.cgroups}
    if cgroups:
        recording.files[node] = dict(cgroups)
    if spec.host:
        try:
            recording.hosts[node] = host_of(spec.host)
        except ValueError as error:
            raise FixtureError(f"`host`: {error}", ("spec", "host")) from None
    second = 0
    for period in periods:
        length = max(period.for_ns // SECOND, 1)
        if second + length > LONGEST:
            raise FixtureError("more than a day is measured")
        amounts = _amounts(period, world, node)
        for _ in range(length):
            time = world.now + second * SECOND
            recording.times.append(time)
            for key, of_key in amounts.items():
                series = recording.series.setdefault(key, {})
                for resource, amount in of_key.items():
                    series.setdefault(resource, MetricSeries()).add(time, amount)
            second += 1
    return recording


def _amounts(period: MeasuredPeriod, world: World, node: str) -> dict[tuple[str, str, str], dict[str, float]]:
    given: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    if period.usage is not None:
        given[node, "node", node] = period.usage
    for name, usage in period.pods.items():
        given[node, "pod", _on_node(world, name).key] = usage
    for name, usage in period.containers.items():
        pod, _, container = name.rpartition("/")
        found = _on_node(world, pod)
        known = _containers(found.object)
        if container not in known:
            raise unknown(f"container of `{pod}`", container, known)
        given[node, "container", f"{found.key}/{container}"] = usage
    try:
        best_effort = {name: measured_amount("cpu", str(amount), f"bestEffort.{name}")
                       for name, amount in period.best_effort.items()}
        return {(node, "bestEffort", node): best_effort} | {
            key: {resource: measured_amount(resource, str(amount), f"{key[2]}.{resource}")
                  for resource, amount in usage.items()} for key, usage in given.items()}
    except ValueError as error:
        raise FixtureError(str(error)) from None


def _started(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a pod of a node with the status of its containers, as the kubelet reports it once they run."""
    status = pod.get("status") or {}
    if "containerStatuses" in status:
        return pod
    name = pod["metadata"]["name"]
    statuses = [{"name": each, "containerID": f"containerd://{name}-{each}", "state": {"running": {}}}
                for each in _containers(pod)]
    return {**pod, "status": {"phase": "Running", **status, "containerStatuses": statuses}}


def _containers(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a pod's containers.

    Raises:
        FixtureError: one has no name.
    """
    names = tuple(each.get("name") for each in pod["spec"]["containers"])
    for number, name in enumerate(names):
        if not isinstance(name, str) or not name:
            raise FixtureError(f"`spec.containers[{number}]` of the pod `{pod['metadata']['name']}` has no `name`")
    return names


def _on_node(world: World, name: str) -> PodInfo:
    pod = world.pod(name)
    if not pod.node_name:
        raise FixtureError(f"the pod `{name}` is on no node, and nothing can be measured of it")
    return pod


def _check_names(expected: RoundExpectation, thresholds: frozenset[str], items: frozenset[str]) -> None:
    for name in sorted((expected.true or frozenset()) | (expected.holds or frozenset())):
        if name not in thresholds:
            raise unknown("threshold", name, thresholds)
    for name in (*(each.item for each in expected.actions or ()), *(each.item for each in expected.errors)):
        if name not in items:
            raise unknown("threshold or action", name, items)


def _check_round(running: RunningCase, world: World, expected: RoundExpectation, got: ReplayedRound) -> None:
    at = f"the round at {format_duration(got.elapsed)}"
    for what, required, found in (
        ("true thresholds", expected.true, frozenset(each.name for each in got.thresholds if each.true)),
        ("thresholds that hold", expected.holds, frozenset(each.name for each in got.thresholds if each.holds)),
    ):
        if required is not None and required != found:
            running.miss(f"{what} in {at}", _listed(required), _listed(found), expected.span)
    if expected.actions is not None:
        pairs = zip(expected.actions, got.adjustments, strict=False)
        fits = len(expected.actions) == len(got.adjustments)
        fits = fits and all(_does(each, found, world, got.node) for each, found in pairs)
        if not fits:
            running.miss(f"actions in {at}", "; ".join(map(_action_text, expected.actions)) or "none",
                         "; ".join(_adjustment_text(each, world) for each in got.adjustments) or "none", expected.span)
    left = list(got.errors)
    for wanted_error in expected.errors:
        found_error = next((each for each in left if _fails(wanted_error, each, world)), None)
        if found_error is None:
            running.miss(f"errors in {at}", _error_text(wanted_error),
                         "; ".join(map(_round_error_text, got.errors)) or "none", wanted_error.span)
        else:
            left.remove(found_error)
    for each in left:
        running.miss(f"errors in {at}", "no other error", _round_error_text(each), expected.span)


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _does(required: ActionExpectation, got: Adjustment, world: World, node: str) -> bool:
    subject = node if got.subject == node else world.named(got.subject)
    return (
        required.item == got.item and required.kind in (None, got.kind) and required.subject in (None, subject)
        and required.recovers == got.recovers
        and all(name in got.values and got.values[name] == value for name, value in required.values.items())
        and (required.writes is None or all(_writes(got, name, text) for name, text in required.writes.items()))
    )


def _writes(got: Adjustment, name: str, text: str) -> bool:
    """Return whether a file is written so: its last write, or one of those that change only a part of it."""
    texts = [each.strip() for file, each in got.writes if file == name]
    return text.strip() in texts if any(written_part(name, each) for each in texts) else texts[-1:] == [text.strip()]


def _action_text(each: ActionExpectation) -> str:
    parts = [f"{'recovery of ' if each.recovers else ''}`{each.item}`"]
    parts += [text for text in (each.kind, each.subject) if text]
    parts += [f"{name} = {value}" for name, value in each.values.items()]
    parts += [f"{name} <- {text}" for name, text in (each.writes or {}).items()]
    return " ".join(parts)


def _adjustment_text(each: Adjustment, world: World) -> str:
    parts = [f"{'recovery of ' if each.recovers else ''}`{each.item}`", each.kind, world.named(each.subject)]
    parts += [f"{name} = {value}" for name, value in each.values.items()]
    parts += [f"{name} <- {text}" for name, text in each.writes]
    return " ".join(parts)


def _fails(required: ErrorExpectation, got: RoundError, world: World) -> bool:
    return (
        required.item == got.item and required.subject in (None, got.subject, world.named(got.subject))
        and required.reason in (None, got.reason) and required.message in (None, got.message)
    )


def _error_text(each: ErrorExpectation) -> str:
    return f"`{each.item}`" + "".join(f" {part}" for part in (each.subject, each.reason, each.message) if part)


def _round_error_text(each: RoundError) -> str:
    return f"`{each.item}` of {each.subject}{f' ({each.reason})' if each.reason else ''}: {each.message}"
