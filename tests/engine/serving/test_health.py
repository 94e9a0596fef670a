"""Health checks answer in the format of kube-scheduler, with reasons."""

from __future__ import annotations

import pytest

from koordpolicy.engine.serving.health import Health, HealthCheck, UnknownCheckError
from koordpolicy.engine.serving.instruments import MetricsRegistry


def health(*, fault: str = "") -> Health:
    return Health({"livez": [], "readyz": [HealthCheck("sched-handler-sync", lambda: fault),
                                           HealthCheck("leaderElection", lambda: "")]})


def test_a_healthy_server_is_ok():
    assert (health().report("readyz").text, health().report("livez").text) == ("ok", "ok")


def test_verbose_lists_every_check():
    assert health().report("readyz", verbose=True).text == (
        "[+]ping ok\n[+]sched-handler-sync ok\n[+]leaderElection ok\nreadyz check passed\n")


def test_a_failure_is_listed_with_its_reason():
    report = health(fault="handlers are not fully synchronized").report("readyz")
    assert not report.healthy
    assert report.text == ("[+]ping ok\n[-]sched-handler-sync failed: handlers are not fully synchronized\n"
                           "[+]leaderElection ok\nreadyz check failed\n")


def test_an_excluded_check_is_not_run():
    report = health(fault="no").report("readyz", verbose=True, excluded=["sched-handler-sync", "nothing"])
    assert report.healthy
    assert report.text == (
        "[+]ping ok\n[+]sched-handler-sync excluded: ok\n[+]leaderElection ok\n"
        "warn: some health checks cannot be excluded: no matches for nothing\nreadyz check passed\n")


def test_one_check_is_answered_alone():
    assert health().report_one("readyz", "ping").text == "ok"
    assert health(fault="no").report_one("readyz", "sched-handler-sync").text == "no\n"
    with pytest.raises(UnknownCheckError, match=r"`livez` has no check of that name: it has ping"):
        health().report_one("livez", "sched-handler-sync")


def test_the_checks_are_metrics_too():
    checked = health(fault="no")
    checked.report("readyz")
    text = MetricsRegistry(checked).text().decode()
    assert 'kubernetes_healthcheck{name="sched-handler-sync",type="readyz"} 0.0' in text
    assert 'kubernetes_healthcheck{name="ping",type="livez"} 1.0' in text
    assert 'kubernetes_healthchecks_total{name="sched-handler-sync",status="error",type="readyz"} 2.0' in text
