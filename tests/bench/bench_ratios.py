"""The figures that are judged: each a ratio to a rival or to a fixed amount of work, measured in turns within one run.

The same commit measures up to 1.7 times slower on another day, and so do its rivals: a ratio stays. The bounds of
replays are goals; those of decisions, calls and expressions are the least favourable of three runs of commit 935e4ed
(docs/benchmarks.md).
"""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from koordpolicy.engine.cel.scalar.program import compile as compile_program

from .bench_cel import ENVIRONMENT, Turns, take_turns
from .bench_cel import called as called_program
from .bench_columns import FILTERS, SCORES, cluster_of
from .bench_extender import body_of, serving
from .bench_simulate import PreparedReplay, default_workload
from .bench_throughput import loop_over, pod_of, shape_of
from .calibration import calibrate
from .figure import Figure, Missing
from .rivals import cpp

STICK: Final = {"BestFit": ("05-BestFit", 2.5), "FGD": ("06-FGD", 1.2)}
"""By policy: its name in the bare numpy replay, and how many times its time the engine may take."""
POLICIES: Final = {"GpuPacking": 2.0, "gpu-worth": 2.0}
"""By policy: how many times FGD's processor time of the same run a replay may take."""
DECISION: Final = {"plain pods, 5,000 nodes": 0.0931, "plain pods, 100,000 nodes": 0.153}
"""By kind: how many calibration loops a decision may take."""
CALL: Final = {"filter": 7.01, "prioritize": 9.02}
"""By verb: how many times an echo of the same bytes a call may take, by the median."""
EXPRESSION: Final = {"E1 limits": 6.09, "E2 fit": 5.99, "E3 taints": 4.06, "E4 labels": 10.0, "E5 strings": 31.6,
                    "E6 score": 4.05, "E7 ternary": 8.85, "E8 selector": 3.41}
"""By expression: how many times the time of one evaluation by row the engine written in C++ takes at least."""
_BY_PROCESSOR_TIME: Final = """
import runpy, sys, time
time.perf_counter = time.process_time
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script that measures itself by `time.perf_counter`, and lets it measure its processor time."""
_ROUNDS: Final = 5
_CHUNK: Final = 250


def main() -> Iterator[Figure]:
    """Yield all ratios; what is not there to compare with is reported at the end."""
    missing: list[str] = []
    for part in (replays, decisions, calls, expressions):
        try:
            yield from part()
        except Missing as reason:
            missing.append(str(reason))
    if missing:
        raise Missing("; ".join(missing))


# --- replays against a bare numpy loop -------------------------------------------------------------------------------


def replays() -> Iterator[Figure]:
    """Replays of the default trace: BestFit and FGD in turns with the numpy loop, slow policies in turns with FGD.

    All are compared by processor time, which other load disturbs less than wall time.
    """
    workload, typical = default_workload()
    prepared = {name: PreparedReplay.of(name, workload, typical) for name in (*STICK, *POLICIES)}
    for name, bound in POLICIES.items():
        pairs = [(prepared[name].run(time.process_time).seconds, prepared["FGD"].run(time.process_time).seconds)
                 for _ in range(3)]
        yield Figure(f"{name} / FGD, processor time", _middle(pairs), "times", bound)
    stick = _stick()
    if stick is None:
        raise Missing("there is no bare numpy replay `bench/openb_numpy_limit.py` beside the directory that "
                      "KOORD_POLICY_CASES names, so BestFit and FGD are compared with nothing")
    for name, (policy, bound) in STICK.items():
        pairs = [(prepared[name].run(time.process_time).seconds, _bare(stick, policy)) for _ in range(_ROUNDS)]
        yield Figure(f"{name} / bare numpy replay, processor time", _middle(pairs), "times", bound)
        yield Figure(f"  {name}, median", statistics.median(ours for ours, _ in pairs), "s")
        yield Figure("  bare numpy replay, median", statistics.median(bare for _, bare in pairs), "s")


def _middle(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the median of the ratios of what was measured one after the other."""
    return statistics.median(ours / theirs for ours, theirs in pairs)


def _stick() -> Path | None:
    cases = os.environ.get("KOORD_POLICY_CASES")
    path = Path(cases or "").resolve().parent / "bench" / "openb_numpy_limit.py"
    return path if cases and path.exists() else None


def _bare(stick: Path, policy: str) -> float:
    """Return the processor time of one bare replay, without its imports and its reading of files."""
    command = [sys.executable, "-c", _BY_PROCESSOR_TIME, str(stick), "exact", "openb_pod_list_default", policy, "42"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(printed.splitlines()[0])["run_s"])


# --- decisions against a calibration loop ----------------------------------------------------------------------------


def decisions() -> Iterator[Figure]:
    """Whole decisions about plain pods, in calibration loops: each chunk of pods is followed by one measured loop."""
    for nodes, pods in ((5_000, 5_000), (100_000, 2_500)):
        name = f"plain pods, {nodes:,} nodes"
        pairs = list(_chunks(nodes, pods))
        yield Figure(f"{name}: decision / calibration loop", _middle(pairs), "times", DECISION.get(name))
        yield Figure("  decisions, median of the chunks", 1 / statistics.median(each for each, _ in pairs), "pods/s")


def _chunks(nodes: int, pods: int) -> Iterator[tuple[float, float]]:
    """Yield the seconds of a decision and of a calibration loop, chunk by chunk, after a warm-up of a thousand pods."""
    cluster, start = cluster_of(nodes)
    loop, random = loop_over(cluster, start), Random(1)
    shapes = [shape_of(number, random, "") for number in range(50)]
    for number in range(1_000 + pods):
        cluster.upsert(pod_of(number, shapes[random.randrange(50)]))
    verdicts = iter(loop.schedule_all())
    assert all(each.node is not None for each in islice(verdicts, 1_000))
    gc.collect()
    gc.freeze()  # as servers do once the cluster is in memory
    try:
        for _ in range(pods // _CHUNK):
            started = time.perf_counter()
            assert sum(each.node is not None for each in islice(verdicts, _CHUNK)) == _CHUNK
            seconds = (time.perf_counter() - started) / _CHUNK
            yield seconds, statistics.median(calibrate() for _ in range(3))
    finally:
        gc.unfreeze()


# --- the extender against an echo ------------------------------------------------------------------------------------


def calls() -> Iterator[Figure]:
    """Calls of the extender about 5,000 names and ten policies, in turns with an echo of as many bytes in and out."""
    with serving(FILTERS, SCORES) as (url, names), _echo() as echo_url:
        bodies = [body_of(number, names) for number in range(350)]
        for verb, bound in CALL.items():
            ours, theirs = _Connection(url), _Connection(echo_url)
            own: list[float] = []
            echoed: list[float] = []
            for number, body in enumerate(bodies):
                took, answer = ours.post(f"/{verb}", body)
                # As many bytes go back as ours sent.
                bare, _ = theirs.post(f"/{len(answer)}", body)
                if number >= 50:
                    own.append(took)
                    echoed.append(bare)
            yield Figure(
                f"extender {verb} / echo of the same bytes, median", statistics.median(own) / statistics.median(echoed),
                "times", bound,
            )
            yield Figure("  the same, p99", _p99(own) / _p99(echoed), "times")
            yield Figure(f"  {verb}, median", statistics.median(own) * 1e3, "ms")
            yield Figure(f"  {verb}, p99", _p99(own) * 1e3, "ms")


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


class _Connection:
    """One kept connection, as kube-scheduler has it."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._connection = http.client.HTTPConnection(address.hostname or "", address.port)

    def post(self, path: str, body: bytes) -> tuple[float, bytes]:
        """Return the seconds of the call, and what was answered."""
        started = time.perf_counter()
        self._connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        answer = response.read()
        seconds = time.perf_counter() - started
        assert response.status == 200, answer
        return seconds, answer


@contextmanager
def _echo() -> Iterator[str]:
    """Serve on loopback, by the same library: a POST to /N reads its body and answers N bytes of JSON type."""
    loop, ready, ports = asyncio.new_event_loop(), threading.Event(), []
    stop = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=b" " * int(request.match_info["size"]), content_type="application/json")

    async def serve() -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/{size}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports.append(runner.addresses[0][1])
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(30), "the echo server did not start"
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


# --- expressions against the engine written in C++ -------------------------------------------------------------------


def expressions() -> Iterator[Figure]:
    """The eight expressions by row, in turns with the C++ engine; and E6 by column, per node of a large cluster."""
    file = Path(os.environ.get("KOORD_POLICY_CASES") or "") / "cel_bench.json"
    if not os.environ.get("KOORD_POLICY_CASES") or not file.exists():
        raise Missing("set KOORD_POLICY_CASES to the directory that holds cel_bench.json")
    content, rival = json.loads(file.read_text()), cpp()
    values = {"pod": content["pod"], "node": content["node"]}
    converted = rival.convert(values)
    for name, text in content["exprs"].items():
        ours = Turns(called_program(compile_program(text, ENVIRONMENT), values))
        theirs = Turns(rival.evaluator(rival.compile(text), converted))
        take_turns([ours, theirs], rounds=60)
        yield Figure(
            f"{name}: C++ / by row", theirs.least / ours.least, "times", EXPRESSION.get(name), more_is_better=True,
        )
