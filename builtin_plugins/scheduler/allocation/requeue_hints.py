"""Requeue hints that several plugins share: predicates for events that may make a pod schedulable."""

from __future__ import annotations

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.kubernetes.release import BehaviourChange, Release
from koordpolicy.plugin import Event


def is_of(event: Event, pod: PodInfo) -> bool:
    """Return whether the event is a change of the pod itself."""
    return event.kind == "Pod" and event.key == pod.key


def node_came_or_changed(event: Event) -> bool:
    """Return whether a node was added or changed."""
    return event.kind == "Node" and event.new is not None


def pod_left(event: Event) -> bool:
    """Return whether a pod left its node, or holds less of it."""
    old, new = event.old_pod, event.new_pod
    if event.kind != "Pod" or old is None or not old.node_name:
        return False
    if new is None or new.node_name != old.node_name:
        return True
    return any(new.requests[name] < amount for name, amount in old.requests.items())


def placed_pod_changed(event: Event, kubernetes: Release) -> bool:
    """Return whether a pod was added to a node, left it, or changed there.

    Since Kubernetes 1.36 a pod counts that is nominated to a node.
    """
    nominated = BehaviourChange.NOMINATED_PODS_HELP.is_in(kubernetes)
    return event.kind == "Pod" and any(
        each is not None and (each.node_name or (nominated and _nominated_node(each)))
        for each in (event.old_pod, event.new_pod)
    )


def _nominated_node(pod: PodInfo) -> object:
    return (pod.object.get("status") or {}).get("nominatedNodeName")
