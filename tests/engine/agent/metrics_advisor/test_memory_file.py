"""The memory of control groups is read of the file that costs least, and is the same out of each."""

from __future__ import annotations

import os

import pytest

from koordpolicy.engine.agent.metrics_advisor.collector import SECOND
from koordpolicy.engine.agent.metrics_advisor.memory import PageCache
from koordpolicy.engine.agent.metrics_advisor.memory_file import NUMA_STAT, STAT, MemoryFile
from koordpolicy.engine.agent.metrics_advisor.usage import PodResource
from tests.bench.agent_tree import numa_stat

PAGE = os.sysconf("SC_PAGE_SIZE")


def pages(nodes: int = 1) -> str:
    return numa_stat(nodes, total=11, file=4, anon=5, unevictable=2)


@pytest.mark.parametrize(("text", "of_v1"), [
    (pages(1), NUMA_STAT), (pages(2), NUMA_STAT), (pages(3), STAT), ("total=1 N0=1\n", STAT), (None, STAT),
], ids=["one NUMA node", "two", "three", "a kernel without sums", "a kernel without NUMA"])
def test_sums_of_pages_are_read_on_v1_where_the_kernel_has_them_for_few_numa_nodes(machine, text, of_v1: str):
    if text is not None:
        machine.group("memory", "", NUMA_STAT, text)
    assert MemoryFile.of(machine.sources).name == (of_v1 if machine.version == 1 else STAT)


def test_usage_and_page_cache_are_those_of_the_file_with_pages(machine):
    machine.group("memory", "", NUMA_STAT, pages())
    pod, bare = machine.subject("pod", "d/p"), machine.subject("pod", "d/q")
    application = machine.subject("application", "a")
    for each in (pod, application):
        machine.group("memory", each.directory, NUMA_STAT, pages())
    machine.use(pod, bare, application)
    usage, cache = PodResource(machine.sources, SECOND), PageCache(machine.sources, SECOND, enabled=True)
    for _ in range(2):
        machine.collect(usage, cache)
    of_stat = {"cpu": 0, "memory": 4096, "memory-with-page-cache": 4096}
    of_pages = {"cpu": 0, "memory": 7 * PAGE, "memory-with-page-cache": 11 * PAGE}
    expected = (of_pages, {}) if machine.version == 1 else (of_stat, of_stat)
    assert (machine.last("pod", "d/p"), machine.last("pod", "d/q")) == expected
    assert machine.last("application", "a") == {"memory-with-page-cache": expected[0]["memory-with-page-cache"]}


def test_memory_that_changes_is_measured_anew_and_a_file_that_goes_away_has_no_sample(machine):
    pod = machine.subject("pod", "d/p")
    machine.use(pod)
    collector, found = PodResource(machine.sources, SECOND), []
    machine.collect(collector)
    for amount in (4096, 4096, 8192):
        machine.set_memory(pod.directory, amount)
        machine.collect(collector)
        found.append(machine.last("pod", "d/p").get("memory"))
    machine.group("memory", pod.directory, STAT, "")
    machine.collect(collector)
    assert (found, machine.last("pod", "d/p")) == ([4096, 4096, 8192], {})
