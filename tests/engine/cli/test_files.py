"""Files that options name and that are not there: a wrong usage, for every option of every command."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import pytest

from koordpolicy.engine import cli

from .conftest import Run

CLUSTER = "examples/cluster"
POLICIES = "policies/scheduler"
GONE = "/nowhere/at/all"
ENDPOINT = ("--endpoint", "http://127.0.0.1:9")
_EXTENDER = ("scheduler", "--extender", "--bind", "127.0.0.1:0", "--policies", POLICIES, "--cluster", CLUSTER)
_AGENT = ("agent", "--node-name", "a")
_SERVING = (*_AGENT, "--http", "127.0.0.1:0")
_MANAGER = ("manager", "--cluster", "kube")
_CONSOLE = ("console", "--bind", "127.0.0.1:0")
_DESCHEDULER = ("descheduler", "--cluster", "kube")
_ONE_CYCLE = ("descheduler", "--once", "--dry-run", "--cluster", CLUSTER)
_EVICTION = ("explain", "p", "--eviction", "--cluster", CLUSTER)

READ = {
    ("agent", "--policies"): (*_AGENT, "--policies", GONE),
    ("agent", "--config"): (*_AGENT, "--config", GONE),
    ("agent", "--cgroup-root"): (*_AGENT, "--cgroup-root", GONE),
    ("agent", "--proc-root"): (*_AGENT, "--proc-root", GONE),
    ("agent", "--sys-root"): (*_AGENT, "--sys-root", GONE),
    ("agent", "--resctrl-root"): (*_AGENT, "--resctrl-root", GONE),
    ("agent", "--tls-cert"): (*_SERVING, "--tls-cert", GONE, "--tls-key", GONE),
    ("agent", "--tls-key"): (*_SERVING, "--tls-cert", "README.md", "--tls-key", GONE),
    ("agent", "--client-ca"): (*_SERVING, "--tls-cert", "README.md", "--tls-key", "README.md", "--client-ca", GONE),
    ("agent", "--authentication-kubeconfig"): (*_SERVING, "--authentication-kubeconfig", GONE),
    ("agent", "--authorization-kubeconfig"): (
        *_SERVING, "--authentication-kubeconfig", "koord-policy.yaml", "--authorization-kubeconfig", GONE),
    ("agent", "--kubelet-certificate-authority"): (*_AGENT, "--kubelet-certificate-authority", GONE),
    ("audit", "paths"): ("audit", GONE, "--cluster", CLUSTER),
    ("audit", "--cluster"): ("audit", POLICIES, "--cluster", GONE),
    ("audit", "--config"): ("audit", POLICIES, "--cluster", CLUSTER, "--config", GONE),
    ("audit", "--descheduler-config"): ("audit", POLICIES, "--cluster", CLUSTER, "--descheduler-config", GONE),
    ("console", "--cluster"): (*_CONSOLE, "--cluster", GONE),
    ("console", "--policies"): (*_CONSOLE, "--cluster", CLUSTER, "--policies", GONE),
    ("console", "--config"): (*_CONSOLE, "--cluster", CLUSTER, "--config", GONE),
    ("console", "--tokens"): (*_CONSOLE, "--cluster", CLUSTER, "--tokens", GONE),
    ("console", "--descheduler-config"): (*_CONSOLE, "--cluster", CLUSTER, "--descheduler-config", GONE),
    ("console", "--lint-settings"): (*_CONSOLE, "--cluster", CLUSTER, "--lint-settings", GONE),
    ("console", "--recorded"): (*_CONSOLE, "--recorded", GONE),
    ("console", "--agent-recording"): (*_CONSOLE, "--cluster", CLUSTER, "--agent-recording", GONE),
    ("console", "--token-file"): (*_CONSOLE, "--cluster", CLUSTER, *ENDPOINT, "--token-file", GONE),
    ("console", "--ca"): (*_CONSOLE, "--cluster", CLUSTER, *ENDPOINT, "--ca", GONE),
    ("console", "--cert"): (*_CONSOLE, "--cluster", CLUSTER, *ENDPOINT, "--cert", GONE),
    ("console", "--key"): (*_CONSOLE, "--cluster", CLUSTER, *ENDPOINT, "--cert", GONE, "--key", GONE),
    ("console", "--authentication-kubeconfig"): (
        *_CONSOLE, "--cluster", CLUSTER, "--authentication-kubeconfig", GONE),
    ("console", "--authorization-kubeconfig"): (
        *_CONSOLE, "--cluster", CLUSTER, "--authentication-kubeconfig", "koord-policy.yaml",
        "--authorization-kubeconfig", GONE),
    ("console", "--tls-cert"): (*_CONSOLE, "--cluster", CLUSTER, "--tls-cert", GONE, "--tls-key", GONE),
    ("console", "--tls-key"): (*_CONSOLE, "--cluster", CLUSTER, "--tls-cert", "README.md", "--tls-key", GONE),
    ("descheduler", "--cluster"): ("descheduler", "--once", "--dry-run", "--cluster", GONE),
    ("descheduler", "--policies"): (*_ONE_CYCLE, "--policies", GONE),
    ("descheduler", "--config"): (*_ONE_CYCLE, "--config", GONE),
    ("descheduler", "--memory"): (*_ONE_CYCLE, "--memory", GONE),
    ("descheduler", "--scheduler-config"): (*_ONE_CYCLE, "--scheduler-config", GONE),
    ("descheduler", "--tls-cert"): (*_DESCHEDULER, "--tls-cert", GONE, "--tls-key", GONE),
    ("descheduler", "--tls-key"): (*_DESCHEDULER, "--tls-cert", "README.md", "--tls-key", GONE),
    ("descheduler", "--client-ca"): (
        *_DESCHEDULER, "--tls-cert", "README.md", "--tls-key", "README.md", "--client-ca", GONE),
    ("descheduler", "--admin-token-file"): (*_DESCHEDULER, "--admin-token-file", GONE),
    ("descheduler", "--authentication-kubeconfig"): (*_DESCHEDULER, "--authentication-kubeconfig", GONE),
    ("descheduler", "--authorization-kubeconfig"): (
        *_DESCHEDULER, "--authentication-kubeconfig", "koord-policy.yaml", "--authorization-kubeconfig", GONE),
    ("diff", "old"): ("diff", GONE, POLICIES, "--cluster", CLUSTER),
    ("diff", "new"): ("diff", POLICIES, GONE, "--cluster", CLUSTER),
    ("diff", "--cluster"): ("diff", POLICIES, POLICIES, "--cluster", GONE),
    ("diff", "--config"): ("diff", POLICIES, POLICIES, "--cluster", CLUSTER, "--config", GONE),
    ("diff", "--descheduler-config"): ("diff", POLICIES, POLICIES, "--cluster", CLUSTER, "--descheduler-config", GONE),
    ("diff", "--trace"): ("diff", POLICIES, POLICIES, "--trace", GONE),
    ("eval", "--cluster"): ("eval", "1", "--cluster", GONE),
    ("explain", "--cluster"): ("explain", "p", "--cluster", GONE),
    ("explain", "--policies"): ("explain", "p", "--cluster", CLUSTER, "--policies", GONE),
    ("explain", "--config"): ("explain", "p", "--cluster", CLUSTER, "--config", GONE),
    ("explain", "--scheduler-config"): (*_EVICTION, "--scheduler-config", GONE),
    ("explain", "--replay"): ("explain", "--qos", "n", "--replay", GONE),
    ("fmt", "paths"): ("fmt", GONE),
    ("hash", "path"): ("hash", GONE),
    ("lint", "paths"): ("lint", GONE),
    ("lint", "--config"): ("lint", POLICIES, "--config", GONE),
    ("lint", "--settings"): ("lint", POLICIES, "--settings", GONE),
    ("plugins", "--policies"): ("plugins", "--policies", GONE),
    ("promote", "--token-file"): ("promote", *ENDPOINT, "--token-file", GONE),
    ("promote", "--ca"): ("promote", *ENDPOINT, "--ca", GONE),
    ("promote", "--cert"): ("promote", *ENDPOINT, "--cert", GONE),
    ("promote", "--key"): ("promote", *ENDPOINT, "--cert", GONE, "--key", GONE),
    ("reload", "--token-file"): ("reload", "--wait", "0" * 8, *ENDPOINT, "--token-file", GONE),
    ("status", "--token-file"): ("status", *ENDPOINT, "--token-file", GONE),
    ("rollback", "--token-file"): ("rollback", *ENDPOINT, "--token-file", GONE),
    ("rollback", "--ca"): ("rollback", *ENDPOINT, "--ca", GONE),
    ("rollback", "--cert"): ("rollback", *ENDPOINT, "--cert", GONE),
    ("rollback", "--key"): ("rollback", *ENDPOINT, "--cert", GONE, "--key", GONE),
    ("reload", "--ca"): ("reload", *ENDPOINT, "--ca", GONE),
    ("reload", "--cert"): ("reload", *ENDPOINT, "--cert", GONE),
    ("reload", "--key"): ("reload", *ENDPOINT, "--cert", GONE, "--key", GONE),
    ("reload", "--wait-for"): ("reload", *ENDPOINT, "--wait-for", GONE),
    ("status", "--ca"): ("status", *ENDPOINT, "--ca", GONE),
    ("status", "--cert"): ("status", *ENDPOINT, "--cert", GONE),
    ("status", "--key"): ("status", *ENDPOINT, "--cert", GONE, "--key", GONE),
    ("qos", "--policies"): ("qos", "--replay", "examples/09-qos-replay/metrics.yaml", "--policies", GONE),
    ("qos", "--replay"): ("qos", "--replay", GONE),
    ("qos", "--config"): ("qos", "--replay", "examples/09-qos-replay/metrics.yaml", "--config", GONE),
    ("dump", "--policies"): ("dump", "--cluster", "kube", "--out", GONE, "--policies", GONE),
    ("sweep", "--recorded"): ("sweep", "--recorded", GONE),
    ("replay", "--trace"): ("replay", "--trace", GONE),
    ("replay", "--recorded"): ("replay", "--recorded", GONE),
    ("scheduler", "--cluster"): ("scheduler", "--cluster", GONE),
    ("scheduler", "--policies"): ("scheduler", "--cluster", CLUSTER, "--policies", GONE),
    ("scheduler", "--config"): ("scheduler", "--cluster", CLUSTER, "--config", GONE),
    ("scheduler", "--admin-token-file"): (*_EXTENDER, "--admin-token-file", GONE),
    ("scheduler", "--tls-cert"): (*_EXTENDER, "--tls-cert", GONE, "--tls-key", GONE),
    ("scheduler", "--tls-key"): (*_EXTENDER, "--tls-cert", GONE, "--tls-key", GONE),
    ("scheduler", "--client-ca"): (*_EXTENDER, "--tls-cert", GONE, "--tls-key", GONE, "--client-ca", GONE),
    ("scheduler", "--authentication-kubeconfig"): (*_EXTENDER, "--authentication-kubeconfig", GONE),
    ("scheduler", "--authorization-kubeconfig"): (
        *_EXTENDER, "--authentication-kubeconfig", "koord-policy.yaml", "--authorization-kubeconfig", GONE),
    ("manager", "--tls-cert"): (*_MANAGER, "--tls-cert", GONE, "--tls-key", GONE),
    ("manager", "--tls-key"): (*_MANAGER, "--tls-cert", "README.md", "--tls-key", GONE),
    ("manager", "--client-ca"): (*_MANAGER, "--tls-cert", "README.md", "--tls-key", "README.md", "--client-ca", GONE),
    ("manager", "--authentication-kubeconfig"): (*_MANAGER, "--authentication-kubeconfig", GONE),
    ("manager", "--authorization-kubeconfig"): (
        *_MANAGER, "--authentication-kubeconfig", "koord-policy.yaml", "--authorization-kubeconfig", GONE),
    ("simulate", "--trace"): ("simulate", "--trace", GONE),
    ("sweep", "--trace"): ("sweep", "seed=1", "--trace", GONE),
    ("test", "paths"): ("test", GONE),
    ("top", "--cluster"): ("top", "--cluster", GONE, "--once"),
    ("top", "--token-file"): ("top", *ENDPOINT, "--token-file", GONE, "--once"),
    ("top", "--ca"): ("top", *ENDPOINT, "--ca", GONE, "--once"),
    ("top", "--cert"): ("top", *ENDPOINT, "--cert", GONE, "--once"),
    ("top", "--key"): ("top", *ENDPOINT, "--cert", GONE, "--key", GONE, "--once"),
}
"""By command and option, a command line whose file is not there."""

BUNDLE = "oci:127.0.0.1:1/p:v1"
OF_BUNDLES = {
    "agent": (*_AGENT, "--policies", BUNDLE),
    "audit": ("audit", BUNDLE, "--cluster", CLUSTER),
    "console": (*_CONSOLE, "--cluster", CLUSTER, "--policies", BUNDLE),
    "descheduler": (*_ONE_CYCLE, "--policies", BUNDLE),
    "diff": ("diff", POLICIES, BUNDLE, "--cluster", CLUSTER),
    "dump": ("dump", "--cluster", "kube", "--out", GONE, "--policies", BUNDLE),
    "explain": ("explain", "p", "--cluster", CLUSTER, "--policies", BUNDLE),
    "hash": ("hash", BUNDLE),
    "lint": ("lint", BUNDLE),
    "plugins": ("plugins", "--policies", BUNDLE),
    "pull": ("pull", BUNDLE, "--out", GONE),
    "qos": ("qos", "--replay", "examples/09-qos-replay/metrics.yaml", "--policies", BUNDLE),
    "reload": ("reload", *ENDPOINT, "--wait-for", BUNDLE),
    "replay": ("replay", "--trace", "examples/08-replay-a-trace", "--policies", BUNDLE),
    "scheduler": ("scheduler", "--cluster", CLUSTER, "--policies", BUNDLE),
    "simulate": ("simulate", "--trace", "examples/08-replay-a-trace", "--policies", BUNDLE),
    "sweep": ("sweep", "params.a=1..2:1", "--cluster", CLUSTER, "--policies", BUNDLE),
    "test": ("test", BUNDLE),
}
READ |= {(command, "--verify-key"): (*words, "--verify-key", GONE) for command, words in OF_BUNDLES.items()}
READ |= {(command, "--registry-ca"): (*words, "--insecure-unsigned", "--registry-ca", GONE)
         for command, words in OF_BUNDLES.items()}
READ |= {
    ("push", "paths"): ("push", "127.0.0.1:1/p:v1", GONE),
    ("push", "--sign-key"): ("push", "127.0.0.1:1/p:v1", POLICIES, "--sign-key", GONE),
    ("push", "--registry-ca"): ("push", "127.0.0.1:1/p:v1", POLICIES, "--registry-ca", GONE),
}

UNREAD = {"--out", "--report", "--plot", "--series", "--coverage-out", "--state-dir", "--stdin-name", "--record",
          "--decision-log", "--audit-log-dir"}
FILES = {"FILE", "PATH", "DIR", "OLD", "NEW"}


def named_files() -> set[tuple[str, str]]:
    """Return the options and arguments that say by their metavar that they name a file that is read."""
    found = set()
    for command in cli.COMMANDS:
        parser = argparse.ArgumentParser()
        importlib.import_module(f".{command}", cli.__name__).add_arguments(parser)
        for each in parser._actions:
            name = each.option_strings[0] if each.option_strings else each.dest
            if each.metavar in FILES and name not in UNREAD:
                found.add((command, name))
    return found


def test_every_option_that_names_a_file_is_tried():
    others = {(command, option) for command, option in READ if option in ("--cluster", "--policies")}
    beside_a_trace = {
        ("replay", "--nodes"), ("replay", "--policies"), ("replay", "--descheduler-config"), ("replay", "--config"),
        ("simulate", "--nodes"), ("simulate", "--policies"), ("sweep", "--nodes"), ("sweep", "--policies"),
        ("sweep", "--config"), ("diff", "--nodes"),
    }
    waited_for = {("scheduler", "--shadow")}  # a shadow may be mounted later
    beside_users = {("console", "--admin-token-file"), ("console", "--audit-log")}
    begun_empty = {("explain", "--memory")}  # the first cycle of the descheduler creates it
    assert named_files() - set(READ) - beside_a_trace - waited_for - beside_users - begun_empty == set()
    assert set(READ) - named_files() - others == set()


@pytest.mark.parametrize("arguments", READ.values(), ids=[" ".join(each) for each in READ])
def test_a_file_that_is_not_there_is_a_wrong_usage(run: Run, arguments: tuple[str, ...]):
    outcome = run(*arguments)
    assert (outcome.exit, "Traceback" in outcome.err) == (2, False), outcome.err
    assert outcome.err


# A console shows invalid policies, and goes on.
REFUSED = {name: arguments for name, arguments in READ.items() if name != ("console", "--policies")}


def with_path(arguments: tuple[str, ...], path: str) -> list[str]:
    return [path if each == GONE else each for each in arguments]


@pytest.mark.parametrize("arguments", READ.values(), ids=[" ".join(each) for each in READ])
def test_an_empty_path_is_a_wrong_usage(run: Run, arguments: tuple[str, ...]):
    outcome = run(*with_path(arguments, ""))
    assert (outcome.exit, "it is empty: a variable that is not set?" in outcome.err) == (2, True), outcome.err


@pytest.mark.parametrize("arguments", REFUSED.values(), ids=[" ".join(each) for each in REFUSED])
def test_a_file_that_is_no_text_is_refused(run: Run, tmp_path: Path, arguments: tuple[str, ...]):
    file = tmp_path / "file"
    file.write_bytes(b"\xff\xfe\0")
    outcome = run(*with_path(arguments, str(file)))
    assert (outcome.exit in (2, 3), "Traceback" in outcome.err) == (True, False), outcome.err
    assert outcome.err + outcome.out


@pytest.mark.parametrize(("token", "log"), [(GONE, "audit.jsonl"), ("token", f"{GONE}/audit.jsonl")])
def test_so_are_those_of_a_console_with_changes(run: Run, tmp_path: Path, token: str, log: str):
    tokens = tmp_path / "tokens.csv"
    tokens.write_text("0123456789abcdef,olga,operator\n")
    (tmp_path / "token").write_text("0123456789abcdef\n")
    outcome = run(*_CONSOLE, "--cluster", CLUSTER, *ENDPOINT, "--tokens", str(tokens), "--allow-changes",
                  "--admin-token-file", str(tmp_path / token), "--audit-log", str(tmp_path / log))
    assert (outcome.exit, "Traceback" in outcome.err) == (2, False), outcome.err
    assert GONE in outcome.err


@pytest.mark.parametrize("option", ["--tls-cert", "--client-ca", "--authentication-kubeconfig"])
def test_an_agent_that_does_not_listen_needs_no_options_of_readers(run: Run, option: str):
    outcome = run(*_AGENT, option, GONE)
    assert (outcome.exit, f"`{option}` goes with `--http`" in outcome.err) == (2, True)


@pytest.mark.parametrize("arguments", [
    ("simulate", "--nodes", GONE), ("simulate", "--policies", GONE), ("sweep", "seed=1", "--nodes", GONE),
])
def test_so_is_one_beside_a_trace(run: Run, arguments: tuple[str, ...]):
    outcome = run(*arguments, "--trace", "examples/08-replay-a-trace")
    assert (outcome.exit, "Traceback" in outcome.err) == (2, False), outcome.err
