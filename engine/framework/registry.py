"""Registry of plugins: an immutable, numbered set, and `Live`, the cell that holds the active one.

Documents and Python classes are registered alike: as a `Plugin` with a name, a framework, its extension points, and a
factory that makes an instance for one profile. A decision reads `live.registry` once: it begins and ends under the same
generation, whatever is swapped meanwhile.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from koordpolicy.engine.client.resources import declare
from koordpolicy.engine.cluster.kinds import Read
from koordpolicy.engine.source import PolicyError, Problem, Span

from .file_sets import FileSet
from .object_access import Write
from .points import Enforcement, Framework, Point


@dataclass(frozen=True, slots=True)
class Plugin:
    """A registry entry, declared by a document or a Python class.

    `make(args, handle)` returns an object that implements the protocol of every point in `points` (`Filter`, ...).
    `args` is plain, validated data: a document's params, a built-in's arguments. `digest` changes whenever the plugin
    would decide differently; `origin` says where it comes from (`policies/zone.yaml:14`, `built-in`,
    `wheel acme-policies 1.2`).
    """

    name: str
    framework: Framework
    points: tuple[Point, ...]
    make: Callable[[Mapping[str, Any], Any], Any]
    origin: str
    digest: str
    source: str = ""
    """The mount or directory of its document; empty for Python plugins."""
    span: Span | None = None
    description: str = ""
    order: int = 0
    weight: int = 1
    profiles: frozenset[str] | None = None
    """The profiles in which it is enabled by default; None means all."""
    enabled: bool = True
    """True if it is enabled in profiles that do not name it: documents and Kubernetes' default plugins are."""
    default_weight: int | None = None
    """Its default weight as one of kube-scheduler's default plugins; None if it is not one of them."""
    replaces: bool = False
    """True if it intentionally replaces the Python plugin of the same name."""
    enforcement: Enforcement = Enforcement.ENFORCE
    check_args: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    """Validates args and fills in defaults; raises `ValueError` or `PolicyError`."""
    ignored_args: Callable[[Mapping[str, Any]], Mapping[str, str]] | None = None
    """Returns the reasons why valid args have no effect, by path; None if all have one."""
    gates: tuple[str, ...] = ()
    """The feature gates of a QoS plugin in Python, of which one must be on; if empty, the gate of its own name. Its
    argument `features` names those that are on."""
    reads: tuple[Read, ...] = ()
    """The kinds of objects that it reads, with their fields. It gets whole nodes and pods unless it names these too."""
    reads_for: Callable[[Mapping[str, Any]], tuple[Read, ...]] | None = None
    """Returns the further reads of a descheduler plugin in Python with these valid args; None if there are none."""
    writes: tuple[FileSet, ...] = ()
    """The files that a QoS plugin in Python may write; empty if unknown. Two writers of one file are refused."""
    patches: tuple[Write, ...] = ()
    """The fields of objects that a scheduler plugin in Python patches by `Handle.objects`."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A plugin at one extension point."""

    plugin: Plugin
    point: Point


@dataclass(frozen=True, eq=False)
class Registry:
    """An immutable set of plugins by framework and name, with the number of its generation."""

    plugins: Mapping[tuple[Framework, str], Plugin] = field(default_factory=lambda: MappingProxyType({}))
    generation: int = 0
    digest: str = ""
    """A hash of the digests of all plugins; `status` and `reload --wait` compare it."""

    @classmethod
    def of(cls, plugins: Iterable[Plugin], *, generation: int) -> Registry:
        """Return a registry of these plugins.

        Raises `PolicyError` with every duplicate name, unless a document declares that it replaces a Python plugin;
        then the document wins.
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
                named = f"{plugin.framework.value} plugin `{plugin.name}`"
                problems.append(Problem(
                    f"the {named} is declared twice, also at {first.origin}" if first.source else
                    f"there is a {named} already: {first.origin}",
                    second.span, "rename one" if first.source else "rename it, or set `replaces: true` in its spec",
                    code="duplicate-name",
                ))
        problems += _declared_kinds(chosen.values())
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

    def documents_of(self, framework: Framework) -> frozenset[str]:
        """Return the names of a framework's plugins that are documents."""
        return frozenset(name for (of, name), plugin in self.plugins.items() if of is framework and plugin.source)


def _declared_kinds(plugins: Iterable[Plugin]) -> Iterator[Problem]:
    """Declare the resources of plugins' kinds; yield a problem for each kind that is declared differently already."""
    for plugin in plugins:
        for resource in filter(None, (read.resource for read in plugin.reads)):
            try:
                declare(resource)
            except ValueError as error:
                which = f"{plugin.framework.value} plugin `{plugin.name}` of {plugin.origin}"
                yield Problem(f"{which}: {error}", plugin.span,
                              "only one of them can be followed: remove the other plugin, or its `Read`",
                              code="declared-kind")


class Live:
    """The mutable cell that holds the active registry."""

    def __init__(self, registry: Registry | None = None) -> None:
        self._registry = registry or Registry()
        self._writing = threading.Lock()

    @property
    def registry(self) -> Registry:
        """The active registry: read it once per decision."""
        # No lock: rebinding is atomic, and what the name is bound to is frozen.
        return self._registry

    def replace(
        self, build: Callable[[], Iterable[Plugin]], stage: Callable[[Registry], None] | None = None,
    ) -> Registry:
        """Activate the plugins that `build` returns, as `activate` does; if `build` raises, nothing changes."""
        return self.activate(Registry.of(build(), generation=0), stage)

    def activate(self, registry: Registry, stage: Callable[[Registry], None] | None = None) -> Registry:
        """Activate the plugins of a registry under the next generation, and return the active registry.

        `stage` is called with the new registry right before that. Unchanged content has the same generation: saving an
        unchanged file is not a change, and a plugin that only moved gets its new origin. If `stage` raises, the old
        registry stays active.
        """
        with self._writing:  # one writer at a time; readers never wait
            new = self.numbered(registry)
            if stage is not None:
                stage(new)
            self._registry = new
            return new

    def numbered(self, registry: Registry) -> Registry:
        """Return the registry with the generation under which `activate` would activate it now."""
        generation = self._registry.generation + (registry.digest != self._registry.digest)
        return registry if registry.generation == generation else replace(registry, generation=generation)
