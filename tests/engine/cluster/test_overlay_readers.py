"""Outside of `engine/cluster` only the modules of decision 17 read what an overlay overrides.

All others read a snapshot or a derived value, which are right for overlays by themselves.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
DECISION: Final = ROOT / "docs" / "decisions" / "0017-derived-columns.md"
READERS: Final = {
    "builtin_plugins/scheduler/allocation/trials.py": "*Trials*",
    "builtin_plugins/scheduler/elastic_quota/plugin.py": "*ElasticQuota*",
    "builtin_plugins/scheduler/load_aware_scheduling/estimates.py": "*LoadAwareScheduling's estimates*",
    "builtin_plugins/scheduler/reservation/filtering.py": "*Reservation*",
    "engine/descheduler/pod_columns.py": "*columns of pods*",
    "engine/descheduler/row_facts.py": "*facts of pods*",
    "engine/scheduler/cycle/plugin_runner.py": "*plugin runner*",
    "engine/scheduler/extensions/pod_counts.py": "*Counts of pods*",
    "engine/scheduler/extensions/topology.py": "*Topology affinities*",
}
"""The modules, each with the words by which the decision names it."""

_OF_OVERLAYS: Final = frozenset({
    "cache_of_row", "inherited", "is_overridden", "overlay_cache", "overridden", "overridden_at", "pod_changes",
})


def reads(text: str) -> Iterator[str]:
    """Yield the attributes of snapshots by which the text of a module reads what an overlay overrides."""
    tree = ast.parse(text)
    called = {id(each.func) for each in ast.walk(tree) if isinstance(each, ast.Call)}
    for each in ast.walk(tree):
        # A snapshot's `overridden` is no method: thresholds have one of that name.
        if isinstance(each, ast.Attribute) and each.attr in _OF_OVERLAYS and (
                each.attr != "overridden" or id(each) not in called):
            yield each.attr


def test_overlays_are_read_by_the_listed_modules_alone():
    found = {
        str(path.relative_to(ROOT))
        for folder in ("engine", "builtin_plugins") for path in (ROOT / folder).rglob("*.py")
        if path.parent != ROOT / "engine" / "cluster" and any(reads(path.read_text(encoding="utf-8")))
    }
    assert found == READERS.keys()


def test_the_decision_names_every_reader():
    text = DECISION.read_text(encoding="utf-8")
    assert [words for words in READERS.values() if words not in text] == []


def test_reads_of_overlays_are_found():
    assert list(reads("snapshot.overridden\nsnapshot.pod_changes()\nthresholds.overridden(text)\n")) == [
        "overridden", "pod_changes"]
