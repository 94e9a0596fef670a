"""Every command reports the kinds that policies read and the source lacks, and no eviction depends on them."""

from __future__ import annotations

import json

import pytest

from koordpolicy.builtin_plugins.descheduler import PLUGINS as DESCHEDULER_PLUGINS
from koordpolicy.builtin_plugins.scheduler import PLUGINS, READS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.kinds import Lack, Objects, Read, lacking
from koordpolicy.engine.cluster.sources import files
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.source import Source
from koordpolicy.plugin import python_plugin
from tests.engine.cli.conftest import node, pod

HEAD = (
    "apiVersion: policy.koordinator.sh/v1alpha2\nkind: {kind}\n"
    "metadata: {{name: {name}, annotations: {{policy.koordinator.sh/description: d}}}}\nspec:\n"
)
EVICT = HEAD.format(
    kind="DeschedulerPlugin", name="drain",
) + "  type: Deschedule\n  criteria: [{name: all, expression: 'true'}]\n"
SELECTOR = "{pods: {namespaceSelector: {matchExpressions: [{key: protected, operator: NotIn, values: ['yes']}]}}}"
PROTECTED = EVICT + f"  match: {SELECTOR}\n"
BY_NAME = (
    EVICT
    + "  match: {pods: {namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, "
      "values: [x]}]}}}\n"
)
VETO = HEAD.format(
    kind="DeschedulerPlugin", name="veto",
) + f"  type: EvictionFilter\n  match: {SELECTOR}\n  criteria: [{{name: fine, expression: 'true'}}]\n"
SCHEDULING = HEAD.format(
    kind="SchedulerPlugin", name="cool",
) + "  filter: [{name: cool, expression: '!nodeInfo.measured || usage.cpu < 3000'}]\n"
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"protected": "yes"}}}
OPEN = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}
OWNED = pod("one", "1", "a")
OWNED["metadata"]["ownerReferences"] = [
    {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True},
]
OBJECTS = [node("a"), node("b"), OWNED, pod("two", "1")]
WARNING = (
    "warning: the source of the cluster does not contain {}: add them to it, or do not rely on what these plugins say\n"
)
OF_NAMESPACES = WARNING.format("Namespace (read by `{}`)")
OF_METRICS = WARNING.format("NodeMetric (read by `{}`)")


@pytest.fixture
def dump(tmp_path):
    def write(*more, objects=OBJECTS):
        path = tmp_path / "dump.json"
        path.write_text(
            "---\n" + "\n---\n".join(
                json.dumps(each) for each in [{"apiVersion": "v1", "kind": "List", "items": [*objects]}, *more]
            ),
        )
        return path

    return write


@pytest.fixture
def policies(tmp_path):
    def write(text):
        path = tmp_path / "policies.yaml"
        path.write_text(text)
        return path

    return write


def evictions(run, cluster, policies):
    outcome = run("descheduler", "--once", "--dry-run", "--cluster", cluster, "--policies", policies, "-o", "json")
    data = outcome.json
    kept = {each["pod"]: (each.get("stoppedBy"), each.get("stoppedRule"), each.get("message")) for each in data["kept"]}
    return [each["pod"] for each in data["evicted"]], kept, data.get("lacking"), outcome.err


WHY = "it reads Namespace, which the source of the cluster does not contain"


def test_a_pod_that_a_namespace_may_protect_is_not_evicted_where_the_dump_has_no_namespaces(run, dump, policies):
    assert evictions(run, dump(), policies(PROTECTED)) == (
        [], {"shop/one": ("drain", "lacking", WHY)}, [{"plugin": "drain", "kinds": ["Namespace"]}],
        OF_NAMESPACES.format("drain"),
    )


def test_a_veto_that_cannot_be_decided_is_a_veto(run, dump, policies):
    found = evictions(run, dump(), policies(EVICT + "---\n" + VETO))
    assert found == (
        [], {"shop/one": ("veto", "lacking", WHY)}, [{"plugin": "veto", "kinds": ["Namespace"]}],
        OF_NAMESPACES.format("veto"),
    )


@pytest.mark.parametrize(("more", "evicted"), [
    ([NAMESPACE], []),
    ([OPEN], ["shop/one"]),
    ([{"apiVersion": "v1", "kind": "NamespaceList", "items": []}], ["shop/one"]),
])
def test_a_kind_that_the_dump_contains_is_no_lack_even_where_it_is_empty(run, dump, policies, more, evicted):
    assert evictions(run, dump(*more), policies(PROTECTED)) == (evicted, {}, None, "")


def test_a_selector_of_the_name_alone_reads_no_namespace(run, dump, policies):
    assert evictions(run, dump(), policies(BY_NAME)) == (["shop/one"], {}, None, "")


def test_a_directory_contains_the_kinds_of_all_its_files(tmp_path):
    (tmp_path / "nodes.json").write_text(json.dumps({"kind": "NodeList", "apiVersion": "v1", "items": []}))
    (tmp_path / "pods.json").write_text(json.dumps(pod("one", "1")))
    assert files.load(tmp_path).kinds == {"Node", "Pod"}


LACK = [{"plugin": "cool", "kinds": ["NodeMetric"]}]


@pytest.mark.parametrize(("arguments", "name"), [
    (["scheduler", "--cluster", "DUMP", "--policies", "POLICIES"], "cool"),
    (["explain", "two", "--cluster", "DUMP", "--policies", "POLICIES"], "cool"),
    (["explain", "two", "--cluster", "DUMP", "--policies", "POLICIES", "--node", "a"], "cool"),
    (["audit", "POLICIES", "--cluster", "DUMP"], "cool"),
    (["diff", "/dev/null", "POLICIES", "--cluster", "DUMP"], "cool"),
    (["eval", "usage.cpu", "--cluster", "DUMP"], "the expression"),
    (["eval", "usage.cpu", "--cluster", "DUMP", "--node", "a"], "the expression"),
    (["simulate", "--trace", "PODS", "--nodes", "NODES", "--policies", "POLICIES"], "cool"),
    (["replay", "--trace", "PODS", "--nodes", "NODES", "--policies", "POLICIES"], "cool"),
])
def test_commands_that_decide_say_what_the_source_lacks(run, dump, policies, tmp_path, arguments, name):
    (tmp_path / "pods.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\np,2000,1,0,0,,10,60\n",
    )
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn,64000,262144,1,G2\n")
    places = {
        "DUMP": dump(), "POLICIES": policies(SCHEDULING), "PODS": tmp_path / "pods.csv",
        "NODES": tmp_path / "nodes.csv",
    }
    arguments = [places.get(each, each) for each in arguments]
    text, machine = run(*arguments), run(*arguments, "-o", "json")
    assert text.err == machine.err == OF_METRICS.format(name)
    assert machine.json["lacking"] == [{"plugin": name, "kinds": ["NodeMetric"]}]


def test_a_sweep_over_a_snapshot_says_what_it_lacks(run, dump, policies):
    swept = SCHEDULING.replace("spec:\n", "spec:\n  params: {most: 3000}\n").replace("3000'", "params.most'")
    assert OF_METRICS.format("cool") in run(
        "sweep", "params.most=1000,2000", "--cluster", dump(), "--policies", policies(swept),
    ).err


def test_an_explained_eviction_says_what_the_source_lacks(run, dump, policies):
    arguments = ["explain", "one", "--eviction", "--cluster", dump(), "--policies", policies(PROTECTED)]
    text, machine = run(*arguments), run(*arguments, "-o", "json")
    assert (text.exit, text.err, WHY in text.out) == (5, OF_NAMESPACES.format("drain"), True)
    assert machine.json["lacking"] == [{"plugin": "drain", "kinds": ["Namespace"]}]


QOS = HEAD.format(kind="QoSPlugin", name="trim") + f"""\
  match: {SELECTOR}
  thresholds: [{{name: always, expression: 'true'}}]
  actions: [{{name: out, when: thresholds.always, evict: {{criteria: [{{name: all, expression: 'true'}}]}}}}]
"""


def test_a_qos_policy_evicts_nothing_on_the_ground_of_a_kind_that_the_recording_lacks(run, policies, tmp_path):
    recording = tmp_path / "metrics.yaml"
    item = {**pod("one", "1", "a"), "status": {"phase": "Running"}}
    recording.write_text(
        json.dumps(
            {
                "interval": "2s", "start": "2026-03-02T08:00:00Z", "objects": [node("a"), item],
                "samples": [{"time": "2026-03-02T08:00:00Z", "node": "a", "usage": {"cpu": "1"}}],
            },
        ),
    )
    outcome = run("qos", "--replay", recording, "--policies", policies(QOS), "-o", "json")
    assert outcome.err == OF_NAMESPACES.format("trim")
    assert outcome.json["lacking"] == [{"plugin": "trim", "kinds": ["Namespace"]}]
    assert outcome.json["actions"] == 0
    assert {error["message"] for each in outcome.json["log"] for error in each["errors"]} == {
        f"no pod is evicted, as {WHY}",
    }
    explained = run("explain", "--qos", "a", "--replay", recording, "--policies", policies(QOS), "-o", "json")
    assert explained.err == OF_NAMESPACES.format("trim")
    assert explained.json["lacking"] == [{"plugin": "trim", "kinds": ["Namespace"]}]


@pytest.mark.parametrize(("text", "kinds"), [
    (PROTECTED, ["Namespace"]), (BY_NAME, []), (EVICT, []), (SCHEDULING, ["NodeMetric"]),
    (
        SCHEDULING.replace("!nodeInfo.measured || usage.cpu < 3000", "variables.x > 1").replace(
            "spec:\n", "spec:\n  variables: [{name: x, expression: estimated.cpu}]\n",
        ),
        ["NodeMetric"],
    ),
    (
        SCHEDULING.replace("!nodeInfo.measured || usage.cpu < 3000", "aggregates.x > 1.0").replace(
            "spec:\n", "spec:\n  aggregates: [{name: x, over: nodes, function: avg, expression: metricAge}]\n",
        ),
        ["NodeMetric"],
    ),
    (QOS, ["Namespace"]),
])
def test_a_document_knows_the_kinds_that_it_reads(text, kinds):
    [plugin] = compile_documents(load([Source("p.yaml", text)]))
    assert [read.kind for read in plugin.reads if read.kind not in ("Node", "Pod")] == kinds


def test_built_in_plugins_declare_what_they_read_and_for_which_pods():
    names = {plugin.name: plugin.reads for plugin in PLUGINS}
    own = {"Node", "Pod"}
    assert {name: reads[2:] for name, reads in names.items() if reads[2:]} == READS
    assert {own.issuperset(read.kind for read in reads[:2]) for reads in names.values()} == {True}
    read = {plugin.name: [read.kind for read in plugin.reads] for plugin in DESCHEDULER_PLUGINS if plugin.reads}
    assert read == {
        "LowNodeLoad": ["NodeMetric"],
        "MigrationController": ["PodMigrationJob", "Reservation", "Pod", "PodDisruptionBudget", "ReplicaSet",
                                "Deployment", "StatefulSet", "ReplicationController", "CloneSet"],
    }
    plain = pod("plain", "1")
    term = {"topologyKey": "z", "namespaceSelector": {"matchLabels": {"a": "b"}}}
    special = [
        pod("claim", "1", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]),
        pod(
            "near", "1",
            affinity={
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}],
                },
            },
        ),
        {
            **plain,
            "metadata": {**plain["metadata"], "name": "gang", "labels": {"pod-group.scheduling.sigs.k8s.io": "g"}},
        },
        {
            **plain,
            "metadata": {**plain["metadata"], "name": "quota", "labels": {"quota.scheduling.koordinator.sh/name": "q"}},
        },
        pod("gpu", "1", containers=[{"name": "m", "resources": {"requests": {"koordinator.sh/gpu": "100"}}}]),
    ]
    found = [{lack.plugin: lack.kinds for lack in lacking(names, Cluster(objects, kinds=frozenset({"Node", "Pod"})))}
             for objects in ([plain], *([each] for each in special))]
    always = {"LoadAwareScheduling": ("NodeMetric",)}
    volumes = ("PersistentVolume", "PersistentVolumeClaim", "StorageClass")
    assert found == [
        always, always | {"NodeVolumeLimits": ("CSINode", *volumes), "VolumeBinding": volumes},
        always | {"InterPodAffinity": ("Namespace",)}, always | {"Coscheduling": ("PodGroup",)},
        always | {"ElasticQuota": ("ElasticQuota",)}, always | {"DeviceShare": ("Device",)},
    ]


def test_a_cluster_of_which_nobody_says_what_it_contains_lacks_nothing():
    reads = {"p": (Read("Namespace"),)}
    assert lacking(reads, Cluster()) == ()
    assert lacking(reads, Cluster(kinds=frozenset())) == (Lack("p", ("Namespace",)),)
    assert lacking(reads, Cluster([OPEN], kinds=frozenset())) == ()
    assert Objects.of([OPEN], ["Pod"]).kinds == {"Namespace", "Pod"}


def test_a_python_plugin_declares_what_it_reads():
    class Near:
        def filter_node(self, pod, node):
            return None

    plugin = python_plugin("Near", Framework.SCHEDULER, Near, points=(Point.FILTER,), reads=[Read("Namespace")])
    assert plugin.reads == (Read("Namespace"),)
