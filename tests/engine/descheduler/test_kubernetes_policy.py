from __future__ import annotations

import pytest

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.builtin_plugins.descheduler.pod_life_time.args import STATES
from koordpolicy.engine.descheduler import config
from koordpolicy.engine.descheduler.limits import CycleLimits
from koordpolicy.engine.descheduler.profile import DeschedulerProfileSpec, build_profiles
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import PolicyError, Source

HEAD = "apiVersion: descheduler/v1alpha2\nkind: DeschedulerPolicy\n"
ONE_OF = f"states must be one of [{' '.join(STATES)}]"
THRESHOLD = {"priorityThreshold": {"value": 2_000_000_000}}


def read(text: str) -> config.DeschedulerConfiguration:
    return config.read(Source("p.yaml", HEAD + text))


def problems(text: str) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        build_profiles(
            config.read(Source("p.yaml", text)).profiles, Registry.of(PLUGINS, generation=1), dry_run=True)
    return [problem.render().split("\n")[0] for problem in caught.value.problems]


def test_a_policy_of_kubernetes_is_read_as_it_is():
    found = read("""\
nodeSelector: pool in (a,b),!gpu
maxNoOfPodsToEvictPerNode: 2
maxNoOfPodsToEvictPerNamespace: 3
maxNoOfPodsToEvictTotal: 4
gracePeriodSeconds: 0
evictionFailureEventNotification: true
profiles:
- name: one
  pluginConfig:
  - name: DefaultEvictor
    args: {nodeFit: true, priorityThreshold: {name: high}}
  - {name: PodLifeTime, args: {maxPodLifeTimeSeconds: 60}}
  - {name: RemoveDuplicates}
  plugins:
    deschedule: {enabled: [PodLifeTime]}
    balance: {enabled: [RemoveDuplicates], disabled: [drain-hot-nodes]}
    filter: {enabled: [DefaultEvictor, mine]}
    preevictionfilter: {enabled: [MigrationController]}
- name: two
""")
    assert (found.interval, found.limits) == (0, CycleLimits(2, 3, 4))
    assert found.node_selector == {"matchExpressions": [
        {"key": "pool", "operator": "In", "values": ["a", "b"]}, {"key": "gpu", "operator": "DoesNotExist"},
    ]}
    assert found.profiles == (
        DeschedulerProfileSpec(
            "one", deschedule=("PodLifeTime",), balance=("RemoveDuplicates",), evict=("DefaultEvictor",),
            filter=("DefaultEvictor", "mine", "MigrationController"), disabled=frozenset({"drain-hot-nodes"}),
            args={
                "DefaultEvictor": {"nodeFit": True, "priorityThreshold": {"name": "high"}},
                "PodLifeTime": {"maxPodLifeTimeSeconds": 60}, "RemoveDuplicates": {},
            },
            configured=("DefaultEvictor", "PodLifeTime", "RemoveDuplicates"), grace_period_s=0, reports_failures=True,
        ),
        DeschedulerProfileSpec(
            "two", evict=("DefaultEvictor",), filter=("DefaultEvictor",), args={"DefaultEvictor": THRESHOLD},
            configured=("DefaultEvictor",), grace_period_s=0, reports_failures=True,
        ),
    )


@pytest.mark.parametrize("text", ["", "profiles: null\n", "profiles: []\n", "profiles: [{}]\n", "nodeSelector: null\n"])
def test_without_profiles_there_is_one_with_the_default_evictor(text):
    assert read(text).profiles == (DeschedulerProfileSpec(
        "descheduler", evict=("DefaultEvictor",), filter=("DefaultEvictor",), args={"DefaultEvictor": THRESHOLD},
        configured=("DefaultEvictor",),
    ),)


@pytest.mark.parametrize("args", [
    "{evictLocalStoragePods: true, evictDaemonSetPods: true, evictSystemCriticalPods: true, evictFailedBarePods: true}",
    "{ignorePvcPods: true, ignorePodsWithoutPDB: true, minReplicas: 2, minPodAge: 1h30m, nodeSelector: pool=a}",
    ("{podProtections: {defaultDisabled: [DaemonSetPods], extraEnabled: [PodsWithPVC, PodsWithResourceClaims], config: "
    "{PodsWithPVC: {protectedStorageClasses: [{name: ssd}]}}}}"),
    "{apiVersion: descheduler/v1alpha2, kind: DefaultEvictorArgs, priorityThreshold: {value: 5}, labelSelector: null}",
    "null",
])
def test_the_evictor_takes_all_written_forms_of_its_arguments(args):
    found = read(f"profiles: [{{name: p, pluginConfig: [{{name: DefaultEvictor, args: {args}}}]}}]\n")
    (profile,) = build_profiles(found.profiles, Registry.of(PLUGINS, generation=1), dry_run=True)
    assert [each.name for each in profile.filters] == ["DefaultEvictor"]


def test_fields_without_effect_are_warnings_with_their_place():
    found = read("""\
metricsProviders:
- source: KubernetesMetrics
- source: Prometheus
  prometheus: {url: http://prometheus, authToken: {secretReference: {namespace: a, name: b}}}
profiles:
- plugins:
    sort: {enabled: [a]}
    presort: {}
""")
    metrics = "a plugin whose arguments name KubernetesMetrics reads NodeMetrics and PodMetrics anyway"
    assert [each.render().split("\n")[0] for each in found.warnings] == [
        f"p.yaml:4:3: warning: metricsProviders[0].source has no effect: {metrics}",
        ("p.yaml:6:40: warning: metricsProviders[1].prometheus.authToken has no effect: Secrets are not read: mount "
        "it, and name the file in the plugin's arguments, as `metricsUtilization.prometheus.tokenFile`"),
        ("p.yaml:9:5: warning: profiles[0].plugins.sort has no effect: Kubernetes' descheduler has no plugin of this "
        "point"),
    ]


def test_the_server_of_prometheus_is_an_argument_of_the_plugins_that_query_it_unless_they_name_one():
    query = "{name: LowNodeUtilization, args: {metricsUtilization: {source: Prometheus, prometheus: {query: load}}}}"
    found = read(f"""\
metricsProviders:
- {{source: Prometheus, prometheus: {{url: "http://one"}}}}
profiles:
- name: a
  pluginConfig: [{query}, {{name: PodLifeTime, args: {{maxPodLifeTimeSeconds: 5}}}}]
- name: b
  pluginConfig: [{query.replace("query: load", "query: load, url: 'https://two', tokenFile: /token")}]
""")
    assert [each.args["LowNodeUtilization"]["metricsUtilization"]["prometheus"] for each in found.profiles] == [
        {"query": "load", "url": "http://one"}, {"query": "load", "url": "https://two", "tokenFile": "/token"}]
    assert found.profiles[0].args["PodLifeTime"] == {"maxPodLifeTimeSeconds": 5}


def test_decoding_is_strict_and_all_faults_have_their_place():
    assert problems(HEAD + """\
deschedulingInterval: 5m
nodeSelector: {a: b}
maxNoOfPodsToEvictPerNode: -1
maxNoOfPodsToEvictTotal: 1.5
gracePeriodSeconds: "60"
tracing: {}
metricsProviders: [{source: Graphite}]
profiles:
- name: 5
  nodeSelector: a=b
  pluginConfig:
  - {name: PodLifeTime, args: {maxPodLifeTimeSeconds: "60", podStatusPhases: [Running]}}
  - {args: {}}
  - []
  plugins:
    preEvictionFilter: {enabled: [x]}
    deschedule: {enabled: [{name: PodLifeTime}]}
    balance: [RemoveDuplicates]
""") == [
        "p.yaml:3:1: error: unknown field `deschedulingInterval`",
        "p.yaml:4:15: error: `nodeSelector` is a mapping, not a string or nothing",
        "p.yaml:5:28: error: `maxNoOfPodsToEvictPerNode` is -1",
        "p.yaml:6:26: error: `maxNoOfPodsToEvictTotal` is the number `1.5`, not a whole number or nothing",
        "p.yaml:7:21: error: `gracePeriodSeconds` is the string `60`, not a whole number or nothing",
        "p.yaml:8:1: error: unknown field `tracing`",
        "p.yaml:9:29: error: `Graphite` is not a value of `metricsProviders[0].source`",
        "p.yaml:11:9: error: `profiles[0].name` is the number `5`, not a string",
        "p.yaml:12:3: error: unknown field `nodeSelector` in `profiles[0]`",
        "p.yaml:14:55: error: `maxPodLifeTimeSeconds` is the string `60`, not a whole number",
        "p.yaml:14:61: error: unknown field `podStatusPhases`",
        "p.yaml:15:5: error: missing field `name` in `profiles[0].pluginConfig[1]`",
        "p.yaml:16:5: error: `profiles[0].pluginConfig[2]` is a list, not a mapping",
        "p.yaml:18:5: error: unknown field `preEvictionFilter` in `profiles[0].plugins`",
        "p.yaml:19:28: error: `profiles[0].plugins.deschedule.enabled[0]` is a mapping, not a string",
        "p.yaml:20:14: error: `profiles[0].plugins.balance` is a list, not a mapping",
    ]


def test_faults_beyond_the_schema_have_their_place_too():
    assert problems(HEAD + """\
nodeSelector: a=b c
metricsCollector: {enabled: true}
metricsProviders:
- source: KubernetesMetrics
- source: KubernetesMetrics
- source: Prometheus
profiles:
- name: a
  pluginConfig: [{name: PodLifeTime}, {name: PodLifeTime}]
- name: a
- {}
""") == [
        ("p.yaml:3:1: error: nodeSelector: `a=b c` is malformed from `a=b c` on: write a label selector such as "
        "`a=b,c!=d,e in (f,g),!h`"),
        "p.yaml:4:20: error: it is not allowed to combine metrics provider when metrics collector is enabled",
        ('p.yaml:7:3: error: metric provider "KubernetesMetrics" is already configured, each source can be configured '
        "only once"),
        "p.yaml:8:3: error: prometheus configuration is required when prometheus source is enabled",
        "p.yaml:11:39: error: profiles[0].pluginConfig[1]: Duplicate value: `PodLifeTime` is configured twice",
        "p.yaml:12:3: error: profiles[1].name: Duplicate value: `a` names an earlier profile too",
        "p.yaml:13:3: error: profiles[2].name: Required value: each of several profiles needs a name",
    ]


def test_faults_of_plugins_name_their_place():
    assert problems(HEAD + """\
profiles:
- name: p
  pluginConfig:
  - {name: PodLifeTime, args: {states: [Sleeping]}}
  - {name: PodLifetime, args: {}}
  - {name: RemovePodsViolatingNodeTaints}
  plugins:
    deschedule: {enabled: [PodLifeTime, RemoveDuplicates, RemoveFailedPod]}
    preevictionfilter: {enabled: [RemovePodsViolatingNodeTaints]}
    balance: {enabled: [RemoveDuplicates, RemoveDuplicates], disabled: [gone]}
""") == [
        f"p.yaml:6:32: error: profile `p`: initializing plugin `PodLifeTime`: states: {ONE_OF}",
        "p.yaml:7:12: error: profile `p`: it has arguments for the plugin `PodLifetime`, which does not exist",
        "p.yaml:10:41: error: profile `p`: plugin `RemoveDuplicates` does not extend DeschedulePlugin plugin",
        "p.yaml:10:59: error: profile `p`: DeschedulePlugin `RemoveFailedPod` does not exist",
        "p.yaml:11:35: error: profile `p`: plugin `RemovePodsViolatingNodeTaints` does not extend FilterPlugin plugin",
        "p.yaml:12:43: error: profile `p`: plugin `RemoveDuplicates` already registered as `BalancePlugin`",
        "p.yaml:12:73: error: profile `p`: it disables the plugin `gone`, which does not exist",
    ]


def test_a_field_of_a_former_version_of_arguments_leads_to_its_name_now():
    with pytest.raises(PolicyError) as refused:
        read("""\
profiles:
- name: p
  pluginConfig:
  - {name: PodLifeTime, args: {podStatusPhases: [Running]}}
""")
    assert [(each.message, each.help) for each in refused.value.problems] == [
        ("unknown field `podStatusPhases`", "did you mean `states`?")]


def test_arguments_under_a_misspelt_name_are_named_before_what_follows_from_them():
    assert problems(HEAD + """\
profiles:
- name: p
  pluginConfig:
  - name: PodLiveTime
    args: {maxPodLifeTimeSeconds: 5}
  plugins:
    deschedule: {enabled: [PodLifeTime]}
""") == [
        "p.yaml:6:11: error: profile `p`: it has arguments for the plugin `PodLiveTime`, which does not exist",
        ("p.yaml:9:28: error: profile `p`: initializing plugin `PodLifeTime`: at least one filtering criterion must be "
         "specified (maxPodLifeTimeSeconds, states, conditions, or exitCodes)"),
    ]


@pytest.mark.parametrize(("text", "message"), [
    ("", "a configuration file holds one document, not 0"),
    ("hello", "this is not a"),
    ("- a", "this is not a"),
    ("kind: DeschedulerPolicy\n", "does not say `apiVersion` and `kind`"),
    ("apiVersion: descheduler/v9\nkind: DeschedulerPolicy\n", "no kind `DeschedulerPolicy` is registered for version"),
    ("apiVersion: descheduler/v1alpha1\nkind: DeschedulerPolicy\nstrategies: {}\n", "no kind `DeschedulerPolicy`"),
    ("apiVersion: descheduler/v1alpha2\nkind: Policy\n", "couldn't decode as"),
    (HEAD + "---\n" + HEAD, "holds one document, not 2"),
    (HEAD + "profiles: [}\n", "p.yaml:3:"),
    (HEAD + "profiles: {}\n", "`profiles` is a mapping, not a list or nothing"),
    (HEAD + "kind: DeschedulerPolicy\n", "kind"),
    (HEAD + f"profiles: {'[' * 5_000}\n", "p.yaml:"),
    (HEAD + "nodeSelector: " + "a=b," * 2_000 + "=\n", "nodeSelector"),
    (HEAD + "x: &a [*a]\n", "p.yaml:3:"),
    (HEAD + "profiles: [{name: !!python/object:os.system p}]\n", "p.yaml:3:"),
    (HEAD + 'nodeSelector: "\\u0000"\n', "nodeSelector"),
])
def test_what_is_no_policy_is_refused(text, message):
    (first, *_) = problems(text)
    assert message in first
