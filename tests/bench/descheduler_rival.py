"""Dry runs of Kubernetes' own descheduler and of ours, in turns, on one cluster of a real API server.

The cluster is that of `descheduler_cluster`, with ten pods per node. Both are processes that list the cluster and then
run a few cycles; theirs reports the duration of its cycles as a metric. Its first cycle does not count: it finds
nothing to evict, in some 50 ms.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.sources.api import load
from koordpolicy.engine.descheduler.framework import run_cycle

from ..e2e.build import CannotBuild, descheduler_binary
from ..e2e.control_plane import ControlPlane, free_ports
from .descheduler_cluster import BALANCE, DESCHEDULE, EVICTOR_ARGS, PLUGIN_ARGS, nodes, pods
from .figure import Figure, Missing
from .live_load import Api, api_of, built

_PER_NODE: Final = 10
_TURNS: Final = 3
_CYCLES: Final = 3
_LIMIT_S: Final = 300.0
_LOOP: Final = "descheduler_descheduler_loop_duration_seconds"
_EVICTED: Final = "descheduler_pods_evicted_total{"
_KINDS: Final = ("Node", "Pod", "Namespace", "PriorityClass")


@dataclass(frozen=True, slots=True)
class Turn:
    """The measurements of one process."""

    cycle_s: float
    """The mean duration of a cycle, the first one included."""
    memory_mib: float
    """The peak of its resident memory."""
    evicted: int
    """Evictions per cycle."""


def compared(size: int) -> Iterator[Figure]:
    """Yield the figures of both, and the median ratios."""
    try:
        binary = descheduler_binary()
    except CannotBuild as error:
        raise Missing(str(error)) from None
    turns: dict[str, list[Turn]] = {"Kubernetes' descheduler": [], "koord-policy": []}
    theirs, ours = turns.values()
    with TemporaryDirectory() as folder, ControlPlane(built(), Path(folder)) as control_plane:
        asyncio.run(_fill(control_plane, size))
        for number in range(_TURNS):
            order = [lambda: theirs.append(_theirs(control_plane, binary, Path(folder))),
                     lambda: ours.append(_ours(control_plane))]
            for run in order if number % 2 == 0 else reversed(order):
                run()
    title = f"{size:,} nodes, {size * _PER_NODE:,} pods on an API server"
    for name, taken in turns.items():
        yield Figure(f"{title}, {name}: cycle", median(turn.cycle_s for turn in taken), "s")
        yield Figure(f"{title}, {name}: memory, peak", median(turn.memory_mib for turn in taken), "MiB")
        yield Figure(f"{title}, {name}: evictions", median(turn.evicted for turn in taken), "pods")
    pairs = list(zip(ours, theirs, strict=True))
    yield Figure(f"{title}: cycle, koord-policy / Kubernetes' descheduler",
                 median(one.cycle_s / other.cycle_s for one, other in pairs), "times", 0.5)
    yield Figure(f"{title}: memory, koord-policy / Kubernetes' descheduler",
                 median(one.memory_mib / other.memory_mib for one, other in pairs), "times", 1.0)


async def _fill(control_plane: ControlPlane, size: int) -> None:
    async with api_of(control_plane) as api:
        listed, placed = list(nodes(size)), list(pods(size, size * _PER_NODE))
        namespaces = sorted({each["metadata"]["namespace"] for each in placed})
        await api.all("/api/v1/namespaces", [{"metadata": {"name": name}} for name in namespaces])
        await api.all("/api/v1/nodes", listed)
        # Admission adds a taint that no controller removes here.
        await asyncio.gather(*[api.patch(f"/api/v1/nodes/{each['metadata']['name']}", {
            "spec": {"taints": each["spec"].get("taints")}}) for each in listed])
        await asyncio.gather(*[_add(api, each) for each in placed])


async def _add(api: Api, pod: dict[str, Any]) -> None:
    metadata = {name: value for name, value in pod["metadata"].items() if name not in ("uid", "creationTimestamp")}
    # Priorities come from classes alone, and the server's own volume is not accepted from others.
    spec = {name: value for name, value in pod["spec"].items() if name not in ("priority", "volumes")}
    status = {name: value for name, value in pod["status"].items() if name != "qosClass"}
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods"
    await api.request("POST", path, {**pod, "metadata": metadata, "spec": spec})
    await api.patch(f"{path}/{metadata['name']}/status", {"status": status})


def _theirs(control_plane: ControlPlane, binary: Path, folder: Path) -> Turn:
    policy, log = folder / "policy.json", folder / "descheduler.log"
    policy.write_text(json.dumps({"apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerPolicy", "profiles": [{
        "name": "bench", "pluginConfig": [
            {"name": name, "args": args} for name, args in {**PLUGIN_ARGS, "DefaultEvictor": EVICTOR_ARGS}.items()],
        "plugins": {"deschedule": {"enabled": list(DESCHEDULE)}, "balance": {"enabled": list(BALANCE)}}}]}))
    (port,) = free_ports(1)
    command = [
        str(binary), "--dry-run", f"--policy-config-file={policy}", f"--kubeconfig={control_plane.kubeconfig()}",
        "--descheduling-interval=100ms", "--bind-address=127.0.0.1", f"--secure-port={port}",
        f"--cert-dir={folder / 'descheduler'}", "--client-connection-qps=100000", "--client-connection-burst=100000"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + _LIMIT_S
            first: dict[str, float] = {}
            while (metrics := _metrics(port)).get(f"{_LOOP}_count", 0) < first.get(f"{_LOOP}_count", 0) + _CYCLES:
                if not first and metrics.get(f"{_LOOP}_count"):
                    first = metrics
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(log.read_text(errors="replace")[-3000:])
                time.sleep(0.2)
            status = Path(f"/proc/{process.pid}/status").read_text()
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    spent = {name: value - first.get(name, 0) for name, value in metrics.items()}
    cycles = spent[f"{_LOOP}_count"]
    evicted = sum(value for name, value in spent.items() if name.startswith(_EVICTED) and 'result="success"' in name)
    memory = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    return Turn(spent[f"{_LOOP}_sum"] / cycles, memory, round(evicted / cycles))


def _metrics(port: int) -> dict[str, float]:
    """Return the metrics of their descheduler by name and labels; none while it does not serve."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it signs its certificate itself
    try:
        with urllib.request.urlopen(f"https://127.0.0.1:{port}/metrics", context=context, timeout=30) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return {}
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def _ours(control_plane: ControlPlane) -> Turn:
    environment = {**os.environ, "KUBECONFIG": str(control_plane.kubeconfig())}
    done = subprocess.run([sys.executable, "-m", "tests.bench.descheduler_rival"], check=True, capture_output=True,
                          text=True, env=environment)
    return Turn(**json.loads(done.stdout))


def main() -> None:
    """Run our cycles over the cluster of the kubeconfig, as `koord-policy descheduler --once --dry-run` does."""
    from .bench_descheduler import profiles  # noqa: PLC0415 - it imports this module

    objects = load(None, kinds=_KINDS)
    cluster = Cluster(objects, kinds=objects.kinds)
    built_profiles, spent, evicted = profiles("random"), [], 0
    del objects
    for _ in range(_CYCLES):
        began = time.perf_counter()
        result = run_cycle(built_profiles, cluster.snapshot(time.time_ns()))
        spent.append(time.perf_counter() - began)
        assert not result.failures, result.failures[0]
        evicted = len(result.evicted)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"cycle_s": sum(spent) / len(spent), "memory_mib": memory, "evicted": evicted}))


if __name__ == "__main__":
    main()
