"""Events on a real API server: created once, then a series whose note follows."""

from __future__ import annotations

import asyncio

from koordpolicy.engine.client.event_recorder import EventRecorder, RecorderView
from koordpolicy.engine.client.kubeconfig import load_connection
from koordpolicy.engine.client.resources import BY_KIND, ObjectReference, pod_reference
from koordpolicy.engine.client.transport import Transport

from .control_plane import AdminClient, ControlPlane

POD_UID = "00000000-0000-0000-0000-000000000001"


def test_l27_l29_a_series_counts_and_its_note_follows(cluster: ControlPlane, admin: AdminClient, namespace: str):
    views: list[RecorderView] = []
    seen: list[tuple[str, object]] = []

    async def run() -> None:
        async with Transport(load_connection(configuration_file=cluster.kubeconfig())) as transport:
            recorder = EventRecorder(transport)
            for note in ("100 % busy: %s {x}", "100 % busy: %s {x}", "ä" * 1500, "the last"):
                assert recorder.record(
                    pod_reference(namespace, "a", POD_UID), type="Warning", reason="FailedScheduling",
                    action="Scheduling", note=note, controller="koord-scheduler",
                    related=ObjectReference(BY_KIND["Node"], "", "one"))
                await recorder.flush()
                (event,) = (await asyncio.to_thread(
                    admin.get, f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"))["items"]
                seen.append((event["note"], (event.get("series") or {}).get("count")))
            views.append(recorder.view)

    asyncio.run(run())
    assert seen == [("100 % busy: %s {x}", None), ("100 % busy: %s {x}", 2), ("ä" * 510 + " ...", 3), ("the last", 4)]
    assert views == [RecorderView(recorded=4, written=4)]


def test_events_that_repeat_before_their_first_write_are_created_as_a_series(
    cluster: ControlPlane, admin: AdminClient, namespace: str,
):
    async def run() -> RecorderView:
        async with Transport(load_connection(configuration_file=cluster.kubeconfig())) as transport:
            recorder = EventRecorder(transport)
            for _ in range(3):
                recorder.record(pod_reference(namespace, "a", POD_UID), type="Normal", reason="Scheduled",
                                action="Binding", note="x", controller="koord-scheduler")
            recorder.record(pod_reference(f"{namespace}-absent", "a", POD_UID), type="Normal", reason="Scheduled",
                            action="Binding", note="x", controller="koord-scheduler")
            await recorder.flush()
            return recorder.view

    assert asyncio.run(run()) == RecorderView(recorded=4, written=1, refused=1)
    (event,) = admin.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
    assert event["series"]["count"] == 3


def test_the_role_of_kube_scheduler_suffices(cluster: ControlPlane, namespace: str):
    async def run() -> RecorderView:
        async with Transport(load_connection(
                configuration_file=cluster.kubeconfig("system:kube-scheduler"))) as transport:
            recorder = EventRecorder(transport)
            for note in ("first", "second"):
                recorder.record(pod_reference(namespace, "a", POD_UID), type="Normal", reason="Scheduled",
                                action="Binding", note=note, controller="koord-scheduler")
                await recorder.flush()
            return recorder.view

    assert asyncio.run(run()) == RecorderView(recorded=2, written=2)
