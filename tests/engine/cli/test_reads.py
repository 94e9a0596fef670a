"""`plugins --reads` says which fields of which kinds are read by whom."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from koordpolicy.engine.cli import main
from koordpolicy.engine.cluster.kinds import Read, field_paths
from koordpolicy.engine.framework.object_access import Write
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Plugin

POLICY = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: cool}
spec:
  match: {pods: {namespaceSelector: {matchLabels: {tier: web}}}}
  filter:
  - {name: cool, expression: "usage.cpu < 1000 && pod.metadata.labels['app.io/x'] != node.status.nodeInfo.osImage"}
  - {name: small, expression: "pod.spec.containers.all(c, c.image != 'x') && nodeMetric.metadata.name != ''"}
"""


def test_each_field_comes_with_its_readers(run, tmp_path):
    policy = tmp_path / "cool.yaml"
    policy.write_text(POLICY)
    found = run("plugins", "--reads", "--framework", "scheduler", "--policies", policy, "-o", "json").json
    rows = {(row["kind"], row["field"]): (row["plugins"], row["scheduler"]) for row in found["reads"]}
    assert set(found) == {"digest", "reads", "patches"}
    assert found["patches"] == []
    assert {row: names for row, (names, _) in rows.items() if "cool" in names} == {
        ("Namespace", "metadata.labels"): ["InterPodAffinity", "cool"],
        ("Node", "status.nodeInfo.osImage"): ["cool"],
        ("NodeMetric", "metadata.labels"): ["cool"], ("NodeMetric", "metadata.name"): ["cool"],
        ("NodeMetric", "spec.metricCollectPolicy"): ["cool"], ("NodeMetric", "status.nodeMetric"): ["cool"],
        ("NodeMetric", "status.podsMetric"): ["cool"], ("NodeMetric", "status.updateTime"): ["cool"],
        ("Pod", "metadata.labels['app.io/x']"): ["cool"], ("Pod", "spec.containers"): ["cool"]}
    assert rows["Pod", "spec.tolerations"] == ([], True)
    assert rows["Pod", "spec.volumes.rbd"] == (["VolumeRestrictions"], False)
    assert rows["StorageClass", None][0] == ["VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone"]
    assert not [field for kind, field in rows if field and ("managedFields" in field or "env" in field)]


def test_without_a_policy_that_measures_no_metrics_are_read(run):
    lines = run("plugins", "--reads", "--framework", "scheduler").out.splitlines()
    kinds = {line.split()[0] for line in lines[1:-2]}
    assert {"Node", "Pod", "PodDisruptionBudget"} <= kinds
    assert not {"NodeMetric", "Device", "Reservation"} & kinds
    assert "Pod                    spec.nodeName" in "\n".join(lines)
    assert "StorageClass           (all)" in "\n".join(lines)
    assert lines[-1].startswith(f"{len(lines) - 3} fields of {len(kinds)} kinds, digest ")


def test_a_plugin_that_names_no_pods_reads_them_whole(capsys):
    plugin = Plugin("whole", Framework.SCHEDULER, (Point.FILTER,), lambda _args, _handle: None, "here", "digest",
                    reads=(Read("Node", fields=frozenset()), Read("Service")))
    assert main(["plugins", "--reads", "-o", "json"], builtins=lambda: (plugin,)) == 0
    rows = [(row["kind"], row["field"]) for row in json.loads(capsys.readouterr().out)["reads"] if row["plugins"]]
    assert rows == [("Pod", None), ("Service", None)]


def patching(*writes: Write) -> Plugin:
    return Plugin("mine", Framework.SCHEDULER, (Point.FILTER,), lambda _args, _handle: None, "here", "digest",
                  reads=(Read("Node", fields=frozenset()), Read("Pod", fields=frozenset())), patches=writes)


def test_the_fields_that_plugins_patch_come_with_them(capsys):
    plugin = patching(Write("Namespace", frozenset({("metadata", "annotations", "example.com/x"), ("status",)})))
    assert main(["plugins", "--reads", "-o", "json"], builtins=lambda: (plugin,)) == 0
    assert json.loads(capsys.readouterr().out)["patches"] == [
        {"kind": "Namespace", "field": "metadata.annotations['example.com/x']", "plugins": ["mine"]},
        {"kind": "Namespace", "field": "status", "plugins": ["mine"]}]
    assert main(["plugins", "--reads"], builtins=lambda: (plugin,)) == 0
    assert "Namespace  metadata.annotations['example.com/x']  mine" in capsys.readouterr().out


def test_the_role_has_the_rights_that_the_shipped_one_lacks(capsys):
    plugin = patching(Write("Namespace", field_paths("metadata.labels", "status.phase")),
                      Write("Pod", field_paths("metadata.labels")), Write("Unknown", field_paths("spec")))
    assert main(["plugins", "--role"], builtins=lambda: (plugin,)) == 0
    assert yaml.safe_load(capsys.readouterr().out) == {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "koord-policy-scheduler-plugins"},
        "rules": [{"apiGroups": [""], "resources": ["namespaces", "namespaces/status"], "verbs": ["patch"]}]}


def test_a_role_without_rules_says_so_and_there_is_none_for_other_frameworks(capsys):
    plugin = patching(Write("Pod", field_paths("metadata.labels")))
    for options in ((), ("--framework", "scheduler")):
        assert main(["plugins", "--role", *options], builtins=lambda: (plugin,)) == 0
        captured = capsys.readouterr()
        assert yaml.safe_load(captured.out)["rules"] == []
        assert captured.err == ("no enabled plugin needs more rights than deploy/scheduler grants: the role has no "
                                "rules\n")
    assert main(["plugins", "--role", "--framework", "qos"], builtins=lambda: (plugin,)) == 2
    assert "`--role` goes without `--framework qos`: it is the role of the scheduler" in capsys.readouterr().err


@pytest.mark.usefixtures("own_declared_kinds")
def test_a_kind_of_a_plugin_is_named_with_its_resource_and_its_rights_are_in_the_role(capsys):
    own = Read("ReadsFreeze", fields=field_paths("spec"), group="example.com", version="v1", plural="freezes")
    plugin = replace(patching(Write("ReadsFreeze", field_paths("status.last"))), reads=(own, Read("Pod")))
    assert main(["plugins", "--reads"], builtins=lambda: (plugin,)) == 0
    assert "ReadsFreeze (freezes.example.com/v1)  spec" in capsys.readouterr().out
    assert main(["plugins", "--role"], builtins=lambda: (plugin,)) == 0
    assert yaml.safe_load(capsys.readouterr().out)["rules"] == [
        {"apiGroups": ["example.com"], "resources": ["freezes"], "verbs": ["list", "watch"]},
        {"apiGroups": ["example.com"], "resources": ["freezes/status"], "verbs": ["patch"]}]
