"""CPU burst of containers: a static burst, and a CFS quota that follows throttling.

Pure functions and a token bucket; the formulas are Koordinator's (cpu_burst.go). Amounts of CPU are milli-cores, quotas
and bursts microseconds of a period of 100 ms, tokens percent-seconds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo, canonical_amount
from koordpolicy.engine.framework.qos import Readings
from koordpolicy.engine.kubernetes.vocabulary import BE, BURST_CLASSES, LSE, LSR, raw_qos_class

from .suppression import PERIOD, Writes, read_processors

BURST_FILE: Final = "cpu.cfs_burst_us"
QUOTA_FILE: Final = "cpu.cfs_quota_us"
LARGEST_BURST: Final = 100_000_000
"""The largest static burst that koordlet writes in control groups v1; a larger one is not written."""
UNKNOWN, IDLE, COOLING, OVERLOAD = "unknown", "idle", "cooling", "overload"
UP, DOWN, RESET, REMAIN = "up", "down", "reset", "remain"

_STATIC: Final = frozenset(("cpuBurstOnly", "auto"))
_DYNAMIC: Final = frozenset(("cfsQuotaBurstOnly", "auto"))
_COOLING_SHARE: Final = 0.9
_STEP_UP: Final = 1.2
_STEP_DOWN: Final = 0.8
_REFILLS_BELOW: Final = 60  # percent of the limit
_SECOND: Final = 1_000_000_000
_LONGEST_WINDOW: Final = 10 * _SECOND
_REREAD_AFTER: Final = 60 * _SECOND
_NOT_READ: Final = (0, 0)
_SUPPORT: Final = f"guaranteed/{BURST_FILE}"

Facts: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BurstConfig:
    """The settings of a pod's CPU burst; None where neither the node nor the pod sets a value.

    The period is in seconds; below 0 a container may burst without limit of time.
    """

    policy: str = "none"
    cpu_burst_percent: int | None = None
    cfs_quota_burst_percent: int | None = None
    cfs_quota_burst_period: int | None = None

    @property
    def is_static(self) -> bool:
        """Return whether containers have a static burst."""
        return self.policy in _STATIC

    @property
    def is_dynamic(self) -> bool:
        """Return whether quotas follow throttling."""
        return self.policy in _DYNAMIC

    @staticmethod
    def of(section: Facts) -> BurstConfig:
        """Read the fields of a `cpuBurstStrategy`, or of a pod's annotation; unknown ones are ignored.

        Raises:
            ValueError: a field has the wrong type.
        """
        policy = section.get("policy")
        if policy is not None and not isinstance(policy, str):
            raise ValueError(f"`policy` must be a text, not {policy!r}")
        return BurstConfig(policy or "none", *(_whole(section, name) for name in _NUMBERS))


_NUMBERS: Final = ("cpuBurstPercent", "cfsQuotaBurstPercent", "cfsQuotaBurstPeriodSeconds")


def _whole(section: Facts, name: str) -> int | None:
    value = section.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(f"`{name}` must be a whole number, not {value!r}")
    return value


def overlay_config(node: Facts, annotation: str | None) -> Facts:
    """Return the settings of a pod: those of the node, overlaid with its annotation's; a malformed one is ignored."""
    if annotation is None:
        return node
    try:
        pod_config = json.loads(annotation)
        if not isinstance(pod_config, dict):
            return node
        BurstConfig.of(pod_config)
    except (ValueError, RecursionError):
        return node
    known = {name: pod_config[name] for name in _NUMBERS if pod_config.get(name) is not None}
    return {**node, **({"policy": pod_config["policy"]} if pod_config.get("policy") else {}), **known}


def node_state(usage: float | None, total: float, threshold_percent: int) -> str:
    """Return the state of the CPUs that pods share: `idle`, `cooling`, `overload`, or `unknown` without a usage.

    Usage and total are without pods that have CPUs of their own, in one unit.
    """
    if usage is None:
        return UNKNOWN
    ratio = usage / total if total > 0 else 1.0
    threshold = threshold_percent / 100
    if ratio >= threshold:
        return OVERLOAD
    return COOLING if ratio >= threshold * _COOLING_SHARE else IDLE


def excluded_cpu(pod: PodInfo) -> int | None:
    """Return the CPU request of a pod that uses no shared CPUs, 0 for a best-effort one; None for all other pods."""
    qos = raw_qos_class(pod.object)
    if qos in (LSE, LSR):
        return pod.requests["cpu"]
    return 0 if qos == BE else None


def shared_usage(
    readings: Readings, excluded: Iterable[tuple[str, int]], interval: int,
) -> tuple[float | None, float]:
    """Return usage and amount of the CPUs that pods share, in milli-cores.

    `excluded` are the keys of pods that use none, with their `excluded_cpu`. The usage is the average over five
    intervals, 10 s at most; None if it was not measured, or the processors are unknown.
    """
    processors, excluded = len(readings.host.processors), tuple(excluded)
    if not processors:
        try:
            processors = len(read_processors(readings.object("NodeResourceTopology") or {}))
        except EvaluationError:
            processors = 0
    total = processors * 1000 - sum(request for _, request in excluded)
    window = min(5 * interval, _LONGEST_WINDOW)
    try:
        usage = readings.node_usage("cpu", "avg", window)
    except EvaluationError:
        return None, total
    for key, _ in excluded:
        try:
            usage -= readings.pod_usage(key, "cpu", "avg", window)
        except EvaluationError:
            continue
    return usage if processors else None, total


def static_burst(limit: int, config: BurstConfig) -> int:
    """Return the static burst of a container with that limit; 0 without a limit, or if the policy has none."""
    if not config.is_static or limit <= 0 or not config.cpu_burst_percent:
        return 0
    return max(int(limit / 1000 * config.cpu_burst_percent / 100 * PERIOD), 0)


def base_quota(limit: int) -> int:
    """Return the CFS quota of a limit."""
    return limit * (PERIOD // 1000)


def quota_operation(config: BurstConfig, throttled: float | None, state: str, *, allowed: bool) -> str:
    """Return the change of a container's quota: `up`, `down`, `reset` or `remain`.

    `allowed` is the limiter's verdict, `throttled` the share of throttled periods, None if it was not measured.
    """
    if not config.is_dynamic:
        return RESET
    if not allowed:
        return DOWN
    operation = UP if throttled is not None and throttled > 0 else REMAIN
    if state == OVERLOAD:
        return DOWN
    return REMAIN if state in (COOLING, UNKNOWN) else operation


def quota_target(base: int, current: int, percent: int | None, operation: str) -> int:
    """Return the quota after an operation: from the base to `percent` of it."""
    ceiling = int(base * percent / 100) if percent is not None and percent > 100 else base
    target = current
    if operation == UP:
        target = int(current * _STEP_UP)
    elif operation == DOWN:
        target = int(current * _STEP_DOWN)
    elif operation == RESET:
        target = base
    return max(base, min(target, ceiling))


def limiter_capacity(config: BurstConfig) -> int | None:
    """Return the capacity of a container's token bucket; None if nothing limits its burst, 0 if it may not burst."""
    period, percent = config.cfs_quota_burst_period, config.cfs_quota_burst_percent
    if period is None or period < 0:
        return None
    return period * (percent - 100) if percent is not None and percent >= 100 else 0


@dataclass(slots=True)
class BurstLimiter:
    """The token bucket of a container: usage above its limit takes tokens, low usage gives them back.

    `updated` is the time of the last decision in nanoseconds.
    """

    capacity: int
    period: int
    tokens: int
    updated: int

    @staticmethod
    def of(capacity: int, period: int, now: int, draw: float) -> BurstLimiter:
        """Make a bucket that holds `draw / 2` of its capacity; `draw` is 0 to 1."""
        return BurstLimiter(capacity, period, int(capacity * draw / 2), now)

    def allow(self, now: int, usage_percent: int) -> bool:
        """Take or give tokens for the usage (percent of the limit) since the last decision; return whether any is left.

        A part of a second is carried over to the next decision.
        """
        seconds = max((now - self.updated) // _SECOND, 0)
        self.updated += seconds * _SECOND
        if usage_percent >= 100:
            self.tokens -= (usage_percent - 100) * seconds
        elif usage_percent < _REFILLS_BELOW:
            self.tokens += (100 - usage_percent) * seconds
        self.tokens = max(min(self.tokens, self.capacity), -self.capacity)
        return self.tokens > 0

    def expired(self, now: int) -> bool:
        """Return whether no decision was made for more than two periods."""
        return now - self.updated > 2 * self.period * _SECOND


class BurstLimiters:
    """The token buckets of containers, by id. A bucket's first tokens depend only on the seed and the id."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._buckets: dict[str, BurstLimiter] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def bucket(self, container: str, config: BurstConfig, now: int) -> BurstLimiter | None:
        """Return a container's bucket, a new one if its capacity changed; None if nothing limits its burst."""
        capacity = limiter_capacity(config)
        if capacity is None:
            return None
        bucket, period = self._buckets.get(container), config.cfs_quota_burst_period or 0
        if bucket is None or bucket.capacity != capacity:
            draw = random.Random(f"{self._seed}/{container}").random()  # noqa: S311 - spreads bursts, hides nothing
            bucket = self._buckets[container] = BurstLimiter.of(capacity, period, now, draw)
        bucket.period = period
        return bucket

    def recycle(self, now: int) -> None:
        """Drop the buckets that expired."""
        if self._buckets:
            self._buckets = {name: each for name, each in self._buckets.items() if not each.expired(now)}


@dataclass(frozen=True, slots=True)
class BurstContainer:
    """A container with an id: `key` is its name in measurements, `limit` its CPU limit in milli-cores, 0 for none."""

    key: str
    id: str
    limit: int
    running: bool
    burst_file: str
    quota_file: str


@dataclass(frozen=True, slots=True)
class BurstPod:
    """A pod with its containers."""

    burst_file: str
    quota_file: str
    containers: tuple[BurstContainer, ...]


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """A change of a container's CFS quota, with the writes that make it, in order."""

    container: BurstContainer
    operation: str
    before: int
    after: int
    writes: Writes


def burst_pod(pod: PodInfo, directory: Callable[[PodInfo, str], str]) -> BurstPod:
    """Return a pod with its containers that have an id; `directory` is that of `Readings`.

    Raises:
        ValueError: a limit is malformed.
    """
    spec, status = pod.object.get("spec") or {}, pod.object.get("status") or {}
    limits = {
        each.get("name"): ((each.get("resources") or {}).get("limits") or {}).get("cpu")
        for each in spec.get("containers") or ()
    }
    containers = []
    for each in status.get("containerStatuses") or ():
        name = each.get("name")
        if name not in limits or not each.get("containerID"):
            continue
        limit, path = limits[name], directory(pod, name)
        containers.append(BurstContainer(
            f"{pod.key}/{name}", each["containerID"],
            max(canonical_amount("cpu", limit, f"limits of {name}"), 0) if limit is not None else 0,
            (each.get("state") or {}).get("running") is not None, f"{path}/{BURST_FILE}", f"{path}/{QUOTA_FILE}",
        ))
    path = directory(pod, "")
    return BurstPod(f"{path}/{BURST_FILE}", f"{path}/{QUOTA_FILE}", tuple(containers))


def may_burst(pod: PodInfo) -> bool:
    """Return whether a pod's CPU may burst: the pod is active, is not best-effort, and has no CPUs of its own."""
    phase = (pod.object.get("status") or {}).get("phase", "Pending")
    return phase in ("Pending", "Running") and raw_qos_class(pod.object) in BURST_CLASSES


@dataclass(slots=True)
class StaticBurst:
    """The static bursts of one version of a pod over rounds.

    Files with the desired texts are read again after a minute (as in koordlet's resource executor). So are files that
    rejected a write: kernels that take no burst above the quota would reject it in every round.
    """

    next_read: int = 0
    """The time of the next reading, in nanoseconds."""
    config: BurstConfig | None = None
    tried: Writes = ()
    """The writes of the last round, which the kernel may have refused."""

    def writes(
        self, pod: BurstPod, config: BurstConfig, files: Mapping[str, str], *, version: int, now: int,
    ) -> Writes:
        """Return the writes of this round: those of `burst_writes`, or none before the next reading."""
        if config != self.config:
            self.next_read, self.config, self.tried = 0, config, ()
        if now < self.next_read:
            return ()
        writes = burst_writes(pod, config, files, version)
        if writes and writes != self.tried:
            self.tried = writes
            return writes
        if writes or _is_complete(pod, files):
            self.next_read, self.tried = now + _REREAD_AFTER, ()
        return ()


@dataclass(slots=True)
class QuotaBurst:
    """The CFS quotas of one version of a pod over rounds.

    A quota that is not changed is read again after a minute, and before it is changed.
    """

    known_quotas: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By file, the time of its next reading in nanoseconds, and the quota that was read and has not been changed since.
    """
    config: BurstConfig | None = None

    def changes(
        self, pod: BurstPod, config: BurstConfig, state: str, limiters: BurstLimiters, readings: Readings,
    ) -> list[QuotaChange]:
        """Return the changes of the quotas of running containers; the limiters of all of them are updated."""
        if config != self.config:
            self.known_quotas, self.config = {}, config
        found: list[QuotaChange] = []
        pod_quota: int | None = None
        now, files, dynamic = readings.now, readings.files, config.is_dynamic
        for container in pod.containers:
            base, file = base_quota(container.limit), container.quota_file
            if not container.running or base <= 0:
                continue
            known = self._known(file, now)
            current = known if known is not None else self._read(files, file, now)
            if current is None:
                continue
            bucket = limiters.bucket(container.id, config, now)
            allowed = bucket is None or bucket.allow(now, _usage_percent(container, readings))
            throttled = _measured(readings, container.key, "throttled") if dynamic and allowed else None
            operation = quota_operation(config, throttled, state, allowed=allowed)
            target = quota_target(base, current, config.cfs_quota_burst_percent, operation)
            if target != current and known is not None:
                current = self._read(files, file, now)
                if current is None:
                    continue
                target = quota_target(base, current, config.cfs_quota_burst_percent, operation)
            if target == current:
                continue
            del self.known_quotas[file]
            if pod_quota is None:
                pod_quota = read_quota(files, pod.quota_file)
            change = change_quota(pod, container, target, current=current, pod_quota=pod_quota, operation=operation)
            if pod_quota is not None and pod_quota > 0:
                pod_quota += target - current
            found.append(change)
        return found

    def _known(self, file: str, now: int) -> int | None:
        """Return a quota that was read within a minute and has not been changed; None without one."""
        until, quota = self.known_quotas.get(file, _NOT_READ)
        return quota if now < until else None

    def _read(self, files: Mapping[str, str], file: str, now: int) -> int | None:
        quota = read_quota(files, file)
        if quota is not None:
            self.known_quotas[file] = now + _REREAD_AFTER, quota
        return quota


@dataclass(slots=True)
class PodBurst:
    """One version of a pod, with its bursts over rounds."""

    pod: BurstPod
    static: StaticBurst = field(default_factory=StaticBurst)
    quota: QuotaBurst = field(default_factory=QuotaBurst)


def _is_complete(pod: BurstPod, files: Mapping[str, str]) -> bool:
    """Return whether all burst files exist, or the kernel has none."""
    burst_files = (pod.burst_file, *(each.burst_file for each in pod.containers))
    return all(file in files for file in burst_files) or (_SUPPORT not in files and pod.burst_file not in files)


def burst_writes(pod: BurstPod, config: BurstConfig, files: Mapping[str, str], version: int) -> Writes:
    """Return the writes of the static bursts, containers before the pod; only those that change a file."""
    burst_values, total = [], 0
    for container in pod.containers:
        value = static_burst(container.limit, config)
        total += value
        burst_values.append((container.burst_file, value))
    burst_values.append((pod.burst_file, total))
    return tuple(
        (file, str(value)) for file, value in burst_values
        if (version != 1 or value <= LARGEST_BURST) and files.get(file, str(value)).strip() != str(value)
    )


def read_quota(files: Mapping[str, str], file: str) -> int | None:
    """Return a CFS quota, -1 for none; None if the file does not exist or is malformed."""
    text = files.get(file)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        return None


def change_quota(
    pod: BurstPod, container: BurstContainer, target: int, *, current: int, pod_quota: int | None,
    operation: str = RESET,
) -> QuotaChange:
    """Return the change of a container's quota to a target that differs from the current one.

    The pod's quota changes by as much, unless it has none: before the container's if it rises, else after it.
    """
    delta = target - current
    writes = [(container.quota_file, str(target))]
    if pod_quota is not None and pod_quota > 0:
        writes.insert(0 if delta > 0 else 1, (pod.quota_file, str(pod_quota + delta)))
    return QuotaChange(container, operation, current, target, tuple(writes))


def recover_writes(pod: PodInfo, readings: Readings) -> Writes:
    """Return the writes that set a pod's bursts to 0 and its quotas to the limits; none if its limits are malformed."""
    files = readings.files
    try:
        of_pod = burst_pod(pod, readings.directory)
    except ValueError:
        return ()
    writes = [*burst_writes(of_pod, BurstConfig(), files, readings.host.cgroup_version)]
    pod_quota = read_quota(files, of_pod.quota_file)
    for container in of_pod.containers:
        current, base = read_quota(files, container.quota_file), base_quota(container.limit)
        if current is None or not container.running or base <= 0 or current == base:
            continue
        writes += change_quota(of_pod, container, base, current=current, pod_quota=pod_quota).writes
        if pod_quota is not None and pod_quota > 0:
            pod_quota += base - current
    return tuple(writes)


def _usage_percent(container: BurstContainer, readings: Readings) -> int:
    used = _measured(readings, container.key, "cpu")
    return 100 if used is None else int(used / container.limit * 100)


def _measured(readings: Readings, key: str, resource: str) -> float | None:
    try:
        return readings.container_usage(key, resource)
    except EvaluationError:
        return None
