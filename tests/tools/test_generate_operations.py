"""The files generated of the table of metrics are current, and read only metrics that servers have."""

from __future__ import annotations

import importlib.util
import re
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from koordpolicy.__main__ import builtins
from koordpolicy.engine.agent import metric_table as agent_table
from koordpolicy.engine.agent.counts import AgentCounts
from koordpolicy.engine.agent.host.control_groups import ControlGroups
from koordpolicy.engine.agent.host.files import FileReader
from koordpolicy.engine.agent.metric_cache.cache import MetricCache
from koordpolicy.engine.agent.metrics_advisor.advisor import AdvisorSettings, MetricsAdvisor
from koordpolicy.engine.agent.metrics_advisor.collector import Sources
from koordpolicy.engine.agent.operations import AgentOperations, DecisionMetrics
from koordpolicy.engine.agent.prediction.predictor import Prediction
from koordpolicy.engine.cli import extender
from koordpolicy.engine.client.leader_election import Leadership, LeaseSettings
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.sources.changes import KindView
from koordpolicy.engine.cluster.sources.feed import LAG_BUCKETS_S, FeedView
from koordpolicy.engine.descheduler.live import metric_table as descheduler_table
from koordpolicy.engine.descheduler.live.loop import CycleReport
from koordpolicy.engine.descheduler.live.loop import LoopView as DeschedulerView
from koordpolicy.engine.descheduler.live.operations import DeschedulerOperations
from koordpolicy.engine.descheduler.live.shards import ShardsView
from koordpolicy.engine.descheduler.migration.worker import MigrationFigures
from koordpolicy.engine.descheduler.results import CycleResult
from koordpolicy.engine.framework.qos import Storage
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.extender.loaded_extender import Loaded
from koordpolicy.engine.scheduler.extender.server import Server
from koordpolicy.engine.scheduler.live.operations import Operations
from koordpolicy.engine.scheduler.live.owner import LiveView
from koordpolicy.engine.scheduler.live.server import ServerSettings
from koordpolicy.engine.scheduler.observe import metric_table as table
from koordpolicy.engine.scheduler.observe.counters import Counters
from koordpolicy.engine.serving import client_metrics, process_metrics
from koordpolicy.engine.serving.client_metrics import ClientMetrics
from koordpolicy.engine.serving.instruments import MetricsRegistry, MetricType
from tests.engine.cli.conftest import node
from tests.engine.cli.extender.serving import arguments, document, running
from tests.engine.cli.extender.test_watched import Watched

PROJECT = Path(__file__).parents[2]
POLICY = """
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: small}
spec:
  filter: [{name: small, expression: allocatable.cpu < 4000}]
"""


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("generate_operations", PROJECT / "tools" / "generate_operations.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def families(text: str) -> dict[str, str]:
    """Return the types of the families of an output, by the name that queries have."""
    assert list(text_string_to_metric_families(text))
    return dict(re.findall(r"(?m)^# TYPE (\S+) (\S+)$", text))


@pytest.fixture(scope="module")
def of_extender(tmp_path_factory) -> dict[str, str]:
    """Return the families of an extender that watches a cluster and has a shadow."""
    folder = tmp_path_factory.mktemp("extender")
    for name in ("policies", "shadow"):
        (folder / name).mkdir()
        (folder / name / "policy.yaml").write_text(document(4000))
    (folder / "cluster.yaml").write_text(yaml.safe_dump({"kind": "List", "apiVersion": "v1", "items": [node("a")]}))
    load = extender.loader(arguments("--policies", folder / "policies", "--shadow", folder / "shadow", "--cluster",
                                     folder / "cluster.yaml"), builtins)

    def watching() -> Loaded:
        loaded = load()
        return replace(loaded, watched=Watched(loaded.extender.cluster, ["Node"]))

    with running(Server(watching)) as client:
        return families(client("GET", "/metrics")[1])


@pytest.fixture(scope="module")
def of_scheduler(tmp_path_factory) -> dict[str, str]:
    """Return the families of a live scheduler's endpoints, whose loop is real and whose Lease is not."""
    folder = tmp_path_factory.mktemp("scheduler")
    (folder / "policy.yaml").write_text(POLICY)
    loaded = extender.loader(arguments("--policies", folder), builtins)()
    try:
        loop = SchedulingLoop(Cluster(), Live(Registry.of(builtins(), generation=1)), clock=lambda: 0)
        operations = Operations(counters=Counters())
        view = FeedView(True, {"Pod": KindView(1.0)}, (), 0, 0.0, 1, 0, 1, {("Pod", "missing"): 1})
        feed = SimpleNamespace(view=view, lags=[1] + [0] * len(LAG_BUCKETS_S), lag_sum_s=0.0,
                               oldest_view_age=lambda: 1.0)
        operations.follow(SimpleNamespace(
            feed=feed, scheduler=SimpleNamespace(loop=loop, view=LiveView(synced=True)), election=SimpleNamespace(
                state=Leadership(leading=True)),
            settings=ServerSettings(lease=LeaseSettings("kube-system", "lease", "me"))), loaded.reloader)
        operations.measure()
        return families(operations.registry.text().decode())
    finally:
        loaded.stop_reloading()


@pytest.fixture(scope="module")
def of_agent(tmp_path_factory) -> dict[str, str]:
    """Return the families of a node agent's endpoints; its measurements and metrics are real, its states are not."""
    roots = str(tmp_path_factory.mktemp("node"))
    groups = ControlGroups(2, "systemd", {"": roots})
    cache = MetricCache("n")
    advisor = MetricsAdvisor(Sources(cache, groups, FileReader(), proc=roots, sys=roots, resctrl=roots),
                             AdvisorSettings.of(10**9, {}, frozenset()), tuple, Storage)
    states = SimpleNamespace(pods_age=1.0, pods=(), topology=None, node=None)
    node: Any = SimpleNamespace(agent=SimpleNamespace(ready=True, seconds_in_pass=0.0), advisor=advisor, states=states,
                                cache=cache, settings=SimpleNamespace(node="n"), faults=lambda: "",
                                reported_usage={}, prediction=Prediction())
    registry = MetricsRegistry()
    ClientMetrics(registry)
    operations = AgentOperations(node, DecisionMetrics("n", AgentCounts()), generation=lambda: 1, registry=registry)
    url = operations.listen("127.0.0.1", 0)
    try:
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            return families(answer.read().decode())
    finally:
        operations.close()


@pytest.fixture(scope="module")
def of_descheduler() -> dict[str, str]:
    """Return the families of a live descheduler's endpoints, whose server is none."""
    operations = DeschedulerOperations()
    view = DeschedulerView(synced=True, last=CycleReport(1, 2.0, 3.0, CycleResult(1, dry_run=True, nodes=2)))
    operations.follow(SimpleNamespace(
        descheduler=SimpleNamespace(view=view), feed=SimpleNamespace(views={"Pod": KindView(1.0)}),
        evictions=SimpleNamespace(holds=dict), leads=lambda: True, activator=SimpleNamespace(fault=""),
        shards=ShardsView("shard-0", 1),
        migrations=SimpleNamespace(figures=MigrationFigures(ended={("Failed", "Timeout"): 1}))),
        SimpleNamespace(status=lambda: SimpleNamespace(emptied=())), None)
    try:
        return families(operations.registry.text().decode())
    finally:
        operations.endpoints.close()


def test_the_committed_files_are_what_the_table_yields(generator):
    for path, text in generator.files().items():
        assert path.read_text(encoding="utf-8") == text, f"run tools/generate_operations.py: {path}"


def test_servers_have_the_metrics_of_the_table_and_no_others(of_extender, of_scheduler, of_agent, of_descheduler):
    shown = {MetricType.INFO: "gauge"}
    for found, specs in (
            (of_agent, (*AGENT, *process_metrics.TABLE)), (of_descheduler, DESCHEDULER),
            (of_extender, (*table.EXTENDER, *process_metrics.TABLE)), (of_scheduler, (*table.SCHEDULER, *table.LIVE))):
        assert found == {spec.name: shown.get(spec.type, spec.type.value) for spec in specs}


CLIENT = (client_metrics.REQUESTS, client_metrics.REQUEST_SECONDS, client_metrics.LIMITER_SECONDS,
          client_metrics.REQUEST_RETRIES)
AGENT = (*agent_table.COLLECTION, *agent_table.REPORTS, *agent_table.DECISIONS, *CLIENT)
DESCHEDULER = (*descheduler_table.TABLE, *CLIENT)


def queries(generator):
    for panels in generator.ROWS.values():
        for panel in panels:
            yield from ((panel.title, query, legend) for query, legend in panel.queries)
    yield from ((alert.name, alert.query, alert.summary) for alert in generator.ALERTS)


def test_each_panel_and_alert_reads_metrics_that_servers_have(
    generator, of_extender, of_scheduler, of_agent, of_descheduler,
):
    known = of_extender | of_scheduler | of_agent | of_descheduler
    for title, query, _ in queries(generator):
        names = generator.metrics_of(query)
        assert names, title
        assert names <= known.keys(), title
        if "histogram_quantile" in query:
            assert all(known[name] == "histogram" for name in names), title


def test_each_panel_and_alert_groups_and_names_labels_that_the_metrics_have(generator):
    specs = {spec.name: spec for spec in (*table.EXTENDER, *table.SCHEDULER, *table.LIVE, *AGENT, *DESCHEDULER)}
    for title, query, text in queries(generator):
        labels = set().union(*(specs[name].labels for name in generator.metrics_of(query))) | {"instance"}
        grouped = [part for found in re.findall(r"by \(([^)]*)\)", query) for part in found.split(", ")]
        assert set(grouped) - {"le"} <= labels, title
        written = set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", text))
        assert written <= (set(grouped) if grouped else labels), title


def test_the_alerts_of_the_operator_are_those_of_the_chart(generator):
    rule = yaml.safe_load((generator.MONITORING / "prometheus-rule.yaml").read_text())
    assert rule["spec"]["groups"] == yaml.safe_load((generator.CHART / "alerts.yaml").read_text())
    names = [each["alert"] for each in rule["spec"]["groups"][0]["rules"]]
    assert len(names) == len(set(names)) > 8
