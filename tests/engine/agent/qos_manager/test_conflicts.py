"""Two writers of one file are found before they run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from koordpolicy.builtin_plugins.qos import PLUGINS
from koordpolicy.engine.agent.qos_manager.conflicts import SHARED, FileWriter, conflicts, writers_of
from koordpolicy.engine.agent.qos_manager.manager import Manager
from koordpolicy.engine.framework.file_sets import FileSet
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import PolicyError

POLICIES = Path(__file__).parents[4] / "policies" / "qos"
DOCUMENT = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: QoSPlugin
metadata: {{name: {name}}}
spec:
  interval: 1s
  {more}
  actions:
  - name: act
    {action}
"""
SWAP = 'sysctl: {name: vm.swappiness, value: "10"}'
QUOTA = 'suppressCPU: {target: "1000", policy: CFSQuota}'
CPUSET = 'suppressCPU: {target: "1000"}'
DISK = 'blkio: {device: /dev/vda, readIOPS: "1"}'

BURST = "cpuBurst: {policy: Auto}"
POD_QUOTA = 'cgroup: {file: cpu.cfs_quota_us, value: "-1"}'
BATCH = "{pods: {labelSelector: {matchLabels: {tier: batch}}}}"
NOT_BATCH = "match: {pods: {labelSelector: {matchExpressions: [{key: tier, operator: NotIn, values: [batch]}]}}}"


def document(name: str, action: str, more: str = "match: {}") -> str:
    return DOCUMENT.format(name=name, action=action, more=more)


def refused(registry: Registry, *enable: str) -> list[str]:
    try:
        Manager(enable=frozenset(enable)).use(registry)
    except PolicyError as error:
        return [problem.message for problem in error.problems]
    return []


@pytest.mark.parametrize(("one", "other", "file"), [
    (document("a", SWAP), document("b", SWAP), "proc/sys/vm/swappiness"),
    (document("a", CPUSET), document("b", CPUSET), "besteffort/cpuset.cpus"),
    (document("a", DISK), document("b", DISK), "besteffort/blkio.throttle.read_iops_device"),
    (document("a", DISK, "forEach: pod"), document("b", DISK, "forEach: pod"),
     "besteffort/POD/blkio.throttle.read_iops_device"),
    (document("a", 'resctrl: {mbaPercent: "10"}', "forEach: qosClass"),
     document("b", 'resctrl: {mbaPercent: "10"}', "forEach: qosClass"), "resctrl/BE/schemata"),
    (document("a", BURST), document("b", POD_QUOTA, f"forEach: pod\n  match: {BATCH}"),
     "besteffort/POD/cpu.cfs_quota_us"),
])
def test_two_documents_that_may_write_one_file_are_refused_with_both_places(
    registry: Callable[..., Registry], one: str, other: str, file: str,
) -> None:
    assert refused(registry(one, other)) == [
        (f"action `act` of `b` may write `{file}`, which action `act` of `a` (0.yaml:8) writes too: "
         "each would undo what the other does"),
    ]


@pytest.mark.parametrize(("one", "other"), [
    (document("a", QUOTA), document("b", CPUSET)),
    (document("a", SWAP), document("b", SWAP.replace("swappiness", "dirty_ratio"))),
    (document("a", DISK), document("b", DISK.replace("vda", "vdb"))),
    (document("a", DISK), document("b", DISK.replace("read", "write"))),
    (document("a", DISK), document("b", DISK, "forEach: pod")),
    (document("a", DISK, "forEach: pod"), document("b", DISK, "forEach: container")),
    (document("a", SWAP, "match: {nodes: {names: [m]}}"), document("b", SWAP, "match: {nodes: {names: [n]}}")),
    (document("a", DISK, "forEach: pod\n  match: {pods: {qosClasses: [BE]}}"),
     document("b", DISK, "forEach: pod\n  match: {pods: {qosClasses: [LS]}}")),
    (document("a", BURST, NOT_BATCH), document("b", POD_QUOTA, f"forEach: pod\n  match: {BATCH}")),
    (document("a", BURST, NOT_BATCH), document("b", POD_QUOTA, f"forEach: container\n  match: {BATCH}")),
    (document("a", SWAP), document("b", SWAP, "enforcement: Audit")),
    (document("a", 'resctrl: {mbaPercent: "10"}', "forEach: qosClass"),
     document("b", 'resctrl: {catRangeEndPercent: "10"}', "forEach: qosClass")),
], ids=["other policy", "other setting", "other disk", "other limit", "tier and pods", "pods and containers",
        "other nodes", "other pods", "other pods of a node", "their containers", "audited", "other line"])
def test_documents_that_certainly_write_different_files_run_together(
    registry: Callable[..., Registry], one: str, other: str,
) -> None:
    assert refused(registry(one, other)) == []


def test_a_document_and_a_strategy_that_may_write_one_file_are_refused(registry: Callable[..., Registry]) -> None:
    documents = registry(document("swap", SWAP), document("a", QUOTA)).plugins.values()
    made = Registry.of((*PLUGINS, *documents), generation=1)
    assert refused(made, "BECPUSuppress", "SystemConfig") == [
        ("action `act` of `a` may write `besteffort/cpu.cfs_quota_us`, which `BECPUSuppress` writes too: "
         "each would undo what the other does"),
    ]
    assert refused(made, "SystemConfig") == []


def test_two_actions_of_one_document_may_write_one_file(registry: Callable[..., Registry]) -> None:
    text = document("a", SWAP) + '  - {name: other, sysctl: {name: vm.swappiness, value: "20"}}\n'
    assert refused(registry(text)) == []


def test_all_built_in_strategies_run_together() -> None:
    writers = [writer for plugin in PLUGINS for writer in writers_of(plugin, None)]
    assert {writer.plugin for writer in writers} >= {"BECPUSuppress", "RdtResctrl", "BlkIOReconcile", "SystemConfig"}
    assert list(conflicts(writers)) == []


@pytest.mark.parametrize("pair", sorted(map(sorted, SHARED)))
def test_pairs_that_share_files_by_design_are_allowed_and_no_other_pair(pair: list[str]) -> None:
    files = (FileSet.of(("besteffort",), ("cpuset.cpus",)),)
    one, other = (FileWriter(name, name, files) for name in pair)
    assert list(conflicts((one, other))) == []
    assert len(list(conflicts((one, FileWriter("Other", "Other", files))))) == 1
    document_in_its_place = FileWriter("mine", pair[0], files)
    assert list(conflicts((document_in_its_place, other))) == []


@pytest.mark.parametrize(("match", "shared"), [
    ("{labelSelector: {matchLabels: {koordinator.sh/qosClass: BE}}}", []),
    ("{qosClasses: [BE]}", []),
    ("{labelSelector: {matchExpressions: [{key: koordinator.sh/qosClass, operator: In, values: [LS, LSR]}]}}",
     ["CPUSetAllocator"]),
    ("{labelSelector: {matchLabels: {koordinator.sh/qosClass: LSE}}, qosClasses: [BE]}", []),
    ("{labelSelector: {matchLabels: {tier: batch}}}", ["CPUSetAllocator"]),
])
def test_a_document_about_pods_that_a_strategy_leaves_alone_runs_beside_it(
    registry: Callable[..., Registry], match: str, shared: list[str],
) -> None:
    text = document("quota", POD_QUOTA, f"forEach: pod\n  match: {{pods: {match}}}")
    made = Registry.of((*PLUGINS, *registry(text).plugins.values()), generation=1)
    assert [name for name in ("CPUSetAllocator",) if refused(made, name)] == shared


def test_the_shipped_documents_run_beside_the_strategies_that_have_none(registry: Callable[..., Registry]) -> None:
    texts = [each.read_text() for each in sorted(POLICIES.glob("*.yaml")) if not each.name.endswith(".test.yaml")]
    replaced = {document["spec"].get("featureGate") for text in texts for document in yaml.safe_load_all(text)}
    others = [plugin.name for plugin in PLUGINS if plugin.name not in replaced]
    assert "CPUSetAllocator" in others
    made = Registry.of((*PLUGINS, *registry(*texts).plugins.values()), generation=1)
    assert refused(made, *others) == []
