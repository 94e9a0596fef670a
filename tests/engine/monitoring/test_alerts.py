"""The alerts, computed of readings as Prometheus computes their queries."""

from __future__ import annotations

from koordpolicy.engine.monitoring.alerts import ALERTS, AlertBook, Reading
from koordpolicy.engine.monitoring.exposition import Exposition, Labels

WALL = 1_700_000_000.0


def labels(**of: str) -> Labels:
    return tuple(sorted(of.items()))


def reading(at: float, **series: dict[Labels, float] | float) -> Reading:
    return Reading(at, Exposition({
        name: each if isinstance(each, dict) else {(): each} for name, each in series.items()}))


def raised(now: float, servers: dict[str, list[Reading]], book: AlertBook | None = None) -> list[tuple[str, str, bool]]:
    found = (book or AlertBook()).look(now, WALL, servers)
    return [(each.alert.name, each.instance, each.firing) for each in found]


def test_a_condition_fires_once_it_has_held_for_its_time_and_begins_again_after_a_break():
    book, bad, good = AlertBook(), reading(0, koord_policy_ready=0), reading(0, koord_policy_ready=1)
    assert raised(0, {"a": [bad], "b": [good]}, book) == [("KoordPolicyNotReady", "a", False)]
    assert raised(299, {"a": [bad]}, book) == [("KoordPolicyNotReady", "a", False)]
    assert raised(300, {"a": [bad]}, book) == [("KoordPolicyNotReady", "a", True)]
    assert raised(301, {"a": [good]}, book) == []
    assert raised(302, {"a": [bad]}, book) == [("KoordPolicyNotReady", "a", False)]


def test_counters_raise_alerts_by_their_increase_in_the_window():
    key = labels(plugin="p", point="filter", rule="r")
    name = "koord_policy_expression_errors_total"
    old = [reading(0, **{name: {key: 4}}), reading(60, **{name: {key: 5}}), reading(900, **{name: {key: 5}})]
    assert raised(900, {"a": old}) == []  # the increase is older than ten minutes
    assert raised(90, {"a": old[:2]}) == [("KoordPolicyExpressionErrors", "a", False)]
    (found,) = AlertBook().look(90, WALL, {"a": old[:2]})
    assert found.summary == "expressions of p fail at filter"


def test_a_series_that_was_not_there_before_counts_from_zero():
    before = reading(0, other=1)
    assert raised(60, {"a": [before, reading(60, koord_policy_lost_pods_total=2)]}) == [
        ("KoordPolicyLostPods", "a", True)]


def test_no_leader_is_an_alert_about_all_replicas():
    one, other = labels(name="l"), labels(name="m")
    name = "leader_election_master_status"
    servers = {"a": [reading(0, **{name: {one: 0, other: 1}})], "b": [reading(0, **{name: {one: 0, other: 0}})]}
    (found,) = AlertBook().look(0, WALL, servers)
    assert (found.alert.name, found.labels, found.instance) == ("KoordPolicyNoLeader", one, "")
    assert found.summary == "no replica holds the Lease l, so no pod is scheduled"


def test_rates_are_added_up_by_labels_and_chosen_by_matchers():
    name = "koord_policy_agent_writes_total"
    failed, done = labels(file="x", status="failed"), labels(file="x", status="written")
    servers = {"a": [reading(0, **{name: {failed: 0, done: 0}}), reading(60, **{name: {failed: 1, done: 1}})]}
    (found,) = AlertBook().look(60, WALL, servers)
    assert (found.alert.name, found.labels) == ("KoordPolicyAgentWritesFail", labels(instance="a", status="failed"))


def test_ages_and_quantiles():
    name = "koord_policy_last_cluster_refresh_success_timestamp_seconds"
    assert raised(0, {"a": [reading(0, **{name: WALL - 301})], "b": [reading(0, **{name: 0})]}) == [
        ("KoordPolicyClusterStale", "a", False)]
    name = "rest_client_rate_limiter_duration_seconds_bucket"
    slow = {labels(verb="GET", host="h", le=le): amount for le, amount in (("1", 1.0), ("2", 9.0), ("+Inf", 9.0))}
    servers = {"a": [reading(0, other=1), reading(60, **{name: slow})]}
    assert [each.alert.name for each in AlertBook().look(60, WALL, servers)] == ["KoordPolicyRequestsLimited"]


def test_hostile_labels_do_not_end_the_computation():
    name = "rest_client_rate_limiter_duration_seconds_bucket"
    odd = {labels(verb="GET", le="x"): 1.0, labels(verb="GET"): 2.0, labels(le="1"): 3.0}
    assert raised(60, {"a": [reading(0, other=1), reading(60, **{name: odd})], "b": []}) == []


def test_each_alert_has_a_query():
    assert len({alert.query for alert in ALERTS}) == len(ALERTS)
