"""The extender over loopback: 5,000 node names, ten policies, distinct pods; the time of each call."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.reload import Builder, Reloader
from koordpolicy.engine.reload.low_latency_gc import LowLatencyGc
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler
from koordpolicy.engine.scheduler.extender.loaded_extender import Loaded
from koordpolicy.engine.scheduler.extender.protocol import Extender
from koordpolicy.engine.scheduler.extender.server import Server

from .bench_columns import FILTERS, SCORES, cluster_of
from .figure import Figure

NODES = 5_000
WARM_UP = 50
REQUESTS = 300
BOUND_MS = 10.0


def main() -> Iterator[Figure]:
    """Yield median and 99th percentile of both calls, in milliseconds as their caller sees them."""
    with serving(FILTERS, SCORES) as (url, names):
        yield from _measure("extender", url, names)
    # The worst for explanations: every node is refused, each in words of its own.
    hot = ["usage.cpu < 0"]
    with serving(
        hot, SCORES, message="'cpu usage is ' + string(usage.cpu) + 'm, requested ' + string(requests.cpu)",
    ) as (url, names):
        took = _calls(url, "/filter", [body_of(number, names) for number in range(WARM_UP + REQUESTS)], lambda _: None)
        yield from _figures("extender, all nodes refused: filter", took, bound=None)


def _measure(name: str, url: str, names: list[str]) -> Iterator[Figure]:
    left: list[list[str]] = []
    bodies = [body_of(number, names) for number in range(WARM_UP + REQUESTS)]
    took = _calls(url, "/filter", bodies, lambda answer: left.append(answer["NodeNames"]))
    yield Figure(f"{name}: nodes that pass, of {len(names)}", sum(map(len, left)) / len(left), "nodes")
    yield from _figures(f"{name}: filter", took)
    # As many names as may be: kube-scheduler asks about those that passed, at most all.
    took = _calls(url, "/prioritize", bodies, lambda _: None)
    yield from _figures(f"{name}: prioritize", took)


def _figures(name: str, took: list[float], bound: float | None = BOUND_MS) -> Iterator[Figure]:
    ordered = sorted(took)
    yield Figure(f"{name}, median", ordered[len(ordered) // 2], "ms")
    yield Figure(f"{name}, p99", ordered[int(len(ordered) * 0.99)], "ms", bound)


def _calls(url: str, path: str, bodies: list[bytes], see: Callable[[Any], None]) -> list[float]:
    """Return the milliseconds of each call after the warm-up, over one connection as kube-scheduler keeps it."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port)
    took: list[float] = []
    for number, body in enumerate(bodies):
        started = time.perf_counter()
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        seconds = time.perf_counter() - started
        assert response.status == 200, answer
        if number >= WARM_UP:
            took.append(seconds * 1e3)
            see(json.loads(answer))
    connection.close()
    return took


def body_of(number: int, names: list[str]) -> bytes:
    """Return the body of a call about a pod of its own and these nodes."""
    random = Random(number)
    spec: dict[
        str, Any,
    ] = {"priority": 9000, "containers": [{"name": "main", "image": "registry.example.com/web:v1", "resources": {
        "requests": {"cpu": f"{random.randrange(100, 4000)}m", "memory": f"{random.randrange(64, 8192)}Mi"},
    }}]}
    if number % 2:
        spec["nodeSelector"] = {"pool": "general"}
    if number % 3 == 0:
        spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
    pod = {"metadata": {"name": f"pod-{number}", "namespace": "shop", "uid": f"uid-{number}"}, "spec": spec}
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()


@contextmanager
def serving(
    filters: tuple[str, ...] | list[str], scores: tuple[str, ...], message: str = "",
) -> Iterator[tuple[str, list[str]]]:
    """Serve these policies over a cluster of 5,000 nodes in a thread; yield the URL and the nodes' names."""
    documents = [document(f"filter-{number}", "filter", text, message) for number, text in enumerate(filters)]
    documents += [document(f"score-{number}", "score", text) for number, text in enumerate(scores)]
    cluster, now = cluster_of(NODES)

    with TemporaryDirectory() as folder:
        Path(folder, "policies.yaml").write_text("---\n".join(json.dumps(each) + "\n" for each in documents))

        def load() -> Loaded:
            live = Live()
            low_latency = LowLatencyGc()
            reloader = Reloader(live, [folder], Builder(pause=low_latency.pause), low_latency=low_latency)
            reloader.start()
            scheduler = Scheduler(cluster, live, clock=lambda: now)
            return Loaded(Extender(scheduler, clock=lambda: now, timer=time.monotonic), reloader)

        server, ready, urls = Server(load), threading.Event(), []
        loop, stop = asyncio.new_event_loop(), asyncio.Event()
        thread = threading.Thread(target=lambda: loop.run_until_complete(
            server.run("127.0.0.1", 0, stop, bound=urls.append, ready=lambda _: ready.set())))
        thread.start()
        try:
            assert ready.wait(60), "the extender did not get ready"
            gc.collect()
            yield urls[0], list(cluster.names)
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()


def document(name: str, section: str, expression: str, message: str = "") -> dict[str, Any]:
    """Return a policy document with one expression."""
    item = {"name": "rule", "expression": expression} | ({"messageExpression": message} if message else {})
    return {
        "apiVersion": "policy.koordinator.sh/v1alpha2", "kind": "SchedulerPlugin", "metadata": {"name": name},
        "spec": {section: [item]},
    }


if __name__ == "__main__":
    for figure in main():
        print(f"{figure.name:<48} {figure.value:>10.3f} {figure.unit}{'' if figure.kept else '  NOT KEPT'}")
