"""Several processes, each with a Lease of its own out of a fixed set."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from koordpolicy.engine.client.leader_election import LeaseSettings
from koordpolicy.engine.client.shard_leases import ShardKeeper, ShardLeaseView
from koordpolicy.engine.client.transport import ApiError, Status, Transport
from koordpolicy.engine.source import PolicyError, Problem


@dataclass
class Leases:
    """A transport to Leases with the rules of the API server."""

    specs: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    code: int = 0
    """Of the answers to all requests from now on, if it is not 0."""
    fault: Exception | None = None
    """Of all requests from now on."""
    spec: object = None
    """In place of those of all Leases that are read, if it is not None."""

    async def request(self, method: str, path: str, *, body: bytes | None = None, **_: object) -> bytes:
        await asyncio.sleep(0)
        if self.code:
            raise ApiError(self.code, Status(message="no"))
        if self.fault is not None:
            raise self.fault
        given = json.loads(body) if body else {}
        name = given["metadata"]["name"] if given else path.rpartition("/")[2]
        if method == "POST" and name in self.specs:
            raise ApiError(409, Status(message="it exists"))
        if method != "POST" and name not in self.specs:
            raise ApiError(404, Status(message="not found"))
        if method == "PUT" and given["metadata"]["resourceVersion"] != str(self.versions[name]):
            raise ApiError(409, Status(message="the object has been modified"))
        if given:
            self.versions[name], self.specs[name] = self.versions.get(name, 0) + 1, given["spec"]
        spec = self.specs[name] if self.spec is None else self.spec
        return json.dumps({"metadata": {"name": name, "resourceVersion": str(self.versions[name])},
                           "spec": spec}).encode()

    def held(self, name: str, holder: str) -> None:
        """A Lease of a process that is gone."""
        self.versions[name] = 1
        self.specs[name] = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": "then"}

    def holders(self) -> dict[str, str]:
        return {name: spec["holderIdentity"] for name, spec in sorted(self.specs.items())}


class World:
    """Processes whose sleeps move one clock, when none of them has anything to do."""

    def __init__(self, shards: int = 2) -> None:
        self.leases = Leases()
        self.now = 1000.0
        self._shards = shards
        self._sleeps: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleeps, (self.now + seconds, next(self._numbers), future))
        await future

    def start(self, name: str) -> ShardKeeper:
        shards = [LeaseSettings("system", f"shard-{number}", name) for number in range(self._shards)]
        keeper = ShardKeeper(cast("Transport", self.leases), shards, clock=lambda: self.now, sleep=self.sleep)
        self.tasks[name] = asyncio.create_task(keeper.run())
        return keeper

    async def passes(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            for _ in range(50):
                await asyncio.sleep(0)
            if not self._sleeps or self._sleeps[0][0] > end:
                break
            self.now, _, future = heapq.heappop(self._sleeps)
            if not future.done():
                future.set_result(None)
        self.now = end

    async def stop(self, *names: str) -> None:
        for name in names or tuple(self.tasks):
            task = self.tasks.pop(name)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def play(scene: Callable[[World], Any], shards: int = 2) -> None:
    async def run() -> None:
        world = World(shards)
        try:
            await scene(world)
        finally:
            await world.stop()

    asyncio.run(run())


def test_each_process_holds_one_shard_and_further_ones_wait():
    async def scene(world: World) -> None:
        keepers = [world.start(name) for name in "abc"]
        await world.passes(20)
        held = world.leases.holders()
        assert (set(held), len(set(held.values()))) == ({"shard-0", "shard-1"}, 2)
        assert sorted(keeper.shard for keeper in keepers) == ["", "shard-0", "shard-1"]
        assert {keeper.holders() for keeper in keepers} == {(held["shard-0"], held["shard-1"])}

    play(scene)


def test_a_shard_that_is_released_is_taken_at_the_next_look():
    async def scene(world: World) -> None:
        world.start("a")
        await world.passes(10)
        waits = world.start("b")
        await world.passes(10)
        assert (world.leases.holders(), waits.shard) == ({"shard-0": "a"}, "")
        await world.stop("a")
        assert world.leases.holders() == {"shard-0": ""}
        await world.passes(5)
        assert (world.leases.holders(), waits.shard, waits.holders()) == ({"shard-0": "b"}, "shard-0", ("b",))

    play(scene, shards=1)


def test_the_shard_of_a_process_that_is_gone_is_free_after_its_lease():
    async def scene(world: World) -> None:
        world.leases.held("shard-0", "gone")
        keeper = world.start("a")
        await world.passes(14)
        assert (keeper.shard, keeper.holders()) == ("", ("gone",))
        await world.passes(8)
        assert (keeper.shard, keeper.holders()) == ("shard-0", ("a",))

    play(scene, shards=1)


def test_a_process_that_loses_its_shard_takes_another_one():
    async def scene(world: World) -> None:
        keeper = world.start("a")
        await world.passes(5)
        assert keeper.shard == "shard-0"
        world.leases.held("shard-0", "thief")
        await world.passes(10)
        assert (keeper.shard, keeper.holders()) == ("shard-1", ("thief", "a"))

    play(scene)


def test_a_process_that_cannot_renew_its_shard_does_not_hold_it():
    async def scene(world: World) -> None:
        keeper = world.start("a")
        await world.passes(5)
        world.leases.code = 500
        await world.passes(20)
        assert (keeper.shard, keeper.holders()) == ("", ())
        world.leases.code = 0
        await world.passes(10)
        assert keeper.shard == "shard-0"

    play(scene, shards=1)


@pytest.mark.parametrize("failing", [
    {"fault": PolicyError([Problem("the plugin for credentials failed")])}, {"fault": RecursionError()},
    {"spec": ["no", "object"]},
], ids=["no-credentials", "too-deep", "no-lease"])
def test_a_process_takes_a_shard_again_after_a_request_failed_in_any_way(failing: dict[str, Any]):
    async def scene(world: World) -> None:
        keeper = world.start("a")
        await world.passes(5)
        for name, value in failing.items():
            setattr(world.leases, name, value)
        await world.passes(30)
        assert keeper.shard == ""
        for name in failing:
            setattr(world.leases, name, None)
        await world.passes(20)
        assert keeper.shard == "shard-0"

    play(scene, shards=1)


def test_a_shard_is_held_for_the_duration_of_its_lease_after_the_last_change():
    lease = {"spec": {"holderIdentity": "a", "renewTime": "t1", "leaseDurationSeconds": 15}}
    view = ShardLeaseView().after(lease, 100.0, 9)
    assert [view.is_held(now) for now in (100.0, 114.9, 115.0)] == [True, True, False]
    assert view.after(lease, 110.0, 9) is view
    later = view.after({"spec": {"holderIdentity": "a", "renewTime": "t2"}}, 110.0, 9)
    assert [later.is_held(now) for now in (118.9, 119.0)] == [True, False]
    assert not view.after(None, 110.0, 9).is_held(110.0)
