"""The settings of a scheduler as a recording contains them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.kubernetes.release import release
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.cycle.tie_break import TIE_BREAKS
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec
from koordpolicy.engine.source import PolicyError, Problem

from .records import RecordedChoice, RecordedProfile, RecordedSettings

_LEAST_TIME: Final = 1_000_000
"""The least back-off in virtual time, in nanoseconds: without one a pod would be tried for ever."""
_MOST_TIME: Final = 366 * 86_400 * 1_000_000_000


def recorded_settings(settings: Settings) -> RecordedSettings:
    """Return the settings as records."""
    return RecordedSettings(
        [_recorded_profile(spec) for spec in settings.profiles], settings.tie_break, settings.seed,
        sorted(settings.feature_gates), settings.initial_backoff, settings.longest_backoff, settings.binding_timeout,
        "" if settings.kubernetes is None else str(settings.kubernetes), settings.foreign_pods,
    )


def settings_from(recorded: RecordedSettings) -> Settings:
    """Return the settings of records.

    Raises:
        ValueError: a value is out of range: another program wrote them, or a newer version of this one.
    """
    if recorded.tie_break not in TIE_BREAKS:
        raise ValueError(f"the recorded tie-break `{recorded.tie_break}` is unknown")
    if not recorded.profiles:
        raise ValueError("no profile is recorded")
    if min(recorded.initial_backoff, recorded.longest_backoff, recorded.binding_timeout) < _LEAST_TIME:
        raise ValueError("a recorded back-off or timeout is less than a millisecond")
    if max(recorded.initial_backoff, recorded.longest_backoff, recorded.binding_timeout) > _MOST_TIME:
        raise ValueError("a recorded back-off or timeout is more than a year")
    return Settings(
        tuple(map(_profile_from, recorded.profiles)), recorded.tie_break, recorded.seed,
        frozenset(recorded.feature_gates), recorded.initial_backoff, recorded.longest_backoff,
        recorded.binding_timeout, recorded.foreign_pods,
        release(recorded.kubernetes) if recorded.kubernetes else None,
    )


def replay_settings(recorded: RecordedSettings, registry: Registry) -> Settings:
    """Return the settings of records, for a replay under the policies of a registry.

    Raises:
        PolicyError: they cannot be used.
    """
    try:
        settings = settings_from(recorded)
    except ValueError as error:
        raise PolicyError([Problem(f"the settings of the recording cannot be used: {error}",
                                   code="recording")]) from None
    return with_named_profiles(settings, registry)


def with_named_profiles(settings: Settings, registry: Registry) -> Settings:
    """Return the settings with the profiles that policies name, too, if pods of any scheduler name are scheduled.

    As for a dump, pods choose among them.
    """
    if not settings.foreign_pods:
        return settings
    known = {spec.name for spec in settings.profiles}
    named = {name for plugin in registry.of_framework(Framework.SCHEDULER) for name in plugin.profiles or ()}
    return replace(settings, profiles=(*settings.profiles, *map(ProfileSpec, sorted(named - known))))


def _recorded_profile(spec: ProfileSpec) -> RecordedProfile:
    return RecordedProfile(
        spec.name,
        [RecordedChoice(each.name, each.weight, dict(each.args),
                        None if each.points is None else sorted(point.value for point in each.points))
         for each in spec.enabled],
        {"" if point is None else point.value: sorted(names) for point, names in spec.disabled.items()},
        {name: dict(args) for name, args in spec.args.items()}, spec.named_only,
    )


def _profile_from(recorded: RecordedProfile) -> ProfileSpec:
    return ProfileSpec(
        recorded.name,
        tuple(PluginChoice(each.name, each.weight, each.args,
                           None if each.points is None else frozenset(map(Point, each.points)))
              for each in recorded.enabled),
        {Point(point) if point else None: frozenset(names) for point, names in recorded.disabled.items()},
        recorded.args, recorded.named_only,
    )
