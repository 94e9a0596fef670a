"""Options that several commands share, and what they load: policies, plugins and configurations.

Each option is declared together with the function that reads it, so that `--cluster` means the same in every command.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import Documents, Kind, load, load_paths
from koordpolicy.engine.framework.discovery import DiscoveredPlugins, discover, discover_beside
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.kubernetes.release import KOORD_SCHEDULER, KOORDINATORS, NEWEST, RELEASES, Release, release
from koordpolicy.engine.source import PolicyError, Problem, Problems, Severity, did_you_mean, in_order, render
from koordpolicy.engine.texts import quoted_list

from .cluster_loading import context_of
from .exits import Exit, Stop
from .numbers import whole
from .policy_sources import (
    LOCAL,
    PolicyAccess,
    add_bundle_options,
    bundle_options,
    is_elsewhere,
    need_bundle,
    read_elsewhere,
)
from .terminal import warn
from .time_limit import compile_limit

if TYPE_CHECKING:
    from koordpolicy.engine.cel.check.environment import Function
    from koordpolicy.engine.cluster.cluster import Cluster
    from koordpolicy.engine.descheduler.config import DeschedulerConfiguration
    from koordpolicy.engine.framework.registry import Plugin
    from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
    from koordpolicy.engine.scheduler.profiles.profile import PluginChoice

    from . import Builtins


DEFAULT_PROFILE: Final = "default-scheduler"
_SHOWN_IDLE: Final = 3


def add_policies(parser: argparse.ArgumentParser) -> None:
    """Add `--policies`."""
    parser.add_argument(
        "--policies", metavar="PATH", action="append", default=[],
        help="a policy file or a directory of them, `configmap:NAMESPACE/NAME`, `crd` for the objects of "
             "`koord-policy crd`, or `oci:REGISTRY/REPOSITORY:TAG[@DIGEST]` for a bundle of `koord-policy push`; may "
             "be repeated. Without it only the built-in plugins decide",
    )
    add_bundle_options(parser)


def add_cluster(
    parser: argparse.ArgumentParser, *, required: bool = True, live: str = "which is only read",
) -> None:
    """Add `--cluster` and `--now`; `live` says what is done with a live cluster."""
    parser.add_argument(
        "--cluster", metavar="SOURCE", required=required,
        help="a dump of `kubectl get nodes,pods,nodemetrics -A -o yaml` (or json; a file or a directory of files), "
             f"or kube[:CONTEXT] for the live cluster, {live}",
    )
    parser.add_argument(
        "--now", metavar="TIME",
        help="the moment of the decision, such as 2026-01-31T12:00:00Z. Default: of a dump the newest time in it "
             "(updates of NodeMetrics, creation of objects), of a live cluster the present",
    )


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Add the options of decisions: `--profile`, `--config`, `--tie-break` and `--seed`."""
    parser.add_argument("--profile", metavar="NAME",
                        help="the scheduling profile for all pods; some policies are active in theirs only (default: "
                             "of each pod the one that its `spec.schedulerName` names, if a policy names that too, "
                             f"else {DEFAULT_PROFILE})")
    parser.add_argument("--config", metavar="FILE", type=Path,
                        help="a KubeSchedulerConfiguration: its profiles with their plugins, weights and arguments, "
                             "over kube-scheduler's default plugins (without it: the profiles that policies name, "
                             "with all of the default plugins)")
    parser.add_argument("--tie-break", choices=("first", "random"), default="first",
                        help="choose among the best nodes the first by name, or a random one (default: first)")
    parser.add_argument("--seed", type=whole, default=0, help="seed of random choices (default: 0)")
    add_enable(parser)
    add_kubernetes(parser)


def add_enable(parser: argparse.ArgumentParser) -> None:
    """Add `--enable`."""
    parser.add_argument("--enable", metavar="PLUGIN[={ARGS}]", action="append",
                        help="enable a built-in plugin, such as GpuShare for GPU sharing, or set arguments of an "
                             "active one; may be repeated")


def add_proving(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add `--scheduler-config` and `--memory`."""
    parser.add_argument("--scheduler-config", metavar="FILE", type=Path,
                        help="a KubeSchedulerConfiguration: the profiles by which the successors of evicted pods are "
                             "placed, to prove evictions (default: if `--policies` has SchedulerPlugins, the "
                             "profiles that they name; of a live cluster also kube-scheduler's default plugins)")
    parser.add_argument("--memory", metavar="FILE",
                        help="the memory of useless evictions and their cool-downs; read first, and written at the "
                             "end. A descheduler of a live cluster takes `configmap:NAMESPACE/NAME`, which other "
                             "commands only read. Without it "
                             "nothing is remembered")


def choice_of(text: str) -> PluginChoice:
    """Return the plugin that `--enable` names, with its arguments (YAML in flow style, so JSON too).

    Raises:
        Stop: it names none.
    """
    from koordpolicy.engine.scheduler.profiles.profile import PluginChoice  # not every command schedules

    name, _, written = text.partition("=")
    args: Any = {}
    if written:
        import yaml

        try:
            args = yaml.safe_load(written)
        except yaml.YAMLError:
            args = None
    if not name or not isinstance(args, dict):
        raise Stop(f"`--enable {text}` is not a plugin with arguments: write PLUGIN or PLUGIN={{name: value}}")
    return PluginChoice(name, args=args)


def add_kubernetes(parser: argparse.ArgumentParser) -> None:
    """Add `--kubernetes`."""
    parser.add_argument("--kubernetes", metavar="RELEASE", type=_release,
                        help=f"follow the kube-scheduler of this release ({' or '.join(map(str, RELEASES))}) where "
                             f"releases differ (default: {NEWEST}; the profile {KOORD_SCHEDULER} follows {KOORDINATORS}"
                             ", which koord-scheduler is built on)")


def _release(text: str) -> Release:
    try:
        return release(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def knows_scheduler(path: Path | None, *registries: Registry) -> bool:
    """Return whether the scheduler of the pods is known: by a configuration, or by a SchedulerPlugin document."""
    return path is not None or any(
        each.span is not None for registry in registries for each in registry.of_framework(Framework.SCHEDULER)
    )


def settings_of(
    options: argparse.Namespace, registry: Registry, cluster: Cluster, *others: Registry,
) -> Settings:
    """Return the settings of the options of `add_choice`, for the pods of a cluster.

    Policies that are active in none of their profiles are reported on standard error. With `others`, the settings are
    valid for all of the registries.

    Raises:
        Stop: no policy names that profile, and it is not the default; there is no plugin that `--enable` names.
    """
    from koordpolicy.engine.scheduler.cycle.schedule_one import Settings  # not every command schedules
    from koordpolicy.engine.scheduler.profiles.profile import ProfileSpec

    if options.config is not None:
        return _configured(options, registry, cluster)
    registries = (registry, *others)
    plugins = [plugin for each in registries for plugin in each.of_framework(Framework.SCHEDULER)]
    enabled = tuple(map(choice_of, options.enable or ()))
    check_enabled((choice.name for choice in enabled), plugins)
    known = {DEFAULT_PROFILE, *(name for plugin in plugins for name in plugin.profiles or ())}
    if options.profile is None:
        names = (DEFAULT_PROFILE, *sorted(known - {DEFAULT_PROFILE}))
        pods = cluster.objects("Pod").values()
        named = {DEFAULT_PROFILE, *(str((pod.get("spec") or {}).get("schedulerName")) for pod in pods)}
        for line in dict.fromkeys(line for each in registries for line in _idle(each, named, ())):
            warn(f"warning: {line}")
    elif options.profile not in known:
        raise Stop(f"no policy names the profile `{options.profile}`: {one_of(options.profile, known)}")
    else:
        names = (options.profile,)
    profiles = tuple(ProfileSpec(name, enabled) for name in names)
    return Settings(profiles, tie_break=options.tie_break, seed=options.seed, kubernetes=options.kubernetes)


def _configured(options: argparse.Namespace, registry: Registry, cluster: Cluster) -> Settings:
    from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
    from koordpolicy.engine.scheduler.profiles import configuration  # few runs have one

    if options.enable:
        raise Stop("`--enable` goes without `--config`: name the plugin in the configuration")
    need_file(options.config, "`--config` takes a KubeSchedulerConfiguration")
    found = configuration.load(options.config, registry)
    if found.warnings:
        warn(render(in_order(found.warnings)))
    profiles = found.profiles
    if options.profile is not None:
        profiles = tuple(profile for profile in profiles if profile.name == options.profile)
        if not profiles:
            names = [profile.name for profile in found.profiles]
            raise Stop(f"no profile of `{options.config}` is called `{options.profile}`: "
                       f"{one_of(options.profile, names)}")
    pods = cluster.objects("Pod").values()
    named = {profiles[0].name, *(str((pod.get("spec") or {}).get("schedulerName")) for pod in pods)}
    report_idle(registry, named & {profile.name for profile in profiles})
    return Settings(profiles, tie_break=options.tie_break, seed=options.seed, initial_backoff=found.initial_backoff,
                    longest_backoff=found.longest_backoff, kubernetes=options.kubernetes)


def descheduler_configuration(path: Path | None, option: str) -> DeschedulerConfiguration:
    """Return the configuration that an option names, or the default one; fields without effect are reported.

    Raises:
        Stop: there is no such file.
        PolicyError: it is not valid.
    """
    from koordpolicy.engine.descheduler import config  # few commands have one

    if path is None:
        return config.default()
    need_file(path, f"`{option}` takes a DeschedulerConfiguration or a DeschedulerPolicy")
    found = config.load(path)
    if found.warnings:
        warn(render(in_order(found.warnings)))
    return found


def report_idle(
    registry: Registry, profiles: Collection[str], enabled: Collection[str] = (), *,
    log: logging.Logger | None = None,
) -> None:
    """Report on standard error the scheduling policies that are active in none of these profiles, but in others.

    Policies in `enabled` are active in every profile. A server, whose standard error is its log, names its logger.
    """
    for line in _idle(registry, profiles, enabled):
        if log is None:
            warn(f"warning: {line}")
        else:
            log.warning("%s", line)


def _idle(registry: Registry, profiles: Collection[str], enabled: Collection[str]) -> Iterable[str]:
    idle: dict[tuple[str, ...], list[str]] = {}
    for plugin in registry.of_framework(Framework.SCHEDULER):
        if plugin.profiles is not None and plugin.profiles.isdisjoint(profiles) and plugin.name not in enabled:
            idle.setdefault(tuple(sorted(plugin.profiles)), []).append(plugin.name)
    hints = {names: next((hint for name in names if (hint := did_you_mean(name, profiles))), "") for names in idle}
    others = [names for names in idle if not hints[names]]
    meant = sorted(plugin for names in others for plugin in idle[names])
    if len(meant) > 1:  # such as a library of policies, some of them for other profiles
        shown = ", ".join(f"`{name}`" for name in meant[:_SHOWN_IDLE])
        more = f" and {len(meant) - _SHOWN_IDLE} more" if len(meant) > _SHOWN_IDLE else ""
        yield (f"{len(meant)} policies do nothing, as no pod here has one of their profiles "
               f"({', '.join(f'`{name}`' for name in sorted({each for names in others for each in names}))}): "
               f"{shown}{more}")
        idle = {names: plugins for names, plugins in idle.items() if hints[names]}
    for names, plugins in idle.items():
        hint = hints[names]
        shown = ", ".join(f"`{name}`" for name in plugins)
        does = "does nothing: its" if len(plugins) == 1 else "do nothing: their"
        yield (f"{shown} {does} `spec.profiles` {'names' if len(names) == 1 else 'name'} "
               f"{', '.join(f'`{name}`' for name in names)}, and no pod here has "
               f"{'that profile' if len(names) == 1 else 'one of those profiles'}" + (f"; {hint}" if hint else ""))


def check_enabled(
    names: Iterable[str], plugins: Iterable[Plugin], framework: Framework = Framework.SCHEDULER, *,
    option: str = "--enable",
) -> None:
    """Check the names of an option.

    Raises:
        Stop: the framework has no plugin of that name.
    """
    known = {plugin.name for plugin in plugins if plugin.framework is framework}
    for name in names:
        if name not in known:
            raise Stop(f"`{option}`: there is no plugin `{name}`: {one_of(name, known)}")


def one_of(word: str, known: Collection[str]) -> str:
    """Return a suggestion for an unknown word: a similar known one, or all known ones."""
    names = quoted_list(sorted(known))
    return did_you_mean(word, known) or f"there {'is' if len(known) == 1 else 'are'} {names or 'none'}"


def need_file(path: Path, expected: str) -> None:
    """Check that a path is a file; `expected` describes its expected content.

    Raises:
        Stop: it is not.
    """
    if path.is_dir():
        raise Stop(f"`{path}` is a directory: {expected}, a file")
    if path.exists() and not path.is_file():
        raise Stop(f"`{path}` is no regular file: {expected}")
    if not path.is_file():
        raise Stop(f"there is no file `{path}`: {expected}")


def count(text: str) -> int:
    """Read an option's value that is a whole number above 0."""
    if not (text.isascii() and text.isdecimal()) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"`{text}` is not a whole number above 0")
    return int(text)


def need_policies_path(path: str | Path) -> None:
    """Check that a path of policies exists.

    Raises:
        Stop: it does not.
    """
    if not is_elsewhere(path) and not Path(path).exists():
        raise Stop(f"there is no file or directory `{path}` to read policies from")


def access_of(options: argparse.Namespace) -> PolicyAccess:
    """Return the ways to policies that are not on the disk, of `--cluster` and the options of bundles."""
    return PolicyAccess(context_of(getattr(options, "cluster", None)), bundle_options(options))


def load_documents(paths: Sequence[str | Path], *, access: PolicyAccess = LOCAL) -> Documents:
    """Read policy files and directories, and those of a cluster and of registries (see `policy_sources`) once.

    Raises:
        Stop: a path does not exist, or a file is named twice.
        PolicyError: the cluster or a registry does not answer, or a bundle is not to be trusted.
    """
    loaded = Documents()
    read: dict[Path, str | Path] = {}
    elsewhere = read_elsewhere(paths, access)
    for path in paths:
        if (version := elsewhere.get(str(path))) is not None and is_elsewhere(path):
            loaded += Documents(problems=version.problems)
            with compile_limit():
                loaded += load(version.files.values(), source_name=str(path))
            continue
        need_policies_path(path)
        place = Path(path).resolve()
        for other, name in read.items():
            if place == other or other in place.parents or place in other.parents:
                inner, outer = (path, name) if other in place.parents else (name, path)
                raise Stop(f"`{path}` is named twice: leave one out" if place == other else
                           f"`{inner}` is in `{outer}`, which is named too: name one of them")
        read[place] = path
        with compile_limit():
            loaded += load_paths([path], source_name=str(path))
    return loaded


def need_policies(loaded: Documents, path: str | Path, advice: str = "") -> None:
    """Check that a path of valid documents holds a policy or PolicyParams.

    Raises:
        Stop: it holds none: no file, or only empty ones and unit tests.
    """
    if not any(document.source_name == str(path) and document.kind is not Kind.TEST for document in loaded.documents):
        raise Stop(f"there is no policy document in `{path}`" + (f": {advice}" if advice else ""), Exit.INVALID)


def registry_of(
    paths: Sequence[str | Path], builtins: Builtins, framework: Framework | None = None, *,
    access: PolicyAccess = LOCAL,
) -> Registry:
    """Return the registry of the policies at these paths: compiled documents and the Python plugins.

    `access` leads to policies that are not on the disk. Warnings are reported on standard error, also if no
    document is of the given framework.

    Raises:
        PolicyError: documents are invalid, with all problems of all files.
        Stop: a path does not exist, or holds no policy.
    """
    need_bundle(paths, access.bundles)
    loaded = load_documents(paths, access=access)
    registry = registry_from(loaded, builtins)
    for path in paths:
        need_policies(loaded, path)
    documents = loaded.of(Kind[framework.name]) if framework is not None else loaded.documents
    if paths and framework is not None and not documents:
        warn(f"warning: there is no {Kind[framework.name].value} in {', '.join(f'`{path}`' for path in paths)}: "
             "only built-in plugins decide")
    return registry


def registry_from(loaded: Documents, builtins: Builtins) -> Registry:
    """Return the registry of compiled documents and the Python plugins. Warnings are reported.

    Raises:
        PolicyError: documents are invalid, with all problems.
    """
    problems = Problems(list(loaded.problems))
    discovered = discovered_plugins(builtins)
    with compile_limit():
        compiled = compile_documents(loaded.documents, problems, extensions=discovered.functions)
    if problems.errors:
        raise PolicyError(problems.found)
    if problems.found:
        warn(render(in_order(problems.found)))
    return Registry.of((*discovered.plugins, *compiled), generation=1)


def discovered_plugins(builtins: Builtins) -> DiscoveredPlugins:
    """Return the built-in plugins, and the plugins and functions of installed distributions.

    Plugins that cannot be loaded are reported and omitted.
    """
    return discover_beside(builtins(), _report)


def python_plugins(builtins: Builtins) -> tuple[Plugin, ...]:
    """Return the plugins of `discovered_plugins`."""
    return discovered_plugins(builtins).plugins


def python_functions() -> tuple[Function, ...]:
    """Return the functions of installed distributions; those that cannot be loaded are reported and omitted."""
    return discover(_report).functions


def _report(problem: Problem) -> None:
    warn(replace(problem, severity=Severity.WARNING).render())


def live_of(paths: Sequence[str | Path], builtins: Builtins, *, access: PolicyAccess = LOCAL) -> Live:
    """Return the scheduler's `registry_of` as a `Live` cell."""
    return Live(registry_of(paths, builtins, Framework.SCHEDULER, access=access))


def complaint(message: str, help: str = "") -> PolicyError:  # noqa: A002 - as `Problem` calls it
    """Return an error with one problem without a position in a file."""
    return PolicyError([Problem(message, help=help)])
