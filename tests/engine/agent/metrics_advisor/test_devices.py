from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from koordpolicy.engine.agent.host.control_groups import ControlGroups
from koordpolicy.engine.agent.host.files import FileReader
from koordpolicy.engine.agent.metric_cache.cache import MetricCache
from koordpolicy.engine.agent.metrics_advisor.advisor import AdvisorSettings, MetricsAdvisor
from koordpolicy.engine.agent.metrics_advisor.collection_metrics import CollectionMetrics
from koordpolicy.engine.agent.metrics_advisor.collector import SECOND, Sources
from koordpolicy.engine.framework.qos import Storage
from koordpolicy.engine.serving.instruments import MetricsRegistry
from koordpolicy.testing import NOW
from tests.engine.agent.host.test_devices import pci

USE = {"gpu_busy_percent": "37", "mem_info_vram_used": "1024", "mem_info_vram_total": "4096"}


def advisor_of(sys: Path, clock: Any, *, on: bool = True) -> MetricsAdvisor:
    sources = Sources(MetricCache("n"), ControlGroups(2, "systemd", {"": str(sys)}), FileReader(), sys=str(sys),
                      monotonic=lambda: clock.now)
    settings = AdvisorSettings.of(SECOND, {"RDMADevices": on})
    return MetricsAdvisor(sources, settings, tuple, Storage)


def shown(advisor: MetricsAdvisor, now: int) -> list[str]:
    text = MetricsRegistry(CollectionMetrics(advisor, clock=lambda: now)).text().decode()
    return [line.removeprefix("koord_policy_node_") for line in text.splitlines()
            if line.startswith("koord_policy_node_")]


def test_gpus_are_measured_where_sysfs_has_their_use(tmp_path: Path):
    pci(tmp_path, "0000:3b:00.0", "amdgpu", **USE)
    pci(tmp_path, "0000:af:00.0", "nvidia")
    advisor = advisor_of(tmp_path, SimpleNamespace(now=0))
    assert advisor.devices.enabled
    advisor.collect(advisor.devices, NOW)

    def listed(minor: int, address: str, driver: str) -> str:
        return (f'devices{{address="{address}",driver="{driver}",minor="{minor}",name="{address}",node="n",'
                'numa_node="-1",type="gpu"} 1.0')

    assert shown(advisor, NOW) == [
        listed(0, "0000:3b:00.0", "amdgpu"), listed(1, "0000:af:00.0", "nvidia"),
        'gpu_core_usage{minor="0",node="n"} 37.0',
        'gpu_memory_bytes{minor="0",node="n",type="used"} 1024.0',
        'gpu_memory_bytes{minor="0",node="n",type="total"} 4096.0']
    assert advisor.devices.started


def test_devices_are_listed_each_minute_and_those_that_went_away_are_forgotten(tmp_path: Path):
    clock = SimpleNamespace(now=0)
    first = pci(tmp_path, "0000:3b:00.0", "amdgpu", **USE)
    advisor = advisor_of(tmp_path, clock)
    advisor.collect(advisor.devices, NOW)
    first.rename(tmp_path / "away")
    clock.now = 59 * SECOND
    advisor.collect(advisor.devices, NOW + SECOND)
    assert len(advisor.devices.devices) == 1
    clock.now = 60 * SECOND
    advisor.collect(advisor.devices, NOW + 2 * SECOND)
    assert (advisor.devices.devices, shown(advisor, NOW + 2 * SECOND)) == ((), [])


def test_a_malformed_amount_costs_itself(tmp_path: Path):
    pci(tmp_path, "0000:3b:00.0", "amdgpu", **{**USE, "gpu_busy_percent": "busy", "mem_info_vram_used": "9" * 30})
    advisor = advisor_of(tmp_path, SimpleNamespace(now=0))
    advisor.collect(advisor.devices, NOW)
    assert shown(advisor, NOW)[1:] == ['gpu_memory_bytes{minor="0",node="n",type="total"} 4096.0']


def test_without_a_gate_nothing_is_read(tmp_path: Path):
    advisor = advisor_of(tmp_path, SimpleNamespace(now=0), on=False)
    assert not advisor.devices.enabled
    assert shown(advisor, NOW) == []
