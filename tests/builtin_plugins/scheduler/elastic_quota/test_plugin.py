from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.scheduler.elastic_quota.args import check_args
from koordpolicy.builtin_plugins.scheduler.elastic_quota.fair_share import Share, redistribute, scale_minimums
from koordpolicy.builtin_plugins.scheduler.elastic_quota.tree import DEFAULT, QuotaSpec, QuotaTree
from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.framework.points import Code
from koordpolicy.plugin import SKIP, CycleState
from tests.fake_framework import FakeFramework

DOMAIN = "quota.scheduling.koordinator.sh/"


def node(name="n", cpu="10"):
    return {"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {"cpu": cpu, "pods": "100"}}}


def quota(name, most="10", least="0", parent="", namespace="kube-system", **annotations):
    labels = {DOMAIN + "parent": parent} if parent else {}
    return {
        "kind": "ElasticQuota", "spec": {"max": {"cpu": most}, "min": {"cpu": least}},
        "metadata": {"name": name, "namespace": namespace, "labels": labels,
                     "annotations": {DOMAIN + key.replace("_", "-"): value for key, value in annotations.items()}},
    }


def pod(name, cpu="1", of="", namespace="default", priority=0, fixed=False, **spec):
    labels = ({DOMAIN + "name": of} if of else {}) | ({DOMAIN + "preemptible": "false"} if fixed else {})
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    return {"kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"containers": [container], "priority": priority, **spec}}


def pre_filter(framework, plugin, item, snapshot=None):
    return plugin.pre_filter(CycleState(), PodInfo.of(item), snapshot or framework.snapshot())


def test_a_pod_belongs_to_the_labelled_quota_the_one_of_its_namespace_one_that_names_it_or_the_default():
    framework = FakeFramework(quota("a"), quota("team", namespace="team"), quota("b", namespaces='["other"]'))
    plugin = framework.make("ElasticQuota")
    names = [plugin.quota_of(PodInfo.of(each)) for each in (
        pod("1", of="a"), pod("2", namespace="team"), pod("3", namespace="other"), pod("4"), pod("5", of="gone"))]
    assert names == [("", "a"), ("", "team"), ("", "b"), ("", DEFAULT), ("", DEFAULT)]


def test_without_a_default_quota_a_pod_of_no_quota_is_skipped():
    framework = FakeFramework(gates={"DisableDefaultQuota"})
    assert pre_filter(framework, framework.make("ElasticQuota"), pod("p")) is SKIP


def test_a_pod_that_exceeds_the_runtime_is_refused_with_the_amounts():
    waiting, running = pod("p", "4", of="a"), pod("r", "3", of="a", nodeName="n")
    framework = FakeFramework(node(), quota("a", most="6", least="1"), running, waiting)
    refusal = pre_filter(framework, framework.make("ElasticQuota"), waiting)
    assert (refusal.code, refusal.message) == (
        Code.UNSCHEDULABLE,
        (
            "Insufficient quotas, quotaName: a, runtime: cpu:6, used: cpu:3, pod's request: cpu:4, exceedDimensions: "
            "[cpu]"
        ),
    )


def test_what_is_not_preemptible_stays_within_the_minimum():
    waiting = pod("p", "2", of="a", fixed=True)
    framework = FakeFramework(node(), quota("a", least="3"), pod("r", "2", of="a", fixed=True, nodeName="n"), waiting)
    refusal = pre_filter(framework, framework.make("ElasticQuota"), waiting)
    assert refusal.message == (
        "Insufficient non-preemptible quotas, quotaName: a, min: cpu:3, nonPreemptibleUsed: cpu:2,"
        " pod's request: cpu:2, exceedDimensions: [cpu]")


def test_parents_are_checked_on_request_and_named_from_the_top():
    waiting = pod("p", "3", of="leaf")
    objects = [node(), quota("top", most="4", least="4"), quota("leaf", least="4", parent="top"),
               quota("other", parent="top"), pod("r", "2", of="other", nodeName="n"), waiting]
    framework = FakeFramework(*objects)
    assert pre_filter(framework, framework.make("ElasticQuota"), waiting) is None
    refusal = pre_filter(framework, framework.make("ElasticQuota", enableCheckParentQuota=True), waiting)
    assert refusal.message == (
        "Insufficient quotas, quotaNameTopo: [top leaf], runtime: cpu:4, used: cpu:2, pod's request: cpu:3,"
        " exceedDimensions: [cpu]")


def test_a_view_without_a_pod_has_its_quota_free():
    waiting, running = pod("p", "4", of="a"), pod("r", "4", of="a", nodeName="n")
    framework = FakeFramework(node(), quota("a", most="6", least="6"), running, waiting)
    plugin = framework.make("ElasticQuota")
    without = framework.snapshot().overlay({"n": NodeChange(remove=["default/r"])})
    assert pre_filter(framework, plugin, waiting).code is Code.UNSCHEDULABLE
    assert pre_filter(framework, plugin, waiting, without) is None
    twice = framework.snapshot().overlay(
        {"n": NodeChange(remove=["default/r"], add=[PodInfo.of(pod("x", "3", of="a"))])},
    )
    assert pre_filter(framework, plugin, waiting, twice).code is Code.UNSCHEDULABLE


def test_reserve_and_unreserve_leave_the_sums_as_they_were():
    framework = FakeFramework(node(), quota("a", least="5"), pod("p", "2", of="a"))
    plugin = framework.make("ElasticQuota")
    snapshot, waiting = framework.snapshot(), framework.pod("default/p")
    assert plugin.reserve(CycleState(), waiting, snapshot, 0) is None
    assert plugin.trees[""].quota("a").used == {"cpu": 2000}
    plugin.unreserve(CycleState(), waiting, snapshot, 0)
    plugin.unreserve(CycleState(), waiting, snapshot, 0)
    assert plugin.trees[""].quota("a").used == {"cpu": 0}
    plugin.reserve(CycleState(), waiting, snapshot, 0)
    plugin.forget_pod(waiting)
    assert plugin.trees[""].quota("a").used == {"cpu": 0}


def test_pods_of_a_deleted_quota_count_as_the_defaults_until_it_comes_back():
    framework = FakeFramework(node(), quota("a"), pod("p", "2", of="a", nodeName="n"))
    plugin = framework.make("ElasticQuota")
    framework.delete("ElasticQuota", "kube-system/a")
    assert plugin.trees[""].quota(DEFAULT).used == {"cpu": 2000}
    framework.upsert(quota("a"))
    tree = plugin.trees[""]
    assert (tree.quota(DEFAULT).used, tree.quota("a").used) == ({"cpu": 0}, {"cpu": 2000})
    framework.delete("Pod", "default/p")
    assert tree.quota("a").used == tree.quota("a").request == {"cpu": 0}


def test_a_tree_of_its_own_has_its_own_total_and_takes_it_from_the_default_tree():
    root = quota("pool-root", total_resource='{"cpu": "4"}')
    root["metadata"]["labels"] = {DOMAIN + "tree-id": "pool", DOMAIN + "is-root": "true"}
    leaf = quota("leaf", least="1", parent="pool-root")
    leaf["metadata"]["labels"][DOMAIN + "tree-id"] = "pool"
    framework = FakeFramework(node(), root, leaf, gates={"MultiQuotaTree"})
    plugin = framework.make("ElasticQuota")
    assert (plugin.trees[""].total, plugin.trees["pool"].total) == ({"cpu": 6000, "pods": 100}, {"cpu": 4000})
    assert plugin.quota_of(PodInfo.of(pod("p", of="leaf"))) == ("pool", "leaf")


def test_a_hint_says_that_room_in_another_quota_does_not_help():
    objects = [node(), quota("a"), quota("b"), pod("r", of="a", nodeName="n"), pod("s", of="b", nodeName="n")]
    framework = FakeFramework(*objects)
    plugin = framework.make("ElasticQuota", enableQueueHint=True)
    heard = []
    waiting = PodInfo.of(pod("p", of="a"))
    framework.on(("Pod",), lambda event: heard.append((event.key, plugin.may_help(event, waiting))))
    heard.clear()
    framework.delete("Pod", "default/r")
    framework.delete("Pod", "default/s")
    assert heard == [("default/r", True), ("default/s", False)]


class Refused:
    """Nodes that would pass once the quota plugin has nothing against the pod."""

    def __init__(self, framework, plugin, item):
        self._framework, self._plugin, self._item = framework, plugin, item

    def resolvable(self):
        return self._framework.rows

    def passes(self, changed, rows):
        return rows if pre_filter(self._framework, self._plugin, self._item, changed) is None else rows[:0]

    def why_not(self, changed, row):
        refusal = pre_filter(self._framework, self._plugin, self._item, changed)
        return () if refusal is None else (refusal.message,)


def test_the_fewest_and_least_important_pods_of_the_same_quota_make_room():
    waiting = pod("p", "2", of="a", priority=10)
    framework = FakeFramework(
        node(), quota("a", most="4", least="4"), waiting,
        pod("low", "2", of="a", priority=1, nodeName="n"), pod("mid", "2", of="a", priority=5, nodeName="n"),
        pod("foreign", "2", of="b", priority=0, nodeName="n"),
        pod("kept", "0", of="a", priority=0, fixed=True, nodeName="n"))
    plugin = framework.make("ElasticQuota")
    found = plugin.post_filter(
        CycleState(), PodInfo.of(waiting), framework.snapshot(), Refused(framework, plugin, waiting),
    )
    assert (found.node, [victim.key for victim in found.victims]) == ("n", ["default/low"])
    never = {**waiting, "spec": {**waiting["spec"], "preemptionPolicy": "Never"}}
    refusal = plugin.post_filter(
        CycleState(), PodInfo.of(never), framework.snapshot(), Refused(framework, plugin, never),
    )
    assert refusal.message == "preemption: not eligible due to preemptionPolicy=Never."


def test_overuse_is_revoked_after_a_while_from_the_lowest_priority_on():
    framework = FakeFramework(
        node(), quota("a", most="4", least="2"), quota("b", most="10", least="8"),
        pod("low", "2", of="a", priority=1, nodeName="n"), pod("high", "2", of="a", priority=9, nodeName="n"),
        pod("q", "8", of="b"))
    plugin = framework.make("ElasticQuota", monitorAllQuotas=True, delayEvictTime="10s")
    revoke = plugin.controllers()[1]
    for second in (0, 10, 11):
        assert framework.client.evicted == {}
        revoke.run(second * 10**9)
    assert list(framework.client.evicted) == ["default/low"]


def test_the_status_controller_writes_what_changed_and_nothing_else():
    framework = FakeFramework(node(), quota("a", least="2"), pod("r", of="a", nodeName="n"))
    plugin = framework.make("ElasticQuota")
    status, = plugin.controllers()
    status.run(0)
    (_, written), = framework.client.patches
    assert written["status"] == {"used": {"cpu": "1"}}
    assert {key: value for key, value in written["metadata"]["annotations"].items() if "runtime" in key} == {
        DOMAIN + "runtime": '{"cpu":"1"}'}
    framework.upsert(written)
    status.run(0)
    assert len(framework.client.patches) == 1


def test_endpoints_tell_of_quotas_with_quantities():
    framework = FakeFramework(node(), quota("a", least="2"), pod("r", "1500m", of="a", nodeName="n"))
    endpoints = framework.make("ElasticQuota").endpoints()
    found = endpoints["quotas/{name}"]("a")
    assert (found["used"], found["runtime"], list(found["podCache"])) == (
        {"cpu": "1500m"}, {"cpu": "1500m"}, ["default/r"])
    assert endpoints["quotas/{name}"]("gone") is None
    assert set(endpoints["quotas"]()) == {
        "a", "koordinator-default-quota", "koordinator-root-quota", "koordinator-system-quota"}


def test_a_waiting_pod_says_what_its_quota_has_left_and_those_above_it_if_they_are_checked():
    waiting = pod("p", "4", of="a")
    framework = FakeFramework(
        node(), quota("top", most="10", is_parent="true"), quota("a", most="6", least="1", parent="top"),
        pod("r", "3", of="a", nodeName="n"), waiting)
    below, above = framework.make("ElasticQuota", enableCheckParentQuota=True).explain_waiting(PodInfo.of(waiting))
    assert below.as_text().splitlines() == [
        "quota a: not enough cpu left",
        "  resource  request  used     limit    min     max",
        "  cpu       4 cores  3 cores  6 cores  1 core  6 cores",
    ]
    assert (above.text, above.facts["resources"]["cpu"]) == (
        "quota top: not enough cpu left", {"request": 4000, "used": 3000, "limit": 6000, "min": 0, "max": 10_000})
    plugin = framework.make("ElasticQuota")
    assert [each.text for each in plugin.explain_waiting(PodInfo.of(waiting))] == ["quota a: not enough cpu left"]
    assert plugin.explain_waiting(PodInfo.of(pod("q"))) == ()


@pytest.mark.parametrize(("args", "complaint"), [
    ({"delayEvictTime": "-1s"}, "`delayEvictTime`"),
    ({"enableRuntimeQuota": 1}, "`enableRuntimeQuota` must be true or false"),
    ({"defaultQuotaGroupMax": {"cpu": "-1"}}, r"`defaultQuotaGroupMax\[cpu\]` is below 0"),
    ({"hookPlugins": [{"name": "x"}]}, r"there is no argument `name` at `hookPlugins\[0\]`"),
])
def test_arguments_that_cannot_be_are_refused_with_their_place(args, complaint):
    with pytest.raises(ValueError, match=complaint):
        check_args(args)


AMOUNTS = st.integers(0, 60)
SHARES = st.lists(
    st.tuples(AMOUNTS, AMOUNTS, st.integers(0, 9), st.booleans()), min_size=1, max_size=6,
).map(lambda rows: [
    Share(f"q{index}", request, least, weight, 0, lends) for index, (request, least, weight, lends) in enumerate(rows)])


@given(SHARES, st.integers(0, 300))
def test_sharing_never_gives_more_than_there_is_and_never_less_than_what_is_sure(shares, total):
    runtime = redistribute(total, shares)
    sure = {each.name: min(each.request, each.minimum) if each.lends else each.minimum for each in shares}
    assert all(runtime[each.name] >= sure[each.name] for each in shares)
    assert all(runtime[each.name] <= max(each.request, each.minimum) for each in shares)
    assert sum(runtime.values()) <= max(total, sum(sure.values()))
    if all(each.weight for each in shares) and sum(runtime.values()) < total:
        assert all(runtime[each.name] >= each.request for each in shares)


@given(st.dictionaries(st.sampled_from("abcd"), AMOUNTS, min_size=1), st.integers(0, 200))
def test_scaled_minimums_fit_into_the_total(minimums, total):
    found = scale_minimums({"cpu": total}, {name: {"cpu": amount} for name, amount in minimums.items()},
                           dict.fromkeys(minimums, True))
    scaled = {name: amounts["cpu"] for name, amounts in found.items()}
    assert sum(scaled.values()) <= total or scaled == minimums
    assert all(scaled[name] <= amount for name, amount in minimums.items())
    assert sum(minimums.values()) > total or scaled == minimums


def test_minimums_are_scaled_in_the_floating_point_of_the_original():
    found = scale_minimums({"cpu": 22}, {"a": {"cpu": 30}, "b": {"cpu": 14}}, {"a": True, "b": True})
    assert found == {"a": {"cpu": 14}, "b": {"cpu": 7}}  # 30 / 44 * 22 is a little less than 15


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(-5, 9)), max_size=12), st.integers(0, 30))
def test_the_children_of_a_quota_together_never_run_beyond_it(requests, total):
    def spec(name, parent, least, most):
        return QuotaSpec(name, parent=parent, minimum=ResourceList(cpu=least), maximum=ResourceList(cpu=most),
                         weight=ResourceList(cpu=most))

    specs = [spec("top", "koordinator-root-quota", 8, 20), spec("a", "top", 4, 9), spec("b", "top", 4, 20),
             spec("c", "koordinator-root-quota", 6, 40)]
    tree = QuotaTree()
    tree.replace(specs)
    tree.set_total({"cpu": total})
    asked = {"a": 0, "b": 0, "c": 0}
    for name, change in requests:
        tree.ask(name, {"cpu": change})
        asked[name] = max(0, asked[name] + change)
    runtime = {name: tree.runtime(name)["cpu"] for name in ("top", "a", "b", "c")}
    assert runtime["a"] + runtime["b"] <= runtime["top"]
    assert runtime["top"] + runtime["c"] <= total
    again = QuotaTree()
    again.replace(specs)
    again.set_total({"cpu": total})
    for name, amount in asked.items():
        again.ask(name, {"cpu": amount})
    assert {name: again.runtime(name)["cpu"] for name in runtime} == runtime
