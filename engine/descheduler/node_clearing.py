"""Why a plugin would evict from a node again: by the plugin itself, or by a cycle of another instance of it."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.border import must_be_survived
from koordpolicy.engine.framework.descheduler import ClearsNodes
from koordpolicy.engine.framework.handle import Closeable

from .evictor import CycleEvictor
from .limits import CycleLimits, EvictionLimiter
from .profile import DeschedulerProfile, RunningPlugin
from .proof.prove import Clears
from .results import WAITING, CycleRecord

_NO_LIMITS = CycleLimits()


def clears_of(profile: DeschedulerProfile, running: RunningPlugin, point: str, rows: Rows) -> Clears:
    """Return a function that returns the reason why a plugin would evict a pod from a node again, or an empty string.

    It looks at nodes of an overlay, only at those at `rows`. A plugin that is no `ClearsNodes` runs over the overlay
    as another instance, without state and with the profile's filters; the reason is that it reports the node as a
    source, or evicts the pod. A plugin that fails evicts nothing.
    """
    def clears(snapshot: Snapshot, row: int, pod: PodInfo) -> str:
        if row not in rows:
            return ""
        try:
            if isinstance(running.instance, ClearsNodes):
                return running.instance.clears(snapshot, rows, row, pod)
            with contextlib.ExitStack() as stack:
                return by_cycle(snapshot, row, pod, stack)
        except BaseException as error:
            must_be_survived(error)
            return ""

    def by_cycle(snapshot: Snapshot, row: int, pod: PodInfo, stack: contextlib.ExitStack) -> str:
        if running.fresh is None:
            return ""
        filters = tuple(replace(each, instance=_made(each, stack)) for each in profile.filters)
        record = CycleRecord(dry_run=True)
        evictor = CycleEvictor(replace(profile, filters=filters, evict=None), snapshot, EvictionLimiter(_NO_LIMITS),
                               record)
        instance = _made(running, stack)
        (instance.deschedule if point == "deschedule" else instance.balance)(snapshot, rows, evictor.hand_to(running))
        return _found(record, running.name, snapshot.names[row], pod.key)

    return clears


def _made(running: RunningPlugin, stack: contextlib.ExitStack) -> Any:
    """Return another instance of a plugin, which the stack closes; the same one if there is no other."""
    if running.fresh is None:
        return running.instance
    instance = running.fresh()
    if isinstance(instance, Closeable):
        stack.callback(instance.close)
    return instance


def _found(record: CycleRecord, plugin: str, node: str, pod: str) -> str:
    for note in record.notes.values():
        if note.node == node and note.role in ("source", WAITING):
            return note.message or f"the node is a source of {plugin}"
    evicted = next((each for each in record.decisions.which(lambda each: each.evicted) if each.pod == pod), None)
    return "" if evicted is None else evicted.decision.reason or f"{plugin} would evict it again"
