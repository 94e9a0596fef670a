"""The metrics of a live descheduler."""

from __future__ import annotations

from typing import Final

from koordpolicy.engine.serving.instruments import MetricSpec, MetricType, exponential

_C: Final = MetricType.COUNTER
_G: Final = MetricType.GAUGE

PODS_EVICTED: Final = MetricSpec(
    "descheduler_pods_evicted", _G,
    "Evictions by result: success, requested, dry-run, or what refused it (pdb-blocked, pdb-stale, multi-pdb, "
    "throttled, forbidden, conflict, leaving, gone, and others); a counter by koord-descheduler's name",
    ("result", "strategy", "namespace", "node"))
LEADER: Final = MetricSpec("koord_policy_descheduler_leader", _G, "1 if this process holds the Lease, or needs none")
READY: Final = MetricSpec("koord_policy_descheduler_ready", _G, "1 once all kinds are listed and policies are active")
GENERATION: Final = MetricSpec("koord_policy_descheduler_generation", _G, "Number of the active set of policies")
CYCLES: Final = MetricSpec(
    "koord_policy_descheduler_cycles_total", _C,
    "Cycles by result: completed, failed (it ended early), stale (objects were too old to look at)", ("result",))
CYCLE_SECONDS: Final = MetricSpec(
    "koord_policy_descheduler_cycle_duration_seconds", MetricType.HISTOGRAM, "Duration of cycles",
    buckets=exponential(0.01, 2, 14))
LAST_CYCLE: Final = MetricSpec(
    "koord_policy_descheduler_last_cycle_timestamp_seconds", _G, "Time at which the last cycle began")
CANDIDATES: Final = MetricSpec(
    "koord_policy_descheduler_kept_pods_total", _C,
    "Candidates that stayed, by the plugin that chose them and the plugin or limit that stopped the eviction",
    ("plugin", "stopped_by"))
FAILURES: Final = MetricSpec(
    "koord_policy_descheduler_failures_total", _C, "Failures of plugins and expressions in cycles", ("plugin",))
STALENESS: Final = MetricSpec(
    "koord_policy_descheduler_view_age_seconds", _G, "Time since the API server was last heard of a kind", ("kind",))
FAULTY_WATCH: Final = MetricSpec(
    "koord_policy_descheduler_kind_stale", _G, "1 if a kind was listed, and is not watched now", ("kind",))
HELD_BUDGETS: Final = MetricSpec(
    "koord_policy_descheduler_held_budgets", _G,
    "PodDisruptionBudgets whose pods are not tried again yet, as they refused an eviction")
CONFIGURATION_REFUSED: Final = MetricSpec(
    "koord_policy_descheduler_configuration_refused", _G,
    "1 if the newest content of the configuration file, or the newest policies with it, are refused")
SHARD_HELD: Final = MetricSpec(
    "koord_policy_descheduler_shard_held", _G, "With `--shards`: 1 if this process holds the Lease of a shard")
SHARD_MEMBERS: Final = MetricSpec(
    "koord_policy_descheduler_shard_members", _G,
    "With `--shards`: the replicas with a share of the nodes in this cycle")
LEDGER_EVICTIONS: Final = MetricSpec(
    "koord_policy_descheduler_ledger_evictions", _G,
    "With `--shards`: evictions of all replicas in this cycle, those that are only reserved too")
MIGRATION_JOBS: Final = MetricSpec(
    "koord_policy_descheduler_migration_jobs", _G,
    "Migration jobs that have not ended, by state: waiting (for arbitration), running", ("state",))
MIGRATIONS_ENDED: Final = MetricSpec(
    "koord_policy_descheduler_migrations_ended_total", _C,
    "Migration jobs that this process ended, by phase and reason; jobs that succeeded have none", ("phase", "reason"))
MIGRATION_STEPS: Final = MetricSpec(
    "koord_policy_descheduler_migration_steps_total", _C,
    "Steps of migration jobs by result: done, failed (a request was refused or had no answer)", ("result",))

TABLE: Final = (
    PODS_EVICTED, LEADER, READY, GENERATION, CYCLES, CYCLE_SECONDS, LAST_CYCLE, CANDIDATES, FAILURES, STALENESS,
    FAULTY_WATCH, HELD_BUDGETS, CONFIGURATION_REFUSED, SHARD_HELD, SHARD_MEMBERS, LEDGER_EVICTIONS, MIGRATION_JOBS,
    MIGRATIONS_ENDED, MIGRATION_STEPS,
)
