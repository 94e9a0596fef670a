"""Run the extender under faults for a long time: `python -m tests.soak [--minutes N]`, from the project's root.

Everything is real: the server with its threads and sockets, files, file events, time. What the filesystem refuses is
refused where it is opened (root may read everything). The exit code is 1 if anything did not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import http.client
import itertools
import json
import logging
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.reload import Builder, InvalidAtStart, Reloader, ReloadSettings
from koordpolicy.engine.reload.low_latency_gc import LowLatencyGc
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler
from koordpolicy.engine.scheduler.extender.loaded_extender import Loaded
from koordpolicy.engine.scheduler.extender.protocol import Extender
from koordpolicy.engine.scheduler.extender.server import Server
from koordpolicy.engine.scheduler.extender.shadow import Shadow
from koordpolicy.engine.scheduler.observe.counters import Counters
from koordpolicy.engine.serving.garbage_collection import ShortCollections

from . import attacks
from .course import Course
from .world import Broken, give_back, resident

NODES = 200
BULK_EVERY = 4
"""Cycles; 50 MB of policies take as long as all else together."""
WARM_UP = 2
"""Cycles that end with 50 MB of policies, whatever else: what is freed leaves holes that the next ones fill."""
SLOW = 0.5
"""Seconds that one decision may take."""
SLOW_BESIDE_BULK = 2.5
"""The same while 50 MB are compiled: half of what kube-scheduler waits for an extender."""
FLAT = 0.05
_PAUSE = 0.01
_RESTING = "rest"
"""While this program itself looks through the memory."""
_READY = 60.0


class Serving:
    """Real time, and an extender that serves whatever reloader is begun; fulfils `Drive`."""

    def __init__(self, shadow: Path) -> None:
        self.shadow = shadow
        self.compared: Counter[str] = Counter()
        self.url: str | None = None
        self.extender: Extender | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self.faults: list[str] = []
        self.low_latency = LowLatencyGc()
        self._collections: ShortCollections | None = None

    def freeze(self, explained: int) -> None:
        """Keep the garbage collections of the running server short, as the command does."""
        if self._collections is not None:
            self._collections.freeze(explained)

    def now(self) -> float:
        """Return seconds of a clock that only goes forward."""
        return time.monotonic()

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    def begin(self, live: Live, reloader: Reloader) -> None:
        """Serve the active sets of this reloader."""
        loop, stop, ready = asyncio.new_event_loop(), asyncio.Event(), threading.Event()
        # Taken out when it is needed: aiohttp remembers the handlers of servers that have ended, and with them `load`.
        given = [reloader]
        self._collections = collections = ShortCollections()

        def load() -> Loaded:
            reloader = given.pop()
            reloader.begin(time.monotonic())
            cluster = Cluster(_node(number) for number in range(NODES))
            counters = Counters()
            scheduler = Scheduler(cluster, live, clock=time.time_ns, count=counters)
            beside = Live()
            below = Scheduler(cluster, beside, clock=time.time_ns)
            follows = Reloader(
                beside, [self.shadow], Builder(pause=self.low_latency.pause),
                ReloadSettings(invalid_at_start=InvalidAtStart.WAIT), low_latency=self.low_latency, freeze=self.freeze,
            )
            follows.stage_with(below.hot_swap.stage)
            follows.start()
            shadow = Shadow(below, beside, live, follows, timer=time.monotonic)
            reloader.stage_with(scheduler.hot_swap.stage)
            reloader.start()
            self.extender = Extender(scheduler, clock=time.time_ns, timer=time.monotonic, shadow=shadow)
            return Loaded(self.extender, reloader, "the soak run", counters=counters)

        urls: list[str] = []

        def serve() -> None:
            try:
                server = Server(load, collections=collections)
                loop.run_until_complete(
                    server.run("127.0.0.1", 0, stop, bound=urls.append, ready=lambda _: ready.set()))
            except Exception as error:
                self.faults.append(f"the server ended: {error!r}")
                ready.set()
            loop.close()

        self._loop, self._stop = loop, stop
        self._thread = threading.Thread(target=serve, name="serve")
        self._thread.start()
        if not ready.wait(_READY) or self.faults:
            raise Broken(f"the server did not start: {self.faults}")
        self.url = urls[0]

    def check(self) -> None:
        """Raise `Broken` where the server ended by itself."""
        _raise(self.faults)

    def end(self, reloader: Reloader) -> None:
        """Stop serving."""
        if self.extender is not None and self.extender.shadow is not None:
            for (_, result), count in self.extender.shadow.totals.copy().items():
                self.compared[result.value] += count
        self.url = None
        assert self._loop is not None
        assert self._stop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        # A process that starts has nothing of the one before, and nothing is kept out of its garbage collection yet.
        self.extender = self._loop = self._stop = self._thread = None
        gc.unfreeze()


class Asker(threading.Thread):
    """Asks as kube-scheduler does, again and again, and keeps how long each call took, in seconds."""

    def __init__(self, serving: Serving) -> None:
        super().__init__(name="ask")
        self.enough = threading.Event()
        self.took: dict[str, list[float]] = defaultdict(list)
        self.phase = ""
        self.faults: list[str] = []
        self.calls = self.refused = 0
        self._serving = serving

    def run(self) -> None:
        names = [_name(number) for number in range(NODES)]
        for number in itertools.count():
            if self.enough.wait(_PAUSE):
                return
            url = self._serving.url
            if url is None:
                continue
            try:
                self._ask(url, number, names)
            except (OSError, http.client.HTTPException) as error:
                if self._serving.url == url:  # or it is just being restarted
                    self.faults.append(f"call {number} failed: {error!r}")

    def check(self) -> None:
        """Raise `Broken` where a call was not answered as it should be."""
        _raise(self.faults)

    def _ask(self, url: str, number: int, names: Sequence[str]) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        connection = http.client.HTTPConnection(address.hostname, address.port or 80, timeout=60)
        question = json.dumps({"Pod": _pod(number), "NodeNames": names}).encode()
        try:
            for path in ("/filter", "/prioritize"):
                began = time.perf_counter()
                answer = _call(connection, "POST", path, question)
                self.took[self.phase].append(time.perf_counter() - began)
                self.calls += 1
                if path == "/filter":
                    if answer["Error"]:
                        self.faults.append(f"call {number}: {answer['Error']}")
                    self.refused += len(answer["FailedNodes"])
            if number % 100 == 0:
                status = _call(connection, "GET", "/status")
                if status["fault"] or status["trouble"]:
                    self.faults.append(f"{status['fault']} {status['trouble']}")
                connection.request("GET", "/metrics")
                connection.getresponse().read()
        finally:
            connection.close()


def _raise(faults: Sequence[str]) -> None:
    if faults:
        raise Broken("; ".join(faults[:3]))


def _call(connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None) -> Any:
    connection.request(method, path, body)
    response = connection.getresponse()
    text = response.read()
    if response.status != 200:
        raise http.client.HTTPException(f"{path} answered {response.status}: {text[:200]!r}")
    return json.loads(text)


def _name(number: int) -> str:
    return f"node-{number:03}"


def _node(number: int) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": _name(number)}, "spec": {},
            "status": {"allocatable": {"cpu": str(1 + number % 8), "memory": "8Gi", "pods": "110"}}}


def _pod(number: int) -> dict[str, Any]:
    container = {"name": "main", "resources": {"requests": {"cpu": "1500m"}}}
    return {"metadata": {"name": f"pod-{number}", "namespace": "shop", "uid": f"uid-{number}"},
            "spec": {"containers": [container]}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code is the result."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="tell each phase")
    options = parser.parse_args(arguments)
    logging.getLogger("koordpolicy").addHandler(logging.NullHandler())  # refusals are what is wanted here
    print("attacks, each on the command in a process of its own:")
    attacked = attacks.main()
    began = time.monotonic()
    broken = ""
    resting: list[int] = []
    highest = 0
    phases = 0
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        serving = Serving(Path(folder, "shadow"))
        course = Course(Path(folder), serving, options.seed, low_latency=serving.low_latency, freeze=serving.freeze)
        asker = Asker(serving)
        asker.start()
        try:
            for cycle in itertools.count():
                bulk = (course.bulk,) if cycle < WARM_UP or cycle % BULK_EVERY == 0 else ()
                for phase in (*course.phases(), *bulk):
                    if time.monotonic() - began >= options.minutes * 60:
                        break
                    start, asker.phase = time.monotonic(), phase.__name__
                    course.run(phase)
                    phases += 1
                    highest = max(highest, resident())
                    if options.verbose:
                        _tell(f"  {phase.__name__:<12} {time.monotonic() - start:6.1f} s  "
                              f"{resident() / 1e6:7.1f} MB  {course.generations.alive} documents in memory")
                    serving.check()
                    asker.check()
                else:
                    asker.phase = _RESTING
                    gc.collect()
                    before = resident()
                    give_back()
                    resting.append(resident())
                    _tell(f"cycle {cycle + 1}: {(time.monotonic() - began) / 60:5.1f} min, {resting[-1] / 1e6:.1f} MB "
                          f"({before / 1e6:.1f} MB with what is free), {course.live.swaps} sets activated, "
                          f"{asker.calls} decisions, {course.generations.alive} documents in memory, "
                          f"{threading.active_count()} threads")
                    continue
                break
        except Broken as error:
            broken = str(error)
        finally:
            asker.enough.set()
            asker.join()
            course.close()
        minutes = (time.monotonic() - began) / 60
        return attacked | _report(course, asker, serving, resting, highest, phases, minutes, broken)


def _report(course: Course, asker: Asker, serving: Serving, resting: list[int], highest: int, phases: int,
            minutes: float, broken: str) -> int:
    faults = [broken] if broken else []
    print(f"\n{minutes:.1f} minutes, {phases} phases, {course.live.swaps} sets activated, "
          f"{course.generations.builds} builds, {asker.calls} decisions")
    for what, seconds in sorted(course.waits.items(), key=lambda item: -item[1]):
        print(f"  {what:<50} {seconds:8.2f} s at most")
    print(f"  decisions in the shadow: {dict(sorted(serving.compared.items()))}")
    slowest = sorted(((max(took), phase) for phase, took in asker.took.items()), reverse=True)[:5]
    print("  slowest: " + ", ".join(f"{1e3 * seconds:.0f} ms at {phase or 'start'}" for seconds, phase in slowest))
    for what, phased in (("all else", asker.took.keys() - {"bulk", _RESTING}), ("beside 50 MB", {"bulk"})):
        took = sorted(each for phase in phased for each in asker.took[phase])
        if not took:
            continue
        shown = [1e3 * took[min(len(took) - 1, int(len(took) * part))] for part in (0.5, 0.99, 0.999, 1.0)]
        print(
            "  a decision over HTTP ({}): median {:.1f} ms, 99 of 100 within {:.1f} ms, 999 of 1,000 within {:.1f} ms, "
            "longest {:.0f} ms".format(what, *shown),
        )
        if took[-1] > (SLOW_BESIDE_BULK if phased == {"bulk"} else SLOW):
            faults.append(f"a decision took {took[-1]:.2f} s ({what})")
    quarter = len(resting) // 4
    if quarter:
        early, late = statistics.median(resting[quarter:2 * quarter]), statistics.median(resting[-quarter:])
        growth = late / early - 1
        print(f"  memory at rest: {early / 1e6:.1f} MB in the second quarter, {late / 1e6:.1f} MB in the last "
              f"({growth:+.1%}); at most {highest / 1e6:.0f} MB")
        if growth > FLAT:
            faults.append(f"memory grew by {growth:.1%}")
    for fault in faults:
        print(f"  NOT KEPT: {fault}")
    if not faults:
        print(f"  everything held: no change missed, no set half applied, no decision held up"
              f"{', memory flat' if quarter else ''}")
    return 1 if faults else 0


def _tell(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
