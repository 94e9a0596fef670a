"""The fields of a DeschedulerConfiguration and of arguments that are without effect, with the reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from koordpolicy.engine.documents.ignored_fields import ignored
from koordpolicy.engine.documents.nodes import YamlNode
from koordpolicy.engine.source import Problem, Severity, did_you_mean

from .koordinator_args import BEST_EFFORT, MODES

_OPTIONS: Final = "`--bind` and `--health-bind` say where a descheduler of a live cluster listens"
_NO_PROFILING: Final = "no profiles of the process are served"
_OF_LIVE: Final[Mapping[str, str]] = {
    "leaderElection": "one dry run holds no Lease",
    "clientConnection": "one dry run lists the cluster once, as `--cluster` and the kubeconfig say",
}
"""The fields without effect in one dry run, which a descheduler of a live cluster reads."""
IGNORED: Final[Mapping[str, str]] = {
    **_OF_LIVE, "healthzBindAddress": _OPTIONS, "metricsBindAddress": _OPTIONS,
    "enableProfiling": _NO_PROFILING, "enableContentionProfiling": _NO_PROFILING,
}

_ONE_BY_ONE: Final = {"maxConcurrentReconciles": "migration jobs are worked off one step after the other"}
_OF_JOBS: Final[Mapping[str, str]] = dict.fromkeys((
    "objectLimiters", "evictQPS", "evictBurst", "evictionPolicy", "defaultJobTTL", "defaultDeleteOptions",
    "arbitrationArgs",
), "one dry run creates no migration job, and works none off")
"""The arguments of MigrationController without effect in one dry run."""
IGNORED_ARGS: Final[Mapping[str, Mapping[str, str]]] = {"MigrationController": {**_ONE_BY_ONE, **_OF_JOBS}}

IGNORED_OF_LEVELS: Final[Mapping[str, str]] = dict.fromkeys(
    ("keepThreshold", "rejectThreshold"), "pods leave a level whatever its nodes use, as in Koordinator")


def warnings_of(node: YamlNode, *, live: bool = False) -> Iterator[Problem]:
    """Yield a warning, with its place, for each field of a configuration file that has no effect; `live` says whether
    it is that of a descheduler of a live cluster.
    """
    yield from ignored(node, {name: why for name, why in IGNORED.items() if not (live and name in _OF_LIVE)})
    profiles = node.at("profiles")
    for number, profile in enumerate(profiles.items if profiles is not None else ()):
        configs = profile.at("pluginConfig")
        for place, config in enumerate(configs.items if configs is not None else ()):
            name, args = config.at("name"), config.at("args")
            plugin = str(name.scalar) if name is not None else ""
            prefix = f"profiles[{number}].pluginConfig[{place}].args."
            if args is not None and plugin == "CustomPriority":
                yield from _of_levels(args, prefix)
            if args is not None and plugin in IGNORED_ARGS:
                yield from ignored(args, _ONE_BY_ONE if live else IGNORED_ARGS[plugin], prefix)


def _of_levels(args: YamlNode, prefix: str) -> Iterator[Problem]:
    """Yield warnings about arguments of CustomPriority that Koordinator accepts and does nothing with."""
    levels = args.at("evictionOrder")
    for index, level in enumerate(levels.items if levels is not None else ()):
        yield from ignored(level, IGNORED_OF_LEVELS, f"{prefix}evictionOrder[{index}].")
    mode = args.at("mode")
    if mode is not None and mode.scalar and mode.scalar not in MODES:
        yield Problem(
            f"{prefix}mode: `{mode.scalar}` is no mode, so it does what `{BEST_EFFORT}` does", mode.place,
            did_you_mean(str(mode.scalar), MODES), Severity.WARNING, code="configuration",
        )
