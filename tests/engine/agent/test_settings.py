"""Each field of a NodeSLO is read by a plugin that runs, or is reported where it stands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from koordpolicy.builtin_plugins.qos import PLUGINS
from koordpolicy.builtin_plugins.qos.blkio_reconcile.plugin import BlkIOReconcile
from koordpolicy.builtin_plugins.qos.cpu_suppress.plugin import BECPUSuppress
from koordpolicy.builtin_plugins.qos.resctrl_reconcile.plugin import RdtResctrl
from koordpolicy.builtin_plugins.qos.system_reconcile.plugin import SystemConfig
from koordpolicy.engine.agent.metric_cache.series import MetricSeries
from koordpolicy.engine.agent.recording import MetricsRecording, RecordedReadings, load
from koordpolicy.engine.agent.settings import fields_read, running_reads, settings_without_effect
from koordpolicy.engine.cel.values.types import Type
from koordpolicy.engine.cluster.kinds import Read
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load as load_documents
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.qos import Host, Storage
from koordpolicy.engine.framework.registry import Plugin, Registry
from koordpolicy.engine.kubernetes import types
from koordpolicy.engine.kubernetes.unread import FieldPath
from koordpolicy.engine.source import Problem, Source

NODE_SLO = Type("koordinator.NodeSLO")
SPEC = Type("koordinator.NodeSLOSpec")
DOCUMENT = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: QoSPlugin
metadata: {name: squeeze}
spec:
  interval: 1s
  thresholds:
  - {name: full, expression: "%s"}
  actions:
  - name: squeeze
    suppressCPU: {target: "1000"}
"""


def every_field(declared: Type = SPEC, path: FieldPath = ("spec",)) -> Iterator[FieldPath]:
    """Yield the paths of all fields without fields of their own."""
    if declared.name == "list":
        yield from every_field(declared.parameters[0], path)
    elif declared.name in types.load():
        for name, field in types.load()[declared.name].fields.items():
            yield from every_field(field.type, (*path, name))
    else:
        yield path


def with_field(path: FieldPath, declared: Type = NODE_SLO) -> Any:
    """Return an object in which a field says something."""
    if declared.name == "list":
        return [with_field(path, declared.parameters[0])]
    if not path:
        return {"string": "a", "int": 7, "bool": True, "map": {"A": True}}.get(declared.name, "7")
    return {path[0]: with_field(path[1:], types.load()[declared.name].fields[path[0]].type)}


class Observed(dict[str, Any]):
    """A mapping that records the paths that are read of it."""

    def __init__(self, content: Mapping[str, Any], seen: set[FieldPath], path: FieldPath = ()) -> None:
        super().__init__(content)
        self.seen, self.path = seen, path

    def _of(self, name: str, value: Any) -> Any:
        here = (*self.path, name)
        self.seen.add(here)
        if isinstance(value, Mapping):
            return Observed(value, self.seen, here)
        if isinstance(value, list):
            return [Observed(each, self.seen, here) if isinstance(each, Mapping) else each for each in value]
        return value

    def get(self, key: str, default: Any = None) -> Any:
        return self._of(key, super().get(key, default))

    def __getitem__(self, key: str) -> Any:
        return self._of(key, super().__getitem__(key))


def registry_of(expression: str = "") -> Registry:
    documents = load_documents([Source("p.yaml", DOCUMENT % expression)]).documents if expression else ()
    return Registry.of((*PLUGINS, *compile_documents(documents)), generation=1)


def reads_of(registry: Registry, *enable: str) -> tuple[Read, ...]:
    found = running_reads(registry, {}, enable)
    assert found is not None
    return found


def recording(tmp_path: Path, slo: Mapping[str, Any] | str, *, lines: bool = False) -> MetricsRecording:
    node = {"kind": "Node", "metadata": {"name": "n"}, "status": {"capacity": {"cpu": "8"}}}
    sample = {"time": "0s", "node": "n", "usage": {"cpu": 1, "memory": "1Gi"}}
    if lines:
        file = tmp_path / "r.jsonl"
        file.write_text("\n".join([json.dumps(node), slo if isinstance(slo, str) else json.dumps(slo),
                                   json.dumps(sample)]))
    else:
        file = tmp_path / "r.yaml"
        written = slo if isinstance(slo, str) else json.dumps(slo)
        file.write_text(f"objects:\n- {json.dumps(node)}\n- {written}\nsamples:\n- {json.dumps(sample)}\n")
    return load(file)


def places(problems: tuple[Problem, ...]) -> list[tuple[tuple[int, int] | None, str]]:
    return [(each.span.place[1:] if each.span else None, each.message) for each in problems]


@pytest.mark.parametrize("path", [*every_field()], ids=".".join)
def test_each_field_is_read_or_reported(path: FieldPath) -> None:
    reads = reads_of(registry_of(), "BECPUSuppress")
    slo = {"kind": "NodeSLO", "metadata": {"name": "n"}, **with_field(path)}
    problems = settings_without_effect([(slo, None)], reads)
    reported = [name for name in (".".join(path[:length]) for length in range(2, len(path) + 1))
                if f"`{name}`" in "".join(each.message for each in problems)]
    assert (path in fields_read(reads), len(reported)) in ((True, 0), (False, 1))


def test_the_strategy_reads_the_fields_that_it_declares() -> None:
    seen: set[FieldPath] = set()
    slo = {"kind": "NodeSLO", "metadata": {"name": "n"}, "spec": {
        "resourceUsedThresholdWithBE": {
            "enable": True, "cpuSuppressThresholdPercent": 65, "cpuSuppressMinPercent": 1,
            "cpuSuppressPolicy": "cfsQuota",
        },
        "hostApplications": [{"name": "a", "qos": "BE", "cgroupPath": {"base": "KubepodsBesteffort"}}],
    }}
    recorded = MetricsRecording(nodes={"n": {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "8"}}}})
    recorded.objects["NodeSLO", "n"] = Observed(slo, seen)
    recorded.pods["n"] = {"d/p": PodInfo.of({
        "metadata": {"name": "p", "namespace": "d"}, "spec": {"nodeName": "n", "containers": [{"name": "c"}]},
    })}
    for what, name in (("node", "n"), ("application", "a")):
        recorded.series["n", what, name] = {"cpu": MetricSeries([0], [1000])}
    BECPUSuppress({}).adjust(RecordedReadings(recorded, "n", 0, {}))
    leaves = {path for path in seen if not any(other[:len(path)] == path != other for other in seen)} - {("kind",)}
    plugin = next(each for each in PLUGINS if each.name == "BECPUSuppress")
    assert leaves == fields_read(plugin.reads)


IO = dict.fromkeys((
    "readIOPS", "writeIOPS", "readBPS", "writeBPS", "ioWeightPercent", "readLatency", "readLatencyPercent",
    "writeLatency", "writeLatencyPercent", "modelReadBPS", "modelReadSeqIOPS", "modelReadRandIOPS", "modelWriteBPS",
    "modelWriteSeqIOPS", "modelWriteRandIOPS",
), 1)
CLASS = {
    "resctrlQOS": {"enable": True, "catRangeStartPercent": 0, "catRangeEndPercent": 100, "mbaPercent": 100},
    "blkioQOS": {"enable": True, "blocks": [
        {"name": "vda", "type": "device", "ioCfg": {**IO, "enableUserModel": True}},
    ]},
}


@pytest.mark.parametrize("strategy", [RdtResctrl, BlkIOReconcile, SystemConfig])
def test_other_strategies_read_the_fields_that_they_declare(strategy: Any) -> None:
    seen: set[FieldPath] = set()
    slo = {"kind": "NodeSLO", "metadata": {"name": "n"}, "spec": {
        "resourceQOSStrategy": dict.fromkeys(("lsrClass", "lsClass", "beClass", "systemClass", "cgroupRoot"), CLASS),
        "systemStrategy": {
            "minFreeKbytesFactor": 1, "watermarkScaleFactor": 10, "memcgReapBackGround": 1,
            "schedGroupIdentityEnabled": 1, "schedIdleSaverWmark": 1, "pageCacheLimitEnabled": 1, "schedFeatures": {},
        },
    }}
    recorded = MetricsRecording(nodes={"n": {"metadata": {"name": "n"}, "status": {"capacity": {"memory": "8Gi"}}}})
    recorded.objects["NodeSLO", "n"] = Observed(slo, seen)
    recorded.hosts["n"] = Host(vendor="GenuineIntel", flags=frozenset(("cat_l3", "mba")), cbm_mask="ff",
                               l3_caches=(0,), storage=Storage(devices={"vda": "8:0"}))
    files = {"sys/kernel/debug/sched_features": ""}
    strategy({}).adjust(RecordedReadings(recorded, "n", 0, files))
    leaves = {path for path in seen if not any(other[:len(path)] == path != other for other in seen)} - {("kind",)}
    plugin = next(each for each in PLUGINS if each.name == strategy.name)
    assert leaves == fields_read(plugin.reads)


def test_a_field_that_an_expression_reads_is_used(tmp_path: Path) -> None:
    of = recording(tmp_path, "{kind: NodeSLO, metadata: {name: n}, spec: {cpuBurstStrategy: {policy: auto,\n"
                             "    cpuBurstPercent: 7}, systemStrategy: {schedIdleSaverWmark: 1}}}")
    registry = registry_of("nodeSLO.spec.cpuBurstStrategy.cpuBurstPercent > 5")
    assert places(settings_without_effect(of.settings, reads_of(registry))) == [
        ((3, 66), "NodeSLO `n`: `spec.cpuBurstStrategy.policy` has no effect: no QoS plugin that runs reads it"),
        ((4, 26), "NodeSLO `n`: `spec.systemStrategy` has no effect: no QoS plugin that runs reads it"),
    ]


@pytest.mark.parametrize("lines", [False, True])
def test_an_unknown_field_is_reported_where_it_stands(tmp_path: Path, *, lines: bool) -> None:
    text = '{"kind": "NodeSLO", "metadata": {"name": "n"}, "spec": {"resourceUsedThresholdWithBe": {"enable": true}}}'
    (problem,) = settings_without_effect(
        recording(tmp_path, text, lines=lines).settings, reads_of(registry_of(), "BECPUSuppress"),
    )
    assert (problem.message, problem.help, problem.code, problem.severity.name) == (
        "NodeSLO `n`: there is no field `spec.resourceUsedThresholdWithBe`",
        "did you mean `resourceUsedThresholdWithBE`?", "unknown-field", "WARNING",
    )
    assert problem.span is not None
    assert problem.span.place[1:] == ((2, 57) if lines else (3, 59))
    root = problem.span.root()
    assert root.source.text[root.start:root.end] == '"resourceUsedThresholdWithBe"'


def test_what_several_objects_set_is_reported_once() -> None:
    slos = [({"kind": "NodeSLO", "metadata": {"name": name}, "spec": {"extensions": {"a": 1}}}, None) for name in "abc"]
    assert places(settings_without_effect(slos, ())) == [
        (None, "NodeSLO `a` and 2 more: `spec` has no effect: no QoS plugin that runs reads it"),
    ]


def test_the_configmap_that_node_slos_are_made_of_has_no_effect(tmp_path: Path) -> None:
    of = recording(tmp_path, "{kind: ConfigMap, metadata: {name: slo-controller-config}, data: {a: b}}")
    assert places(settings_without_effect(of.settings, ())) == [
        ((3, 3), ("the ConfigMap `slo-controller-config` has no effect: NodeSLOs are taken as they are, and none is "
                  "made of it")),
    ]


def test_a_plugin_that_does_not_declare_its_fields_may_read_all_of_them() -> None:
    slo = {"kind": "NodeSLO", "metadata": {"name": "n"}, "spec": {"extensions": {"a": 1}, "extension": 1}}
    assert [each.code for each in settings_without_effect([(slo, None)], [Read("NodeSLO")])] == ["unknown-field"]
    assert [each.code for each in settings_without_effect([(slo, None)], [Read("Device")])] == ["no-effect"]


def test_nothing_is_read_where_no_plugin_runs() -> None:
    assert running_reads(registry_of(), {}) is None
    assert running_reads(registry_of(), {"BECPUSuppress": False}, ["BECPUSuppress"]) is None
    assert isinstance(PLUGINS[0], Plugin)
    assert PLUGINS[0].framework is Framework.QOS
