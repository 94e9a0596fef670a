"""LoadAwareSchedulingArgs: strict reading of version v1, its defaults, conversion to the internal form, validation.

The rules are Koordinator's (pkg/scheduler/apis/config). `prodUsageThresholds` are not validated there, nor here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koordpolicy.engine.cluster.objects.metrics import STATISTICS
from koordpolicy.engine.documents import parse_duration

from ..allocation.strict_args import Read, boolean, integer, nested, raise_faults, read_args, text, texts

KIND: Final = "LoadAwareSchedulingArgs"
SCALING_FACTORS: Final[Mapping[str, int]] = {"cpu": 85, "memory": 70}
"""The estimated usage of a pod in percent of its request."""

_ESTIMATORS: Final = ("", "defaultEstimator")
_WEIGHTS: Final[Mapping[str, int]] = {"cpu": 1, "memory": 1}
_THRESHOLDS: Final[Mapping[str, int]] = {"cpu": 65, "memory": 95}
_EXPIRATION: Final = 180


@dataclass(frozen=True, slots=True)
class Aggregated:
    """The settings for percentiles; durations in nanoseconds, 0 for the longest that was measured."""

    usage_thresholds: Mapping[str, int] = field(default_factory=dict)
    usage_type: str = ""
    usage_duration: int = 0
    score_type: str = ""
    score_duration: int = 0


@dataclass(frozen=True, slots=True)
class LoadAwareArgs:
    """The internal form: thresholds, weights and factors by resource, in percent; times in seconds, 0 for none."""

    filter_expired: bool = False
    schedule_when_expired: bool = False
    expiration_seconds: int = 0
    resource_weights: Mapping[str, int] = field(default_factory=dict)
    dominant_weight: int = 0
    usage_thresholds: Mapping[str, int] = field(default_factory=dict)
    prod_usage_thresholds: Mapping[str, int] = field(default_factory=dict)
    prod_usage_includes_system: bool = False
    score_by_prod_usage: bool = False
    scaling_factors: Mapping[str, int] = field(default_factory=dict)
    seconds_after_scheduled: int = 0
    seconds_after_initialized: int = 0
    customized_estimation: bool = False
    aggregated: Aggregated = Aggregated()
    supported_resources: tuple[str, ...] = ()

    @property
    def resources(self) -> tuple[str, ...]:
        """All resources with a setting, sorted."""
        return tuple(sorted({
            "cpu", "memory", *self.usage_thresholds, *self.prod_usage_thresholds, *self.resource_weights,
            *self.scaling_factors, *self.aggregated.usage_thresholds, *self.supported_resources,
        }))


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return v1 arguments with their defaults; raises `ValueError` with all faults and the fields' paths."""
    full = default_args(args)
    raise_faults(validate(convert(full)))
    return full


def default_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return v1 arguments with their defaults filled in.

    Raises:
        ValueError: there is no such field, or its value is of another type.
    """
    given = read_args(args, KIND, _FIELDS)
    full = {
        "filterExpiredNodeMetrics": True, "enableScheduleWhenNodeMetricsExpired": False,
        "nodeMetricExpirationSeconds": _EXPIRATION, **given,
    }
    if not full.get("resourceWeights") and not full.get("dominantResourceWeight"):
        full["resourceWeights"] = dict(_WEIGHTS)
    if not full.get("usageThresholds"):
        full["usageThresholds"] = dict(_THRESHOLDS)
    full["estimatedScalingFactors"] = {**SCALING_FACTORS, **full.get("estimatedScalingFactors", {})}
    return full


def convert(full: Mapping[str, Any]) -> LoadAwareArgs:
    """Return the internal form of v1 arguments; absent fields become zero values.

    Raises:
        ValueError: a duration cannot be read, or there is no such estimator.
    """
    aggregated = full.get("aggregated") or {}
    if full.get("estimator", "") not in _ESTIMATORS:
        raise ValueError(f"there is no estimator `{full['estimator']}`: write `defaultEstimator` or leave it out")
    return LoadAwareArgs(
        filter_expired=full.get("filterExpiredNodeMetrics", False),
        schedule_when_expired=full.get("enableScheduleWhenNodeMetricsExpired", False),
        expiration_seconds=full.get("nodeMetricExpirationSeconds", 0),
        resource_weights=full.get("resourceWeights", {}),
        dominant_weight=full.get("dominantResourceWeight", 0),
        usage_thresholds=full.get("usageThresholds", {}),
        prod_usage_thresholds=full.get("prodUsageThresholds", {}),
        prod_usage_includes_system=full.get("prodUsageIncludeSys", False),
        score_by_prod_usage=full.get("scoreAccordingProdUsage", False),
        scaling_factors=full.get("estimatedScalingFactors", {}),
        seconds_after_scheduled=full.get("estimatedSecondsAfterPodScheduled", 0),
        seconds_after_initialized=full.get("estimatedSecondsAfterInitialized", 0),
        customized_estimation=full.get("allowCustomizeEstimation", False),
        aggregated=Aggregated(
            usage_thresholds=aggregated.get("usageThresholds", {}),
            usage_type=aggregated.get("usageAggregationType", ""),
            usage_duration=_duration(aggregated, "usageAggregatedDuration"),
            score_type=aggregated.get("scoreAggregationType", ""),
            score_duration=_duration(aggregated, "scoreAggregatedDuration"),
        ),
        supported_resources=tuple(full.get("supportedResources", ())),
    )


def validate(args: LoadAwareArgs) -> Iterator[str]:
    """Yield the faults of arguments, each with the field's path."""
    if args.expiration_seconds <= 0:
        yield f"`nodeMetricExpirationSeconds` is {args.expiration_seconds}: it must be above 0"
    yield from _outside(args.resource_weights, "resourceWeights", 1)
    yield from _outside({"": args.dominant_weight}, "dominantResourceWeight", 0)
    yield from _outside(args.usage_thresholds, "usageThresholds", 0)
    yield from _outside(args.aggregated.usage_thresholds, "aggregated.usageThresholds", 0)
    yield from _outside(args.scaling_factors, "estimatedScalingFactors", 1)
    for name in sorted(set(args.resource_weights) - set(args.scaling_factors)):
        yield f"`estimatedScalingFactors[{name}]` is missing: `resourceWeights` gives it a weight"
    for field_name, value in (("usage", args.aggregated.usage_type), ("score", args.aggregated.score_type)):
        if value and value not in STATISTICS:
            yield f"`aggregated.{field_name}AggregationType` is `{value}`: write one of {', '.join(STATISTICS)}"


def _outside(amounts: Mapping[str, int], path: str, lowest: int) -> Iterator[str]:
    for name, amount in sorted(amounts.items()):
        if not lowest <= amount <= 100:
            where = f"{path}[{name}]" if name else path
            yield f"`{where}` is {amount}: it must lie within {lowest} and 100"


def _duration(aggregated: Mapping[str, Any], name: str) -> int:
    try:
        return parse_duration(aggregated.get(name) or "0")
    except ValueError as error:
        raise ValueError(f"`aggregated.{name}`: {error}") from None


def _integers(value: Any, path: str) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise ValueError(f"`{path}` must be an object of whole numbers by resource")  # noqa: TRY004 - one complaint
    return {text(name, path): integer(each, f"{path}[{name}]") for name, each in value.items()}


_AGGREGATED_FIELDS: Final[Mapping[str, Read]] = {
    "usageThresholds": _integers, "usageAggregationType": text, "usageAggregatedDuration": text,
    "scoreAggregationType": text, "scoreAggregatedDuration": text,
}
_FIELDS: Final[Mapping[str, Read]] = {
    "filterExpiredNodeMetrics": boolean, "enableScheduleWhenNodeMetricsExpired": boolean,
    "nodeMetricExpirationSeconds": integer, "resourceWeights": _integers, "dominantResourceWeight": integer,
    "usageThresholds": _integers, "prodUsageThresholds": _integers, "prodUsageIncludeSys": boolean,
    "scoreAccordingProdUsage": boolean, "estimator": text, "estimatedScalingFactors": _integers,
    "estimatedSecondsAfterPodScheduled": integer, "estimatedSecondsAfterInitialized": integer,
    "allowCustomizeEstimation": boolean, "aggregated": nested(_AGGREGATED_FIELDS), "supportedResources": texts,
}

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}")


def seconds_of(value: Any) -> int | None:
    """Return the seconds of a pod's annotation; None if it is absent or negative."""
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return None
    return int(value) if int(value) >= 0 else None
