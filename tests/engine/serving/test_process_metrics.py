"""The metrics of a process are its own, as the operating system counts them."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

from koordpolicy.engine.serving.instruments import MetricsRegistry
from koordpolicy.engine.serving.process_metrics import TABLE, ProcessMetrics
from tests.process_figures import memory_mib


def read() -> dict[str, float]:
    text = b"".join(MetricsRegistry(ProcessMetrics()).blocks()).decode()
    return {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if not line.startswith("#")}


def test_each_row_is_there_and_is_what_the_system_counts():
    before, resident = time.process_time(), memory_mib(os.getpid(), "VmRSS")
    found = read()
    tick = 2 / os.sysconf("SC_CLK_TCK")
    assert set(found) == {spec.name for spec in TABLE}
    assert before - tick <= found["process_cpu_seconds_total"] <= time.process_time() + tick
    assert found["process_resident_memory_bytes"] / 2**20 > resident / 2
    assert found["process_virtual_memory_bytes"] >= found["process_resident_memory_bytes"]
    assert 0 < found["process_start_time_seconds"] <= time.time() + 1
    assert found["process_max_fds"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_an_open_file_counts():
    before = read()["process_open_fds"]
    with Path(__file__).open():
        assert read()["process_open_fds"] == before + 1


def test_the_name_of_the_program_may_look_like_fields(tmp_path: Path):
    (tmp_path / "self" / "fd").mkdir(parents=True)
    (tmp_path / "stat").write_text("cpu 1 2\nbtime 1000\n")
    (tmp_path / "self" / "stat").write_text("7 (a) b) R " + " ".join(str(number) for number in range(4, 53)))
    found = {metric.spec.name: next(iter(metric.series))[1] for metric in ProcessMetrics(tmp_path).collect()}
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    assert (found["process_cpu_seconds_total"], found["process_start_time_seconds"]) == (29 / ticks, 1000 + 22 / ticks)
    assert (found["process_virtual_memory_bytes"], found["process_resident_memory_bytes"]) == (23, 24 * page)


def test_without_proc_there_are_none(tmp_path: Path):
    assert list(ProcessMetrics(tmp_path).collect()) == []
