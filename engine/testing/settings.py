"""Settings among the fixtures of suites that have no effect: fields of NodeSLOs, and the ConfigMap of koord-manager."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from koordpolicy.engine.documents import YamlNode, files_of, node_of, read, read_file, to_plain
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.kubernetes.vocabulary import SLO_CONFIG
from koordpolicy.engine.source import PolicyError, Problem, Problems

from .suites import Suite

_NODE_SLO: Final = "NodeSLO"
_KINDS: Final = (_NODE_SLO, "ConfigMap")


def fixtures_without_effect(suites: Iterable[Suite]) -> tuple[Problem, ...]:
    """Return a warning for each setting in the fixtures of a suite that none of its QoS plugins reads.

    Suites without a QoS plugin have none.
    """
    found: list[Problem] = []
    for suite in suites:
        plugins = [each for each in suite.plugins.values() if each.framework is Framework.QOS]
        objects = list(_settings_of(suite)) if plugins else []
        if objects:
            from koordpolicy.engine.agent.settings import (  # noqa: PLC0415 - other suites need no QoS manager
                settings_without_effect,
            )

            found += settings_without_effect(objects, (read for each in plugins for read in each.reads))
    return tuple(found)


def _settings_of(suite: Suite) -> Iterator[tuple[Mapping[str, Any], YamlNode | None]]:
    """Yield the settings in a suite's fixtures, each with its node."""
    fixtures = suite.spec.fixtures
    document = node_of(suite.document) if any(each.get("kind") in _KINDS for each in fixtures.objects) else None
    for number, each in enumerate(fixtures.objects):
        if each.get("kind") in _KINDS:
            yield each, document.at("spec", "fixtures", "objects", number) if document is not None else None
    for name in fixtures.files:
        for file in files_of(suite.worlds.directory / name, []):
            try:
                source = read_file(file)
            except PolicyError:  # the cases report it
                continue
            if _NODE_SLO not in source.text and SLO_CONFIG not in source.text:
                continue
            for node in read(source, Problems()):
                items = node.at("items")
                for item in items.items if items is not None else (node,):
                    kind = item.at("kind")
                    if kind is not None and kind.text in _KINDS:
                        yield to_plain(item), item
