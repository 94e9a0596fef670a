"""Generate what is made of the table of metrics: `python tools/generate_operations.py`.

It writes docs/metrics.md, and the dashboard and the alerts of deploy/monitoring, also for the Helm chart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from koordpolicy.engine.agent import metric_table as agent
from koordpolicy.engine.descheduler.live import metric_table as descheduler
from koordpolicy.engine.monitoring.alerts import ALERTS
from koordpolicy.engine.scheduler.observe import metric_table as table
from koordpolicy.engine.serving import process_metrics as process
from koordpolicy.engine.serving.instruments import MetricSpec

ROOT: Final = Path(__file__).parents[1]
MONITORING: Final = ROOT / "deploy" / "monitoring"
CHART: Final = ROOT / "deploy" / "chart" / "files"


@dataclass(frozen=True)
class Panel:
    """A panel of the dashboard: one query or several, each with the legend of its series."""

    title: str
    unit: str
    """Grafana's unit: `short`, `s`, `ops` and others."""
    queries: tuple[tuple[str, str], ...]
    """PromQL and legend."""


def _quantile(metric: str, *labels: str, quantile: float = 0.99) -> str:
    by = ", ".join(("le", *labels))
    return f"histogram_quantile({quantile}, sum by ({by}) (rate({metric}_bucket[5m])))"


def _rate(metric: str, *labels: str) -> str:
    return f"sum by ({', '.join(labels)}) (rate({metric}[5m]))" if labels else f"sum(rate({metric}[5m]))"


ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Scheduling": (
        Panel("Attempts by result", "ops", (
            (_rate("scheduler_schedule_attempts_total", "result", "profile"), "{{result}} {{profile}}"),)),
        Panel("Time from the first attempt until bound", "s", (
            (_quantile("scheduler_pod_scheduling_sli_duration_seconds"), "p99"),
            (_quantile("scheduler_pod_scheduling_sli_duration_seconds", quantile=0.5), "p50"))),
        Panel("Attempt and decision, p99", "s", (
            (_quantile("scheduler_scheduling_attempt_duration_seconds", "result"), "attempt {{result}}"),
            (_quantile("scheduler_scheduling_algorithm_duration_seconds"), "decision"))),
        Panel("Pending pods", "short", (
            ("sum by (queue) (scheduler_pending_pods)", "{{queue}}"),)),
        Panel("Oldest pod in the queue", "s", (("max(koord_policy_oldest_unscheduled_pod_seconds)", "age"),)),
        Panel("Pods that a plugin has refused", "short", (
            ("sum by (plugin) (scheduler_unschedulable_pods)", "{{plugin}}"),)),
        Panel("Additions to the queue", "ops", (
            (_rate("scheduler_queue_incoming_pods_total", "queue", "event"), "{{queue}} {{event}}"),)),
        Panel("Extension points, p99", "s", (
            (_quantile("scheduler_framework_extension_point_duration_seconds", "extension_point"),
             "{{extension_point}}"),)),
        Panel("Plugins, p99 of sampled executions", "s", (
            (_quantile("scheduler_plugin_execution_duration_seconds", "plugin", "extension_point"),
             "{{plugin}} {{extension_point}}"),)),
        Panel("Preemption", "ops", (
            (_rate("scheduler_preemption_attempts_total"), "attempts"),
            (_rate("scheduler_preemption_victims_sum"), "victims"))),
        Panel("Objects in the cluster's state", "short", (
            ("max by (type) (scheduler_cache_size)", "{{type}}"),)),
        Panel("Bindings in progress", "short", (
            ("sum(koord_policy_binding_pods)", "pods"), ("max(koord_policy_oldest_binding_seconds)", "oldest (s)"))),
        Panel("Leader", "short", (("leader_election_master_status", "{{instance}}"),)),
    ),
    "Policies": (
        Panel("Generation", "short", (("koord_policy_generation", "{{instance}}"),)),
        Panel("Versions of policies", "ops", (
            (_rate("koord_policy_reloads_total", "result"), "{{result}}"),)),
        Panel("Healthy", "short", (
            ("koord_policy_ready", "ready {{instance}}"), ("koord_policy_policies_healthy", "policies {{instance}}"))),
        Panel("Nodes refused by plugin", "ops", ((_rate("koord_policy_refusals_total", "plugin"), "{{plugin}}"),)),
        Panel("Nodes that Warn or Audit would refuse", "ops", (
            (_rate("koord_policy_unenforced_refusals_total", "plugin", "enforcement"),
             "{{plugin}} {{enforcement}}"),)),
        Panel("Evaluations by rule", "ops", (
            (_rate("koord_policy_expression_evaluations_total", "plugin", "point", "rule"),
             "{{plugin}} {{point}} {{rule}}"),)),
        Panel("Refusals by rule", "ops", (
            (_rate("koord_policy_rule_refusals_total", "plugin", "point", "rule"), "{{plugin}} {{point}} {{rule}}"),)),
        Panel("Errors by rule", "ops", (
            (_rate("koord_policy_expression_errors_total", "plugin", "point", "rule"),
             "{{plugin}} {{point}} {{rule}}"),)),
    ),
    "Extender": (
        Panel("Calls", "ops", ((_rate("koord_policy_decisions_total", "verb", "result"), "{{verb}} {{result}}"),)),
        Panel("Calls, p99", "s", ((_quantile("koord_policy_decision_duration_seconds", "verb"), "{{verb}}"),)),
        Panel("Assumed and pinned pods", "short", (
            ("sum(koord_policy_assumed_pods)", "assumed"), ("sum(koord_policy_pinned_pods)", "pinned"))),
        Panel("Age of the cluster's state", "s", (
            ("time() - max(koord_policy_last_cluster_refresh_success_timestamp_seconds)", "age"),)),
        Panel("Shadow", "ops", (
            (_rate("koord_policy_shadow_decisions_total", "verb", "result"), "{{verb}} {{result}}"),)),
    ),
    "Node agents": (
        Panel("Agents that are not ready", "short", (("sum(koord_policy_agent_ready == bool 0)", "agents"),)),
        Panel("Generation of policies", "short", (("koord_policy_agent_generation", "{{instance}}"),)),
        Panel("Age of the list of pods", "s", (("max(koord_policy_agent_pods_age_seconds)", "oldest"),)),
        Panel("CPU of nodes by its users", "short", (
            ("sum by (node) (koordlet_node_used_cpu_cores)", "{{node}} all"),
            ("sum by (node) (koordlet_be_suppress_ls_used_cpu_cores)", "{{node}} others"),
            ("sum by (node) (koordlet_be_suppress_be_used_cpu_cores)", "{{node}} best-effort"))),
        Panel("CPU to which best-effort pods are limited", "short", (
            ("sum by (node, type) (koordlet_be_suppress_cpu_cores)", "{{node}} {{type}}"),)),
        Panel("Memory of nodes", "bytes", (("sum by (node) (koordlet_node_used_memory_bytes)", "{{node}}"),)),
        Panel("Evictions by nodes", "short", (
            ("sum by (reason) (increase(koordlet_pod_eviction[5m]))", "{{reason}}"),)),
        Panel("Adjustments", "ops", (
            (_rate("koord_policy_agent_adjustments_total", "plugin", "kind"), "{{plugin}} {{kind}}"),)),
        Panel("Writes of files", "ops", ((_rate("koord_policy_agent_writes_total", "status"), "{{status}}"),)),
        Panel("Writes, p99", "ms", (
            (_quantile("koordlet_resource_update_duration_milliseconds", "type"), "{{type}}"),)),
        Panel("CPU of strategies", "percentunit", (
            (_rate("koord_policy_agent_round_seconds_total", "plugin"), "{{plugin}}"),)),
        Panel("Errors of strategies", "ops", (
            (_rate("koord_policy_agent_errors_total", "plugin", "reason"), "{{plugin}} {{reason}}"),)),
        Panel("Requests to kubelets, p99", "s", (
            (_quantile("koordlet_kubelet_request_duration_seconds", "path", "code"), "{{path}} {{code}}"),)),
        Panel("Files that are not measured", "ops", (
            (_rate("koord_policy_collector_failures_total", "collector"), "{{collector}}"),)),
    ),
    "Descheduling": (
        Panel("Evictions by result", "ops", (
            (_rate("descheduler_pods_evicted", "result", "strategy"), "{{result}} {{strategy}}"),)),
        Panel("Cycles by result", "ops", (
            (_rate("koord_policy_descheduler_cycles_total", "result"), "{{result}}"),)),
        Panel("Duration of cycles, p99", "s", (
            (_quantile("koord_policy_descheduler_cycle_duration_seconds"), "p99"),)),
        Panel("Budgets that hold pods back", "short", (
            ("max(koord_policy_descheduler_held_budgets)", "budgets"),)),
        Panel("Replicas that share the nodes", "short", (
            ("max(koord_policy_descheduler_shard_members)", "replicas"),
            ("max(koord_policy_descheduler_ledger_evictions)", "evictions of the cycle"),)),
        Panel("Time since the API server was heard of a kind", "s", (
            ("max by (kind) (koord_policy_descheduler_view_age_seconds)", "{{kind}}"),)),
        Panel("Candidates that stay", "ops", (
            (_rate("koord_policy_descheduler_kept_pods_total", "stopped_by"), "{{stopped_by}}"),)),
    ),
    "API server": (
        Panel("Requests", "ops", (
            (_rate("rest_client_requests_total", "code", "method"), "{{code}} {{method}}"),)),
        Panel("Requests, p99", "s", ((_quantile("rest_client_request_duration_seconds", "verb"), "{{verb}}"),)),
        Panel("Delay by the client's own limit, p99", "s", (
            (_quantile("rest_client_rate_limiter_duration_seconds", "verb"), "{{verb}}"),)),
    ),
}


def metrics_of(query: str) -> frozenset[str]:
    """Return the names of the rows that a query reads."""
    names = set(re.findall(r"\b(?:scheduler|descheduler|koord_policy|rest_client|leader_election|koordlet)_\w+", query))
    return frozenset(re.sub(r"_(?:bucket|sum|count)$", "", name) for name in names)


def readers() -> dict[str, list[str]]:
    """Return the readers of each metric: panels and alerts."""
    found: dict[str, list[str]] = {}
    for panels in ROWS.values():
        for panel in panels:
            for name in frozenset[str]().union(*(metrics_of(query) for query, _ in panel.queries)):
                found.setdefault(name, []).append(f"panel *{panel.title}*")
    for alert in ALERTS:
        for name in metrics_of(alert.query):
            found.setdefault(name, []).append(f"alert {alert.name}")
    return found


def dashboard() -> dict[str, Any]:
    """Return the dashboard for Grafana."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": [],
                       "gridPos": {"h": 1, "w": 24, "x": 0, "y": top}})
        for number, panel in enumerate(row):
            panels.append({
                "id": len(panels) + 1, "type": "timeseries", "title": panel.title,
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "gridPos": {"h": 8, "w": 8, "x": number % 3 * 8, "y": top + 1 + number // 3 * 8},
                "targets": [{"expr": query, "legendFormat": legend, "refId": chr(ord("A") + place)}
                            for place, (query, legend) in enumerate(panel.queries)]})
        top += 1 + (len(row) + 2) // 3 * 8
    return {
        "uid": "koord-policy", "title": "koord-policy", "tags": ["kubernetes", "scheduling", "colocation"],
        "schemaVersion": 39, "refresh": "30s", "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser", "editable": True,
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus",
                                 "label": "Data source"}]},
        "panels": panels,
    }


def rule_groups() -> list[dict[str, Any]]:
    """Return the groups of rules for Prometheus."""
    return [{"name": "koord-policy", "rules": [
        {"alert": alert.name, "expr": alert.query, **({"for": f"{alert.seconds}s"} if alert.seconds else {}),
         "labels": {"severity": alert.severity}, "annotations": {"summary": alert.summary}} for alert in ALERTS]}]


def prometheus_rule() -> dict[str, Any]:
    """Return the alerts as an object for the Prometheus operator."""
    return {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule",
            "metadata": {"name": "koord-policy", "labels": {"app.kubernetes.io/name": "koord-policy"}},
            "spec": {"groups": rule_groups()}}


_LIBRARIES: Final = """\
kube-scheduler also has the metrics of the libraries that it is made of, which say nothing about scheduling and are not
here: `go_*` of Go, `apiserver_*`, `aggregator_*`, `apiextensions_*`, `authentication_*`, `authenticated_user_requests`,
`authorization_*`, `node_collector_*` and `workqueue_*` of the API server's, and `version_info`,
`kubernetes_feature_enabled`, `registered_metrics_total`, `disabled_metrics_total`, `hidden_metrics_total` and
`cardinality_enforcement_*` of its components. `process_network_receive_bytes_total` and
`process_network_transmit_bytes_total` count the network of the whole container, which the kubelet measures.
"""
_OF_KOORD: Final = (
    ("reservation_status_phase", "the status of each Reservation"),
    ("reservation_resource", "the status of each Reservation"),
    ("reservation_selector_index_query_total", "there is no such index"),
    ("reservation_selector_index_candidates", "there is no such index"),
    ("elastic_quota_process_latency", "quotas are part of the plugin ElasticQuota's calls, which are measured"),
    ("elastic_quota_hook_plugin_latency", "hooks are part of these calls, too"),
    ("waiting_gang_group_number", "`/waiting` lists the pods that wait for their gang"),
    ("gang_schedule_cycle_duration_seconds", "attempts are measured by pod"),
    ("next_pod_delete_from_queue_latency", "not measured"),
    ("job_preemption_duration_seconds", "preemptions are measured as the extension point `PostFilter`"),
    ("secondary_device_not_well_planned", "not counted"),
)
"""The metrics that only koord-scheduler has, without `scheduler_`, and why they are absent or what says it instead."""
_HEAD: Final = """\
# Metrics and health

The extender, and a scheduler or a descheduler of a live cluster with `--bind`, serve these paths. The page is generated
from `engine/scheduler/observe/metric_table.py`, `engine/agent/metric_table.py` and
`engine/descheduler/live/metric_table.py`; names, types and labels are [stable](stability.md).

| path | |
| --- | --- |
| `/healthz`, `/livez`, `/readyz` | `ok`, or 503 with a line per check; `?verbose`, `?exclude=CHECK`, `/readyz/CHECK` |
| `/metrics` | the metrics below, in Prometheus' text format |
| `/metrics/slis` | the results of health checks |
| `/metrics/resources` | requests and limits of all pods, of a leading scheduler of a live cluster |
| `/internal-metrics`, `/external-metrics` | the two halves of the metrics of a node agent, as of koordlet |
| `/configz` | JSON: the configuration in use, under `componentconfig` |
| `/status` | JSON: profiles, policies with their problems, the age of each kind, and whether this process leads |
| `/waiting` | JSON, of a scheduler of a live cluster: the first 200 pods that wait, where and why; `?pod=KEY` for one |

Checks of a scheduler of a live cluster: `leaderElection` (the Lease expired more than 20 s ago, and this process did
not end), `deciding` (no round of the deciding thread for a minute), `sched-handler-sync` (the first lists are not
applied), `shutdown`, `policies` (a source holds no policy). A standby is ready. Those of the extender are in
[extender](extender.md#other-paths), those of a descheduler in [descheduling](descheduling.md#in-a-live-cluster).

Health is open to everybody. With `--tls-cert`, or `--authentication-kubeconfig` (for an extender this alone counts),
metrics and configuration are for those whom the API server permits: a bearer token is sent to it in a TokenReview, a
client certificate is verified by `--client-ca`, and a SubjectAccessReview decides whether the user may `get` the path.
Answers are cached for 10 s. Options of this access (`--authorization-...`) are refused where neither is given: there
everybody may read. A role for Prometheus:

```yaml
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: koord-policy-metrics-reader}
rules:
- nonResourceURLs: [/metrics, /metrics/slis, /metrics/resources, /internal-metrics, /external-metrics]
  verbs: [get]
```

Counters end with `_total`, except koord-scheduler's `scheduler_scheduling_timeout`, and count since the process
started; times are seconds since the epoch, 0 for never.
Metrics that begin with `scheduler_` are kube-scheduler's and koord-scheduler's, with their labels and buckets, so
that their dashboards and alerts work, except [those without series](#without-series). Plugins are measured in one of
ten attempts. `deploy/monitoring` has a dashboard for Grafana and alerts for Prometheus; the last column names what
reads a metric there.
"""


def _lines(title: str, specs: Iterable[MetricSpec], read: dict[str, list[str]]) -> Iterator[str]:
    yield f"\n## {title}\n"
    yield "| metric | type | labels | | read by |"
    yield "| --- | --- | --- | --- | --- |"
    for spec in specs:
        labels = ", ".join(f"`{label}`" for label in spec.labels)
        buckets = f"; buckets {spec.buckets[0]:g} to {spec.buckets[-1]:g}, {len(spec.buckets)}" if spec.buckets else ""
        users = ", ".join(read.get(spec.name, ()))
        yield f"| `{spec.name}` | {spec.type.value} | {labels} | {spec.help}{buckets} | {users} |"


def page() -> str:
    """Return docs/metrics.md."""
    read = readers()
    live = [spec for spec in dict.fromkeys((*table.SCHEDULER, *table.LIVE)) if not spec.always_empty]
    shared = set(table.EXTENDER) & set(live)
    parts = [_HEAD.rstrip("\n")]
    parts += _lines("Of a scheduler of a live cluster", (spec for spec in live if spec not in shared), read)
    parts += _lines("Of the extender", (spec for spec in table.EXTENDER if spec not in shared), read)
    parts += _lines("Of both", (spec for spec in live if spec in shared), read)
    parts.append("| `koord_policy_plugin_NAME_total` | counter | | What a Python plugin counts as `NAME` through its "
                 "handle, with its labels | |")
    parts += _lines("Of the agent of a node", (*agent.COLLECTION, *agent.REPORTS, *agent.DECISIONS), read)
    parts.append(f"\n{agent.NOTE}")
    parts += _lines("Of a descheduler of a live cluster", descheduler.TABLE, read)
    parts += _lines("Of the process of each server", process.TABLE, read)
    parts += _lines("Of `/metrics/slis`", table.CHECKS, read)
    parts += _lines("Of `/metrics/resources`", table.RESOURCES, read)
    parts.append("\n## Without series\n\nThese metrics of kube-scheduler are named in the output without a value.\n")
    parts.append("| metric | why |")
    parts.append("| --- | --- |")
    parts += [f"| `{spec.name}` | {spec.always_empty} |" for spec in table.EMPTY]
    parts.append("\nThese metrics of koord-scheduler are not in the output at all.\n")
    parts += ["| metric | why |", "| --- | --- |"]
    parts += [f"| `scheduler_{name}` | {why} |" for name, why in _OF_KOORD]
    parts.append(f"\n{_LIBRARIES}".rstrip("\n"))
    return "\n".join(parts) + "\n"


def files() -> dict[Path, str]:
    """Return all generated files."""
    shown = json.dumps(dashboard(), indent=2) + "\n"
    rule = yaml.safe_dump(prometheus_rule(), sort_keys=False, width=120)
    groups = yaml.safe_dump(rule_groups(), sort_keys=False, width=120)
    note = "# Generated by tools/generate_operations.py.\n"
    return {
        ROOT / "docs" / "metrics.md": page(), MONITORING / "dashboard.json": shown,
        MONITORING / "prometheus-rule.yaml": note + rule, CHART / "dashboard.json": shown,
        CHART / "alerts.yaml": note + groups,
    }


def main() -> None:
    """Write all files."""
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
