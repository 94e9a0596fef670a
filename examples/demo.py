"""A tour of the example cluster: its pending pods are scheduled under the shipped policies, and one decision explained.

    make demo
"""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import shorten

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cli.cluster_loading import cluster_of, moment_of, pod_of
from koordpolicy.engine.cli.composition import live_of
from koordpolicy.engine.cli.explain import explain
from koordpolicy.engine.cli.scheduler import schedule_pending, show_placements, show_unplaced
from koordpolicy.engine.cli.terminal import bar, heading, table, write, write_finding
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.explain.explanation import explain_decision
from koordpolicy.engine.scheduler.profiles.profile import ProfileSpec

HERE = Path(__file__).parent
CLUSTER = str(HERE / "cluster" / "cluster.yaml")
POLICIES = HERE.parent / "policies" / "scheduler"
PROFILE = "koord-scheduler"  # the `spec.schedulerName` of the example's pods
EXPLAINED = "shop/web-101"


def main() -> int:
    """Print the tour."""
    live = live_of([POLICIES], builtins)
    settings = Settings((ProfileSpec(PROFILE),))
    cluster = cluster_of(CLUSTER)
    now = moment_of(None, CLUSTER, cluster)
    before = requested_percent(cluster.snapshot(now))

    pods = len(cluster.objects("Pod"))
    write(f"{len(cluster.names)} nodes, {pods} pods, of which {len(cluster.pending)} are pending")
    show_policies(live)
    # The explanation is of the cluster before pods are placed.
    explanation = explain_decision(explain(pod_of(cluster, EXPLAINED), cluster, live, now, settings))
    verdicts = schedule_pending(cluster, live, now, settings)
    placed = [verdict for verdict in verdicts if verdict.scheduled]
    show_placements(placed, len(cluster.names))
    show_unplaced([verdict for verdict in verdicts if not verdict.scheduled], messages=False)
    show_load(cluster.snapshot(now), before)
    heading(f"koord-policy explain {EXPLAINED}, before any pod was placed")
    write()
    write_finding(explanation)
    return 0


def show_policies(live: Live) -> None:
    """Print the active documents."""
    heading("policies beside the built-in plugins")
    documents = [plugin for plugin in live.registry.of_framework(Framework.SCHEDULER)
                 if plugin.source and (plugin.profiles is None or PROFILE in plugin.profiles)]
    table(["name", "points", "description"], [
        [plugin.name, " ".join(point.value for point in plugin.points),
         shorten(plugin.description, 62, placeholder=" ...")]
        for plugin in documents
    ])


def requested_percent(snapshot: Snapshot) -> list[int]:
    """Return how much of each node's cpu is requested, in percent."""
    return [100 * requested // max(1, allocatable) for requested, allocatable in
            zip(snapshot.requested("cpu").tolist(), snapshot.allocatable("cpu").tolist(), strict=True)]


def show_load(snapshot: Snapshot, before: list[int]) -> None:
    """Print requested cpu per node before and after, and what was measured."""
    heading("cpu per node: requested before and after, and measured")
    after = requested_percent(snapshot)
    usage = snapshot.usage("cpu")
    rows = []
    for row, name in enumerate(snapshot.names):
        measured = usage.present is None or bool(usage.present[row])
        percent = 100 * int(usage.values[row]) // int(snapshot.allocatable("cpu")[row]) if measured else 0
        note = "cordoned" if snapshot.node_info(row)["unschedulable"] else "" if measured else "no metric"
        rows.append([
            name, snapshot.node_info(row)["zone"], f"{before[row]:>3}%", bar(before[row], 18),
            f"{after[row]:>3}%", bar(after[row], 18), f"{percent:>3}%" if measured else "", bar(percent, 12), note,
        ])
    table(["node", "zone", "", "before", "", "after", "", "measured", ""], rows)


if __name__ == "__main__":
    sys.exit(main())
