from __future__ import annotations

import json
from typing import Any

from koordpolicy.engine.agent.audit import AuditLog, AuditSettings
from koordpolicy.engine.agent.audit_events import AuditEvents
from koordpolicy.engine.agent.daemon import Conclusion
from koordpolicy.engine.agent.qos_manager.documents import RoundReport
from koordpolicy.engine.agent.qos_manager.evictor import AttemptOutcome, EvictionAttempt
from koordpolicy.engine.framework.qos import Adjustment
from koordpolicy.engine.testing.agent import FakeExecutor

QUOTA = "besteffort/cpu.cfs_quota_us"
NO_READINGS: Any = None


def events(tmp_path, *adjustments: Adjustment) -> list[dict[str, Any]]:
    log = AuditLog(AuditSettings(tmp_path), clock=lambda: 0.0)
    executor = FakeExecutor({QUOTA: "-1", "guaranteed/podU/c/cpu.cfs_burst_us": "0"})
    results = tuple(executor.apply(adjustments))
    AuditEvents(log).concluded(Conclusion(10**18, "n", "Squeeze", RoundReport(adjustments), True, results), NO_READINGS)
    return [{key: value for key, value in json.loads(line).items() if key != "createdAt"} for line in log.lines()]


def test_what_changed_is_an_event_with_its_files_and_koordlets_reason(tmp_path):
    assert events(
        tmp_path,
        Adjustment("suppressCPU", "n", "less", writes=((QUOTA, "1000"),)),
        Adjustment("cpuBurst", "d/web/c", "more", writes=(("guaranteed/podU/c/cpu.cfs_burst_us", "5"),)),
        Adjustment("suppressCPU", "n", "off", writes=((QUOTA, "-1"),), recovers=True),
    ) == [
        {"type": "node", "level": 2, "name": "n", "reason": "AdjustBEByNodeCPUUsage",
         "message": f"Squeeze: off ({QUOTA}: 1000 -> -1)"},
        {"type": "container", "level": 1, "namespace": "d", "name": "web", "container": "c", "reason": "CPUBurst",
         "message": "Squeeze: more (guaranteed/podU/c/cpu.cfs_burst_us: 0 -> 5)"},
        {"type": "node", "level": 1, "name": "n", "reason": "AdjustBEByNodeCPUUsage",
         "message": f"Squeeze: less ({QUOTA}: -1 -> 1000)"},
    ]


def test_what_changed_nothing_is_no_event(tmp_path):
    assert events(tmp_path, Adjustment("cgroup", "n", "same", writes=((QUOTA, "-1"),)),
                  Adjustment("evict", "d/web", "full")) == []


def test_an_eviction_is_an_event_with_its_outcome(tmp_path):
    log = AuditLog(AuditSettings(tmp_path), clock=lambda: 0.0)
    audit = AuditEvents(log, clock=lambda: 10**18)
    for outcome, error in ((AttemptOutcome.EVICTED, ""), (AttemptOutcome.BLOCKED, "its budget")):
        audit.attempted(EvictionAttempt("memoryEvict", "d", "web", "u", "full", "90 %", outcome, error))
    assert [json.loads(line)["message"] for line in log.lines()] == ["90 %; blocked: its budget", "90 %; evicted"]
