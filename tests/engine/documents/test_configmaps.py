"""Configurations of components inside ConfigMaps, as their charts ship them: read, with places in the manifest."""

from __future__ import annotations

import pytest

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.descheduler import config as descheduler
from koordpolicy.engine.documents import configurations_in, read
from koordpolicy.engine.documents.loader import configuration_in
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.scheduler.profiles import configuration as scheduler
from koordpolicy.engine.source import PolicyError, Source

SCHEDULER = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
podMaxBackoffSeconds: 7
profiles:
- schedulerName: koord-scheduler
"""
DESCHEDULER = """\
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
dryRun: true
"""
OTHERS = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: koord-scheduler}\n---\n"


def manifest(**keys: str) -> Source:
    held = "".join(
        f"  {key}: |\n" + "".join(f"    {line}\n" for line in text.splitlines()) for key, text in keys.items()
    )
    return Source(
        "config.yaml", f"{OTHERS}apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: koord-config}}\ndata:\n{held}",
    )


def registry() -> Registry:
    return Registry.of(PLUGINS, generation=1)


def places(caught: PolicyError) -> list[tuple[int, int]]:
    return [each.span.place[1:] for each in caught.problems if each.span is not None]


@pytest.mark.parametrize("key", ["koord-scheduler-config", "config.yaml", "x"])
def test_a_configuration_under_any_key_is_that_configuration(key: str):
    found = scheduler.read(manifest(**{"notes": "kind of a note", key: SCHEDULER}), registry())
    assert found.longest_backoff == 7 * scheduler.SECOND
    assert [each.name for each in found.profiles] == ["koord-scheduler"]
    assert found.plain == scheduler.read(Source("plain.yaml", SCHEDULER), registry()).plain
    inside = descheduler.read(manifest(**{key: DESCHEDULER}))
    assert inside == descheduler.read(Source("plain.yaml", DESCHEDULER))


def test_what_is_wrong_inside_has_its_place_in_the_manifest():
    source = manifest(config=SCHEDULER.replace("podMaxBackoffSeconds: 7", "podMaxBackoffSecond: 7"))
    with pytest.raises(PolicyError) as caught:
        scheduler.read(source, registry())
    line = source.text.splitlines().index("    podMaxBackoffSecond: 7") + 1
    assert places(caught.value) == [(line, 5)]
    source = manifest(config=DESCHEDULER.replace("dryRun: true", "dryRun: 7"))
    with pytest.raises(PolicyError) as caught:
        descheduler.read(source)
    assert [place[0] for place in places(caught.value)] == [source.text.splitlines().index("    dryRun: 7") + 1]


def test_a_manifest_without_such_a_configuration_and_one_with_two_are_refused():
    for source, message in (
        (manifest(config=DESCHEDULER), "no key of this ConfigMap holds a `KubeSchedulerConfiguration`"),
        (manifest(), "no key of this ConfigMap holds a `KubeSchedulerConfiguration`"),
        (
            manifest(a=SCHEDULER, b=SCHEDULER),
            "several keys of this manifest hold a `KubeSchedulerConfiguration`: `a`, `b`",
        ),
    ):
        with pytest.raises(PolicyError, match=message):
            configuration_in(source, "KubeSchedulerConfiguration")


def test_a_configuration_that_mentions_a_configmap_is_read_as_it_is():
    source = Source("config.yaml", SCHEDULER + "# from the ConfigMap of the chart\n")
    assert configuration_in(source, "KubeSchedulerConfiguration") is source


def test_all_configurations_of_a_manifest_are_found_beside_the_configmap_itself():
    nodes = configurations_in(
        read(manifest(a=SCHEDULER, b=DESCHEDULER, slo='{"clusterStrategy": {}}')),
        {"KubeSchedulerConfiguration", "DeschedulerConfiguration"},
    )
    assert [node.fields["kind"].text for node in nodes] == [
        "ServiceAccount", "ConfigMap", "KubeSchedulerConfiguration", "DeschedulerConfiguration",
    ]
