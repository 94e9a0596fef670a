"""Settings among fixtures that no QoS plugin of the suite reads are reported where they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from koordpolicy.engine.testing.cases import run_case
from koordpolicy.engine.testing.settings import fixtures_without_effect
from koordpolicy.engine.testing.suites import LoadedSuites, cases_of

SQUEEZE = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: QoSPlugin
metadata: {name: squeeze}
spec:
  interval: 1s
  window: 1s
  thresholds:
  - {name: full, expression: usage.cpu > nodeSLO.spec.cpuBurstStrategy.cpuBurstPercent}
  actions:
  - name: squeeze
    suppressCPU: {target: "1000"}
"""
BURST = "cpuBurstStrategy: {cpuBurstPercent: 60, policy: auto}"
SLO = f"{{apiVersion: slo.koordinator.sh/v1alpha1, kind: NodeSLO, metadata: {{name: n}}, spec: {{{BURST}}}}}"
CONFIG = "{apiVersion: v1, kind: ConfigMap, metadata: {name: slo-controller-config}, data: {a: b}}"
CASES = "- {name: one, metrics: [{for: 2s, usage: {cpu: 1}}], rounds: [{at: 1s, true: [full]}]}\n"
UNREAD = "NodeSLO `n`: `spec.cpuBurstStrategy.policy` has no effect: no QoS plugin that runs reads it"


def head(fixtures: str) -> str:
    return f"fixtures:\n  nodes: {{n: {{}}}}\n  {fixtures}\n"


def reported(loaded: LoadedSuites) -> list[tuple[Any, str, str]]:
    return [(each.span.place[1:] if each.span else None, each.message, each.severity.name)
            for each in fixtures_without_effect(loaded.suites)]


def test_a_setting_among_the_objects_of_a_suite_is_reported_where_it_is_written(load: Any) -> None:
    loaded = load(CASES, head=head(f"objects: [{SLO}, {CONFIG}]"), policies=SQUEEZE)
    at = head(f"objects: [{SLO}, {CONFIG}]").splitlines()[2]
    assert reported(loaded) == [
        ((7, at.index("{apiVersion: v1,") + 3),
         "the ConfigMap `slo-controller-config` has no effect: NodeSLOs are taken as they are, and none is made of it",
         "WARNING"),
        ((7, at.index("policy") + 3), UNREAD, "WARNING"),
    ]
    assert [run_case(suite, case).mismatches for suite, case in cases_of(loaded.suites)] == [()]


@pytest.mark.parametrize("text", [SLO, f"{{apiVersion: v1, kind: List, items: [{SLO}]}}"])
def test_a_setting_in_a_file_of_a_suite_is_reported_where_it_is_written(load: Any, tmp_path: Path, text: str) -> None:
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "slo.yaml").write_text(text)
    loaded = load(CASES, head=head("files: [dump]"), policies=SQUEEZE)
    assert reported(loaded) == [((1, text.index("policy") + 1), UNREAD, "WARNING")]


def test_nothing_is_reported_where_the_suite_has_no_qos_plugin(load: Any) -> None:
    loaded = load("- {name: one, pod: {}, filter: pass}\n", head="plugin: hot\n" + head(f"objects: [{SLO}]"))
    assert reported(loaded) == []
