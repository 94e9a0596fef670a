"""The table of metrics: those of the extender, those of the scheduler, and those that both have.

The instruments, docs/metrics.md, the dashboard and the alerts are made of these rows (tools/generate_operations.py).
Metrics that begin with `scheduler_` are kube-scheduler's: names, labels and buckets are equal, so that its dashboards
work.
"""

from __future__ import annotations

from typing import Final

from koordpolicy.engine.cluster.sources.feed import LAG_BUCKETS_S
from koordpolicy.engine.serving.client_metrics import LIMITER_SECONDS, REQUEST_RETRIES, REQUEST_SECONDS, REQUESTS
from koordpolicy.engine.serving.health import HEALTHCHECK, HEALTHCHECKS
from koordpolicy.engine.serving.instruments import MetricSpec, MetricType, exponential

from .pod_resources import LIMITS as POD_LIMITS
from .pod_resources import REQUESTS as POD_REQUESTS

_C, _G, _H, _I = MetricType.COUNTER, MetricType.GAUGE, MetricType.HISTOGRAM, MetricType.INFO
_SECONDS: Final = exponential(0.001, 2, 15)
_POINT_SECONDS: Final = exponential(0.0001, 2, 12)
_PLUGIN_SECONDS: Final = exponential(0.00001, 1.5, 20)
_NODES: Final = exponential(1, 2, 24)

# Decisions of the extender

DECISIONS: Final = MetricSpec(
    "koord_policy_decisions_total", _C, "Calls by result: ok, refused (no node passed), error, malformed",
    ("verb", "result"))
DECISION_SECONDS: Final = MetricSpec(
    "koord_policy_decision_duration_seconds", _H, "Time from the body to the answer, in the deciding thread", ("verb",),
    (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5))
REFUSALS: Final = MetricSpec("koord_policy_refusals_total", _C, "Nodes that plugins refused", ("plugin",))
UNENFORCED_REFUSALS: Final = MetricSpec(
    "koord_policy_unenforced_refusals_total", _C, "Nodes that plugins with enforcement Warn or Audit would refuse",
    ("plugin", "enforcement"))
EXPRESSION_ERRORS: Final = MetricSpec(
    "koord_policy_expression_errors_total", _C,
    "Evaluations that failed, counted by node; a plugin that fails as a whole has no rule", ("plugin", "point", "rule"))
UNKNOWN_NODES: Final = MetricSpec(
    "koord_policy_unknown_nodes_total", _C, "Nodes of requests that the cluster's state does not hold")
CLUSTER_REFRESHES: Final = MetricSpec(
    "koord_policy_cluster_refreshes_total", _C,
    "Watches of kinds: failure where one is lost, success where it is found again", ("result",))
OVERDUE_DECISIONS: Final = MetricSpec(
    "koord_policy_overdue_decisions_total", _C,
    "Decisions that took longer than --decision-timeout, by the plugin that ran", ("plugin", "point"))
READY: Final = MetricSpec(
    "koord_policy_ready", _G, "1 while policies and cluster are loaded and decisions are made")
DECIDER_STUCK: Final = MetricSpec(
    "koord_policy_decider_stuck", _G, "1 while a decision exceeds --decision-timeout")
NODES: Final = MetricSpec("koord_policy_nodes", _G, "Nodes in the cluster's state")
PINNED_PODS: Final = MetricSpec(
    "koord_policy_pinned_pods", _G, "Pods whose generation is pinned from filter to prioritize")
ASSUMED_PODS: Final = MetricSpec(
    "koord_policy_assumed_pods", _G, "Pods whose placement is assumed and not seen yet")
ASSUMED_PODS_DROPPED: Final = MetricSpec(
    "koord_policy_assumed_pods_dropped_total", _C, "Assumptions by their end: confirmed, moved (to "
    "another node), gone, waiting, asked (again), expired", ("reason",))
BINDING_PODS: Final = MetricSpec(
    "koord_policy_binding_pods", _G, "Pods whose binding has not returned, including abandoned ones")
OLDEST_BINDING: Final = MetricSpec(
    "koord_policy_oldest_binding_seconds", _G, "Age of the oldest of these bindings; 0 for none. One that exceeds a "
    "minute hangs")
LAST_REFRESH: Final = MetricSpec(
    "koord_policy_last_cluster_refresh_success_timestamp_seconds", _G,
    "Time at which the API server was last heard of the kind of which that is longest ago")
LAST_KIND_REFRESH: Final = MetricSpec(
    "koord_policy_last_kind_refresh_success_timestamp_seconds", _G,
    "Time at which the API server was last heard of a kind: once a minute if there are no changes", ("kind",))
KIND_STALE: Final = MetricSpec(
    "koord_policy_kind_stale", _G, "1 while a kind that was known cannot be watched", ("kind",))

# Policies

RELOADS: Final = MetricSpec("koord_policy_reloads_total", _C, "Versions of policies by result: success, failure",
                            ("result",))
LAST_RELOAD_SUCCESS: Final = MetricSpec(
    "koord_policy_last_reload_success_timestamp_seconds", _G, "Time at which a version of policies became active")
LAST_RELOAD_FAILURE: Final = MetricSpec(
    "koord_policy_last_reload_failure_timestamp_seconds", _G, "Time at which a version of policies was refused")
POLICIES_HEALTHY: Final = MetricSpec(
    "koord_policy_policies_healthy", _G, "1 while the active policies are those of the sources")
RELOAD_RUNNING: Final = MetricSpec(
    "koord_policy_reload_running_seconds", _G, "How long reading or compiling policies has been running; 0 otherwise")
GENERATION: Final = MetricSpec("koord_policy_generation", _G, "The active generation")
RESTORED_GENERATION: Final = MetricSpec(
    "koord_policy_restored_generation", _G, "The generation that a rollback restored; 0 for none")
ACTIVE_POLICIES: Final = MetricSpec("koord_policy_active_policies", _G, "Active policies", ("kind",))
CONFIG: Final = MetricSpec("koord_policy_config_info", _I, "The hash of the active policies", ("hash",))
SOURCE: Final = MetricSpec(
    "koord_policy_source_info", _I, "The hash of the active version of each source, as `koord-policy hash` prints it",
    ("path", "hash"))
EXPRESSION_EVALUATIONS: Final = MetricSpec(
    "koord_policy_expression_evaluations_total", _C, "Evaluations of expressions, counted by node. A cached result is "
    "no evaluation", ("plugin", "point", "rule"))
RULE_REFUSALS: Final = MetricSpec(
    "koord_policy_rule_refusals_total", _C, "Evaluations of rules that refused, counted by node; of preFilter and "
    "preEnqueue by pod", ("plugin", "point", "rule"))
AUDIT_DECISIONS: Final = MetricSpec(
    "koord_policy_audit_decisions_total", _C, "Answers that a plugin with enforcement Warn or Audit would have changed "
    "(differs) or not (same)", ("plugin", "enforcement", "verb", "result"))
SHADOW_DECISIONS: Final = MetricSpec(
    "koord_policy_shadow_decisions_total", _C, "Comparisons of answers with those of the shadow: same, "
    "differs, error (the shadow failed), skipped", ("verb", "result"))
SHADOW_SECONDS: Final = MetricSpec(
    "koord_policy_shadow_seconds_total", _C, "Time of the deciding thread that the shadow used")
SHADOW_READY: Final = MetricSpec("koord_policy_shadow_ready", _G, "1 while the shadow is valid")
SHADOW_CONFIG: Final = MetricSpec(
    "koord_policy_shadow_config_info", _I, "The hash of the policies in the shadow", ("hash",))

# kube-scheduler's

SCHEDULE_ATTEMPTS: Final = MetricSpec(
    "scheduler_schedule_attempts_total", _C, "Attempts to schedule pods: scheduled, unschedulable, error",
    ("result", "profile"))
ATTEMPT_SECONDS: Final = MetricSpec(
    "scheduler_scheduling_attempt_duration_seconds", _H, "Duration of attempts, binding included",
    ("result", "profile"), _SECONDS)
ALGORITHM_SECONDS: Final = MetricSpec(
    "scheduler_scheduling_algorithm_duration_seconds", _H, "Duration of decisions: from preFilter to score", (),
    _SECONDS)
SLI_SECONDS: Final = MetricSpec(
    "scheduler_pod_scheduling_sli_duration_seconds", _H, "Time from a pod's first attempt until it is bound, by its "
    "attempts (1 to 14, 15+)", ("attempts",), exponential(0.01, 2, 20))
POD_ATTEMPTS: Final = MetricSpec(
    "scheduler_pod_scheduling_attempts", _H, "Attempts that scheduled pods needed", (), exponential(1, 2, 5))
SCHEDULED_AFTER_FLUSH: Final = MetricSpec(
    "scheduler_pod_scheduled_after_flush_total", _C, "Pods that were scheduled after waiting too long without an "
    "event: a requeue hint missed one")
POINT_SECONDS: Final = MetricSpec(
    "scheduler_framework_extension_point_duration_seconds", _H, "Duration of all plugins of an extension point",
    ("extension_point", "status", "profile"), _POINT_SECONDS)
PLUGIN_SECONDS: Final = MetricSpec(
    "scheduler_plugin_execution_duration_seconds", _H, "Duration of plugins, in one of ten attempts. A cached result "
    "is no execution", ("plugin", "extension_point", "status"), _PLUGIN_SECONDS)
PLUGIN_EVALUATIONS: Final = MetricSpec(
    "scheduler_plugin_evaluation_total", _C, "Attempts that a plugin took part in, at preFilter, filter and score",
    ("plugin", "extension_point", "profile"))
HINT_SECONDS: Final = MetricSpec(
    "scheduler_queueing_hint_execution_duration_seconds", _H, "Duration of plugins' requeue hints: Queue, QueueSkip, "
    "Error", ("plugin", "event", "hint"), _PLUGIN_SECONDS)
EVENT_SECONDS: Final = MetricSpec(
    "scheduler_event_handling_duration_seconds", _H, "Duration of the queue's handling of events", ("event",),
    _POINT_SECONDS)
INFLIGHT_EVENTS: Final = MetricSpec(
    "scheduler_inflight_events", _G, "Events stored for pods whose attempts are running", ("event",))
PENDING_PODS: Final = MetricSpec(
    "scheduler_pending_pods", _G, "Pods by part of the queue: active, backoff, unschedulable, gated", ("queue",))
INCOMING_PODS: Final = MetricSpec(
    "scheduler_queue_incoming_pods_total", _C, "Pods that were added to a part of the queue, by event",
    ("queue", "event"))
UNSCHEDULABLE_PODS: Final = MetricSpec(
    "scheduler_unschedulable_pods", _G, "Waiting pods that a plugin has refused", ("plugin", "profile"))
CACHE_SIZE: Final = MetricSpec(
    "scheduler_cache_size", _G, "Objects in the scheduler's cluster: nodes, pods, assumed_pods", ("type",))
GOROUTINES: Final = MetricSpec(
    "scheduler_goroutines", _G, "Running binding cycles (a goroutine each in kube-scheduler)", ("operation",))
PERMIT_SECONDS: Final = MetricSpec(
    "scheduler_permit_wait_duration_seconds", _H, "Time for which permits held pods", ("result",), _SECONDS)
PREEMPTION_VICTIMS: Final = MetricSpec(
    "scheduler_preemption_victims", _H, "Victims of a preemption", (), exponential(1, 2, 7))
PREEMPTION_ATTEMPTS: Final = MetricSpec(
    "scheduler_preemption_attempts_total", _C, "Attempts to make room for a pod by preemption")
VOLUME_STAGE_ERRORS: Final = MetricSpec(
    "scheduler_volume_scheduling_stage_error_total", _C, "Attempts that failed in a stage of volume binding: predicate "
    "(the filter), assume, bind (the wait for the claims included)", ("operation",))
SCHEDULING_TIMEOUT: Final = MetricSpec(
    "scheduler_scheduling_timeout", _C, "Decisions that took longer than 30 s, counted while they run",
    ("profile",))
BY_PLUGINS: Final = (VOLUME_STAGE_ERRORS, SCHEDULING_TIMEOUT)
"""The rows that built-in plugins and the monitor of attempts count as plugins do, by the row's name."""

_WRITTEN_ELSEWHERE: Final = "written in the scheduling thread and by binding cycles, without a separate dispatcher"
_NO_BATCH: Final = "pods of one shape share cached results, without batches"
_NO_PODGROUP: Final = "gangs are the plugin Coscheduling's, as in koord-scheduler"
EMPTY: Final = (
    MetricSpec("scheduler_preemption_goroutines_duration_seconds", _H, "Duration of asynchronous preemptions",
               ("result",), exponential(0.01, 2, 20), always_empty=_WRITTEN_ELSEWHERE),
    MetricSpec("scheduler_preemption_goroutines_execution_total", _C, "Asynchronous preemptions", ("result",),
               always_empty=_WRITTEN_ELSEWHERE),
    MetricSpec("scheduler_async_api_call_execution_total", _C, "Asynchronous API calls", ("call_type", "result"),
               always_empty=_WRITTEN_ELSEWHERE),
    MetricSpec("scheduler_async_api_call_execution_duration_seconds", _H, "Duration of asynchronous API calls",
               ("call_type", "result"), _SECONDS, always_empty=_WRITTEN_ELSEWHERE),
    MetricSpec("scheduler_pending_async_api_calls", _G, "Queued asynchronous API calls", ("call_type",),
               always_empty=_WRITTEN_ELSEWHERE),
    MetricSpec("scheduler_batch_attempts_total", _C, "Attempts to use a batch", ("profile", "result"),
               always_empty=_NO_BATCH),
    MetricSpec("scheduler_batch_cache_flushed_total", _C, "Batches that became invalid", ("profile", "reason"),
               always_empty=_NO_BATCH),
    MetricSpec("scheduler_get_node_hint_duration_seconds", _H, "Duration of looking up a batch's node",
               ("hinted", "profile"), exponential(0.00001, 2, 12), always_empty=_NO_BATCH),
    MetricSpec("scheduler_store_schedule_results_duration_seconds", _H, "Duration of storing a batch's nodes",
               ("profile",), exponential(0.00001, 2, 12), always_empty=_NO_BATCH),
    MetricSpec("scheduler_volume_binder_cache_requests_total", _C, "Requests to the volume binder's cache",
               ("operation",), always_empty="kube-scheduler 1.36 counts nothing there either"),
    MetricSpec("scheduler_podgroup_schedule_attempts_total", _C, "Attempts to schedule native pod groups",
               ("result", "profile"), always_empty=_NO_PODGROUP),
    MetricSpec("scheduler_podgroup_scheduling_attempt_duration_seconds", _H, "Duration of attempts of native pod "
               "groups", ("result", "profile"), _SECONDS, always_empty=_NO_PODGROUP),
    MetricSpec("scheduler_podgroup_scheduling_algorithm_duration_seconds", _H, "Duration of decisions about native pod "
               "groups", (), _SECONDS, always_empty=_NO_PODGROUP),
)
"""kube-scheduler's metrics of what this scheduler does in another way."""

# koord-scheduler's

EVALUATED_NODES: Final = MetricSpec(
    "scheduler_pod_scheduling_evaluated_nodes", _H, "Nodes that the filters of an attempt looked at", (), _NODES)
FEASIBLE_NODES: Final = MetricSpec(
    "scheduler_pod_scheduling_feasible_nodes", _H, "Nodes that passed the filters of an attempt", (), _NODES)

# The API client

LOST_PODS: Final = MetricSpec(
    "koord_policy_lost_pods_total", _C, "Pods that were in no queue for a minute, and were queued again")
CORRECTED_BINDINGS: Final = MetricSpec(
    "koord_policy_corrected_bindings_total", _C,
    "Pods that the API server did not show on the node that they were bound to")
OLDEST_UNSCHEDULED: Final = MetricSpec(
    "koord_policy_oldest_unscheduled_pod_seconds", _G, "Age of the oldest pod in the queue, gated ones aside; 0 for "
    "none")
WATCH_LAG: Final = MetricSpec(
    "koord_policy_watch_lag_seconds", _H, "Time from the arrival of a change of the cluster at this process to its "
    "application", (), LAG_BUCKETS_S)
CACHE_MISMATCH: Final = MetricSpec(
    "scheduler_cache_mismatch_total", _C, "Objects that the cluster's state lacked (missing), had in an old version "
    "(outdated) or had beyond those of the API server (redundant), and that are read again or removed",
    ("kind", "found"))
FAULTY_OBJECTS: Final = MetricSpec(
    "koord_policy_faulty_objects", _G, "Objects whose last version could not be read or applied")
LEADER: Final = MetricSpec(
    "leader_election_master_status", _G, "1 while this process is the leader", ("name",))
SLOW_PATHS: Final = MetricSpec(
    "leader_election_slowpath_total", _C, "Attempts to acquire or renew the Lease that had to read it first, as every "
    "attempt of a standby does", ("name",))

EXTENDER: Final = (
    DECISIONS, DECISION_SECONDS, REFUSALS, UNENFORCED_REFUSALS, EXPRESSION_ERRORS, UNKNOWN_NODES, CLUSTER_REFRESHES,
    OVERDUE_DECISIONS, READY, DECIDER_STUCK, RELOADS, LAST_RELOAD_SUCCESS, LAST_RELOAD_FAILURE, POLICIES_HEALTHY,
    RELOAD_RUNNING, GENERATION, RESTORED_GENERATION, ACTIVE_POLICIES, CONFIG, SOURCE, AUDIT_DECISIONS,
    SHADOW_DECISIONS, SHADOW_SECONDS, SHADOW_READY, SHADOW_CONFIG, EXPRESSION_EVALUATIONS, RULE_REFUSALS,
    LAST_REFRESH, LAST_KIND_REFRESH, KIND_STALE, CACHE_MISMATCH, NODES, PINNED_PODS, ASSUMED_PODS, BINDING_PODS,
    OLDEST_BINDING, ASSUMED_PODS_DROPPED,
)
"""The rows of the extender's metrics."""

POLICIES: Final = (
    RELOADS, LAST_RELOAD_SUCCESS, LAST_RELOAD_FAILURE, POLICIES_HEALTHY, RELOAD_RUNNING, GENERATION,
    RESTORED_GENERATION, ACTIVE_POLICIES, CONFIG, SOURCE, EXPRESSION_EVALUATIONS, RULE_REFUSALS,
)
"""The rows of both servers about policies."""

SCHEDULER: Final = (
    SCHEDULE_ATTEMPTS, ATTEMPT_SECONDS, ALGORITHM_SECONDS, SLI_SECONDS, POD_ATTEMPTS, SCHEDULED_AFTER_FLUSH,
    POINT_SECONDS, PLUGIN_SECONDS, PLUGIN_EVALUATIONS, HINT_SECONDS, EVENT_SECONDS, INFLIGHT_EVENTS, PENDING_PODS,
    INCOMING_PODS, UNSCHEDULABLE_PODS, CACHE_SIZE, GOROUTINES, PERMIT_SECONDS, PREEMPTION_VICTIMS, PREEMPTION_ATTEMPTS,
    *BY_PLUGINS, *EMPTY, EVALUATED_NODES, FEASIBLE_NODES, REFUSALS, UNENFORCED_REFUSALS, EXPRESSION_ERRORS, *POLICIES,
    BINDING_PODS, OLDEST_BINDING,
)
"""The rows of the scheduler's metrics."""

LIVE: Final = (
    READY, LOST_PODS, CORRECTED_BINDINGS, OLDEST_UNSCHEDULED, LAST_REFRESH, LAST_KIND_REFRESH, KIND_STALE, WATCH_LAG,
    CACHE_MISMATCH, FAULTY_OBJECTS, LEADER, SLOW_PATHS, REQUESTS, REQUEST_SECONDS, LIMITER_SECONDS, REQUEST_RETRIES,
)
"""The further rows of a scheduler of a live cluster."""

CHECKS: Final = (HEALTHCHECK, HEALTHCHECKS)
"""The rows of /metrics/slis."""

RESOURCES: Final = (POD_REQUESTS, POD_LIMITS)
"""The rows of /metrics/resources, of a scheduler of a live cluster."""
