"""The shipped documents of reconcilers set the same files as the strategies, and give them back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.qos.batch_resource.plugin import BatchResource
from koordpolicy.builtin_plugins.qos.group_identity.plugin import GroupIdentity
from koordpolicy.engine.agent.qos_manager.documents import DocumentStrategy
from koordpolicy.engine.agent.recording import MetricsRecording, RecordedReadings
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.compile import CompiledQoS
from koordpolicy.engine.compile.plugins import compile_documents
from koordpolicy.engine.documents.loader import load_paths
from koordpolicy.engine.framework.qos import Adjustment
from tests.builtin_plugins.qos.readings import HOST, container, running_pod, slo
from tests.engine.agent.conftest import NODE

POLICIES = Path(__file__).parents[3] / "policies" / "qos"
BATCH_FILES = {"cpu.shares": "2", "cpu.cfs_quota_us": "-1", "memory.limit_in_bytes": "9223372036854771712"}
IDENTITY = "cpu.bvt_warp_ns"
SWITCH = "proc/sys/kernel/sched_group_identity_enabled"


def documents(name: str, **params: Any) -> list[DocumentStrategy]:
    found = []
    for plugin in sorted(compile_documents(load_paths([POLICIES / name])), key=lambda each: (each.order, each.name)):
        assert plugin.check_args is not None
        declared = plugin.check_args({})
        made = plugin.make({**declared, **{each: params[each] for each in declared if each in params}}, None)
        assert isinstance(made, CompiledQoS)
        found.append(DocumentStrategy(made))
    return found


def directories(pods: tuple[PodInfo, ...]) -> list[str]:
    tiers = {"Guaranteed": "guaranteed", "Burstable": "burstable", "BestEffort": "besteffort"}
    found = list(tiers.values())
    for pod in pods:
        directory = f"{tiers[pod.kubernetes_qos]}/pod{pod.uid}"
        found += [directory, *(f"{directory}/{each['name']}" for each in pod.object["spec"]["containers"])]
    return found


def recording_of(pods: tuple[PodInfo, ...], **sections: Any) -> MetricsRecording:
    recording = MetricsRecording(nodes={"n": NODE}, pods={"n": {pod.key: pod for pod in pods}}, hosts={"n": HOST},
                                 times=[0])
    recording.objects["NodeSLO", "n"] = slo(**sections)["NodeSLO"]
    return recording


def written(recording: MetricsRecording, files: Mapping[str, str], rounds: Any) -> dict[str, str]:
    """The files after one call of each function that returns adjustments."""
    found = dict(files)
    for each in rounds:
        adjustments: list[Adjustment] = each(RecordedReadings(recording, "n", 0, found))
        for adjustment in adjustments:
            found |= dict(adjustment.writes)
    return found


def check(strategy: Any, documented: list[DocumentStrategy], recording: MetricsRecording,
          files: Mapping[str, str]) -> None:
    by_strategy = written(recording, files, [strategy.adjust])
    by_documents = written(recording, files, [each.adjust for each in documented])
    assert by_documents == by_strategy
    assert written(recording, by_documents, [each.recover for each in reversed(documented)]) == files
    assert written(recording, by_strategy, [strategy.recover]) == files


AMOUNTS = st.sampled_from([None, 0, 5, 500, 1500, 300_000])
CONTAINERS = st.lists(st.tuples(AMOUNTS, AMOUNTS, AMOUNTS), min_size=1, max_size=3)
QOS = st.sampled_from(["BE", "BE", "LS", ""])
PHASE = st.sampled_from(["Running", "Running", "Pending", "Failed"])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(CONTAINERS, QOS, PHASE), max_size=3))
def test_best_effort_pods_have_the_same_batch_resources(pods):
    def made(name: str, request: int | None, cpu: int | None, memory: int | None) -> dict[str, Any]:
        def of(**amounts: int | None) -> dict[str, str]:
            return {f"kubernetes.io/batch-{each}": str(amount) for each, amount in amounts.items()
                    if amount is not None}

        return container(name, requests=of(cpu=request), limits=of(cpu=cpu, memory=memory))

    read = tuple(running_pod(f"p{number}", *(made(f"c{at}", *each) for at, each in enumerate(containers)),
                             qos=qos, kube="BestEffort", phase=phase)
                 for number, (containers, qos, phase) in enumerate(pods))
    files = {f"{directory}/{name}": text for directory in directories(read) for name, text in BATCH_FILES.items()}
    check(BatchResource({}), documents("batch-resources.yaml"), recording_of(read), files)


CLASSES = st.tuples(st.sampled_from(["LSE", "LSR", "LS", "BE", "SYSTEM", ""]),
                    st.sampled_from(["Guaranteed", "Burstable", "BestEffort"]), PHASE)


@settings(max_examples=50, deadline=None)
@given(st.lists(CLASSES, max_size=4), st.integers(1, 2), st.integers(1, 2), st.integers(-1, 0))
def test_tiers_and_pods_have_the_same_group_identity(pods, lsr, ls, be):
    read = tuple(running_pod(f"p{number}", container("c"), qos=qos, kube=kube, phase=phase)
                 for number, (qos, kube, phase) in enumerate(pods))
    files = {f"{directory}/{IDENTITY}": "1" for directory in directories(read)} | {SWITCH: "0"}
    strategy = {f"{name}Class": {"cpuQOS": {"enable": True, "groupIdentity": value}}
                for name, value in (("lsr", lsr), ("ls", ls), ("be", be))}
    check(GroupIdentity({}), documents("group-identity.yaml", lsr=lsr, ls=ls, be=be),
          recording_of(read, resourceQOSStrategy=strategy), files)
