from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.engine.descheduler import config
from koordpolicy.engine.descheduler.arguments import complete, read_low_node_load
from koordpolicy.engine.descheduler.limits import CycleLimits
from koordpolicy.engine.descheduler.profile import DeschedulerProfileSpec, build_profiles
from koordpolicy.engine.documents.validation import validate_plain
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import PolicyError, Source
from koordpolicy.plugin import python_plugin

PROJECT = Path(__file__).parents[3]
HEAD = "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\n"


def read(text: str) -> config.DeschedulerConfiguration:
    return config.read(Source("c.yaml", HEAD + text))


def complaints(text: str) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        config.read(Source("c.yaml", text))
    return [problem.render().split("\n")[0] for problem in caught.value.problems]


def test_an_empty_configuration_has_koordinators_defaults():
    found = read("")
    assert found.profiles == (DeschedulerProfileSpec(
        "koord-descheduler", evict=("MigrationController",), filter=("MigrationController",),
    ),)
    assert {key: value for key, value in found.plain.items() if key not in ("profiles", "clientConnection")} == {
        "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration",
        "leaderElection": {
            "leaderElect": True, "leaseDuration": 15 * 10**9, "renewDeadline": 10 * 10**9, "retryPeriod": 2 * 10**9,
            "resourceLock": "leases", "resourceName": "koord-descheduler", "resourceNamespace": "koordinator-system",
        },
        "enableProfiling": True, "enableContentionProfiling": True, "deschedulingInterval": 0, "dryRun": False,
        "healthzBindAddress": "0.0.0.0:10251", "metricsBindAddress": "0.0.0.0:10251",
    }


def test_without_a_file_pods_migrate_without_reservations():
    (profile,) = config.default().profiles
    assert profile.args == {"MigrationController": {"defaultJobMode": "EvictDirectly"}}
    (of_empty_file,) = read("").profiles
    assert replace(profile, args={}, configured=()) == replace(of_empty_file, args={}, configured=())


def test_the_example_is_read_and_its_arguments_are_in_internal_form():
    found = config.load(PROJECT / "examples" / "10-descheduler" / "config.yaml")
    (profile,) = found.profiles
    assert (found.interval, found.dry_run, found.limits) == (30 * 10**9, True, CycleLimits(3, None, 25))
    assert (profile.balance, profile.complete) == (("LowNodeLoad",), frozenset(("LowNodeLoad",)))
    assert [pool["name"] for pool in profile.args["LowNodeLoad"]["nodePools"]] == ["__default_node_pool__"]
    assert read_low_node_load(profile.args["LowNodeLoad"]).pools[0].high == {"cpu": 75, "memory": 80}


@pytest.mark.parametrize(("given", "names"), [
    ("{}", ["MigrationController"]),
    ("{enabled: [{name: A}, {name: MigrationController}]}", ["MigrationController", "A"]),
    ("{disabled: [{name: '*'}], enabled: [{name: A}]}", ["A"]),
    ("{disabled: [{name: MigrationController}], enabled: [{name: A}, {name: MigrationController}]}",
     ["A", "MigrationController"]),
    ("{enabled: [{name: A}, {name: A}]}", ["MigrationController", "A", "A"]),
])
def test_plugins_are_merged_into_the_defaults(given, names):
    assert list(read(f"profiles: [{{plugins: {{filter: {given}}}}}]\n").profiles[0].filter) == names


@pytest.mark.parametrize(("given", "address"), [
    ("':8080'", "0.0.0.0:8080"), ("127.0.0.1", "127.0.0.1:10251"), ("'::1'", "[::1]:10251"),
    ("localhost:1", "localhost:1"),
])
def test_addresses_are_completed(given, address):
    assert read(f"healthzBindAddress: {given}\n").plain["healthzBindAddress"] == address


def test_decoding_is_strict_and_every_fault_has_its_place():
    assert complaints(HEAD + (
        "dryrun: true\n"
        "deschedulingInterval: 30\n"
        "maxNoOfPodsToEvictTotal: -1\n"
        "profiles:\n"
        "- name: a\n"
        "  pluginConfig:\n"
        "  - name: LowNodeLoad\n"
        "    args: {lowThreshold: {cpu: 1}, nodeFit: yes}\n"
    )) == [
        "c.yaml:3:1: error: unknown field `dryrun`",
        "c.yaml:4:23: error: `deschedulingInterval` is the number `30`, not a string",
        "c.yaml:5:26: error: `maxNoOfPodsToEvictTotal` is -1",
        "c.yaml:10:12: error: unknown field `lowThreshold`",
        "c.yaml:10:45: error: `nodeFit` is the string `yes`, not `true` or `false`",
    ]


def test_what_the_schema_cannot_say_has_its_place_too():
    assert complaints(HEAD + (
        "healthzBindAddress: '1.2.3.4:5:6'\n"
        "leaderElection: {leaseDuration: 5s}\n"
        "profiles:\n"
        "- name: a\n"
        "  pluginConfig:\n"
        "  - name: LowNodeLoad\n"
        "    args:\n"
        "      lowThresholds: {cpu: 80}\n"
        "      highThresholds: {cpu: 70}\n"
        "      nodePools:\n"
        "      - {name: gpu, lowThresholds: {cpu: 1}, anomalyCondition: {consecutiveNormalities: -1}}\n"
        "- name: a\n"
        "- {}\n"
    )) == [
        (
            "c.yaml:3:1: error: healthzBindAddress: Invalid value: `1.2.3.4:5:6`: must be a valid socket address "
            "(host:port)"
        ),
        (
            "c.yaml:4:18: error: leaderElection.leaseDuration: Invalid value: LeaseDuration must be greater than "
            "RenewDeadline"
        ),
        ("c.yaml:10:23: error: profiles[0].pluginConfig[0].args.lowThresholds.cpu: the threshold of `cpu` must not be "
         "above"
         " the 70 of `highThresholds`"),
        ("c.yaml:13:65: error: profiles[0].pluginConfig[0].args.nodePools[0].anomalyCondition.consecutiveNormalities:"
         " anomalyDetectionThresholds: consecutiveNormalities must be greater than 0"),
        "c.yaml:14:3: error: profiles[1].name: Duplicate value: `a` names an earlier profile too",
        "c.yaml:15:3: error: profiles[2].name: Required value: each of several profiles needs a name",
    ]


@pytest.mark.parametrize(("text", "message"), [
    (
        "apiVersion: descheduler/v1\nkind: DeschedulerConfiguration\n",
        "no kind `DeschedulerConfiguration` is registered",
    ),
    (
        "apiVersion: descheduler/v1alpha2\nkind: Other\n",
        "couldn't decode as `DeschedulerConfiguration`, got kind `Other`",
    ),
    ("a: 1\n", "this is not a `DeschedulerConfiguration`"),
    (HEAD + "---\n" + HEAD, "holds one document, not 2"),
    (HEAD + "dryRun: true\ndryRun: false\n", "dryRun"),
    ("[", "c.yaml:1:"),
])
def test_what_is_no_configuration_is_refused(text, message):
    assert any(message in line for line in complaints(text))


def test_arguments_that_are_converted_twice_grow_no_second_pool():
    once = complete("LowNodeLoad", {"nodePools": [{"name": "gpu"}]})
    written = {"nodePools": once["nodePools"]}
    for pool in written["nodePools"]:
        pool["anomalyCondition"] = {**pool["anomalyCondition"], "timeout": "1m"}
    assert [pool["name"] for pool in complete("LowNodeLoad", written)["nodePools"]] == ["__default_node_pool__", "gpu"]


def test_the_internal_form_of_arguments_holds_against_its_schema():
    args = complete("LowNodeLoad", {"nodePools": [{"name": "gpu", "nodeSelector": {"matchLabels": {"a": "b"}}}]})
    assert list(validate_plain(args, "LowNodeLoadArgs")) == []


def of_plugin(name: str, args: str) -> str:
    enabled = f"profiles:\n- plugins: {{deschedule: {{enabled: [{{name: {name}}}]}}}}\n"
    return f"{HEAD}{enabled}  pluginConfig:\n  - name: {name}\n    args: {args}\n"


def test_arguments_of_a_plugin_that_has_a_schema_are_decoded_strictly():
    assert complaints(of_plugin("PodLifeTime", "{maxPodLifeTimeSeconds: -1, podStatusPhases: [Running]}")) == [
        "c.yaml:7:35: error: `maxPodLifeTimeSeconds` is -1",
        "c.yaml:7:39: error: unknown field `podStatusPhases`",
    ]


def test_null_counts_as_absent_in_arguments():
    found = config.read(Source("c.yaml", of_plugin("PodLifeTime", "{states: null, maxPodLifeTimeSeconds: 5}")))
    assert found.profiles[0].args["PodLifeTime"] == {"states": None, "maxPodLifeTimeSeconds": 5}


def test_faults_that_a_plugin_finds_in_its_arguments_have_their_place_in_the_file():
    found = config.read(Source("c.yaml", of_plugin("PodLifeTime", "{states: [Sleeping], conditions: [{type: ''}]}")))
    with pytest.raises(PolicyError) as caught:
        build_profiles(found.profiles, Registry.of(PLUGINS, generation=1), dry_run=True)
    where = "profile `koord-descheduler`: initializing plugin `PodLifeTime`"
    state, condition = (problem.render().split("\n")[0] for problem in caught.value.problems)
    assert state.startswith(f"c.yaml:7:12: error: {where}: states: states must be one of [Completed ")
    assert condition.startswith(f"c.yaml:7:45: error: {where}: conditions[0]: at least one of type, status, reason,")


@pytest.mark.parametrize(("point", "active"), [
    ("deschedule", {"balances"}), ("balance", {"deschedules"}), ("evict", {"balances", "deschedules", "vetoes"}),
    ("filter", {"balances", "deschedules", "vetoes"}),
])
def test_a_star_disables_the_documents_of_its_point_and_never_vetoes(point, active):
    given = config.read_plain({"profiles": [{"name": "p", "plugins": {
        point: {"disabled": [{"name": "*"}], "enabled": [{"name": "DefaultEvictor"}] if point == "evict" else []}}}]})
    named = {name: python_plugin(name, Framework.DESCHEDULER, Plain, points=[where]) for name, where in (
        ("deschedules", Point.DESCHEDULE), ("balances", Point.BALANCE), ("vetoes", Point.EVICTION_FILTER))}
    registry = Registry.of([*PLUGINS, *(replace(each, enabled=True) for each in named.values())], generation=1)
    (profile,) = build_profiles(given.profiles, registry, dry_run=True)
    assert {each.name for each in profile.plugins} - {"MigrationController", "DefaultEvictor"} == active | {"vetoes"}


class Plain:
    """A plugin of every point."""

    def __init__(self, args, handle):
        pass

    def deschedule(self, snapshot, rows, evictor):
        pass

    def balance(self, snapshot, rows, evictor):
        pass

    def eviction_filter(self, pod, snapshot):
        pass
