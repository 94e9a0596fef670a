from __future__ import annotations

import pytest

from koordpolicy.builtin_plugins.scheduler.load_aware_scheduling.args import (
    Aggregated,
    LoadAwareArgs,
    check_args,
    convert,
    default_args,
    seconds_of,
)


def test_no_arguments_become_the_defaults_of_v1():
    assert convert(check_args({})) == LoadAwareArgs(
        filter_expired=True, schedule_when_expired=False, expiration_seconds=180,
        resource_weights={"cpu": 1, "memory": 1},
        usage_thresholds={"cpu": 65, "memory": 95}, scaling_factors={"cpu": 85, "memory": 70},
    )


def test_defaults_fill_in_only_what_is_absent_null_or_empty():
    assert default_args({
        "filterExpiredNodeMetrics": None, "dominantResourceWeight": 1, "usageThresholds": {},
        "estimatedScalingFactors": {"cpu": 50}, "nodeMetricExpirationSeconds": 300,
    }) == {
        "filterExpiredNodeMetrics": True, "enableScheduleWhenNodeMetricsExpired": False,
        "nodeMetricExpirationSeconds": 300,
        "dominantResourceWeight": 1, "usageThresholds": {"cpu": 65, "memory": 95},
        "estimatedScalingFactors": {"cpu": 50, "memory": 70},
    }


def test_filling_in_defaults_twice_changes_nothing():
    once = default_args({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "LoadAwareSchedulingArgs"})
    assert default_args(once) == once


def test_durations_become_nanoseconds_and_all_resources_are_looked_at():
    args = convert(check_args({
        "aggregated": {"usageThresholds": {"gpu": 5}, "usageAggregationType": "p95", "usageAggregatedDuration": "5m"},
        "supportedResources": ["disk"],
    }))
    assert args.aggregated == Aggregated({"gpu": 5}, "p95", 300_000_000_000)
    assert args.resources == ("cpu", "disk", "gpu", "memory")


@pytest.mark.parametrize(("args", "message"), [
    ({"usageThreshold": {}}, "there is no argument `usageThreshold`: did you mean `usageThresholds`"),
    ({"aggregated": {"duration": 1}}, "there is no argument `duration` at `aggregated`: the fields are"),
    (
        {"apiVersion": "kubescheduler.config.k8s.io/v1beta3"},
        "`apiVersion` is `kubescheduler.config.k8s.io/v1beta3`: only",
    ),
    ({"filterExpiredNodeMetrics": "yes"}, "`filterExpiredNodeMetrics` must be true or false"),
    ({"usageThresholds": {"cpu": "65"}}, r"`usageThresholds\[cpu\]` must be a whole number"),
    ({"usageThresholds": []}, "`usageThresholds` must be an object"),
    ({"supportedResources": [1]}, r"`supportedResources\[0\]` must be a string"),
    ({"estimator": "mine"}, "there is no estimator `mine`"),
    ({"nodeMetricExpirationSeconds": 0}, "`nodeMetricExpirationSeconds` is 0: it must be above 0"),
    ({"usageThresholds": {"cpu": 101}}, r"`usageThresholds\[cpu\]` is 101: it must lie within 0 and 100"),
    ({"resourceWeights": {"cpu": 0}}, r"`resourceWeights\[cpu\]` is 0: it must lie within 1 and 100"),
    ({"dominantResourceWeight": -1}, "`dominantResourceWeight` is -1"),
    ({"resourceWeights": {"gpu": 1}}, r"`estimatedScalingFactors\[gpu\]` is missing"),
    ({"aggregated": {"scoreAggregationType": "p50%"}}, "`aggregated.scoreAggregationType` is `p50%`: write one of avg"),
    ({"aggregated": {"usageAggregatedDuration": "-5m"}}, "`aggregated.usageAggregatedDuration`: "),
])
def test_what_is_wrong_is_refused_with_its_place(args, message):
    with pytest.raises(ValueError, match=message):
        check_args(args)


def test_all_faults_are_told_at_once():
    with pytest.raises(ValueError, match=r"nodeMetricExpirationSeconds.*; .*usageThresholds"):
        check_args({"nodeMetricExpirationSeconds": -1, "usageThresholds": {"cpu": -1}})


def test_thresholds_of_prod_pods_are_not_validated():
    assert check_args({"prodUsageThresholds": {"cpu": 500}})["prodUsageThresholds"] == {"cpu": 500}


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5), ("+5", 5), ("0", 0), ("-1", None), ("5s", None), ("1_0", None), (None, None)],
)
def test_seconds_of_an_annotation_count_where_they_can_be_read(text, seconds):
    assert seconds_of(text) == seconds
