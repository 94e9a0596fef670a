from __future__ import annotations

from koordpolicy.engine.agent.metrics_advisor.collector import SECOND
from koordpolicy.engine.agent.metrics_advisor.resctrl import ResctrlMonitoring


def test_caches_and_bandwidths_are_measured_per_class_and_cache(machine):
    def write(total: str) -> None:
        for group, domain in (("LS", "mon_L3_00"), ("LS", "mon_L3_01"), ("BE", "mon_L3_00")):
            folder = f"sys/fs/resctrl/{group}/mon_data/{domain}"
            machine.write(f"{folder}/llc_occupancy", "4096\n")
            machine.write(f"{folder}/mbm_total_bytes", f"{total}\n")
            machine.write(f"{folder}/mbm_local_bytes", "Unavailable\n")
        machine.write("sys/fs/resctrl/LS/mon_data/mon_L3_x/llc_occupancy", "1\n")

    collector = ResctrlMonitoring(machine.sources, 10 * SECOND, enabled=True)
    write("1000")
    machine.collect(collector)
    write("6000")
    machine.collect(collector, after=10)
    assert [machine.last("resctrl", group) for group in ("LSR", "LS", "BE")] == [
        {},
        {"llc-occupancy.0": 4096, "llc-occupancy.1": 4096, "memory-bandwidth.0.total": 500,
         "memory-bandwidth.1.total": 500},
        {"llc-occupancy.0": 4096, "memory-bandwidth.0.total": 500},
    ]
    assert (collector.started, collector.failures) == (True, 6)


def test_a_machine_without_resctrl_gives_nothing(machine):
    collector = ResctrlMonitoring(machine.sources, 10 * SECOND, enabled=True)
    machine.collect(collector)
    assert (machine.cache.names("resctrl"), collector.started) == (frozenset(), True)
