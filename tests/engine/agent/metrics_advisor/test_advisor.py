from __future__ import annotations

import logging
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koordpolicy.engine.agent.metrics_advisor.advisor import OPTIONAL, AdvisorSettings, MetricsAdvisor
from koordpolicy.engine.agent.metrics_advisor.collector import SECOND
from koordpolicy.engine.cli.agent import _COLLECTORS
from koordpolicy.engine.framework.qos import Processor, Storage
from tests.bench.agent_tree import write_group

from .test_measured_groups import pod


def advisor(machine, **settings: object) -> MetricsAdvisor:
    write_group(machine.groups, machine.groups.tier("besteffort"))
    return MetricsAdvisor(
        machine.sources, AdvisorSettings(**settings), lambda: (Processor(0, 0, 0, 0),), Storage)


def test_it_is_synced_once_every_enabled_collector_has_produced(machine):
    found = advisor(machine, psi=True, storage=True)
    names = [each.name for each in found.enabled]
    assert names == ["nodeinfo", "noderesource", "podresource", "hostapplication", "sysresource", "beresource",
                     "podthrottled", "nodestorageinfo", "psi"]
    found.collect_due(machine.now)
    assert (found.synced, found.waiting) == (False, ("noderesource", "sysresource", "beresource"))
    machine.seconds += 1
    found.collect_due(machine.now)
    assert (found.synced, found.waiting, found.node_info.value) == (True, (), (Processor(0, 0, 0, 0),))


def test_the_command_offers_the_collectors_that_are_off_by_default():
    assert tuple(OPTIONAL) == _COLLECTORS


def test_collectors_are_switched_on_by_gates_or_by_name():
    assert AdvisorSettings.of(SECOND, {}) == AdvisorSettings()
    assert AdvisorSettings.of(5, {"PSICollector": True, "ResctrlCollector": False, "BECPUEvict": True}) == (
        AdvisorSettings(5, psi=True))
    assert AdvisorSettings.of(5, {"ResctrlCollector": True, "BlkIOReconcile": True, "ColdPageCollector": True}) == (
        AdvisorSettings(5, resctrl=True, storage=True, cold_memory=True))
    assert AdvisorSettings.of(5, {}, ["pagecache", "psi"]) == AdvisorSettings(5, page_cache=True, psi=True)


def test_cold_memory_needs_the_kernel(machine):
    assert "coldmemoryresource" not in [each.name for each in advisor(machine, cold_memory=True).enabled]
    machine.write("sys/kernel/mm/kidled/scan_period_in_seconds", "5\n")
    assert "coldmemoryresource" in [each.name for each in advisor(machine, cold_memory=True).enabled]


def test_a_failure_is_logged_when_it_begins_and_when_it_ends(machine, caplog):
    found = advisor(machine)
    (machine.root / "proc/stat").unlink()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            found.collect_due(machine.now)
            machine.seconds += 1
        machine.write_stat(5)
        found.collect_due(machine.now)
    assert [(record.levelname, record.message.split(":")[0]) for record in caplog.records] == [
        ("WARNING", "the collector noderesource cannot measure"), ("INFO", "the collector noderesource measures again")]


def test_collectors_run_at_their_intervals(machine):
    found = advisor(machine, psi=True, node_info_interval=60 * SECOND)
    rounds: list[str] = []
    for each in found.enabled:
        each.collect = lambda now, name=each.name: rounds.append(name)
    for _ in range(21):
        found.collect_due(machine.now)
        machine.seconds += 1
    assert {name: rounds.count(name) for name in ("noderesource", "psi", "nodeinfo")} == {
        "noderesource": 21, "psi": 3, "nodeinfo": 1}


def test_a_daemon_runs_those_of_one_interval_together(machine):
    found = advisor(machine, psi=True)
    periodic = found.periodic()
    assert [(each.name, each.interval) for each in periodic] == [
        ("nodeinfo", 60),
        ("noderesource, podresource, hostapplication, sysresource, beresource, podthrottled", 1), ("psi", 10)]
    for _ in range(2):
        machine.seconds += 1
        for each in periodic:
            each.collect(machine.now)
    assert found.synced


def test_series_of_pods_that_are_gone_or_replaced_are_dropped(machine):
    found = advisor(machine)
    found.use_pods((pod("a", "LS"), pod("b", "LS", uid="u-2")))
    found.use_applications([{"name": "db"}])
    for name in ("d/a", "d/b"):
        machine.cache.append("pod", name, "cpu", machine.now, 1)
        machine.cache.append("container", f"{name}/c", "cpu", machine.now, 1)
    found.use_pods((pod("a", "LS"), pod("b", "LS", uid="u-3")))
    assert (machine.cache.names("pod"), machine.cache.names("container")) == ({"d/a"}, {"d/a/c", "d/b/c"})
    found.use_pods(())
    assert (machine.cache.names("pod"), [each.name for each in machine.sources.subjects.applications]) == (
        frozenset(), ["db"])


def test_descriptors_of_files_that_are_not_read_any_more_are_closed(machine):
    found = advisor(machine)
    gone = machine.subject("pod", "d/gone")
    machine.use(gone)
    for _ in range(2):
        machine.seconds += 1
        found.collect_due(machine.now)
    before = len(machine.sources.files)
    machine.use()
    for _ in range(250):
        machine.seconds += 1
        found.collect_due(machine.now)
    assert before - len(machine.sources.files) == (2 if machine.version == 2 else 3)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_content_of_files_stops_a_collection(machine, data):
    found = advisor(machine, psi=True, page_cache=True, cold_memory=True, resctrl=True, storage=True)
    machine.use(*(machine.subject(*each) for each in (("pod", "d/p"), ("container", "d/p/c"), ("application", "a"))))
    for _ in range(2):
        machine.seconds += 1
        found.collect_due(machine.now)
    texts = st.one_of(
        st.binary(max_size=60), st.sampled_from([b"", b"\n", b"9" * 30 + b"\n", b"-1\n", b"\xff\n", b"0-999999999\n"]))
    for path in sorted(path for path in machine.root.rglob("*") if path.is_file()):
        if data.draw(st.booleans()):
            path.write_bytes(data.draw(texts))
    machine.seconds += 1
    found.collect_due(machine.now)
    for what in ("node", "numaNode", "system", "pod", "container", "application", "bestEffort", "resctrl"):
        for name in machine.cache.names(what):
            assert all(math.isfinite(value) and value >= 0 for value in machine.last(what, name).values())


def test_an_interval_is_above_0(machine):
    with pytest.raises(ValueError, match="collector `nodeinfo` must be above 0"):
        advisor(machine, node_info_interval=0)
