"""The client follows and changes a real API server."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from koordpolicy.engine.client.informer import Change, Informer
from koordpolicy.engine.client.kubeconfig import load_connection
from koordpolicy.engine.client.resources import BY_KIND
from koordpolicy.engine.client.transport import Transport

from .control_plane import ControlPlane

NAMESPACES = BY_KIND["Namespace"]


class Names:
    """The names that an informer's changes add up to."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def deliver(self, changes: Sequence[Change]) -> None:
        for change in changes:
            (self.names.discard if change.deleted else self.names.add)(change.name)

    async def until(self, name: str) -> None:
        await until(lambda: name in self.names)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.01)


def create(plane: ControlPlane, name: str) -> None:
    plane.admin.create("/api/v1/namespaces", {"metadata": {"name": name}})


def test_an_informer_follows_objects_through_a_restart_and_a_pause_of_the_api_server(own_control_plane: ControlPlane):
    async def run() -> None:
        plane, names = own_control_plane, Names()
        async with Transport(load_connection(configuration_file=plane.kubeconfig())) as transport:
            informer = Informer(transport, NAMESPACES, names.deliver)
            task = asyncio.create_task(informer.run())
            await names.until("kube-system")
            await until(lambda: (informer.view.lists, informer.view.watches) == (1, 1))
            await asyncio.to_thread(create, plane, "first")
            await names.until("first")

            apiserver = plane.components["kube-apiserver"]
            await asyncio.to_thread(apiserver.stop, kill=True)
            apiserver.start()
            await asyncio.to_thread(plane.wait_until_ready)
            await asyncio.to_thread(create, plane, "second")
            await names.until("second")

            apiserver.signal(signal.SIGSTOP)
            await asyncio.sleep(2)
            apiserver.signal(signal.SIGCONT)
            await asyncio.to_thread(create, plane, "third")
            await names.until("third")
            assert {"default", "kube-system", "first", "second", "third"} <= names.names
            await until(lambda: informer.view.fault == "")
            task.cancel()

    asyncio.run(run())


def test_an_informer_follows_a_cluster_whose_etcd_was_restored_from_a_backup(
        own_control_plane: ControlPlane, tmp_path: Path):
    def restart(restore: Callable[[], None]) -> None:
        etcd, apiserver = (own_control_plane.components[name] for name in ("etcd", "kube-apiserver"))
        apiserver.stop(kill=True)
        etcd.stop()
        restore()
        etcd.start()
        apiserver.start()
        own_control_plane.wait_until_ready()

    def back_up() -> None:
        shutil.copytree(data, backup)

    def restore() -> None:
        shutil.rmtree(data)
        shutil.copytree(backup, data)

    async def run() -> None:
        plane, names = own_control_plane, Names()
        async with Transport(load_connection(configuration_file=plane.kubeconfig())) as transport:
            informer = Informer(transport, NAMESPACES, names.deliver)
            task = asyncio.create_task(informer.run())
            await names.until("kube-system")
            await asyncio.to_thread(create, plane, "before")
            await asyncio.to_thread(restart, back_up)
            for number in range(300):
                await asyncio.to_thread(create, plane, f"lost-{number}")
            await names.until("lost-299")
            await asyncio.to_thread(restart, restore)
            await asyncio.to_thread(create, plane, "after")
            await names.until("after")
            assert {"default", "kube-system", "before", "after"} <= names.names
            assert not {name for name in names.names if name.startswith("lost-")}
            task.cancel()

    data, backup = own_control_plane.etcd_data, tmp_path / "backup"
    asyncio.run(run())


def test_streamed_and_paged_lists_hold_the_same_objects(cluster: ControlPlane):
    async def run() -> None:
        async with Transport(load_connection(configuration_file=cluster.kubeconfig())) as transport:
            found: list[dict[str, object]] = []
            for streaming in (True, False):
                objects: dict[str, object] = {}

                def deliver(changes: Sequence[Change], into: dict[str, object] = objects) -> None:
                    into.update((change.name, msgspec.json.decode(change.raw)["metadata"]["uid"])
                                for change in changes if change.raw is not None and change.name.startswith("kube-"))

                informer = Informer(transport, NAMESPACES, deliver, streaming=streaming)
                task = asyncio.create_task(informer.run())
                await until(lambda made=informer: made.view.synced)  # type: ignore[misc]
                task.cancel()
                found.append(objects)
            assert found[0] == found[1]
            assert "kube-system" in found[0]

    asyncio.run(run())
