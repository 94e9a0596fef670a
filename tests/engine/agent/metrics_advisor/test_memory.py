from __future__ import annotations

import pytest

from koordpolicy.engine.agent.metrics_advisor.collector import SECOND
from koordpolicy.engine.agent.metrics_advisor.memory import KIDLED, ColdMemory, PageCache
from koordpolicy.engine.agent.metrics_advisor.usage import PodResource
from tests.bench.agent_tree import memory_stat


def idle(amount: int) -> str:
    lines = [f"  {name} 7 7 7 7 7 {amount} 0 0" for name in ("csei", "cfei")]
    lines += [f"  {name} 0 0 0 0 0 0 0 0" for name in ("dfei", "cfui", "dfui")]
    return "\n".join(["# version: 1.0", *lines]) + "\n"


def with_files(machine, directory: str, amount: int) -> None:
    prefix = "" if machine.version == 2 else "total_"
    text = memory_stat(4096, version=machine.version)
    text = text.replace(f"{prefix}inactive_file 0", f"{prefix}inactive_file {amount}")
    machine.group("memory", directory, "memory.stat", text)


@pytest.mark.parametrize("with_pods", [True, False])
def test_memory_with_page_cache_is_read_once_where_the_usage_is_read_too(machine, with_pods: bool):
    pod, application = machine.subject("pod", "d/p"), machine.subject("application", "a")
    with_files(machine, pod.directory, 1000)
    machine.use(pod, application)
    collector = PageCache(machine.sources, SECOND, enabled=True)
    collectors = (PodResource(machine.sources, SECOND), collector) if with_pods else (collector,)
    machine.collect(*collectors)
    assert machine.last("pod", "d/p") == {"memory-with-page-cache": 5096}
    assert machine.last("application", "a") == {"memory-with-page-cache": 4096}
    assert machine.last("node") == {"memory-with-page-cache": 700 * 1024}
    assert collector.started


def test_a_pod_whose_statistics_are_missing_has_no_page_cache(machine):
    pod = machine.subject("pod", "d/p")
    machine.use(pod)
    machine.group("memory", pod.directory, "memory.stat", "")
    collector = PageCache(machine.sources, SECOND, enabled=True)
    machine.collect(collector)
    assert (machine.last("pod", "d/p"), collector.failures, collector.started) == ({}, 1, True)


def test_cold_pages_are_measured_where_the_kernel_looks_for_them(machine):
    collector = ColdMemory(machine.sources, 5 * SECOND, enabled=True)
    assert not ColdMemory.supported(machine.sources)
    with pytest.raises(OSError, match="idle_page_stats"):
        machine.collect(collector)
    machine.write(f"sys/{KIDLED}", "0\n")
    assert not ColdMemory.supported(machine.sources)
    machine.write(f"sys/{KIDLED}", "120\n")
    assert ColdMemory.supported(machine.sources)
    pod, container = machine.subject("pod", "d/p"), machine.subject("container", "d/p/c")
    machine.use(pod, container)
    machine.group("memory", "", "memory.idle_page_stats", idle(100 * 1024))
    machine.group("memory", pod.directory, "memory.idle_page_stats", idle(96))
    machine.group("memory", container.directory, "memory.idle_page_stats", "# version\n")
    machine.collect(collector)
    assert machine.last("node") == {"cold-memory": 100 * 1024, "memory-with-hot-pages": 600 * 1024}
    assert machine.last("pod", "d/p") == {"cold-memory": 96, "memory-with-hot-pages": 4000}
    assert (machine.last("container", "d/p/c"), collector.failures) == ({}, 1)
