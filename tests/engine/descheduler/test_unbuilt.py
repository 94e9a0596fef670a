"""A field that a configuration may have is read, or reported at its place: none is accepted and ignored in silence."""

from __future__ import annotations

from typing import Any

import pytest

from koordpolicy.builtin_plugins.descheduler.evictability import EvictorFilter
from koordpolicy.engine.cluster.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Cluster
from koordpolicy.engine.descheduler import config, unbuilt
from koordpolicy.engine.documents.validation import schema
from koordpolicy.engine.scheduler import configuration
from koordpolicy.engine.source import Source

HEAD = "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\n"
ARGS = HEAD + "profiles:\n- name: a\n  pluginConfig:\n  - name: MigrationController\n    args:\n"


def told(text: str) -> list[str]:
    return [f"{each.span}: {each.message}" for each in config.read(Source("d.yaml", text)).warnings]


def test_every_field_of_a_descheduler_configuration_is_built_or_reported() -> None:
    assert set(schema(config.KIND)["properties"]) == unbuilt.BUILT | unbuilt.IGNORED.keys()
    assert not unbuilt.BUILT & unbuilt.IGNORED.keys()


def test_every_field_of_a_scheduler_configuration_is_built_or_reported() -> None:
    declared = schema(configuration.KIND)["properties"]
    assert set(declared) == configuration.BUILT | configuration.IGNORED.keys()
    assert set(
        declared["profiles"]["items"]["properties"],
    ) - configuration.IGNORED.keys() == configuration.BUILT_OF_PROFILE


class Recording(dict[str, Any]):
    """Arguments that note what is read of them."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return default


def test_the_arguments_that_count_as_built_are_those_that_are_read() -> None:
    args = Recording()
    owned = {
        "metadata": {"name": "p", "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "uid": "u"}]},
        "spec": {"containers": [{"name": "c"}]},
    }
    bare = {"metadata": {"name": "q"}, "spec": {"containers": [{"name": "c"}]}}
    for pod in (owned, bare):
        EvictorFilter(args).eviction_filter(PodInfo.of(pod), Cluster().snapshot())
    # MigrationController turns `nodeFit` off for its filter, and reads `namespaces` itself.
    assert (args.read - {"nodeFit"}) | {"namespaces"} == unbuilt.BUILT_ARGS["MigrationController"]


@pytest.mark.parametrize("name", list(unbuilt.IGNORED_ARGS["MigrationController"]))
def test_an_argument_that_is_not_built_is_reported_where_it_stands(name: str) -> None:
    why = unbuilt.IGNORED_ARGS["MigrationController"][name]
    assert told(f"{ARGS}      evictLocalStoragePods: true\n      {name}: 5\n") == [
        f"d.yaml:9:7: profiles[0].pluginConfig[0].args.{name} has no effect: {why}"]


def test_a_misspelt_argument_is_reported_where_it_stands() -> None:
    assert told(f"{ARGS}      evictLocalStoragePod: true\n") == [
        "d.yaml:8:7: profiles[0].pluginConfig[0].args.evictLocalStoragePod has no effect: there is no such field"]


@pytest.mark.parametrize(("text", "wanted"), [
    ("metricsBindAddress: ':8080'", ["d.yaml:3:1: metricsBindAddress has no effect: the descheduler serves nothing"]),
    (
        "leaderElection: {leaderElect: true}",
        ["d.yaml:3:1: leaderElection has no effect: no lease is held: one process decides"],
    ),
    ("leaderElection: {leaderElect: false}", []), ("enableProfiling: false", []), ("maxNoOfPodsToEvictTotal: 5", []),
])
def test_a_field_without_effect_is_reported_unless_it_turns_something_off(text: str, wanted: list[str]) -> None:
    assert told(f"{HEAD}{text}\n") == wanted
