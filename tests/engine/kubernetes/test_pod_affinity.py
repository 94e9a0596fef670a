from __future__ import annotations

import pytest

from koordpolicy.engine.kubernetes.pod_affinity import AffinityTerms, HostPort, host_ports, merge_label_keys

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
WEB = {"matchLabels": {"app": "web"}}


def term(**fields):
    found = AffinityTerms.of(
        {"podAffinity": {REQUIRED: [{"topologyKey": "zone", **fields}]}}, "shop", {"app": "web", "v": "1"},
    )
    assert found.problem == ""
    return found.required_affinity[0]


def namespaces(name):
    return {"team": "a"} if name == "shop" else {"team": "b"}


@pytest.mark.parametrize(("fields", "namespace", "labels", "taken"), [
    ({"labelSelector": WEB}, "shop", {"app": "web"}, True),
    ({"labelSelector": WEB}, "other", {"app": "web"}, False),
    ({"labelSelector": WEB, "namespaces": ["other"]}, "other", {"app": "web"}, True),
    ({"labelSelector": WEB, "namespaces": ["other"]}, "shop", {"app": "web"}, False),
    ({"labelSelector": WEB, "namespaceSelector": {}}, "anywhere", {"app": "web"}, True),
    ({"labelSelector": WEB, "namespaceSelector": {"matchLabels": {"team": "b"}}}, "shop", {"app": "web"}, False),
    (
        {"labelSelector": WEB, "namespaceSelector": {"matchLabels": {"team": "b"}}, "namespaces": ["shop"]}, "shop",
        {"app": "web"}, True,
    ),
    ({}, "shop", {"app": "web"}, False),
    ({"labelSelector": {}}, "shop", {}, True),
    ({"labelSelector": WEB, "matchLabelKeys": ["v"]}, "shop", {"app": "web", "v": "1"}, True),
    ({"labelSelector": WEB, "matchLabelKeys": ["v"]}, "shop", {"app": "web", "v": "2"}, False),
    ({"labelSelector": WEB, "mismatchLabelKeys": ["v"]}, "shop", {"app": "web", "v": "1"}, False),
    ({"labelSelector": WEB, "mismatchLabelKeys": ["v", "none"]}, "shop", {"app": "web", "v": "2"}, True),
])
def test_a_term_is_about_pods_of_its_namespaces_that_its_selector_takes(fields, namespace, labels, taken):
    assert term(**fields).takes(namespace, labels, namespaces) is taken


def test_terms_that_say_the_same_are_equal():
    assert term(labelSelector={"matchLabels": {"a": "1", "b": "2"}}) == term(
        labelSelector={"matchLabels": {"b": "2", "a": "1"}},
    )
    assert term(labelSelector=WEB) != term(labelSelector=WEB, namespaces=["other"])


def test_keys_that_the_api_server_merged_already_are_not_merged_again():
    merged = {"matchExpressions": [{"key": "v", "operator": "In", "values": ["0"]}]}
    assert merge_label_keys(merged, ["v"], "In", {"v": "1"}) == merged
    assert merge_label_keys(None, ["v"], "In", {"v": "1"}) is None


@pytest.mark.parametrize("affinity", [
    {"podAffinity": {PREFERRED: [{"weight": 1}]}}, {"podAffinity": []}, {"podAntiAffinity": {REQUIRED: ["zone"]}},
])
def test_terms_that_cannot_be_read_are_left_out_with_their_problem(affinity):
    found = AffinityTerms.of(affinity, "shop", {})
    assert (found.has_any, found.problem) == (
        False, "`spec.affinity` is malformed" if affinity != {"podAffinity": []} else "",
    )


def test_host_ports_are_those_of_containers_and_sidecars():
    port = {"hostPort": 80}
    pod = {
        "spec": {
            "containers": [{"ports": [port, {"containerPort": 1}]}, {}],
            "initContainers": [
                {"ports": [{"hostPort": 81}]},
                {"restartPolicy": "Always", "ports": [{"hostPort": 82, "protocol": "UDP", "hostIP": "10.0.0.1"}]},
            ],
        },
    }
    assert host_ports(pod) == {HostPort("0.0.0.0", "TCP", 80), HostPort("10.0.0.1", "UDP", 82)}
