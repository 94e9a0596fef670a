"""The descheduler's configuration file: `DeschedulerConfiguration` of `descheduler/v1alpha2`, or a `DeschedulerPolicy`.

It is decoded strictly against `schemas/v1alpha2`, defaulted, converted, and validated against `schemas/internal`; every
problem has its position in the file. Defaults and conversion are Koordinator's (pkg/descheduler/apis/config).
"""

from __future__ import annotations

import copy
import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from koordpolicy.engine.documents import parse_duration, read_configuration
from koordpolicy.engine.documents.nodes import YamlNode, read_file, to_plain
from koordpolicy.engine.documents.validation import validate, validate_plain
from koordpolicy.engine.framework.points import Proof
from koordpolicy.engine.source import PolicyError, Problem, Source

from .argument_faults import Fault, field_path
from .arguments import DEFAULT_POOL, KINDS, place_of, selector_faults
from .decoding import argument_problems, items_at, places_of_plugins, written_args
from .ignored_fields import warnings_of
from .kubernetes_policy import KIND as POLICY
from .kubernetes_policy import KubernetesPolicy, read_policy
from .limits import CycleLimits
from .profile import DeschedulerProfileSpec
from .workload_limits import WorkloadLimits

API_VERSION: Final = "descheduler/v1alpha2"
KIND: Final = "DeschedulerConfiguration"
DEFAULT_NAME: Final = "koord-descheduler"
KINDS_OF_FILES: Final = (KIND, POLICY)
"""The kinds of files that `read` takes, of Koordinator and of Kubernetes' descheduler."""

_FORMER_VERSION: Final = "descheduler/v1alpha1"
_PORT: Final = 10251
_EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - koord-descheduler's default; nothing is bound here
_POINTS: Final = ("deschedule", "balance", "evict", "filter")
_POINTS_OF_DOCUMENTS: Final = ("deschedule", "balance")
"""The points at which `*` disables documents, too. At `evict` and `filter` it only drops Koordinator's default plugin:
whoever names another evictor does not mean to lose the vetoes of documents.
"""
_PROVED: Final[Mapping[str, str]] = {"LowNodeLoad": Proof.ENFORCE.value}
"""The built-in plugins whose evictions a profile with `proof` proves by default."""
_DEFAULT_PLUGINS: Final[Mapping[str, tuple[str, ...]]] = {
    "deschedule": (), "balance": (), "evict": ("MigrationController",), "filter": ("MigrationController",),
}
_LEADER_ELECTION: Final = {
    "leaderElect": True, "leaseDuration": "15s", "renewDeadline": "10s", "retryPeriod": "2s", "resourceLock": "leases",
    "resourceName": "koord-descheduler", "resourceNamespace": "koordinator-system",
}
_DURATIONS_OF_ELECTION: Final = ("leaseDuration", "renewDeadline", "retryPeriod")
_TIMEOUT: Final = ("anomalyCondition", "timeout")
_PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
_JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class DeschedulerConfiguration:
    """A valid configuration.

    `interval` is in nanoseconds, 0 runs one cycle; `plain` is the whole internal form; `warnings` are about fields of
    the file without effect.
    """

    interval: int
    dry_run: bool
    node_selector: Mapping[str, Any] | None
    limits: CycleLimits
    profiles: tuple[DeschedulerProfileSpec, ...]
    plain: Mapping[str, Any] = field(default_factory=dict, repr=False)
    warnings: tuple[Problem, ...] = ()


def default() -> DeschedulerConfiguration:
    """Return the configuration without a file.

    It is Koordinator's, but pods migrate without reservations: nothing says that their scheduler knows them.
    """
    args = {"name": "MigrationController", "args": {"defaultJobMode": "EvictDirectly"}}
    return read_plain({"profiles": [{"pluginConfig": [args]}]})


def load(path: Path) -> DeschedulerConfiguration:
    """Read a configuration file.

    Raises:
        PolicyError: with all problems.
    """
    return read(read_file(path))


def read(source: Source, *, live: bool = False) -> DeschedulerConfiguration:
    """Read a configuration; raises `PolicyError` with all problems, each with its position.

    With `live` it is that of a descheduler of a live cluster, where more fields have an effect.
    """
    node = read_configuration(source, *KINDS_OF_FILES)
    problems = list(_decode(node))
    if problems:
        raise PolicyError(problems)
    kind = node.at("kind")
    if kind is not None and kind.scalar == POLICY:
        return _of_policy(read_policy(node))
    return _complete(to_plain(node), node, live=live)


def _of_policy(policy: KubernetesPolicy) -> DeschedulerConfiguration:
    return DeschedulerConfiguration(
        interval=0, dry_run=False, node_selector=policy.node_selector, limits=policy.limits, profiles=policy.profiles,
        plain=policy.plain, warnings=policy.warnings,
    )


def read_plain(content: Mapping[str, Any]) -> DeschedulerConfiguration:
    """Read a configuration given as plain data that is valid against the v1alpha2 schema."""
    return _complete({"apiVersion": API_VERSION, "kind": KIND, **copy.deepcopy(dict(content))}, None)


# Decoding


def _decode(node: YamlNode) -> Iterator[Problem]:
    version, kind = node.at("apiVersion"), node.at("kind")
    if not node.fields or version is None or kind is None:
        yield Problem(
            f"this is not a `{KIND}`: it does not say `apiVersion` and `kind`", node.span,
            f"begin with `apiVersion: {API_VERSION}` and `kind: {KIND}`", code="not-a-configuration",
        )
        return
    if version.scalar != API_VERSION:
        is_former = (version.scalar, kind.scalar) == (_FORMER_VERSION, POLICY)
        yield Problem(
            f"no kind `{kind.scalar}` is registered for version `{version.scalar}`", version.span,
            f"write `{API_VERSION}`" + (", with `profiles` in place of `strategies`" if is_former else ""),
            code="not-a-configuration",
        )
        return
    if kind.scalar not in KINDS_OF_FILES:
        yield Problem(
            f"couldn't decode as `{KIND}`, got kind `{kind.scalar}`", kind.span,
            f"write `{KIND}`, or `{POLICY}` for a file of Kubernetes' descheduler", code="not-a-configuration",
        )
        return
    yield from validate(node, str(kind.scalar))
    yield from argument_problems(node)
    yield from _duration_problems(node)


def _duration_problems(node: YamlNode) -> Iterator[Problem]:
    """Yield the problems of durations that are converted with the file; those of the wrong type are the schema's."""
    paths: list[tuple[str | int, ...]] = [
        ("deschedulingInterval",), *(("leaderElection", name) for name in _DURATIONS_OF_ELECTION),
    ]
    for number, profile in enumerate(items_at(node, "profiles")):
        for place, each in enumerate(items_at(profile, "pluginConfig")):
            name = each.at("name")
            if name is not None and name.scalar in KINDS:
                below = ("profiles", number, "pluginConfig", place, "args")
                pools = range(len(items_at(each, "args", "nodePools")))
                of_pools = (("nodePools", pool, *_TIMEOUT) for pool in pools)
                paths.extend((*below, *path) for path in (("detectorCacheTimeout",), _TIMEOUT, *of_pools))
    for path in paths:
        found = node.at(*path)
        if found is None or not isinstance(found.scalar, str) or not found.scalar:
            continue
        try:
            parse_duration(found.scalar)
        except ValueError as error:
            yield Problem(f"{field_path(path)}: {error}", found.span, code="configuration")


# Defaults, in v1alpha2 form


def _default(content: dict[str, Any]) -> dict[str, Any]:
    content = {key: value for key, value in content.items() if value is not None}
    profiles = content["profiles"] = [each or {} for each in content.get("profiles") or [{}]]
    if len(profiles) == 1 and not profiles[0].get("name"):
        profiles[0]["name"] = DEFAULT_NAME
    for profile in profiles:
        _default_profile(profile)
    content["leaderElection"] = _over(_LEADER_ELECTION, content.get("leaderElection"))
    content["clientConnection"] = _default_connection(content.get("clientConnection") or {})
    profiling = content.setdefault("enableProfiling", True)
    content.setdefault("enableContentionProfiling", profiling)
    for key in ("healthzBindAddress", "metricsBindAddress"):
        content[key] = _default_address(content.get(key))
    content.setdefault("deschedulingInterval", "0s")
    content.setdefault("dryRun", False)
    return content


def _over(defaults: Mapping[str, Any], given: Mapping[str, Any] | None) -> dict[str, Any]:
    return {**defaults, **{key: value for key, value in (given or {}).items() if value not in (None, "")}}


def _default_connection(given: Mapping[str, Any]) -> dict[str, Any]:
    full = {"kubeconfig": "", **{key: value for key, value in given.items() if value is not None}}
    if not full.get("contentType"):
        full |= {"contentType": _PROTOBUF, "acceptContentTypes": f"{_PROTOBUF},{_JSON}"}
    full["qps"] = full.get("qps") or 50
    full["burst"] = full.get("burst") or 100
    return full


def _default_address(given: str | None) -> str:
    if not given:
        return f"{_EVERYWHERE}:{_PORT}"
    if given.startswith(":") and given.count(":") == 1:
        return f"{_EVERYWHERE}{given}"
    try:
        ip = ipaddress.ip_address(given)
    except ValueError:
        return given
    return f"[{given}]:{_PORT}" if ip.version == 6 else f"{given}:{_PORT}"


def _default_profile(profile: dict[str, Any]) -> None:
    given = profile.get("plugins") or {}
    profile["plugins"] = {point: _merged(point, given.get(point) or {}) for point in _POINTS}
    configs = profile["pluginConfig"] = [dict(each) for each in profile.get("pluginConfig") or ()]
    for config in configs:
        if config["name"] in KINDS:
            config["args"] = KINDS[config["name"]].default(_bare(config.get("args")))
    configured = {config["name"] for config in configs}
    enabled = {each["name"] for point in profile["plugins"].values() for each in point["enabled"]}
    missing = sorted((enabled - configured) & set(KINDS))
    configs.extend({"name": name, "args": KINDS[name].default({})} for name in missing)


def _bare(args: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (args or {}).items() if key not in ("apiVersion", "kind")}


def _merged(point: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point's plugins: the defaults that are not disabled, then the user's others."""
    enabled = [each["name"] for each in given.get("enabled") or ()]
    disabled = [each["name"] for each in given.get("disabled") or ()]
    defaults = [] if "*" in disabled else [name for name in _DEFAULT_PLUGINS[point] if name not in disabled]
    names = list(defaults)
    for name in enabled:
        if name in defaults:
            defaults.remove(name)  # the first entry replaces the default; a second one is a duplicate
        else:
            names.append(name)
    # Disabled defaults are already removed; the remaining names are documents.
    return {"enabled": [{"name": name} for name in names], "disabled": [{"name": name} for name in disabled]}


# Conversion


def _convert(content: Mapping[str, Any]) -> dict[str, Any]:
    internal = {key: value for key, value in content.items() if key != "profiles"}
    internal["deschedulingInterval"] = parse_duration(content["deschedulingInterval"])
    election = internal["leaderElection"] = dict(content["leaderElection"])
    for key in _DURATIONS_OF_ELECTION:
        election[key] = parse_duration(election[key])
    internal["profiles"] = [_convert_profile(profile) for profile in content["profiles"]]
    return internal


def _convert_profile(profile: Mapping[str, Any]) -> dict[str, Any]:
    plugins: dict[str, Any] = {
        point: [each["name"] for each in of["enabled"]] for point, of in profile["plugins"].items()
    }
    plugins["disabled"] = sorted({
        f"{point}/*" if each["name"] == "*" else each["name"]
        for point, of in profile["plugins"].items() for each in of["disabled"]
        if each["name"] != "*" or point in _POINTS_OF_DOCUMENTS})
    args = {}
    for config in profile["pluginConfig"]:
        name, given = config["name"], config.get("args") or {}
        args[name] = KINDS[name].convert(given) if name in KINDS else given
    converted = {"name": profile.get("name") or "", "plugins": plugins, "pluginConfig": args}
    if profile.get("nodeSelector") is not None:
        converted["nodeSelector"] = profile["nodeSelector"]
    if profile.get("proof") is not None:
        converted["proof"] = {**_PROVED, **profile["proof"]}
    return converted


# Validation of the internal form


def _check(internal: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[Fault]:
    yield from _check_connection(internal)
    names: list[str] = []
    for index, profile in enumerate(internal["profiles"]):
        path = ("profiles", index)
        if not profile["name"]:
            yield (*path, "name"), "Required value: each of several profiles needs a name"
        elif profile["name"] in names:
            yield (*path, "name"), f"Duplicate value: `{profile['name']}` names an earlier profile too"
        names.append(profile["name"])
        yield from _check_arguments(profile, given["profiles"][index], path)
        yield from selector_faults(profile.get("nodeSelector"), (*path, "nodeSelector"))
    for key in ("healthzBindAddress", "metricsBindAddress"):
        message = _check_address(internal[key])
        if message:
            yield (key,), f"Invalid value: `{internal[key]}`: {message}"
    yield from selector_faults(internal.get("nodeSelector"), ("nodeSelector",))


def _check_connection(internal: Mapping[str, Any]) -> Iterator[Fault]:
    if internal["clientConnection"]["burst"] < 0:
        yield ("clientConnection", "burst"), "Invalid value: must be non-negative"
    election = internal["leaderElection"]
    if not election["leaderElect"]:
        return
    for key in _DURATIONS_OF_ELECTION:
        if election[key] <= 0:
            yield ("leaderElection", key), "Invalid value: must be greater than zero"
    if election["leaseDuration"] < election["renewDeadline"]:
        yield ("leaderElection", "leaseDuration"), "Invalid value: LeaseDuration must be greater than RenewDeadline"


def _check_arguments(
    profile: Mapping[str, Any], given: Mapping[str, Any], path: tuple[str | int, ...],
) -> Iterator[Fault]:
    seen: dict[str, int] = {}
    for index, config in enumerate(given["pluginConfig"]):
        name, where = config["name"], (*path, "pluginConfig", index)
        if name in seen:
            yield where, f"Duplicate value: `{name}` is configured twice in this profile"
        elif name in KINDS:
            for below, message in KINDS[name].check(profile["pluginConfig"][name]):
                yield (*where, "args", *_as_written(below, config.get("args") or {})), message
        seen[name] = index


def _as_written(path: tuple[str | int, ...], args: Mapping[str, Any]) -> tuple[str | int, ...]:
    """Return the path of an internal field in the file, where the first pool's fields are at the top level."""
    if len(path) < 2 or path[0] != "nodePools" or not isinstance(path[1], int):
        return path
    if path[1] == 0:
        return path[2:]
    pools = args.get("nodePools") or ()
    written = [index for index, pool in enumerate(pools) if pool.get("name") != DEFAULT_POOL]
    return ("nodePools", written[path[1] - 1], *path[2:])


def _check_address(address: str) -> str:
    host, colon, port = address.rpartition(":")
    if not colon or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        return "must be a valid socket address (host:port)"
    if not port:
        return "port must not be empty in socket address"
    if not (port.isascii() and port.isdigit() and int(port) <= 65_535):
        return f"`{port}` is not a port"
    bare = host.strip("[]")
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        # Names are not resolved: a check of a file must have the same result on every machine.
        if not bare or not all(part and part.replace("-", "").isalnum() for part in bare.rstrip(".").split(".")):
            return f"invalid host `{bare}` in socket address"
    return ""


# Construction


def _complete(
    content: dict[str, Any], node: YamlNode | None, *, live: bool = False,
) -> DeschedulerConfiguration:
    given = _default(content)
    internal = _convert(given)
    ours = list(validate_plain(internal, KIND))
    for profile in internal["profiles"]:
        for name, args in profile["pluginConfig"].items():
            if name in KINDS:
                ours += validate_plain(args, KINDS[name].kind)
    faults = list(_check(internal, given))
    problems = [
        Problem(f"{field_path(path)}: {message}", place_of(node, path), code="configuration")
        for path, message in faults
    ]
    if not problems and ours:
        problems = [
            Problem(
                f"the internal form is not as it should be: {each}", help="this is a fault of ours, please report it",
                code="internal",
            )
            for each in ours
        ]
    if problems:
        raise PolicyError(problems)
    return DeschedulerConfiguration(
        interval=internal["deschedulingInterval"],
        dry_run=internal["dryRun"],
        node_selector=internal.get("nodeSelector"),
        limits=CycleLimits(
            internal.get("maxNoOfPodsToEvictPerNode"), internal.get("maxNoOfPodsToEvictPerNamespace"),
            internal.get("maxNoOfPodsToEvictTotal"),
            WorkloadLimits(internal.get("maxNoOfPodsToEvictPerWorkload"), internal.get("maxNoOfPodsToEvictPerOwner")),
        ),
        profiles=tuple(
            _profile(each, None if node is None else node.at("profiles", index))
            for index, each in enumerate(internal["profiles"])
        ),
        plain=internal,
        warnings=tuple(warnings_of(node, live=live)) if node is not None else (),
    )


def _profile(profile: Mapping[str, Any], node: YamlNode | None) -> DeschedulerProfileSpec:
    plugins = profile["plugins"]
    deschedule, balance, evict, filters = (tuple(plugins[point]) for point in _POINTS)
    return DeschedulerProfileSpec(
        name=profile["name"], node_selector=profile.get("nodeSelector"), deschedule=deschedule, balance=balance,
        evict=evict, filter=filters,
        disabled=frozenset(plugins["disabled"]), args=profile["pluginConfig"],
        complete=frozenset(profile["pluginConfig"]) & frozenset(KINDS), written=dict(written_args(node)),
        places=dict(places_of_plugins(node)),
        proof={name: Proof(effect) for name, effect in (profile.get("proof") or {}).items()},
    )
