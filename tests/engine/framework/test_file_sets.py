from __future__ import annotations

import pytest

from koordpolicy.engine.framework.file_sets import CONTAINER, POD, TIER, TIERS, FileSet, first_shared

QUOTA = FileSet.of(("besteffort",), ("cpu.cfs_quota_us",))


@pytest.mark.parametrize(("one", "other", "shared"), [
    (QUOTA, QUOTA, "besteffort/cpu.cfs_quota_us"),
    (QUOTA, FileSet.of(("besteffort",), ("cpuset.cpus",)), ""),
    (QUOTA, FileSet.of(("burstable",), ("cpu.cfs_quota_us",)), ""),
    (QUOTA, FileSet.of(TIERS, ("cpu.cfs_quota_us",), (POD, CONTAINER)), ""),
    (FileSet.of(TIERS, ("a", "b"), (TIER, CONTAINER)), FileSet.of(("burstable",), ("b",), (POD, CONTAINER)),
     "burstable/POD/CONTAINER/b"),
    (FileSet.of(TIERS, ("a",), (POD,), "8:0"), FileSet.of(TIERS, ("a",), (POD,), "8:16"), ""),
    (FileSet.of(TIERS, ("a",), (POD,), "8:0"), FileSet.of(TIERS, ("a",), (POD,)), "besteffort/POD/a"),
    (FileSet.of(TIERS, ("a",), (POD,), labels=("BE",)), FileSet.of(TIERS, ("a",), (POD,), labels=("LS", "")), ""),
    (FileSet.of(TIERS, ("a",), (POD,), labels=("BE",)), FileSet.of(TIERS, ("a",), (POD,)), "besteffort/POD/a"),
    (FileSet.of(TIERS, ("a",), (TIER, POD), labels=("BE",)), FileSet.of(TIERS, ("a",), (TIER, POD), labels=("LS",)),
     "besteffort/a"),
    (FileSet.of(TIERS, ("a",), (POD,), labels=("BE", "LS")).of_pods(frozenset(("LS", ""))),
     FileSet.of(TIERS, ("a",), (POD,), labels=("BE",)), ""),
    (*FileSet.host(("resctrl/BE/schemata",)), FileSet.of(("resctrl/BE", "resctrl/LS"), ("schemata",), part="L3"),
     "resctrl/BE/schemata"),
])
def test_a_file_that_both_sets_have_is_named(one: FileSet, other: FileSet, shared: str) -> None:
    assert (one.shared_with(other), other.shared_with(one)) == (shared, shared)


def test_the_first_shared_file_of_several_sets_is_named() -> None:
    other = FileSet.host(("proc/sys/vm/swappiness",))
    assert first_shared((QUOTA, *other), other) == "proc/sys/vm/swappiness"
    assert first_shared((), other) == ""
