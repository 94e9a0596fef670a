"""Strict decoding of plugin arguments in the profiles of a configuration file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from koordpolicy.engine.documents.nodes import YamlNode
from koordpolicy.engine.documents.validation import has_schema, validate
from koordpolicy.engine.source import Problem, Span


def items_at(node: YamlNode | None, *path: str | int) -> tuple[YamlNode, ...]:
    """Return the items of a list; none if it is absent."""
    found = None if node is None else node.at(*path)
    return tuple(found.items) if found is not None else ()


def argument_problems(node: YamlNode) -> Iterator[Problem]:
    """Yield the problems of the arguments in a file's `profiles` against the schemas of their kinds."""
    for profile in items_at(node, "profiles"):
        for name, args in written_args(profile):
            if args.value is not None and has_schema(f"{name}Args"):
                # Koordinator reads null as absent.
                given = {key: each for key, each in args.fields.items() if each.value is not None}
                yield from validate(replace(args, value=given) if args.fields else args, f"{name}Args")


ARGUMENTS: Final = "pluginConfig"
"""The list of a profile with the arguments of plugins."""
PROOF: Final = "proof"
"""The map of a profile with what the proofs of plugins do."""


def places_of_plugins(profile: YamlNode | None) -> Iterator[tuple[tuple[str, str], Span]]:
    """Yield the point and the name of each plugin that a profile enables or disables, with the place in the file; for
    each name that arguments are for the point is `ARGUMENTS`, and `PROOF` for each one in that map.
    """
    plugins = None if profile is None else profile.at("plugins")
    for point, of in (plugins.fields if plugins is not None else {}).items():
        for entry in (*items_at(of, "enabled"), *items_at(of, "disabled")):
            name = entry.at("name") if entry.fields else entry
            if name is not None:
                yield (point, str(name.scalar)), name.span
    for config in items_at(profile, ARGUMENTS):
        if (name := config.at("name")) is not None:
            yield (ARGUMENTS, str(name.scalar)), name.span
    proof = None if profile is None else profile.at(PROOF)
    for plugin, of in (proof.fields if proof is not None else {}).items():
        yield (PROOF, plugin), of.place


def written_args(profile: YamlNode | None) -> Iterator[tuple[str, YamlNode]]:
    """Yield the plugin names and arguments of a profile, as they are in the file."""
    for config in items_at(profile, ARGUMENTS):
        name, args = config.at("name"), config.at("args")
        if name is not None and args is not None:
            yield str(name.scalar), args
