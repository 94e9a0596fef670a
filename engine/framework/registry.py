"""What is in force: an immutable, numbered set of plugins, and the one cell that says which set that is.

A document and a Python class are the same thing here: a `Plugin` with a name, a framework, the extension points it
answers at, and a factory that makes it for one profile. A decision takes `live.registry` once and keeps it: it begins
and ends under the same generation, whatever is swapped meanwhile.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from koordpolicy.engine.cluster.kinds import Read
from koordpolicy.engine.source import PolicyError, Problem, Span

from .points import Enforcement, Framework, Point


@dataclass(frozen=True, slots=True)
class Plugin:
    """What a document or a Python class declares.

    `make(args, handle)` returns an object that fulfils the protocol of every point in `points`
    (`plugins.Filter`, ...). `args` is plain data, already valid for this plugin: a document's params, a built-in's
    arguments. `digest` changes whenever the plugin would decide differently; `origin` is where a person finds it
    (`policies/zone.yaml:14`, `built-in`, `wheel acme-policies 1.2`).
    """

    name: str
    framework: Framework
    points: tuple[Point, ...]
    make: Callable[[Mapping[str, Any], Any], Any]
    origin: str
    digest: str
    source: str = ""
    """The mount or directory it came from; empty for Python plugins."""
    span: Span | None = None
    description: str = ""
    order: int = 0
    weight: int = 1
    profiles: frozenset[str] | None = None
    """The profiles it is active in by itself; None means all."""
    enabled: bool = True
    """Whether it is active where no profile names it: documents and Kubernetes' default plugins are."""
    default_weight: int | None = None
    """Its weight as one of kube-scheduler's default plugins, where no profile says otherwise; None: it is none of them.
    """
    replaces: bool = False
    """Whether it takes the place of the Python plugin of the same name on purpose."""
    enforcement: Enforcement = Enforcement.ENFORCE
    check_args: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    """Validates args and fills in defaults; raises `ValueError` or `PolicyError`."""
    ignored_args: Callable[[Mapping[str, Any]], Mapping[str, str]] | None = None
    """Returns which of valid args have no effect, by path, with the reason; None: each has one."""
    reads: tuple[Read, ...] = ()
    """The kinds of objects that it reads beside nodes and pods."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A plugin at one extension point."""

    plugin: Plugin
    point: Point


@dataclass(frozen=True, eq=False)
class Registry:
    """All plugins in force, by framework and name, with the number of their generation. Never changes."""

    plugins: Mapping[tuple[Framework, str], Plugin] = field(default_factory=lambda: MappingProxyType({}))
    generation: int = 0
    digest: str = ""
    """A hash over the digests of all plugins: what `status` and `reload --wait` compare."""

    @classmethod
    def of(cls, plugins: Iterable[Plugin], *, generation: int) -> Registry:
        """Return a registry of these plugins.

        Raises `PolicyError` with every name that is taken twice, unless a document says that it replaces a Python
        plugin; then the document wins.
        """
        chosen: dict[tuple[Framework, str], Plugin] = {}
        problems: list[Problem] = []
        for plugin in plugins:
            key = (plugin.framework, plugin.name)
            other = chosen.get(key)
            if other is None or (plugin.replaces and not other.source):
                chosen[key] = plugin
            elif not (other.replaces and not plugin.source):
                first, second = (other, plugin) if plugin.span is not None else (plugin, other)
                problems.append(Problem(
                    f"the {plugin.framework.value} plugin `{plugin.name}` is declared twice, also at {first.origin}",
                    second.span, "rename one" if first.source else "rename it, or say `replaces: true` in its spec",
                    code="duplicate-name",
                ))
        if problems:
            raise PolicyError(problems)
        text = "\n".join(sorted(f"{f.value}/{name} {plugin.digest}" for (f, name), plugin in chosen.items()))
        return cls(MappingProxyType(chosen), generation, hashlib.sha256(text.encode()).hexdigest()[:16])

    def at(self, framework: Framework, point: Point) -> tuple[Entry, ...]:
        """Return the entries at a point, by order and then by name."""
        found = [p for (f, _), p in self.plugins.items() if f is framework and point in p.points]
        return tuple(Entry(plugin, point) for plugin in sorted(found, key=lambda p: (p.order, p.name)))

    def of_framework(self, framework: Framework) -> tuple[Plugin, ...]:
        """Return the plugins of a framework, by order and then by name."""
        found = (plugin for (f, _), plugin in self.plugins.items() if f is framework)
        return tuple(sorted(found, key=lambda p: (p.order, p.name)))


class Live:
    """The one cell that changes: the registry in force."""

    def __init__(self, registry: Registry | None = None) -> None:
        self._registry = registry or Registry()
        self._writing = threading.Lock()

    @property
    def registry(self) -> Registry:
        """The registry in force: take it once per decision, then keep it."""
        # No lock: rebinding is atomic, and what the name is bound to is frozen.
        return self._registry

    def replace(
        self, build: Callable[[], Iterable[Plugin]], stage: Callable[[Registry], None] | None = None,
    ) -> Registry:
        """Activate the plugins that `build` returns, as `activate` does; whatever it raises passes through."""
        return self.activate(Registry.of(build(), generation=0), stage)

    def activate(self, registry: Registry, stage: Callable[[Registry], None] | None = None) -> Registry:
        """Make the plugins of a registry the active ones under the next generation; return the active registry.

        `stage` is given it right before that. Unchanged content keeps its generation: saving a file untouched is no
        change, and what only moved to another place is found there from now on. Whatever `stage` raises passes
        through, and the old registry stays.
        """
        with self._writing:  # one writer at a time; readers never wait
            generation = self._registry.generation + (registry.digest != self._registry.digest)
            new = replace(registry, generation=generation)
            if stage is not None:
                stage(new)
            self._registry = new
            return new
