"""Memory QoS: settings of pods, and the values of their files."""

from __future__ import annotations

from typing import Any

import pytest

from koordpolicy.engine.agent.qos_manager.memory_qos import (
    UNLIMITED,
    MemoryAmounts,
    container_files,
    memory_classes,
    page_cache_files,
    pod_settings,
    protected,
    throttled_from,
)

GIB = 2**30
CLASS = {"enable": True, "minLimitPercent": 10, "lowLimitPercent": 20, "wmarkRatio": 80}


@pytest.mark.parametrize(("annotation", "settings"), [
    (None, CLASS),
    ("{", CLASS),
    ('"auto"', CLASS),
    ('{"minLimitPercent": "10"}', CLASS),
    ('{"policy": 7}', CLASS),
    ('{"minLimitPercent": 30}', {**CLASS, "minLimitPercent": 30}),
    ('{"policy": "default", "lowLimitPercent": 0, "other": 1}', {**CLASS, "lowLimitPercent": 0}),
    ('{"policy": "none", "minLimitPercent": 30}', {
        "enable": False, "minLimitPercent": 0, "lowLimitPercent": 0, "throttlingPercent": 0, "wmarkRatio": 0,
        "wmarkScalePermill": 50, "wmarkMinAdj": 0, "priorityEnable": 0, "priority": 0, "oomKillGroup": 0,
    }),
    ('{"policy": "auto", "minLimitPercent": 30}', {
        "enable": True, "minLimitPercent": 30, "lowLimitPercent": 0, "throttlingPercent": 0, "wmarkRatio": 95,
        "wmarkScalePermill": 20, "wmarkMinAdj": 50, "priorityEnable": 0, "priority": 0, "oomKillGroup": 0,
    }),
])
def test_a_pods_annotation_changes_the_settings_of_its_class(annotation: str | None, settings: dict[str, Any]) -> None:
    assert pod_settings(CLASS, "BE", annotation) == settings


@pytest.mark.parametrize(("settings", "least", "low"), [
    ({}, None, None), ({"minLimitPercent": 50}, 50, None), ({"minLimitPercent": 50, "lowLimitPercent": 20}, 50, 50),
    ({"minLimitPercent": 50, "lowLimitPercent": 0}, 50, 0), ({"minLimitPercent": 0, "lowLimitPercent": 80}, 0, 80),
])
def test_low_is_at_least_min_unless_it_is_0(settings: dict[str, int], least: int | None, low: int | None) -> None:
    assert protected(100, settings) == (least, low)


@pytest.mark.parametrize(("request_", "limit", "settings", "high"), [
    (0, GIB, {"throttlingPercent": 80}, 858992640),
    (GIB, GIB, {"throttlingPercent": 80}, GIB),
    (GIB // 2, 0, {"throttlingPercent": 50}, GIB // 2 + (4 * GIB - GIB // 2) // 2),
    (GIB, GIB, {"throttlingPercent": 0}, UNLIMITED),
    (GIB, GIB, {}, None),
    (GIB, 2 * GIB, {"throttlingPercent": 1, "minLimitPercent": 200}, 2 * GIB),
])
def test_high_lies_between_request_and_limit_on_a_page(
    request_: int, limit: int, settings: dict[str, int], high: int | None,
) -> None:
    assert throttled_from(MemoryAmounts(request_, limit), settings, 4 * GIB, 4096) == high


def test_high_is_left_out_where_neither_a_limit_nor_the_nodes_memory_is_known() -> None:
    assert container_files(MemoryAmounts(GIB, 0), {"throttlingPercent": 50}, 0, 4096) == ()


@pytest.mark.parametrize(("settings", "limit", "files"), [
    ({}, GIB, {}),
    ({"pageCacheEnable": True}, GIB, {"enable": "1"}),
    ({"pageCacheLimitSize": 5, "pageCacheReclaimSync": True}, GIB, {"enable": "1", "size": "5", "sync": "1"}),
    ({"pageCacheLimitSize": 5, "pageCacheEnable": False}, 3, {"enable": "0", "size": "3", "sync": "0"}),
    ({"pageCacheLimitSize": 0}, GIB, {"enable": "0", "size": "0"}),
    ({"pageCacheLimitPercent": 50}, 0, {}),
    ({"pageCacheLimitPercent": 50}, 10, {"enable": "1", "size": "5", "sync": "0"}),
])
def test_the_page_cache_is_limited_by_size_or_percentage(
    settings: dict[str, Any], limit: int, files: dict[str, str],
) -> None:
    assert page_cache_files(limit, settings) == tuple(
        (f"memory.pagecache_limit.{name}", text) for name, text in files.items()
    )


def test_a_field_of_the_wrong_type_is_an_error_with_its_path() -> None:
    slo = {"spec": {"resourceQOSStrategy": {"lsClass": {"memoryQOS": {"wmarkRatio": "95"}}}}}
    with pytest.raises(ValueError, match=r"`resourceQOSStrategy\.lsClass\.memoryQOS`: `wmarkRatio` must be a whole"):
        memory_classes(slo)
