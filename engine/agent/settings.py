"""Settings of the QoS manager that have no effect: fields of NodeSLOs and of the ConfigMap that they are made of.

koordlet reads settings that no plugin here has a use for; a recording or a dump of a cluster holds all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from koordpolicy.engine.cel.values.types import Type
from koordpolicy.engine.cluster.kinds import Read
from koordpolicy.engine.documents import YamlNode
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.kubernetes.unread import WHOLE, FieldPath, UnreadField, unread_fields
from koordpolicy.engine.kubernetes.vocabulary import SLO_CONFIG
from koordpolicy.engine.source import Problem, Severity, Span

from .qos_manager.manager import Manager

NODE_SLO: Final = "NodeSLO"

_IDENTITY: Final[Collection[FieldPath]] = (("apiVersion",), ("kind",), ("metadata",))
"""Fields that say which object it is."""

_TYPE: Final = Type("koordinator.NodeSLO")


def running_reads(registry: Registry, gates: Mapping[str, bool], enable: Iterable[str] = ()) -> tuple[Read, ...] | None:
    """Return the reads of the QoS plugins that would run; None where none would.

    Raises:
        PolicyError: a plugin cannot be activated, or a gate is unknown.
    """
    manager = Manager(gates, frozenset(enable))
    manager.use(registry)
    names = manager.running.keys()
    if not names:
        return None
    return tuple(
        read for plugin in registry.of_framework(Framework.QOS) if plugin.name in names for read in plugin.reads
    )


def fields_read(reads: Iterable[Read]) -> Collection[FieldPath]:
    """Return the fields of NodeSLOs that plugins read."""
    return frozenset(path for read in reads if read.kind == NODE_SLO for path in read.fields or WHOLE)


def settings_without_effect(
    objects: Iterable[tuple[Mapping[str, Any], YamlNode | None]], reads: Iterable[Read],
) -> tuple[Problem, ...]:
    """Return a warning for each setting that none of these reads has a use for.

    Objects come with their node in a file, or None for those of a cluster. A setting that several objects have is
    reported once, at the first one.
    """
    used = {*_IDENTITY, *fields_read(reads)}
    first: dict[tuple[FieldPath, bool], tuple[str, Span | None, UnreadField]] = {}
    more: dict[tuple[FieldPath, bool], set[str]] = {}
    found: list[Problem] = []
    for each, node in objects:
        kind, name = str(each.get("kind")), str((each.get("metadata") or {}).get("name"))
        if kind == NODE_SLO:
            for field in unread_fields(each, _TYPE, used):
                key = field.names, bool(field.known)
                first.setdefault(key, (name, _place(node, field.path), field))
                more.setdefault(key, set()).add(name)
        elif (kind, name) == ("ConfigMap", SLO_CONFIG):
            found.append(_warning(
                f"the ConfigMap `{SLO_CONFIG}` has no effect: NodeSLOs are taken as they are, and none is made of it",
                _place(node, ()), "write the NodeSLOs of the nodes; `lint --config` compares its thresholds",
            ))
    return (*found, *_of_fields(first, more))


def _of_fields(
    first: Mapping[tuple[FieldPath, bool], tuple[str, Span | None, UnreadField]],
    more: Mapping[tuple[FieldPath, bool], set[str]],
) -> Iterator[Problem]:
    for key, (name, span, field) in first.items():
        others = len(more[key]) - 1
        whose = f"NodeSLO `{name}`" + (f" and {others} more" if others else "")
        path = ".".join(field.names)
        if field.known:
            yield _warning(f"{whose}: there is no field `{path}`", span, field.help, "unknown-field")
        else:
            yield _warning(f"{whose}: `{path}` has no effect: no QoS plugin that runs reads it", span)


def _place(node: YamlNode | None, path: tuple[str | int, ...]) -> Span | None:
    return (node.at(*path) or node).place if node is not None else None


def _warning(message: str, span: Span | None, help: str = "", code: str = "no-effect") -> Problem:  # noqa: A002 - as `Problem` calls it
    return Problem(message, span, help, Severity.WARNING, code)
