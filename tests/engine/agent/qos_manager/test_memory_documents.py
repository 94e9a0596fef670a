"""The documents of policies/qos/memory-qos.yaml and the strategy CgroupReconcile set the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.qos.cgroup_reconcile.plugin import CgroupReconcile
from koordpolicy.engine.agent.qos_manager.documents import DocumentStrategy
from koordpolicy.engine.agent.recording import MetricsRecording, RecordedReadings
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.compile import CompiledQoS
from koordpolicy.engine.compile.plugins import compile_documents
from koordpolicy.engine.documents.loader import load_paths
from tests.builtin_plugins.qos.readings import HOST, container, running_pod, slo
from tests.engine.agent.conftest import NODE

POLICY = Path(__file__).parents[4] / "policies" / "qos" / "memory-qos.yaml"
PLUGINS = tuple(compile_documents(load_paths([POLICY])))
NAMES = ("memory.min", "memory.high")


def document_strategies(params: dict[str, int]) -> list[DocumentStrategy]:
    found = []
    for plugin in PLUGINS:
        made = plugin.make(params, None)
        assert isinstance(made, CompiledQoS)
        found.append(DocumentStrategy(made))
    return found


def of(pods: tuple[PodInfo, ...], params: dict[str, int]) -> tuple[MetricsRecording, dict[str, str]]:
    recording = MetricsRecording(nodes={"n": NODE}, pods={"n": {pod.key: pod for pod in pods}}, hosts={"n": HOST},
                                 times=[0])
    recording.objects["NodeSLO", "n"] = slo(resourceQOSStrategy={"lsClass": {"memoryQOS": params}})["NodeSLO"]
    directories = ["guaranteed", "burstable"]
    for pod in pods:
        directories += [f"burstable/pod{pod.uid}", *(f"burstable/pod{pod.uid}/{each['name']}"
                                                     for each in pod.object["spec"]["containers"])]
    return recording, {f"{each}/{name}": "max" if name == "memory.high" else "0"
                       for each in directories for name in NAMES}


def settled(strategies: list[Any], recording: MetricsRecording, files: dict[str, str]) -> dict[str, str]:
    for strategy in strategies:
        for adjustment in strategy.adjust(RecordedReadings(recording, "n", 0, files)):
            files |= dict(adjustment.writes)
    return files


SIZES = st.lists(st.lists(st.tuples(st.integers(0, 4096), st.integers(0, 4096)), min_size=1, max_size=2), max_size=3)


@given(sizes=SIZES, least=st.integers(0, 100), throttle=st.integers(1, 100))
@settings(max_examples=25, deadline=None)
def test_documents_and_strategy_set_the_same_files_and_give_them_back(sizes, least, throttle):
    pods = tuple(
        running_pod(f"p{number}", *(
            container(f"c{place}", requests={"memory": f"{request}Mi"},
                      limits={"memory": f"{request + more}Mi"} if more else {})
            for place, (request, more) in enumerate(of_pod)
        )) for number, of_pod in enumerate(sizes)
    )
    params = {"minLimitPercent": least, "throttlingPercent": throttle}
    recording, before = of(pods, params)
    documents = document_strategies(params)
    files = settled(documents, recording, dict(before))
    strategy = settled([CgroupReconcile({})], recording, dict(before))
    assert files == strategy
    for each in documents:
        for adjustment in each.recover(RecordedReadings(recording, "n", 0, files)):
            files |= dict(adjustment.writes)
    assert files == before
