"""`koord-policy manager`: wrong options. The server runs in tests/e2e/test_manager.py."""

from __future__ import annotations

import pytest

from .conftest import Run


@pytest.mark.parametrize(("arguments", "message"), [
    (("--cluster", "examples/cluster"), "`--cluster` of a manager is a live one: `kube` or `kube:CONTEXT`"),
    (("--cluster", "kube", "--webhook-bind", "127.0.0.1:0"), "`--webhook-bind` needs `--tls-cert` and `--tls-key`"),
    (("--cluster", "kube", "--webhook-certificates", "tls"), "`--webhook-certificates` goes with `--webhook-bind`"),
    (("--cluster", "kube", "--webhook-bind", "127.0.0.1:0", "--webhook-certificates", "BAD"),
     "argument --webhook-certificates: `BAD` is not a name: lower case letters"),
    (("--cluster", "kube", "--webhook-configuration", "a/b"), "argument --webhook-configuration: `a/b` is not a name"),
    (("--cluster", "kube", "--webhook-name", "a_b"), "argument --webhook-name: `a_b` is not a name"),
    (("--cluster", "kube", "--namespace", "a.b"), "argument --namespace: `a.b` is not the name of a namespace"),
    (("--cluster", "kube", "--config-map", ""), "argument --config-map: `` is not a name"),
    (("--cluster", "kube", "--leader-elect-resource-name", "-a"),
     "argument --leader-elect-resource-name: expected one argument"),
    (("--cluster", "kube", "--leader-elect-resource-name", "A"),
     "argument --leader-elect-resource-name: `A` is not a name"),
    (("--cluster", "kube", "--leader-elect-resource-namespace", "x" * 64),
     "is not the name of a namespace: lower case letters, digits, `-`, such as my-name"),
    (("--cluster", "kube", "--webhook-name", "a"), "`--webhook-name` goes with `--webhook-certificates`"),
    (("--cluster", "kube", "--webhook-certificates", "tls", "--tls-cert", "a"),
     "`--tls-cert` goes without `--webhook-certificates`"),
    (("--cluster", "kube", "--webhook-certificates", "tls", "--webhook-bind", "127.0.0.1:0", "--client-ca", "none"),
     "there is no file `none`"),
    (("--cluster", "kube", "--bind", "127.0.0.1:0", "--authorization-kubeconfig", "nope"),
     "`--authorization-kubeconfig` goes with `--tls-cert` or `--authentication-kubeconfig`: without them everybody"),
    (("--cluster", "kube", "--authentication-token-webhook-cache-ttl", "1s"),
     "`--authentication-token-webhook-cache-ttl` goes with `--tls-cert` or `--authentication-kubeconfig`"),
    (("--cluster", "kube", "--tls-cert", "a"), "`--tls-cert` and `--tls-key` go together"),
    (("--cluster", "kube", "--leader-elect=false", "--leader-elect-resource-name", "x"),
     "goes without `--leader-elect=false`"),
    (("--cluster", "kube", "--leader-elect-lease-duration", "5s"), "leaseDuration must be greater than renewDeadline"),
    (("--cluster", "kube", "--sync-period", "often"), "--sync-period"),
    ((), "--cluster"),
])
def test_wrong_options_are_named(run: Run, arguments: tuple[str, ...], message: str):
    outcome = run("manager", *arguments)
    assert (outcome.exit, message in outcome.err) == (2, True), outcome.err


def test_help_has_examples_and_exit_codes(run: Run):
    outcome = run("manager", "--help")
    assert outcome.exit == 0
    assert "koord-policy manager --cluster kube --leader-elect=false" in outcome.out
    assert "exit codes: 0 after SIGTERM, 1 the Lease was lost" in outcome.out
