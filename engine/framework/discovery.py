"""Discovery of plugins and functions: registry entries made in code, or found by entry point."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from koordpolicy.engine.cel.check.environment import Cost, Function, Overload, Reads
from koordpolicy.engine.cel.syntax.ast import Macro
from koordpolicy.engine.cel.syntax.lexer import RESERVED
from koordpolicy.engine.cel.values.types import Type, parse_type
from koordpolicy.engine.cel.values.values import INT64_MAX, INT64_MIN, EvaluationError
from koordpolicy.engine.cluster.kinds import Read
from koordpolicy.engine.source import Problem

from .border import describe, must_be_survived
from .descheduler import (
    Balance,
    ChoosesEviction,
    Deschedule,
    Evict,
    EvictionFilter,
    EvictWithOptions,
    PreEvictionFilter,
)
from .file_sets import FileSet
from .object_access import Write
from .points import Framework, Point
from .qos import GreyControl, LivingStrategy, QoSExtension, Strategy
from .registry import Plugin
from .scheduler import (
    ApplyPatch,
    Bind,
    Filter,
    FilterNode,
    Permit,
    PostBind,
    PostFilter,
    PreBind,
    PreBindReservation,
    PreEnqueue,
    PreFilter,
    PreScore,
    QueueSort,
    Reserve,
    Score,
    ScoreNode,
)
from .slots import functions

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS: Final = "koordpolicy.plugins"
"""The entry-point group of distributions' plugins."""

PROTOCOLS: Final[Mapping[Point, tuple[type, ...]]] = {
    Point.PRE_ENQUEUE: (PreEnqueue,),
    Point.QUEUE_SORT: (QueueSort,),
    Point.PRE_FILTER: (PreFilter,),
    Point.FILTER: (Filter, FilterNode),
    Point.POST_FILTER: (PostFilter,),
    Point.PRE_SCORE: (PreScore,),
    Point.SCORE: (Score, ScoreNode),
    Point.RESERVE: (Reserve,),
    Point.PERMIT: (Permit,),
    Point.PRE_BIND: (PreBind, PreBindReservation, ApplyPatch),
    Point.BIND: (Bind,),
    Point.POST_BIND: (PostBind,),
    Point.STRATEGY: (Strategy, LivingStrategy),
    Point.EXTENSION: (QoSExtension,),
    Point.GREY_CONTROL: (GreyControl,),
    Point.DESCHEDULE: (Deschedule,),
    Point.BALANCE: (Balance,),
    Point.EVICTION_FILTER: (EvictionFilter, PreEvictionFilter, ChoosesEviction, Evict, EvictWithOptions),
}
"""The protocols by point: a plugin implements one of them to be called there."""

FRAMEWORKS: Final[Mapping[Framework, tuple[Point, ...]]] = {
    Framework.SCHEDULER: (
        Point.PRE_ENQUEUE, Point.QUEUE_SORT, Point.PRE_FILTER, Point.FILTER, Point.POST_FILTER, Point.PRE_SCORE,
        Point.SCORE, Point.RESERVE, Point.PERMIT, Point.PRE_BIND, Point.BIND, Point.POST_BIND,
    ),
    Framework.QOS: (Point.STRATEGY, Point.EXTENSION, Point.GREY_CONTROL),
    Framework.DESCHEDULER: (Point.DESCHEDULE, Point.BALANCE, Point.EVICTION_FILTER),
}
"""The points at which Python plugins are called, in the order of a cycle."""


def points_of(plugin: type, framework: Framework) -> tuple[Point, ...]:
    """Return the points whose protocols a class (or protocol) implements, by the names of its methods."""
    return tuple(point for point in FRAMEWORKS[framework]
                 if any(all(callable(getattr(plugin, name, None)) for name in methods_of(protocol))
                        for protocol in PROTOCOLS[point]))


@functools.cache
def methods_of(protocol: type) -> tuple[str, ...]:
    """Return the names of a protocol's methods."""
    return tuple(name for name, value in vars(protocol).items() if inspect.isfunction(value) and name[0] != "_")


def python_plugin(
    name: str,
    framework: Framework,
    make: Callable[[Mapping[str, Any], Any], Any],
    *,
    check_args: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    points: Sequence[Point] | None = None,
    description: str = "",
    order: int = 0,
    weight: int = 1,
    enabled: bool = False,
    version: str = "1",
    reads: Sequence[Read] = (),
    writes: Sequence[FileSet] = (),
    patches: Sequence[Write] = (),
) -> Plugin:
    """Return the registry entry of a Python plugin.

    `make` is a class whose instances are made with `(args, handle)`, or a factory that returns them. `points` default
    to those whose protocols the class implements; a factory must name them, unless its return annotation is a class.
    Raise `version` whenever the plugin decides differently, so that a reload makes a new instance. The other arguments
    are those of `Plugin`. Raises `ValueError` if the plugin implements no point.
    """
    if points is None:
        kind = make if isinstance(make, type) else inspect.get_annotations(make, eval_str=True).get("return")
        points = points_of(kind, framework) if isinstance(kind, type) else ()
    if not points:
        raise ValueError(f"the {framework.value} plugin `{name}` has no extension point: it implements none "
                         "of the protocols, or its factory does not say what it returns")
    if foreign := [point.value for point in points if point not in FRAMEWORKS[framework]]:
        raise ValueError(f"the {framework.value} plugin `{name}` names points that its framework does not call: "
                         f"{', '.join(foreign)}")
    where = f"{make.__module__}:{getattr(make, '__qualname__', name)}"
    digest = hashlib.sha256(f"{where} {name} {version}".encode()).hexdigest()[:16]
    summary = description or next(iter((inspect.getdoc(make) or "").splitlines()), "")
    return Plugin(name, framework, tuple(points), make, where, digest, description=summary, order=order,
                  weight=weight, enabled=enabled, check_args=check_args, reads=tuple(reads), writes=tuple(writes),
                  patches=tuple(patches))


_MACROS: Final = frozenset((
    *(each.value for each in Macro), "existsOne", "has", "optMap", "optFlatMap", "bind",
))
_RESULTS: Final[Mapping[str, type]] = {
    "bool": bool, "int": int, "double": float, "string": str, "bytes": bytes, "list": list, "map": dict,
}


def cel_function(
    name: str,
    evaluate: Callable[..., object],
    parameters: Sequence[str],
    result: str,
    *,
    doc: str,
    example: str = "",
    member: bool = False,
    cost: Cost | None = None,
    pure: bool = True,
    reads: Reads | None = None,
    by_column: Callable[..., tuple[Any, Any]] | None = None,
) -> Function:
    """Return a function that expressions may call; distributions offer it as they do plugins (see `discover`).

    `parameters` and `result` are types as the language spells them (`int`, `list(string)`, `kubernetes.Pod`); of a
    `member` function the first is the receiver. `evaluate` takes and returns plain values of these types (objects as
    JSON, which it must not change) and raises `EvaluationError` with a message for people; any other exception, and a
    result of another type, is such an error too. `pure` is false if the result may differ for the same arguments: the
    function is then called for each row. `cost` is that of a call in Kubernetes' units, 1 by default. `example` is an
    expression that is true. The other arguments are those of `environment.Overload`. To give one name several
    signatures, pass all overloads to `Function`. Raises `ValueError` for an invalid name, type or other argument.
    """
    _check_arguments(name, {
        "evaluate": (evaluate, callable(evaluate)), "parameters": (parameters, _are_texts(parameters)),
        "result": (result, isinstance(result, str)), "doc": (doc, isinstance(doc, str)),
        "example": (example, isinstance(example, str)), "member": (member, isinstance(member, bool)),
        "cost": (cost, cost is None or _is_cost(cost)), "pure": (pure, isinstance(pure, bool)),
        "reads": (reads, reads is None or _are_reads(reads)),
        "by_column": (by_column, by_column is None or callable(by_column)),
    })
    if fault := _fault_of_name(name):
        raise ValueError(f"`{name}` cannot be a function: {fault}")
    types = tuple(map(parse_type, parameters))
    returned = parse_type(result)
    if member and not types:
        raise ValueError(f"`{name}` is a member function without a receiver: name its type as the first parameter")
    identity = f"{name}_{'_'.join(parameters)}"
    for place, _ in cost.per_size if cost is not None else ():
        if not 0 <= place < len(types):
            raise ValueError(f"`{name}` has no argument {place}, on whose size its `cost` depends")
    if reads is not None and len(reads) != len(types):
        raise ValueError(f"`reads` of `{name}` lists {len(reads)} arguments, but the function has {len(types)}")
    overload = Overload(
        identity, types, returned, _guarded(name, evaluate, returned), member=member, cost=cost or Cost(),
        pure=pure, reads=reads, by_column=_guarded_columns(by_column),
    )
    return Function(name, (overload,), doc, example)


_ARGUMENT_TYPES: Final[Mapping[str, str]] = {
    "evaluate": "a function", "parameters": "a sequence of types as strings", "result": "a type as a string",
    "doc": "a string", "example": "a string", "member": "a bool", "pure": "a bool",
    "cost": "a `Cost` of non-negative integers", "by_column": "a function, or None",
    "reads": "a tuple with, per argument, the paths that are read below it, or None",
}


def _check_arguments(name: object, given: Mapping[str, tuple[object, bool]]) -> None:
    """Raise `ValueError` for the first invalid argument of a function."""
    if not isinstance(name, str):
        raise ValueError(f"the name of a function is a string, not {name!r}")  # noqa: TRY004 - as all faults of one
    for argument, (value, valid) in given.items():
        if not valid:
            expected = _ARGUMENT_TYPES[argument]
            raise ValueError(f"`{argument}` of the function `{name}` must be {expected}, not {value!r}")


def _are_texts(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(each, str) for each in value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_cost(value: object) -> bool:
    return isinstance(value, Cost) and _is_whole(value.base) and isinstance(value.product, bool) \
        and isinstance(value.per_size, tuple) and all(
            isinstance(each, tuple) and len(each) == 2 and _is_whole(each[0])
            and isinstance(each[1], int | float) and not isinstance(each[1], bool) and 0 <= each[1] < INT64_MAX
            for each in value.per_size
        )


def _are_reads(value: object) -> bool:
    return isinstance(value, tuple) and all(
        paths is None or (isinstance(paths, tuple) and all(
            isinstance(path, tuple) and all(isinstance(step, str) for step in path) for path in paths
        )) for paths in value
    )


def _fault_of_name(name: str) -> str:
    """Return why a function cannot have this name; empty if it can."""
    parts = name.split(".")
    for part in parts:
        if not (part.isascii() and part.isidentifier()):
            return "a name is letters, digits and `_`, and may have a prefix with a dot"
        if part in RESERVED or part in {"true", "false", "null", "in"}:
            return f"`{part}` is a reserved word"
    if parts[-1] in _MACROS:
        return f"`{parts[-1]}` is a macro of the language"
    return f"there is a function `{name}` already" if name in functions() else ""


def _guarded(name: str, evaluate: Callable[..., object], result: Type) -> Callable[..., object]:
    expected = _RESULTS.get(result.name)

    def call(*arguments: object) -> object:
        try:
            value = evaluate(*arguments)
        except EvaluationError:
            raise
        except BaseException as error:  # foreign code: its exceptions are errors of the expression that calls it
            must_be_survived(error)
            raise EvaluationError(f"`{name}` failed: {describe(error)}") from error
        if expected is not None and type(value) is not expected:
            raise EvaluationError(f"`{name}` returned {type(value).__name__}, not {result}")
        if expected is int and not INT64_MIN <= value <= INT64_MAX:  # type: ignore[operator]
            raise EvaluationError("integer overflow")
        return value

    return call


def _guarded_columns(
    evaluate: Callable[..., tuple[Any, Any]] | None,
) -> Callable[..., tuple[Any, Any]] | None:
    """Return a function of columns whose every failure is an `Exception`: its callers continue without it."""
    if evaluate is None:
        return None

    @functools.wraps(evaluate)
    def call(*arguments: Any) -> tuple[Any, Any]:
        try:
            return evaluate(*arguments)
        except Exception:
            raise
        except BaseException as error:
            must_be_survived(error)
            raise RuntimeError(describe(error)) from error

    return call


@dataclass(frozen=True, slots=True)
class DiscoveredPlugins:
    """The plugins (by framework and name) and expression functions (by name) of installed distributions."""

    plugins: tuple[Plugin, ...] = ()
    functions: tuple[Function, ...] = ()


def discover(
    report: Callable[[Problem], None], entry_points: Iterable[EntryPoint] | None = None, *,
    builtins: Iterable[Plugin] = (),
) -> DiscoveredPlugins:
    """Return the plugins and functions that installed distributions offer in the group `koordpolicy.plugins`.

    An entry point names a `Plugin`, a function for expressions (see `cel_function`), a sequence of these, a module with
    a sequence `PLUGINS` or `FUNCTIONS`, or a Python function without arguments that returns one of these. An entry
    point that cannot be loaded is reported and stops no other one. A name that two distributions offer is reported, and
    neither is used; so is a function whose name exists, and a plugin with the name of one of `builtins`.
    """
    found: dict[tuple[Framework, str], list[Plugin]] = {}
    offered: dict[str, list[tuple[str, Function]]] = {}
    if entry_points is None:
        from importlib import metadata  # noqa: PLC0415 - 25 ms, only needed to run plugins

        entry_points = metadata.entry_points(group=ENTRY_POINTS)
    for point in sorted(entry_points, key=lambda each: (each.name, each.value)):
        origin = f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
        try:
            plugins, loaded_functions = _offered(point.load())
        except BaseException as error:  # foreign code: its failure must not lose the others
            must_be_survived(error)
            report(Problem(f"the plugin `{point.name}` of {origin} cannot be loaded: {describe(error)}",
                           help=f"repair or uninstall it; its entry point is `{point.value}`", code="plugin-load"))
            continue
        for plugin in plugins:
            digest = hashlib.sha256(f"{plugin.digest} {origin}".encode()).hexdigest()[:16]
            found.setdefault((plugin.framework, plugin.name), []).append(replace(plugin, origin=origin, digest=digest))
        for function in loaded_functions:
            offered.setdefault(function.name, []).append((origin, function))
    for (framework, name), offers in found.items():
        if len(offers) > 1:
            report(Problem(f"the {framework.value} plugin `{name}` is offered more than once: "
                           f"{', '.join(sorted(offer.origin for offer in offers))}",
                           help="uninstall all but one", code="duplicate-name"))
    unique = [offers[0] for offers in found.values() if len(offers) == 1]
    builtin_names = {(plugin.framework, plugin.name) for plugin in builtins}
    for plugin in [each for each in unique if (each.framework, each.name) in builtin_names]:
        unique.remove(plugin)
        report(Problem(f"the {plugin.framework.value} plugin `{plugin.name}` of {plugin.origin} has the name of a "
                       "built-in plugin, which is used", help="give it another name, or uninstall it",
                       code="duplicate-name"))
    return DiscoveredPlugins(
        tuple(sorted(unique, key=lambda plugin: (plugin.framework.value, plugin.name))),
        tuple(_without_collisions(offered, report)),
    )


def discover_beside(builtins: Iterable[Plugin], report: Callable[[Problem], None]) -> DiscoveredPlugins:
    """Return the built-in plugins, followed by those that `discover` finds."""
    first = tuple(builtins)
    found = discover(report, builtins=first)
    return DiscoveredPlugins((*first, *found.plugins), found.functions)


def _without_collisions(
    offered: Mapping[str, Sequence[tuple[str, Function]]], report: Callable[[Problem], None],
) -> Iterator[Function]:
    for name, offers in sorted(offered.items()):
        origins = ", ".join(sorted(origin for origin, _ in offers))
        if fault := _fault_of_name(name):
            report(Problem(f"the function `{name}` of {origins} cannot be offered: {fault}",
                           help="give it another name, for example with a prefix", code="duplicate-name"))
        elif len(offers) > 1:
            report(Problem(f"the function `{name}` is offered more than once: {origins}",
                           help="uninstall all but one", code="duplicate-name"))
        else:
            yield offers[0][1]


def _offered(offer: Any) -> tuple[list[Plugin], list[Function]]:
    if inspect.ismodule(offer):
        parts = [getattr(offer, name) for name in ("PLUGINS", "FUNCTIONS") if hasattr(offer, name)]
        if not parts:
            raise AttributeError(f"module `{offer.__name__}` has neither `PLUGINS` nor `FUNCTIONS`")
        offer = [each for part in parts for each in part]
    if callable(offer) and not isinstance(offer, Plugin):
        offer = offer()
    offers = (offer,) if isinstance(offer, Plugin | Function) else tuple(offer)
    for each in offers:
        if not isinstance(each, Plugin | Function):
            raise TypeError(f"it offers {each!r}, which is not a plugin")
        if isinstance(each, Function) and not (
            isinstance(each.name, str) and isinstance(each.overloads, tuple)
            and all(isinstance(overload, Overload) for overload in each.overloads)
        ):
            raise TypeError(f"it offers {each!r}, which is not a function: make one with `cel_function`")
    plugins = [each for each in offers if isinstance(each, Plugin)]
    return plugins, [each for each in offers if isinstance(each, Function)]
