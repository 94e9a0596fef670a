"""The log of reloading: every change of the status, once."""

from __future__ import annotations

import logging
from typing import Final

from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import render

from .status import ReloadStatus, SourceStatus

_NAMES_SHOWN: Final = 10


def write_changes(before: ReloadStatus, after: ReloadStatus, registry: Registry, log: logging.Logger) -> None:
    """Log what differs between two statuses; `registry` is the active one of the second.

    A generation that is activated is information, or a warning where its sources hold no policies; a version that
    is refused, and a source that cannot be read, are errors.
    """
    changed = (before.generation, before.digest) != (after.generation, after.digest)
    if changed:
        policies = sorted(plugin.name for plugin in registry.plugins.values() if plugin.source)
        level = logging.INFO if policies or not after.sources else logging.WARNING
        log.log(level, "generation %d is active: %s", after.generation, _shown(policies))
    known = {source.path: source for source in before.sources}
    for source in after.sources:
        _write_source(known.get(source.path), source, after.generation, changed, log)
    for warning in after.warnings:
        if warning not in before.warnings:
            log.warning("%s", warning)


def _write_source(
    before: SourceStatus | None, after: SourceStatus, generation: int, changed: bool, log: logging.Logger,
) -> None:
    logged = before is not None and (before.observed, before.problems) == (after.observed, after.problems)
    if after.problems and not logged:
        what = f"{'a part of ' if after.mixed else ''}{after.path} refused, " if after.observed is not None else ""
        how = "is active without it" if after.mixed and changed else "stays active"
        log.error("%sgeneration %d %s: %s", what, generation, how, render(after.problems))
    if before is not None and not changed and not after.problems:
        if before.problems:
            log.info("%s holds the active version again: generation %d stays active", after.path, generation)
        elif before.digest != after.digest:
            log.info("%s changed, and none of its policies did: generation %d stays active", after.path, generation)
    for warning in after.warnings:
        if before is None or warning not in before.warnings:
            log.warning("%s", warning)


def _shown(policies: list[str]) -> str:
    if not policies:
        return "no policies"
    rest = len(policies) - _NAMES_SHOWN
    names = ", ".join(policies[:_NAMES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
    return f"{len(policies)} polic{'y' if len(policies) == 1 else 'ies'} ({names})"
