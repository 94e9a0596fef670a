"""The cost of the node agent on a node with 110 pods of 2 containers, at a tick per second.

Ticks run as fast as possible: each one has the work of a second. On plain files, and on control groups of the kernel
where they can be made (as root, v1 hierarchies). What runs in a tick is a list, so that more can be measured.

The process itself is measured too, with real ticks and all that it does: as a node's agent, with an API server and a
kubelet on loopback, and with all strategies or a directory of documents; on plain files, and on the kernel's control
groups, whose files take longer to read but need no `fstat`.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from koordpolicy.engine.agent.host.control_groups import ControlGroups
from koordpolicy.engine.agent.host.files import FileReader, raise_descriptor_limit
from koordpolicy.engine.agent.metric_cache.cache import MetricCache
from koordpolicy.engine.agent.metrics_advisor.advisor import AdvisorSettings, MetricsAdvisor
from koordpolicy.engine.agent.metrics_advisor.collector import SECOND, Sources
from koordpolicy.engine.agent.metrics_advisor.measured_groups import MeasuredGroups
from koordpolicy.engine.framework.qos import Processor, Storage

from .agent_process import ALL_GATES
from .agent_process import measured as measured_process
from .agent_tree import imitated, kernel_groups, subjects_of, write_group
from .figure import Figure

PODS, CONTAINERS = 110, 2
_SECONDS = float(os.environ.get("KOORD_POLICY_BENCH_SECONDS", "300"))
"""The seconds of real ticks for which a process is measured."""
_WARM_UP, _TURNS, _TICKS = 330, 12, 10
"""The warm-up fills the series of pods, so that memory does not grow any more. A turn has ten ticks, as pressures are
read in every tenth one."""


@dataclass
class Agent:
    """The agent that a tick runs; its clock is the number of ticks."""

    sources: Sources
    advisor: MetricsAdvisor
    ticks: int = 0


Part = Callable[[Agent], Callable[[int], None]]
"""Makes a part of each tick: a function of the time."""


def collectors(agent: Agent) -> Callable[[int], None]:
    """Run the collectors that are due."""
    return agent.advisor.collect_due


def readings(agent: Agent) -> Callable[[int], None]:
    """Read what documents for pods and containers read in each round: averages of all resources over 10 seconds."""
    def read(now: int) -> None:
        measurements = agent.sources.cache.at(now)
        for what, groups in (("pod", agent.sources.subjects.pods), ("container", agent.sources.subjects.containers)):
            for each in groups:
                measurements.measured(what, each.name, "avg", 10 * SECOND)

    return read


PARTS: dict[str, Part] = {"collectors": collectors, "readings": readings}
"""The parts of a tick, in order. Figures are given for all of them together, and for each one."""


def agent_over(groups: ControlGroups, subjects: MeasuredGroups, *, psi: bool) -> Agent:
    """Return an agent that measures these subjects, with the page cache, and with pressures if there are such files."""
    sources = Sources(MetricCache("bench"), groups, FileReader(), subjects=subjects)
    processors = tuple(Processor(cpu, cpu, 0, 0) for cpu in range(os.cpu_count() or 1))
    settings = AdvisorSettings(page_cache=True, psi=psi, storage=True)
    agent = Agent(sources, MetricsAdvisor(sources, settings, lambda: processors, Storage))
    readings = itertools.count()
    sources.monotonic = lambda: agent.ticks * SECOND + next(readings)
    return agent


def measured(agent: Agent) -> dict[str, float]:
    """Return milliseconds of processor time per tick, of each part, and resident memory in MiB.

    Of several turns that with the least time: other programs can only add to it.
    """
    parts = {name: make(agent) for name, make in PARTS.items()}
    turns: list[dict[str, float]] = []
    for tick in range(1, _WARM_UP + _TURNS * _TICKS + 1):
        agent.ticks = tick
        if tick > _WARM_UP and (tick - _WARM_UP) % _TICKS == 1:
            turns.append(dict.fromkeys(parts, 0.0))
        for name, run in parts.items():
            before = time.process_time()
            run(tick * SECOND)
            if turns:
                turns[-1][name] += (time.process_time() - before) / _TICKS * 1000
    return min(turns, key=lambda turn: sum(turn.values())) | {"memory": resident()}


def resident() -> float:
    """Return the resident memory of this process in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def run(where: str) -> dict[str, float]:
    """Measure one tree in this process: `files-v1`, `files-v2` or `kernel`; the memory is this process's."""
    raise_descriptor_limit()
    if where == "kernel":
        with kernel_groups(f"koord-policy-bench-{os.getpid()}") as groups:
            subjects = subjects_of(groups, PODS, CONTAINERS)
            for tier in ("guaranteed", "burstable", "besteffort"):
                _make(groups, groups.tier(tier))
            for each in subjects.all():
                _make(groups, each.directory)
            return measured(agent_over(groups, subjects, psi=False))
    with tempfile.TemporaryDirectory() as folder:
        groups = imitated(Path(folder), int(where[-1]))
        subjects = subjects_of(groups, PODS, CONTAINERS)
        for directory in (*map(groups.tier, ("guaranteed", "burstable", "besteffort")),
                          *(each.directory for each in subjects.all())):
            write_group(groups, directory)
        return measured(agent_over(groups, subjects, psi=True))


def _make(groups: ControlGroups, directory: str) -> None:
    for root in groups.roots.values():
        (Path(root) / directory).mkdir(parents=True, exist_ok=True)


def main() -> Iterator[Figure]:
    """Yield time per tick and memory of each tree; each is measured in a process of its own."""
    for where, title in (("files-v1", "files v1"), ("files-v2", "files v2"), ("kernel", "kernel v1")):
        done = subprocess.run(
            [sys.executable, "-m", "tests.bench.bench_agent", where], capture_output=True, text=True, check=False)
        if done.returncode:
            if where == "kernel":
                print(f"  kernel v1 not measured: {done.stderr.strip().splitlines()[-1]}")
                continue
            raise RuntimeError(done.stderr)
        found = json.loads(done.stdout)
        memory = found.pop("memory")
        if len(found) > 1:
            yield from (Figure(f"agent, {title}: {name}", spent, "ms/tick") for name, spent in found.items())
        yield Figure(f"agent, {title}: a tick", sum(found.values()), "ms", 10)
        yield Figure(f"agent, {title}: resident memory", memory, "MiB", 80)
    for title, options in (
        ("without strategies", ()),
        ("all strategies", ("--enable", "*", "--feature-gates", ALL_GATES)),
        ("documents", ("--policies", "policies/qos")),
        ("documents, dry run", ("--policies", "policies/qos", "--dry-run")),
    ):
        for kernel in (False, True):
            where = "kernel v1" if kernel else "files v1"
            with tempfile.TemporaryDirectory() as folder:
                try:
                    spent, _, most = measured_process(Path(folder), _SECONDS, *options, kernel=kernel)
                except OSError as error:
                    if not kernel:
                        raise
                    print(f"  agent process, {where}, {title}: not measured: {error}")
                    continue
            yield Figure(f"agent process, {where}, {title}: a tick", spent, "ms", 10)
            yield Figure(f"agent process, {where}, {title}: resident memory", most, "MiB", 80)


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])))
