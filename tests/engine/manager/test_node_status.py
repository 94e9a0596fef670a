"""The publication of resources: what is written, and what is left alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordpolicy.engine.manager.node_status import (
    differs,
    origin_patch,
    published_resources,
    status_patch,
    zone_capacities,
    zones_with,
)

CPU, MEMORY, MID_CPU, MID_MEMORY = (
    "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory", "kubernetes.io/mid-cpu", "kubernetes.io/mid-memory")


def node(annotations: dict[str, str] | None = None, **batch: str) -> dict[str, Any]:
    held = {"cpu": "8", **{f"kubernetes.io/{name.replace('_', '-')}": amount for name, amount in batch.items()}}
    return {"metadata": {"name": "n", "annotations": annotations or {}},
            "status": {"capacity": dict(held), "allocatable": dict(held)}}


BATCH = {"cpu": 4000, "memory": 1000}
WANTED = {CPU: 4000, MEMORY: 1000, MID_CPU: None, MID_MEMORY: None}


@pytest.mark.parametrize(("current", "wanted", "written"), [
    (None, None, False), (None, 0, True), (0, None, True), (100, 105, False), (100, 110, False), (100, 111, True),
    (100, 89, True), (0, 1, True), (0, 0, False),
])
def test_an_amount_is_written_when_it_appears_disappears_or_changes_enough(
    current: int | None, wanted: int | None, written: bool,
):
    assert differs(current, wanted, 0.1) is written


def test_amounts_of_others_are_subtracted_after_normalisation():
    annotations = {
        "node.koordinator.sh/cpu-normalization-ratio": "1.5",
        "node.koordinator.sh/thirdPartyAllocations": json.dumps({"allocations": [
            {"name": "yarn", "priority": "koord-batch", "resources": {CPU: "2k", MEMORY: "5k"}},
            {"name": "other", "priority": "koord-mid", "resources": {CPU: "1"}}]})}
    assert published_resources(node(annotations), BATCH, {"cpu": 1, "memory": 2}) == (
        {CPU: 4000, MEMORY: 0, MID_CPU: 1, MID_MEMORY: 2}, {CPU: 6000, MEMORY: 1000})


@pytest.mark.parametrize("annotations", [
    {"node.koordinator.sh/cpu-normalization-ratio": "fast"}, {"node.koordinator.sh/cpu-normalization-ratio": "9"},
    {"node.koordinator.sh/thirdPartyAllocations": "{"}, {"node.koordinator.sh/thirdPartyAllocations": "[1]"},
])
def test_annotations_that_cannot_be_read_are_left_out(annotations: dict[str, str]):
    assert published_resources(node(annotations), BATCH, None)[0] == WANTED


def test_only_own_names_that_differ_are_patched():
    assert status_patch(node(batch_cpu="3k", batch_memory="1000", mid_cpu="5"), WANTED, 0.1) == {"status": {
        field: {CPU: "4000", MID_CPU: None} for field in ("capacity", "allocatable")}}


def test_small_differences_are_written_with_others_or_when_they_are_due():
    close = node(batch_cpu="3900", batch_memory="1000")
    assert status_patch(close, WANTED, 0.1) is None
    assert status_patch(close, WANTED, 0.1, exact=True) == {"status": {
        field: {CPU: "4000"} for field in ("capacity", "allocatable")}}
    assert status_patch(node(batch_cpu="4k", batch_memory="1k"), WANTED, 0.1, exact=True) is None


def test_the_amounts_before_subtraction_are_in_an_annotation():
    patch = origin_patch(node(), {CPU: 6000, MEMORY: 1000})
    assert patch is not None
    text = patch["metadata"]["annotations"]["node.koordinator.sh/originExtendedAllocatable"]
    assert json.loads(text) == {"resources": {CPU: "6000", MEMORY: "1000"}}
    held = node({"node.koordinator.sh/originExtendedAllocatable": text})
    assert origin_patch(held, {CPU: 6000, MEMORY: 1000}) is None
    assert origin_patch(held, {}) == {"metadata": {"annotations": {
        "node.koordinator.sh/originExtendedAllocatable": None}}}
    assert origin_patch(node(), {}) is None


def zone(number: int, cpu: str, *others: dict[str, Any]) -> dict[str, Any]:
    return {"name": f"node-{number}", "type": "Node", "resources": [
        {"name": "cpu", "capacity": cpu}, {"name": "memory", "capacity": "4Gi"}, *others]}


def test_zones_get_batch_resources_beside_their_own():
    topology = {"zones": [zone(0, "4"), zone(1, "4"), {"name": "gpu-0"}]}
    assert zone_capacities(topology) == {number: {"cpu": 4000, "memory": 4 << 30} for number in (0, 1)}
    zones = zones_with(topology, {0: BATCH, 1: BATCH}, 0.1)
    assert zones is not None
    batch = [{"name": name, "capacity": amount, "allocatable": amount, "available": amount}
             for name, amount in ((CPU, "4000"), (MEMORY, "1000"))]
    assert zones == [zone(0, "4", *batch), zone(1, "4", *batch), {"name": "gpu-0"}]
    assert zones_with({"zones": zones}, {0: BATCH, 1: {"cpu": 4100, "memory": 1000}}, 0.1) is None
    assert zones_with({"zones": zones}, None, 0.1) == topology["zones"]
    assert zones_with(topology, None, 0.1) is None
