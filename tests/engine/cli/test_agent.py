"""The command line of the node agent up to the agent that it makes, which is replaced."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from koordpolicy.builtin_plugins.qos import PLUGINS
from koordpolicy.engine.agent.metrics_advisor.advisor import OPTIONAL, AdvisorSettings
from koordpolicy.engine.agent.node_agent import NodeAgentSettings
from koordpolicy.engine.agent.qos_manager.gates import GATES_WITHOUT_EFFECT
from koordpolicy.engine.agent.qos_manager.manager import Manager
from koordpolicy.engine.cli import agent as command
from koordpolicy.engine.cli.exits import Stop
from koordpolicy.engine.framework.registry import Registry

from .conftest import Outcome, Run

OF_COLLECTORS = [(name, gate) for name, (_, gates) in OPTIONAL.items() for gate in gates]
OWN_GATE = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: QoSPlugin
metadata: {name: own, annotations: {policy.koordinator.sh/description: Squeezes.}}
spec:
  featureGate: CPICollector
  interval: 1s
  forEach: node
  window: 1s
  actions:
  - {name: squeeze, when: usage.cpu > 2500, suppressCPU: {target: "1000", policy: CFSQuota}}
"""


@pytest.fixture
def agent(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that gives the settings of the agent of a command line, None if it is refused, and its end."""
    made: list[NodeAgentSettings] = []

    def make(_connect: object, _policies: object, settings: NodeAgentSettings, **_: object) -> None:
        made.append(settings)
        raise Stop("made")

    monkeypatch.setattr("koordpolicy.engine.agent.node_agent.NodeAgent", make)
    monkeypatch.setattr(command, "start_server_logs", lambda _: None)
    monkeypatch.setattr("koordpolicy.engine.agent.koordlet.find_koordlet", lambda _: "")

    def begin(*arguments: object) -> tuple[NodeAgentSettings | None, Outcome]:
        made.clear()
        done = run("agent", "--node-name", "n", "--state-dir", tmp_path / "state", *arguments)
        return (made[0] if made else None), done

    return begin


@pytest.mark.parametrize(("collector", "gate"), OF_COLLECTORS)
def test_each_gate_of_a_collector_switches_it_on_from_the_command_line(agent, collector: str, gate: str):
    settings, done = agent("--feature-gates", f"{gate}=true")
    assert (done.exit, done.err) == (2, "koord-policy: made\n")
    assert (AdvisorSettings.of(1, settings.gates, settings.collect)
            == AdvisorSettings(1, **{OPTIONAL[collector][0]: True}))


def test_the_gates_of_koordinators_chart_are_accepted(agent):
    settings, done = agent(
        "--feature-gates", "BECPUEvict=true,BEMemoryEvict=true,CgroupReconcile=true,Accelerators=true")
    assert (done.exit, done.err) == (2, "koord-policy: made\n")
    assert (settings.enable, settings.reported_devices) == (
        {"CPUEvict", "memoryEvict", "CgroupReconcile"}, {"gpu"})


@pytest.mark.parametrize("gate", GATES_WITHOUT_EFFECT)
def test_a_gate_of_koordlet_without_effect_is_accepted_with_a_warning(agent, gate: str):
    settings, done = agent("--feature-gates", f"{gate}=true")
    assert settings.enable == frozenset()
    assert done.err == (f"warning: `--feature-gates`: koordlet's gate `{gate}` has no effect here: "
                        f"{GATES_WITHOUT_EFFECT[gate]}\nkoord-policy: made\n")


def test_a_gate_that_a_document_names_has_an_effect(agent, tmp_path: Path):
    (tmp_path / "own.yaml").write_text(OWN_GATE)
    _, done = agent("--policies", tmp_path / "own.yaml", "--feature-gates", "CPICollector=true")
    assert done.err == "koord-policy: made\n"


def test_a_gate_that_nobody_has_is_refused(agent):
    assert agent("--feature-gates", "AuditEvent=true") == (None, Outcome(2, "", (
        "koord-policy: `--feature-gates`: there is no feature gate `AuditEvent`, and no document names it: "
        "did you mean `AuditEvents`?\n")))


@pytest.mark.parametrize(("option", "value"), [
    ("--kubelet-address", "1.2.3.4:99999"), ("--kubelet-address", "[::1]:65536"), ("--kubelet-read-only-port", "65536"),
])
def test_a_port_that_cannot_be_is_refused_with_its_option(agent, option: str, value: str):
    assert agent(option, value) == (
        None, Outcome(2, "", f"koord-policy: `{option} {value}`: a port is a number up to 65535\n"))


def test_the_help_has_the_defaults_of_an_agent(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "1000")
    text = run("agent", "--help").out
    found = dict(re.findall(r"^ +(--state-dir|--compile-timeout) \S+\s+(.+)$", text, re.MULTILINE))
    assert found == {
        "--state-dir": "where the journal, the last states and the last good policies are stored (default: "
                       "/var/run/koord-policy)",
        "--compile-timeout": "how long a file of policies may take to be checked, in a process of its own; 0 compiles "
                             "without that process (default: 0)"}
    assert "without that process (default: 10)" in run("descheduler", "--help").out


def test_a_strategy_that_is_not_the_agents_own_says_so():
    manager = Manager(enable=frozenset({"BECPUSuppress", "CPUBurst"}), only=frozenset({"CPUBurst"}))
    manager.use(Registry.of([each for each in PLUGINS if each.name in manager.enable], generation=1))
    assert (manager.running.keys(), manager.idle) == (
        {"CPUBurst"}, {"BECPUSuppress": "it is not named by `--own-strategies`"})


@pytest.mark.parametrize(("own", "message"), [
    ("BECPUSupress", "there is no plugin `BECPUSupress`: did you mean `BECPUSuppress`?"),
    ("BECPUSuppress,onw", "there is no plugin `onw`: did you mean `own`?"),
])
def test_a_strategy_of_its_own_that_does_not_exist_is_refused(agent, tmp_path: Path, own: str, message: str):
    (tmp_path / "own.yaml").write_text(OWN_GATE)
    assert agent("--policies", tmp_path / "own.yaml", "--enable", "BECPUSuppress", "--own-strategies", own) == (
        None, Outcome(2, "", f"koord-policy: `--own-strategies`: {message}\n"))


def test_its_own_strategies_are_built_in_ones_and_documents(agent, tmp_path: Path):
    (tmp_path / "own.yaml").write_text(OWN_GATE)
    settings, done = agent("--policies", tmp_path / "own.yaml", "--own-strategies", "BECPUSuppress,own")
    assert (settings.only, settings.reports, done.err) == ({"BECPUSuppress", "own"}, False, "koord-policy: made\n")


def test_where_a_source_may_be_empty_a_document_may_come_later(agent, tmp_path: Path):
    settings, done = agent("--policies", tmp_path, "--allow-empty", "--own-strategies", "later")
    assert (settings.only, done.err) == ({"later"}, "koord-policy: made\n")
