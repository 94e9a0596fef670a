"""The manifests are current, fit together, and give the rights that the servers use."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

import pytest
import yaml

from koordpolicy.engine.cli import agent, console, descheduler, live, manager, scheduler
from koordpolicy.engine.client.permissions import Permission, rules
from koordpolicy.engine.client.resources import RESOURCES
from koordpolicy.engine.kubernetes.quantity import Quantity
from koordpolicy.engine.manager.webhooks import MUTATE_POD, VALIDATE_POD, VALIDATE_QUOTA

PROJECT = Path(__file__).parents[2]
NAMESPACED = {"ServiceAccount", "Deployment", "DaemonSet", "PodDisruptionBudget", "Service", "Role", "RoleBinding",
              "ConfigMap", "ServiceMonitor", "PrometheusRule"}


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("generate_deployment", PROJECT / "tools" / "generate_deployment.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def documents(folder):
    found = []
    for path in sorted((PROJECT / "deploy" / folder).glob("*.yaml")):
        if path.name not in ("kustomization.yaml", "prometheus-rule.yaml"):
            found += [each for each in yaml.safe_load_all(path.read_text()) if each is not None]
    return found


def one(folder, kind, name=""):
    (found,) = (each for each in documents(folder)
                if each["kind"] == kind and (not name or each["metadata"]["name"] == name))
    return found


def test_the_committed_files_are_what_chart_and_table_yield(generator):
    for path, text in (generator.templates() | generator.manifests()).items():
        assert path.read_text(encoding="utf-8") == text, f"run tools/generate_deployment.py: {path}"


def test_every_container_has_requests_and_a_limit_of_memory_above_them():
    found = {}
    for folder in ("scheduler", "extender", "descheduler", "manager", "agent", "console"):
        for each in documents(folder):
            if each["kind"] in ("Deployment", "DaemonSet"):
                spec = each["spec"]["template"]["spec"]
                for container in (*spec["containers"], *spec.get("initContainers", ())):
                    found[f"{folder}/{container['name']}"] = container["resources"]
    assert {place.partition("/")[0] for place in found} == {
        path.name for path in (PROJECT / "deploy").iterdir()
        if any(each.get("kind") in ("Deployment", "DaemonSet") for each in documents(path.name))}
    for place, resources in found.items():
        # No limit of the processor: a server that is throttled renews its Lease late.
        assert (resources["requests"].keys(), resources["limits"].keys()) == ({"cpu", "memory"}, {"memory"}), place
        requested, most = (Quantity.parse(resources[part]["memory"]).value for part in ("requests", "limits"))
        assert 0 < requested < most, place
        assert Quantity.parse(resources["requests"]["cpu"]).value > 0, place


def test_another_namespace_and_other_values_reach_all_objects(generator):
    values = yaml.safe_load((generator.CHART / "values.yaml").read_text())
    values["scheduler"] |= {"replicas": 3, "extraArgs": ["--kube-api-qps=200", "--debug-filters"]}
    values["image"] = {"repository": "example.org/koord-policy", "tag": "1.0", "pullPolicy": "Always"}
    for template in (generator.CHART / "templates").glob("*.yaml"):
        text = generator.render(template.read_text(), values, namespace="elsewhere", files=generator.CHART)
        assert "koordinator-system" not in text, template
        for each in filter(None, yaml.safe_load_all(text)):
            assert (each["metadata"].get("namespace") == "elsewhere") == (each["kind"] in NAMESPACED), each["kind"]
            if each["kind"] == "Deployment" and each["metadata"]["name"] == "koord-policy-scheduler":
                (container,) = each["spec"]["template"]["spec"]["containers"]
                assert (each["spec"]["replicas"], container["image"]) == (3, "example.org/koord-policy:1.0")
                assert container["args"][-2:] == ["--kube-api-qps=200", "--debug-filters"]


@pytest.mark.parametrize(("part", "account"), [("scheduler", "koord-policy-scheduler"), ("extender", "koord-policy")])
def test_rules_of_plugins_are_a_role_of_its_own(generator, part, account):
    values = yaml.safe_load((generator.CHART / "values.yaml").read_text())
    own = [{"apiGroups": ["example.com"], "resources": ["licences"], "verbs": ["list", "watch"]}]
    values[part]["extraRules"] = own
    template = (generator.CHART / "templates" / f"{part}-rbac.yaml").read_text()
    text = generator.render(template, values, namespace="x", files=generator.CHART)
    role, binding = (each for each in yaml.safe_load_all(text) if each["metadata"]["name"] == f"{account}-plugins")
    assert (role["kind"], role["rules"]) == ("ClusterRole", own)
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "x"}]


@pytest.mark.parametrize("part", ["scheduler", "extender", "manager", "agent", "console", "monitoring"])
def test_a_part_that_is_disabled_has_no_objects(generator, part):
    values = yaml.safe_load((generator.CHART / "values.yaml").read_text())
    values[part]["enabled"] = False
    for template in (generator.CHART / "templates").glob(f"{part}*.yaml"):
        text = generator.render(template.read_text(), values, namespace="x", files=generator.CHART)
        assert list(filter(None, yaml.safe_load_all(text))) == []


@pytest.mark.parametrize("text", ["{{ range .Values.x }}", "{{ .Values.nothing }}", "{{- if .Values.image }}\na: b"])
def test_a_template_that_is_not_understood_is_an_error(generator, text):
    with pytest.raises(generator.TemplateError):
        generator.render(text, {"image": {}}, namespace="x", files=generator.CHART)


@pytest.mark.parametrize("folder", ["scheduler", "extender", "manager", "agent", "console"])
def test_a_kustomization_names_all_files_of_its_folder(folder):
    found = yaml.safe_load((PROJECT / "deploy" / folder / "kustomization.yaml").read_text())
    files = {path.name for path in (PROJECT / "deploy" / folder).glob("*.yaml")} - {"kustomization.yaml"}
    assert set(found["resources"]) == files


@pytest.mark.parametrize(("folder", "name"), [
    ("scheduler", "koord-policy-scheduler"), ("extender", "koord-policy"), ("manager", "koord-policy-manager")])
def test_selectors_accounts_ports_and_probes_fit_together(folder, name):
    deployment = one(folder, "Deployment")
    pod, labels = deployment["spec"]["template"]["spec"], deployment["spec"]["template"]["metadata"]["labels"]
    (container,) = pod["containers"]
    for kind in ("Service", "PodDisruptionBudget"):
        selector = one(folder, kind, name)["spec"]["selector"]
        assert selector.get("matchLabels", selector).items() <= labels.items(), kind
    assert pod["serviceAccountName"] == one(folder, "ServiceAccount")["metadata"]["name"] == name
    assert [subject["name"] for subject in one(folder, "ClusterRoleBinding")["subjects"]] == [name]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    options = dict(word.removeprefix("--").split("=", 1) for word in container["args"] if "=" in word)
    addresses = ("bind", "health-bind", "webhook-bind")
    listened = {int(options[key].rpartition(":")[2]) for key in addresses if key in options}
    assert set(ports.values()) == listened
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    assert (container["readinessProbe"]["httpGet"]["path"], container["livenessProbe"]["httpGet"]["path"]) == (
        "/readyz", "/livez")
    assert {each["targetPort"] for each in one(folder, "Service", name)["spec"]["ports"]} <= ports.keys()
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}


def test_each_replica_of_the_extender_has_an_address_by_a_service_that_prometheus_does_not_read():
    service, labels = one("extender", "Service", "koord-policy-headless"), one("extender", "Deployment")["spec"]
    assert service["spec"] == {
        "clusterIP": "None", "publishNotReadyAddresses": True,
        "selector": labels["template"]["metadata"]["labels"],
        "ports": [{"name": "https", "port": 8443, "targetPort": "https"}]}
    read = one("monitoring", "ServiceMonitor", "koord-policy")["spec"]["selector"]["matchLabels"]
    assert not read.items() <= service["metadata"]["labels"].items()


@pytest.mark.parametrize("folder", ["scheduler", "extender", "manager"])
def test_pods_are_restricted_and_critical(folder):
    pod = one(folder, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["priorityClassName"] == "system-cluster-critical"
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["seccompProfile"]) == (
        True, {"type": "RuntimeDefault"})
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert one(folder, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def agent_pod(generator, **values):
    defaults = yaml.safe_load((generator.CHART / "values.yaml").read_text())
    defaults["agent"] |= {"enabled": True, **values}
    text = generator.render((generator.CHART / "templates" / "agent.yaml").read_text(), defaults,
                            namespace="koordinator-system", files=generator.CHART)
    (found,) = (each for each in yaml.safe_load_all(text) if each["kind"] == "DaemonSet")
    return found


@pytest.mark.parametrize("values", [{}, {"resctrl": True, "kubeletCertificate": "/pki/kubelet.crt"}])
def test_the_agent_fits_together_and_has_the_options_of_its_command(generator, values):
    daemon_set = agent_pod(generator, **values)
    pod, labels = daemon_set["spec"]["template"]["spec"], daemon_set["spec"]["template"]["metadata"]["labels"]
    (container,) = pod["containers"]
    assert daemon_set["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert one("agent", "Service")["spec"]["selector"].items() <= labels.items()
    assert one("agent", "ServiceAccount")["metadata"]["name"] == pod["serviceAccountName"]
    assert [each["name"] for each in one("agent", "ClusterRoleBinding")["subjects"]] == [pod["serviceAccountName"]]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    parser = argparse.ArgumentParser(exit_on_error=False)
    agent.add_arguments(parser)
    options = parser.parse_args(container["args"][1:])
    assert container["args"][0] == "agent"
    assert {port["containerPort"] for port in container["ports"]} == {options.http[1]}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    named = {options.cgroup_root, options.proc_root, options.sys_root, str(options.state_dir),
             str(options.audit_log_dir), *options.policies}
    named |= {options.resctrl_root, options.kubelet_certificate_authority} if values else set()
    assert named | {"/etc/koord-policy/tls"} == mounts.keys()
    assert {path for path, mount in mounts.items() if not mount.get("readOnly")} == named - {
        options.sys_root, options.kubelet_certificate_authority, *options.policies}
    assert pod.get("hostPID", False) == bool(values)
    for probe, path in (("readinessProbe", "/readyz"), ("livenessProbe", "/healthz"), ("startupProbe", "/healthz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "https", "scheme": "HTTPS"}


def test_the_agent_is_critical_and_has_no_capability(generator):
    daemon_set = agent_pod(generator)
    pod = daemon_set["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert (pod["priorityClassName"], pod["tolerations"], "hostNetwork" in pod) == (
        "system-node-critical", [{"operator": "Exists"}], False)
    assert daemon_set["spec"]["updateStrategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": "20%"}
    assert pod["terminationGracePeriodSeconds"] > agent._GRACE_S
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert environment == {"NODE_NAME": None, "PYTHONOPTIMIZE": "2", "MALLOC_ARENA_MAX": "1"}


def test_webhooks_never_hold_up_the_pods_that_serve_them():
    port = one("manager", "Service")["spec"]["ports"][0]
    assert (port["port"], port["targetPort"]) == (443, "webhook")
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for hook in one("manager", kind)["webhooks"]:
            assert hook["failurePolicy"] == "Ignore"
            assert hook["clientConfig"]["service"]["name"] == one("manager", "Service")["metadata"]["name"]
            assert hook["clientConfig"]["service"]["path"] in (MUTATE_POD, VALIDATE_POD, VALIDATE_QUOTA)
            if hook["rules"][0]["resources"] == ["pods"]:
                (expression,) = hook["namespaceSelector"]["matchExpressions"]
                assert (expression["key"], expression["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
                assert "koordinator-system" in expression["values"]


def test_the_arguments_of_the_manager_are_options_of_its_command():
    (container,) = one("manager", "Deployment")["spec"]["template"]["spec"]["containers"]
    parser = argparse.ArgumentParser(exit_on_error=False)
    manager.add_arguments(parser)
    assert container["args"][0] == "manager"
    assert parser.parse_args(container["args"][1:]).namespace == "koordinator-system"


@pytest.mark.parametrize("folder", ["scheduler", "extender"])
def test_the_arguments_are_options_of_the_command(folder):
    (container,) = one(folder, "Deployment")["spec"]["template"]["spec"]["containers"]
    parser = argparse.ArgumentParser(exit_on_error=False)
    scheduler.add_arguments(parser)
    options = parser.parse_args(container["args"][1:])
    assert container["args"][0] == "scheduler"
    if folder == "scheduler":
        assert live.server_settings(options).lease.namespace == "koordinator-system"


def test_the_grace_period_of_the_pod_is_longer_than_that_of_the_process():
    pod = one("scheduler", "Deployment")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > live._GRACE_S


def test_the_lease_of_the_role_and_of_the_flow_schema_is_the_one_of_the_scheduler():
    role = one("scheduler", "Role")
    assert role["rules"] == [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [live._LEASE_NAME],
         "verbs": ["get", "update"]}]
    rule = one("scheduler", "FlowSchema", "koord-policy-scheduler-lease")["spec"]["rules"][0]["resourceRules"][0]
    assert rule["namespaces"] == [role["metadata"]["namespace"]]
    assert set(rule["verbs"]) == {verb for each in role["rules"] for verb in each["verbs"]}


def test_every_kind_that_is_followed_may_be_listed_and_watched():
    rules = one("scheduler", "ClusterRole")["rules"]
    readable = {(group, resource) for rule in rules for group in rule["apiGroups"] for resource in rule["resources"]
                if {"list", "watch"} <= set(rule["verbs"])}
    assert readable == {(resource.group, resource.plural) for resource in RESOURCES}


def test_rules_of_equal_verbs_are_one():
    assert rules([
        Permission("", "pods", ("list",), "x"), Permission("", "nodes", ("list",), "x"),
        Permission("", "pods", ("list", "get"), "x"), Permission("", "a", ("get",), "x", "one"),
    ]) == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "get"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["a"], "resourceNames": ["one"], "verbs": ["get"]},
    ]


@pytest.mark.parametrize("secret", ["", "koord-policy-admin"])
def test_the_console_changes_nothing_without_a_token_for_the_servers(generator, secret: str):
    values = yaml.safe_load((generator.CHART / "values.yaml").read_text())
    values["console"] |= {"enabled": True, "adminTokenSecret": secret}
    text = generator.render((generator.CHART / "templates" / "console.yaml").read_text(), values, namespace="x",
                            files=generator.CHART)
    account, deployment, service = yaml.safe_load_all(text)
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    parser = argparse.ArgumentParser()
    console.add_arguments(parser)
    options = parser.parse_args(container["args"][1:])
    assert (options.allow_changes, options.endpoints) == (
        (True, ["https://koord-policy.x.svc:8443"]) if secret else (False, None))
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert container["readinessProbe"]["httpGet"]["httpHeaders"] == [{"name": "Host", "value": "localhost"}]


def test_users_of_the_console_have_roles_that_differ_by_changes():
    found = {name: one("console", "ClusterRole", f"koord-policy-console-{name}")["rules"]
             for name in ("viewer", "operator")}
    kinds = ["schedulerplugins", "qosplugins", "deschedulerplugins", "policyparams"]
    seen = {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list"]}
    assert found == {
        "viewer": [seen, {"apiGroups": ["policy.koordinator.sh"], "resources": kinds, "verbs": ["list"]}],
        "operator": [seen, {"apiGroups": ["policy.koordinator.sh"], "resources": kinds, "verbs": ["list", "update"]}]}


_VALUES_OF_BUNDLES = {"bundle": "registry.example.org/team/policies:prod", "verifyKeyConfigMap": "keys",
                      "registrySecret": "login"}


@pytest.mark.parametrize(("part", "command"), [
    ("scheduler", scheduler), ("extender", scheduler), ("descheduler", descheduler), ("agent", agent),
    ("console", console),
])
@pytest.mark.parametrize("given", [(), ("bundle", "verifyKeyConfigMap"), tuple(_VALUES_OF_BUNDLES)])
def test_servers_take_their_policies_from_a_config_map_or_from_a_bundle(generator, part, command, given):
    values = yaml.safe_load((generator.CHART / "values.yaml").read_text())
    values[part]["enabled"] = True
    values["policies"] |= {name: _VALUES_OF_BUNDLES[name] for name in given}
    text = generator.render((generator.CHART / "templates" / f"{part}.yaml").read_text(), values, namespace="x",
                            files=generator.CHART)
    (pod,) = (each["spec"]["template"]["spec"] for each in yaml.safe_load_all(text)
              if each["kind"] in ("Deployment", "DaemonSet"))
    (container,) = pod["containers"]
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    options = parser.parse_args(container["args"][1:])
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    volumes = {each.pop("name"): each for each in pod["volumes"]}
    environment = {each["name"]: each.get("value") for each in container.get("env", ())}
    assert mounts.keys() == volumes.keys()
    if given:
        assert [str(each) for each in options.policies] == ["oci:registry.example.org/team/policies:prod"]
        assert list(map(str, options.verify_key)) == [f"{mounts['verify']}/sign.pub"]
        assert volumes["verify"] == {"configMap": {"name": "keys"}}
        assert "policies" not in volumes
    else:
        assert [str(each) for each in options.policies] == [mounts["policies"]]
        assert volumes["policies"]["configMap"]["name"] == "koord-policies"
        assert "verify" not in volumes
    assert environment.get("DOCKER_CONFIG") == mounts.get("registry")
    assert volumes.get("registry") == ({"secret": {
        "secretName": "login", "items": [{"key": ".dockerconfigjson", "path": "config.json"}],
    }} if "registrySecret" in given else None)
