"""The views of Time: the timeline of a flight recording, one of its moments, and the result of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from koordpolicy.engine.explanation import shortened
from koordpolicy.engine.flight_recorder.fields import Fields, need_recorded
from koordpolicy.engine.flight_recorder.figures import Eviction, PodOutcome, RecordedReplay, Span
from koordpolicy.engine.flight_recorder.recorded_state import RecordedState
from koordpolicy.engine.flight_recorder.recording import FlightRecording
from koordpolicy.engine.flight_recorder.records import Decided
from koordpolicy.engine.flight_recorder.settings import replay_settings
from koordpolicy.engine.flight_recorder.timeline import Timeline
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import PolicyError
from koordpolicy.engine.texts import first_of

from .models.time import (
    MomentPod,
    MomentView,
    RecordedDecision,
    RecordedDecisionView,
    RecordedPolicy,
    RecordedReason,
    ReplayDifference,
    ReplayEviction,
    ReplayPlacement,
    ReplayResult,
    ReplayUse,
    TimelineGap,
    TimelinePolicies,
    TimelineView,
)

POINTS: Final = 240
"""The number of spans of a timeline."""
_SECOND: Final = 1_000_000_000
_MOST_NAMES: Final = 50
_MOST_WAITING: Final = 100
_MOST_DECISIONS: Final = 60
_MOST_POLICIES: Final = 200
_MOST_DIFFERENCES: Final = 500
_MOST_EVICTIONS: Final = 200
_MOST_PROBLEMS: Final = 50
_WORST: Final = ("never", "later", "onlyReplayed", "sooner", "elsewhere")
NO_RECORDING: Final = TimelineView(
    recorded=False, complete=True, segments=0, segments_read=0, start=0, end=0, width=1, times=[], nodes=[], bound=[],
    waiting=[], cpu=[], memory=[], placed=[], refused=[], evicted=[], policies=[], gaps=[], notes=[])


def timeline_view(
    timeline: Timeline, recording: FlightRecording, *, start: int, end: int, complete: bool, segments: int,
    points: int = POINTS,
) -> TimelineView:
    """Return a timeline from `start` to `end` (ns since the epoch); `segments` is the number of those on the disk."""
    spans = timeline.spans(start, end, points)
    notes, notes_left_out = first_of(recording.notes[::-1], _MOST_PROBLEMS)
    width = timeline.width * (round((spans[1].start - spans[0].start) / timeline.width) if len(spans) > 1 else 1)
    return TimelineView(
        recorded=True, complete=complete, segments=segments, segments_read=min(len(recording.segments), segments),
        start=seconds(timeline.start), end=seconds(timeline.end), width=seconds(width),
        times=[seconds(each.start) for each in spans], nodes=[each.nodes for each in spans],
        bound=[each.bound for each in spans], waiting=[each.waiting for each in spans],
        cpu=[each.cpu for each in spans], memory=[each.memory for each in spans],
        placed=[each.placed for each in spans], refused=[each.refused for each in spans],
        evicted=[each.evicted for each in spans],
        policies=[TimelinePolicies(
            time=seconds(each.time), generation=each.generation, digest=each.digest, added=_names(each.added),
            removed=_names(each.removed), changed=_names(each.changed)) for each in timeline.changes],
        gaps=[TimelineGap(start=seconds(each.start), end=seconds(each.end), dropped=each.dropped, reason=each.why)
              for each in recording.gaps],
        policies_left_out=timeline.changes_left_out, notes=[shortened(each) for each in reversed(notes)],
        notes_left_out=notes_left_out,
    )


def moment_view(moment: RecordedState, time: int, registry: Registry) -> MomentView:
    """Return the recorded cluster at a time in numbers, with the last decisions.

    Policies are compared with those of `registry`, the console's.
    """
    bound = 0
    waiting = []
    for (kind, key), item in moment.objects.items():
        status = item.get("status")
        finished = isinstance(status, dict) and status.get("phase") in ("Succeeded", "Failed")
        if kind != "Pod" or finished:
            continue
        if moment.node_of(key):
            bound += 1
        elif not (item.get("metadata") or {}).get("deletionTimestamp"):
            reasons, reasons_left_out = _reasons(moment.decided.get(key))
            waiting.append(MomentPod(key=key, reasons=reasons, reasons_left_out=reasons_left_out))
    waiting.sort(key=lambda each: (not each.reasons, each.key))
    last = sorted(moment.decided.values(), key=lambda each: (-each.time, each.pod))
    refused = help_text = ""
    try:
        settings = replay_settings(moment.header.settings, registry)
        need_recorded([Fields.of_plain(moment.header.fields)], settings.profiles, registry)
    except PolicyError as error:
        refused, help_text = error.problems[0].message, error.problems[0].help
    shown, waiting_left_out = first_of(waiting, _MOST_WAITING)
    decisions, decisions_left_out = first_of(last, _MOST_DECISIONS)
    policies, policies_left_out = first_of(_compared(moment, registry), _MOST_POLICIES)
    return MomentView(
        time=seconds(time), nodes=sum(kind == "Node" for kind, _ in moment.objects), bound=bound,
        waiting=list(shown), waiting_left_out=waiting_left_out,
        generation=moment.policies.generation if moment.policies is not None else 0,
        digest=moment.policies.digest if moment.policies is not None else "",
        policies=list(policies), policies_left_out=policies_left_out,
        decisions=[decision_of(each) for each in decisions], decisions_left_out=decisions_left_out,
        refused=refused, help=help_text,
    )


def recorded_decision_view(key: str, decided: Decided | None, moment: RecordedState) -> RecordedDecisionView:
    """Return the last recorded decision about a pod."""
    return RecordedDecisionView(key=key, decision=None if decided is None else decision_of(decided),
                                node=moment.node_of(key))


def decision_of(decided: Decided) -> RecordedDecision:
    """Return a recorded cycle."""
    reasons, reasons_left_out = _reasons(decided)
    victims, victims_left_out = first_of(decided.victims, _MOST_NAMES)
    return RecordedDecision(
        time=seconds(decided.time), pod=decided.pod, node=decided.node, passed=decided.passed, score=decided.score,
        next_node=decided.next_node, next_score=decided.next_score, reasons=reasons,
        reasons_left_out=reasons_left_out, nominated=decided.nominated, victims=[key for key, _ in victims],
        victims_left_out=victims_left_out,
        generation=decided.generation, milliseconds=decided.duration / 1e6)


def replay_result(result: RecordedReplay, *, same_policies: bool) -> ReplayResult:
    """Return the result of a replay; of long lists the first parts."""
    differing, differences_left_out = first_of(sorted(result.differing, key=_weight), _MOST_DIFFERENCES)
    recorded, replayed = result.waits()
    recorded_evictions, recorded_left_out = first_of(result.recorded_evictions, _MOST_EVICTIONS)
    evictions, left_out = first_of(result.evictions, _MOST_EVICTIONS)
    recorded_preemptions, preemptions = (sum(each.by == "preemption" for each in found)
                                         for found in (result.recorded_evictions, result.evictions))
    errors = [f"`{each.plugin}` at {each.point.value}: {each.message}" for each in result.errors]
    problems, problems_left_out = first_of((*errors, *result.problems, *result.notes), _MOST_PROBLEMS)
    return ReplayResult(
        pods=len(result.pods), counts=result.counts(), waiting=result.waiting,
        differences=[_difference(each) for each in differing], differences_left_out=differences_left_out,
        recorded_evictions=[_eviction(each) for each in recorded_evictions],
        recorded_evictions_left_out=recorded_left_out,
        evictions=[_eviction(each) for each in evictions], evictions_left_out=left_out,
        recorded_preemptions=recorded_preemptions, preemptions=preemptions,
        others_evictions=len(result.recorded_evictions) - recorded_preemptions,
        other_losses=len(result.evictions) - preemptions,
        recorded_waits=recorded, waits=replayed, recorded_use=_use(result.recorded_use),
        use=_use(result.use), times=[seconds(each.start) for each in result.series],
        recorded_series=[_use(each) for each in result.recorded_series], series=[_use(each) for each in result.series],
        recorded_decisions=result.recorded_decisions, decisions=result.decisions, same_policies=same_policies,
        problems=[shortened(each) for each in problems],
        problems_left_out=problems_left_out + result.problems_left_out,
        seconds=round(result.seconds, 3),
    )


def seconds(time: int) -> float:
    """Return nanoseconds as seconds, in milliseconds."""
    return time // 1_000_000 / 1000


def _names(names: Sequence[str]) -> list[str]:
    shown, rest = first_of(names, _MOST_NAMES)
    return [*shown, *(["..."] if rest else [])]


def _reasons(decided: Decided | None) -> tuple[list[RecordedReason], int]:
    """Return the first reasons, and the number of the others."""
    if decided is None:
        return [], 0
    shown, rest = first_of(decided.reasons, _MOST_NAMES)
    return [RecordedReason(plugin=plugin, rule=rule, reason=shortened(reason), nodes=nodes)
            for plugin, rule, reason, nodes in shown], rest + decided.reasons_left_out


def _compared(moment: RecordedState, registry: Registry) -> list[RecordedPolicy]:
    then = moment.policies.plugins if moment.policies is not None else {}
    plugins = {each.name: each for each in registry.of_framework(Framework.SCHEDULER)}
    found = []
    for name in sorted({*then, *plugins}):
        plugin = plugins.get(name)
        if plugin is None:
            state = "absentNow"
        elif name not in then:
            state = "absentThen"
        else:
            state = "same" if then[name] == plugin.digest else "changed"
        if state != "same" or (plugin is not None and plugin.span is not None):
            found.append(RecordedPolicy(name=name, state=state))
    return found


def _weight(pod: PodOutcome) -> tuple[int, float]:
    return min(_WORST.index(change) for change in pod.changes), -abs(pod.delay)


def _difference(pod: PodOutcome) -> ReplayDifference:
    reasons = pod.reasons if pod.replayed is None or "later" in pod.changes else pod.recorded_reasons
    return ReplayDifference(
        pod=pod.pod, changes=list(pod.changes), recorded=_placement(pod.recorded), replayed=_placement(pod.replayed),
        delay=round(pod.delay, 3), reasons={shortened(each): nodes for each, nodes in (reasons or {}).items()})


def _placement(found: tuple[str, int] | None) -> ReplayPlacement | None:
    return None if found is None else ReplayPlacement(node=found[0], time=seconds(found[1]))


def _eviction(given: Eviction) -> ReplayEviction:
    return ReplayEviction(
        time=seconds(given.time), pod=given.pod, node=given.node, by=given.by, reason=shortened(given.reason))


def _use(span: Span) -> ReplayUse:
    return ReplayUse(cpu=span.cpu, memory=span.memory, gpu=span.gpu, running=span.running, pending=span.pending)
