"""The command line of the live scheduler; what it does on a cluster is in tests/e2e."""

from __future__ import annotations

import argparse
import logging
import socket
from pathlib import Path

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cli import live, reloading, serving
from koordpolicy.engine.cli.composition import add_policies, registry_of, report_idle
from koordpolicy.engine.client.leader_election import LeaseSettings
from koordpolicy.engine.scheduler.live.server import ServerSettings

from .conftest import Run

POLICIES = Path(__file__).parents[3] / "policies" / "scheduler"
LIVE = ("--cluster", "kube:nowhere")


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    live.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(("words", "message"), [
    (("--cluster", "c.yaml", "--leader-elect"),
     "`--leader-elect` goes with a live cluster, without `--dry-run` and `--extender`"),
    (("--cluster", "kube", "--dry-run", "--scheduler-name", "x"),
     "`--scheduler-name` goes with a live cluster, without `--dry-run` and `--extender`"),
    (("--extender", "--kube-api-qps", "5"),
     "`--kube-api-qps` goes with a live cluster, without `--dry-run` and `--extender`"),
    (("--cluster", "kube", "--dry-run", "--state-dir", "x"),
     "`--state-dir` goes with `--extender`, or a live cluster without `--dry-run`"),
    ((*LIVE, "--output", "json"),
     ("`--output` and `--now` mean nothing to a scheduler of a live cluster: add `--dry-run`, or look at its "
      "events and logs")),
    ((*LIVE, "--config", "c.yaml", "--scheduler-name", "x"),
     "`--scheduler-name` and `--profile` go without `--config`: its profiles have names"),
    ((*LIVE, "--dry-run", "--bind", "127.0.0.1:80"),
     "`--bind` goes with `--extender`, or a live cluster without `--dry-run`"),
    ((*LIVE, "--tls-cert", "a.crt"), "`--tls-cert` and `--tls-key` go together"),
    ((*LIVE, "--policies", "configmap:a/b", "--status-lease", "a/b"),
     "`--status-lease` goes with `--policies crd`: only these objects have a status"),
    ((*LIVE, "--policies", "crd", "--registry-interval", "5"),
     ("`--registry-interval` goes with a bundle, and none is named: `oci:REGISTRY/REPOSITORY:TAG` is one")),
    (("--extender", "--enable", "NodeResourcesFit", "--status-lease", "a/b"),
     "`--status-lease` goes with `--policies crd`: only these objects have a status"),
    ((*LIVE, "--authorization-kubeconfig", "nope", "--bind", "127.0.0.1:0"),
     ("`--authorization-kubeconfig` goes with `--tls-cert` or `--authentication-kubeconfig`: without them everybody "
      "may read metrics and configuration")),
    ((*LIVE, "--authorization-always-allow-paths", "/metrics"),
     ("`--authorization-always-allow-paths` goes with `--tls-cert` or `--authentication-kubeconfig`: without them "
      "everybody may read metrics and configuration")),
    ((*LIVE, "--authorization-webhook-cache-authorized-ttl", "5s"),
     ("`--authorization-webhook-cache-authorized-ttl` goes with `--tls-cert` or `--authentication-kubeconfig`: "
      "without them everybody may read metrics and configuration")),
])
def test_options_that_mean_nothing_are_refused(run: Run, words: tuple[str, ...], message: str):
    done = run("scheduler", *words)
    assert (done.exit, done.err.strip()) == (2, f"koord-policy: {message}")


@pytest.mark.parametrize(("words", "message"), [
    (("--bind-timeout", "0s"), "argument --bind-timeout: `0s` is not a time above 0, such as 60s"),
    (("--bind-timeout", "soon"), "argument --bind-timeout: `soon` is not a time such as 60s or 5m"),
    (("--scheduler-name", ""),
     "argument --scheduler-name: a scheduler's name is not empty: such as default-scheduler"),
])
def test_values_that_no_scheduler_can_use_are_refused(run: Run, words: tuple[str, ...], message: str):
    done = run("scheduler", *LIVE, *words)
    assert (done.exit, done.err.strip().splitlines()[-1]) == (2, f"koord-policy scheduler: error: {message}")


@pytest.mark.parametrize(("words", "message"), [
    (("--leader-elect-lease-duration", "5s"), "leaseDuration must be greater than renewDeadline"),
    (("--leader-elect=false", "--leader-elect-retry-period", "1s"),
     "`--leader-elect-retry-period` goes without `--leader-elect=false`"),
])
def test_times_of_the_lease_that_contradict_each_other_are_refused(words: tuple[str, ...], message: str):
    with pytest.raises(live.Stop, match=message):
        live.server_settings(options(*words))


def test_an_address_that_is_taken_is_named_with_its_option():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for option in ("--bind", "--health-bind"):
            with pytest.raises(live.Stop) as caught:
                serving.listen(lambda *_: None, [("--other", None, None), (option, ("127.0.0.1", port), None)])
            assert str(caught.value) == (
                f"cannot listen on 127.0.0.1:{port}: address already in use: name another address with `{option}`")


def test_policies_without_effect_are_reported_in_the_log_of_a_server(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture,
):
    report_idle(registry_of([POLICIES / "best-fit-packing.yaml"], builtins), {"other"}, log=logging.getLogger("server"))
    (record,) = caplog.records
    assert (record.name, record.levelname, record.getMessage()) == (
        "server", "WARNING",
        "`best-fit-packing` does nothing: its `spec.profiles` names `packing`, and no pod here has that profile")
    assert capsys.readouterr().err == ""


def test_options_of_the_client_and_the_lease_have_the_defaults_of_kube_scheduler():
    settings = live.server_settings(options())
    assert isinstance(settings.lease, LeaseSettings)
    identity = settings.lease.identity
    assert settings == ServerSettings(
        qps=50.0, burst=100, lease=LeaseSettings("kube-system", "koord-policy-scheduler", identity, 15.0, 10.0, 2.0))
    assert live.server_settings(options("--leader-elect=false", "--kube-api-qps", "0", "--kube-api-burst", "7")) == (
        ServerSettings(qps=0.0, burst=7, lease=None))


def test_the_configuration_says_what_the_options_do_not():
    written = {
        "clientConnection": {"qps": 200, "burst": 400},
        "leaderElection": {"leaderElect": True, "leaseDuration": "30s", "renewDeadline": "20s", "resourceName": "mine"}}
    settings = live.server_settings(options("--leader-elect-renew-deadline", "12s", "--kube-api-burst", "7"), written)
    assert settings.lease is not None
    assert settings == ServerSettings(
        qps=200.0, burst=7, lease=LeaseSettings("kube-system", "mine", settings.lease.identity, 30.0, 12.0, 2.0))
    assert live.server_settings(options(), {"leaderElection": {"leaderElect": False}}).lease is None
    assert live.server_settings(options(), {"clientConnection": {"qps": -1}}).qps == 0.0
    with pytest.raises(live.Stop, match="`soon` is not a time"):
        live.server_settings(options(), {"leaderElection": {"leaseDuration": "soon"}})


def test_no_process_compiles_policies_where_no_path_of_them_is_named():
    parser = argparse.ArgumentParser()
    add_policies(parser)
    reloading.add_arguments(parser)
    assert reloading.load_vetted(parser.parse_args([]), lambda vetter: vetter) is None
    for words, shadow in ((["--policies", str(POLICIES)], None), ([], str(POLICIES))):
        vetter = reloading.load_vetted(parser.parse_args(words), lambda vetter: vetter, shadow=shadow)
        assert vetter is not None
        vetter.close()
