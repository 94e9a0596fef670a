"""The actions `resctrl`, `blkio` and `sysctl`, and the hysteresis of thresholds and of `suppressCPU`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from koordpolicy.engine.agent.qos_manager.manager import Manager
from koordpolicy.engine.agent.replay import ReplayedRound, replay
from koordpolicy.engine.framework.qos import Host, Storage
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import PolicyError
from tests.builtin_plugins.qos.machine import Machine, pod

DOCUMENT = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: QoSPlugin
metadata: {{name: example}}
spec:
  interval: 1s
  {more}
  actions:
  - name: act
    {action}
"""
HOST = Host(vendor="AuthenticAMD", flags=frozenset(("cat_l3", "mba")), cbm_mask="ff", l3_caches=(0,), storage=Storage(
    devices={"/dev/vda": "8:0"}, claims={"d/claim": "pv"},
    mounts={"/var/lib/kubelet/pods/train/volumes/kubernetes.io~csi/pv/mount": "8:32"},
))
READ = "blkio.throttle.read_iops_device"


def text_of(action: str, more: str = "forEach: node") -> str:
    return DOCUMENT.format(action=action, more=more)


class Node(Machine):
    """A machine on which documents run."""

    def __init__(self, registry: Registry, files: dict[str, str], *pods: dict[str, Any], host: Host = HOST) -> None:
        super().__init__({}, files, host=host, pods=pods)
        self.manager = Manager()
        self.manager.use(registry)

    def round(self) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
        """Run a round; return subject and writes of each adjustment, or the subject of each error with its message."""
        report, _ = self.manager.run("example", self.readings)
        done = self.after(lambda _: report.adjustments)
        return [(subject, writes) for subject, _, writes in done] + [
            (error.subject, ((error.reason, error.message),)) for error in report.errors
        ]

    def leave(self) -> list[tuple[str, bool, tuple[tuple[str, str], ...]]]:
        """Remove the document; return what is recovered."""
        self.manager.use(Registry.of([], generation=2))
        return self.after(lambda readings: [
            each for _, report in self.manager.recover_leaving(self.readings) for each in report.adjustments
        ])


def test_a_class_gets_cache_bandwidth_and_tasks_and_its_lines_back(registry: Callable[..., Registry]) -> None:
    files = {"resctrl/BE/schemata": "L3:0=7f\nMB:0=2048", "besteffort/podtrain/main/tasks": "5",
             "besteffort/podold/main/tasks": "6"}
    action = """resctrl: {catRangeStartPercent: "0", catRangeEndPercent: "50", mbaPercent: "80"}
    when: qosClass == 'BE'"""
    node = Node(registry(text_of(action, "forEach: qosClass")), files, pod("train"), pod("old", phase="Failed"))
    assert node.round() == [("BE", (
        ("resctrl/BE/schemata", "L3:0=f;\n"), ("resctrl/BE/schemata", "MB:0=128;\n"), ("resctrl/BE/tasks", "5"),
    ))]
    assert node.round() == []
    assert node.leave() == [
        ("BE", True, (("resctrl/BE/schemata", "L3:0=7f;\n"), ("resctrl/BE/schemata", "MB:0=2048;\n"))),
    ]
    assert node.files["resctrl/BE/schemata"] == files["resctrl/BE/schemata"]


def test_tasks_of_a_node_are_moved_whatever_the_document_has_moved_on_another_one(
    registry: Callable[..., Registry],
) -> None:
    action = """resctrl: {mbaPercent: "80"}
    when: qosClass == 'BE'"""
    files = {"besteffort/podtrain/main/tasks": "5"}
    one, other = (Node(registry(text_of(action, "forEach: qosClass")), dict(files), pod("train")) for _ in range(2))
    other.manager = one.manager
    other.recording.nodes["n"] = {**other.recording.nodes["n"], "metadata": {"name": "other"}}
    moved = [("BE", (("resctrl/BE/schemata", "MB:0=128;\n"), ("resctrl/BE/tasks", "5")))]
    assert (one.round(), one.round(), other.round(), other.round()) == (moved, [], moved, [])


def test_lse_has_the_group_of_lsr_and_system_none(registry: Callable[..., Registry]) -> None:
    action = 'resctrl: {catRangeEndPercent: "50"}'
    tasks = {f"besteffort/pod{name}/main/tasks": str(number) for number, name in enumerate(("a", "b", "c"))}
    node = Node(registry(text_of(action, "forEach: qosClass")), tasks, pod("a", "LSE"), pod("b", "LSR"),
                pod("c", "SYSTEM"))
    assert node.round() == [
        ("LSE", (("resctrl/LSR/tasks", "0"),)),
        ("LSR", (("resctrl/LSR/schemata", "L3:0=f;\n"), ("resctrl/LSR/tasks", "1"))),
        ("LS", (("resctrl/LS/schemata", "L3:0=f;\n"),)), ("BE", (("resctrl/BE/schemata", "L3:0=f;\n"),)),
    ]
    assert {subject for subject, _, _ in node.leave()} == {"LSR", "LS", "BE"}


def test_a_machine_without_allocation_is_an_error(registry: Callable[..., Registry]) -> None:
    node = Node(registry(text_of('resctrl: {mbaPercent: "50"}\n    when: qosClass == "BE"', "forEach: qosClass")), {},
                host=Host())
    assert node.round() == [
        ("BE", (("Unsupported", "`act` allocates nothing: the processor lacks `cat_l3` and `mba`"),)),
    ]


@pytest.mark.parametrize(("subject", "name", "directory"), [
    ("node", "n", "besteffort"), ("pod", "d/train", "besteffort/podtrain"),
    ("container", "d/train/main", "besteffort/podtrain/main"),
])
def test_a_device_is_limited_for_each_subject_and_gets_its_limits_back(
    registry: Callable[..., Registry], subject: str, name: str, directory: str,
) -> None:
    files = {f"{directory}/{READ}": "8:0 7\n8:16 3", f"{directory}/blkio.cost.weight": "default 100"}
    action = 'blkio: {device: /dev/vda, readIOPS: "1000", writeBPS: "5", ioWeightPercent: "60"}'
    node = Node(registry(text_of(action, f"forEach: {subject}")), files, pod("train"))
    assert node.round() == [(name, (
        (f"{directory}/{READ}", "8:0 1000"), (f"{directory}/blkio.cost.weight", "8:0 60"),
    ))]
    assert node.round() == []
    assert node.leave() == [(name, True, (
        (f"{directory}/{READ}", "8:0 7"), (f"{directory}/blkio.cost.weight", "8:0 100"),
    ))]


def test_a_pods_volume_is_limited_by_its_disk(registry: Callable[..., Registry]) -> None:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "claim"}}
    action = 'blkio: {device: data, kind: PodVolume, readIOPS: "9"}'
    node = Node(registry(text_of(action, "forEach: pod")), {f"besteffort/podtrain/{READ}": ""},
                pod("train", volumes=[volume]), pod("other"))
    assert node.round() == [
        ("d/train", ((f"besteffort/podtrain/{READ}", "8:32 9"),)),
        ("d/other", (("", "the pod has no volume `data`"),)),
    ]
    assert len(node.leave()) == 1


def test_a_setting_gets_its_value_and_its_original_one_back(registry: Callable[..., Registry]) -> None:
    node = Node(registry(text_of('sysctl: {name: vm.swappiness, value: "allocatable.cpu / 1000"}')),
                {"proc/sys/vm/swappiness": "60"})
    assert node.round() == [("n", (("proc/sys/vm/swappiness", "4"),))]
    assert node.round() == []
    assert node.leave() == [("n", True, (("proc/sys/vm/swappiness", "60"),))]


@pytest.mark.parametrize(("value", "files", "error"), [
    ("-allocatable.cpu", {"proc/sys/vm/swappiness": "60"},
     ("", "-4000 is out of range for `vm.swappiness`, which takes 0 to 200")),
    ("allocatable.cpu / 1000", {}, ("Unsupported", "this kernel has no `vm.swappiness`")),
])
def test_a_setting_out_of_range_or_that_the_kernel_lacks_is_an_error(
    registry: Callable[..., Registry], value: str, files: dict[str, str], error: tuple[str, str],
) -> None:
    node = Node(registry(text_of(f'sysctl: {{name: vm.swappiness, value: "{value}"}}')), files)
    assert node.round() == [("n", (error,))]


@pytest.mark.parametrize(("action", "subject", "message", "advice"), [
    ('resctrl: {mbaPercent: "1"}', "node", "`resctrl` belongs to a QoS class", "write `forEach: qosClass`"),
    ("resctrl: {}", "qosClass", "`resctrl` sets nothing", "give it a value such as `mbaPercent`"),
    ('blkio: {device: a, readIOPS: "1"}', "qosClass", "a QoS class has no control group of its own",
     "write `forEach: node` for all best-effort pods, or `forEach: pod` or `container`"),
    ('blkio: {device: a, kind: PodVolume, readIOPS: "1"}', "node", "a node has no volumes of pods",
     "write `forEach: pod` or `container`"),
    ("blkio: {device: a}", "node", "`blkio` sets nothing", "give it a value such as `readIOPS`"),
    ('sysctl: {name: vm.swapiness, value: "1"}', "node", "there is no setting `vm.swapiness`, or it may not be changed",
     "did you mean `vm.swappiness`?"),
    ('sysctl: {name: vm.swappiness, value: "201"}', "node", "201 is out of range for `vm.swappiness`",
     "it takes 0 to 200"),
    ('sysctl: {name: vm.swappiness, value: "1"}', "pod", "`sysctl` changes a whole node", "write `forEach: node`"),
])
def test_an_action_that_means_nothing_is_refused_with_its_place(
    registry: Callable[..., Registry], action: str, subject: str, message: str, advice: str,
) -> None:
    with pytest.raises(PolicyError) as refused:
        registry(text_of(action, f"forEach: {subject}"))
    (problem,) = refused.value.problems
    assert (problem.message, problem.help) == (message, advice)
    assert problem.span is not None
    assert problem.span.place[1] == 9


HOT = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: QoSPlugin
metadata: {name: hot}
spec:
  interval: 1s
  window: 1s
  thresholds:
  - {name: hot, expression: usage.cpu > 5000, for: 1s, holdFor: 4s, coolDown: 2s}
  actions:
  - name: bound
    when: thresholds.hot
    suppressCPU: {target: "3000", policy: CFSQuota}
"""


def held(rounds: list[ReplayedRound]) -> str:
    return "".join("#" if state.holds else "." for each in rounds for state in each.thresholds)


def test_a_threshold_holds_for_its_least_time(registry: Callable[..., Registry], recording: Callable[..., Any]) -> None:
    load = [6, 6, 1, 1, 1, 1, 1, 6, 6, 6, 6, 6, 6, 6, 1, 1]
    rounds = list(replay(recording(*((second, cores * 1000, {}) for second, cores in enumerate(load))), registry(HOT)))
    assert held(rounds) == ".####....#####.."  # usage is the average of two samples


def test_a_cpu_set_that_follows_usage_does_not_flap_within_its_dead_band(registry: Callable[..., Registry]) -> None:
    processors = [{"id": cpu, "core": cpu, "socket": 0, "node": 0} for cpu in range(10)]
    topology = {"metadata": {"annotations": {"node.koordinator.sh/cpu-topology": f'{{"detail": {processors}}}'.replace(
        "'", '"')}}}

    def sets(band: str) -> list[str]:
        action = f'suppressCPU: {{target: "4000 + int(now.getSeconds()) % 2 * 50", {band}}}'
        node = Node(registry(text_of(action)), {"besteffort/cpuset.cpus": "0-4"})
        node.recording.objects["NodeResourceTopology", "n"] = topology
        found = []
        for second in range(4):
            node.now = second * 10**9
            node.round()
            found.append(node.files["besteffort/cpuset.cpus"])
        return found

    assert sets("deadBandPercent: 0") == ["0-3", "0-4", "0-3", "0-4"]
    assert len(set(sets("deadBandPercent: 1"))) == 1
