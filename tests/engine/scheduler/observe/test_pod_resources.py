"""Requests and limits of pods are reported as kube-scheduler reports them."""

from __future__ import annotations

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.scheduler.observe.pod_resources import PodResources
from koordpolicy.engine.serving.instruments import MetricsRegistry


def pod(name, *, node="", phase="Pending", **more):
    resources = {"requests": {"cpu": "250m", "memory": "1Gi", "example.com/gpu": "2"},
                 "limits": {"memory": "2Gi", "example.com/gpu": "2"}}
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "shop", "uid": name},
            "spec": {"containers": [{"name": "main", "resources": resources}], "nodeName": node, "priority": 7} | more,
            "status": {"phase": phase}}


def text(*pods, leading=True):
    node = {"kind": "Node", "metadata": {"name": "a"}, "status": {"allocatable": {"cpu": "4", "pods": "9"}}}
    return MetricsRegistry(PodResources(Cluster([node, *pods]), lambda: leading)).text().decode()


def test_each_resource_has_its_unit():
    found = text(pod("web", node="a", schedulerName="koord-policy"))
    labels = 'namespace="shop",node="a",pod="web",priority="7",resource="{}",scheduler="koord-policy",unit="{}"'
    for metric, resource, unit, value in (
        ("request", "cpu", "cores", "0.25"), ("request", "memory", "bytes", "1.073741824e+09"),
        ("request", "example.com/gpu", "integer", "2.0"), ("limit", "memory", "bytes", "2.147483648e+09"),
    ):
        assert f"kube_pod_resource_{metric}{{{labels.format(resource, unit)}}} {value}" in found
    assert 'kube_pod_resource_limit{namespace="shop",node="a",pod="web",priority="7",resource="cpu"' not in found


def test_a_pod_that_waits_has_no_node_and_one_that_ended_is_not_reported():
    found = text(pod("waits"), pod("done", node="a", phase="Succeeded"))
    assert 'node="",pod="waits",priority="7",resource="cpu",scheduler="default-scheduler"' in found
    assert "done" not in found


def test_a_standby_reports_no_pods():
    assert "shop" not in text(pod("web", node="a"), leading=False)
