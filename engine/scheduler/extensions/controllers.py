"""Runs the plugins' controllers between decisions: they update statuses and clean up."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from koordpolicy.engine.framework.border import must_be_survived
from koordpolicy.engine.framework.scheduler import Controller, Controllers

from ..profiles.profile import Profile

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Run:
    controller: Controller
    due: int


class ControllerRuns:
    """The controllers of all active plugins; for the deciding thread.

    A controller that raises is logged, and runs again after its period.
    """

    def __init__(self) -> None:
        self._of_plugins: dict[int, tuple[Any, list[_Run]]] = {}

    def run(self, profiles: Iterable[Profile], now: int) -> int:
        """Run the controllers of these profiles' plugins that are due at `now` (ns since the epoch); return how many
        ran.
        """
        found: dict[int, tuple[Any, list[_Run]]] = {}
        for profile in profiles:
            for active in profile.having(Controllers):
                plugin = active.instance
                if id(plugin) not in found:
                    found[id(plugin)] = self._of_plugins.get(id(plugin)) or (
                        plugin, [_Run(each, now) for each in plugin.controllers()])
        self._of_plugins = found
        count = 0
        for _, runs in found.values():
            for each in runs:
                if each.due <= now:
                    each.due = now + each.controller.period
                    count += 1
                    try:
                        each.controller.run(now)
                    except BaseException as error:  # the border between framework and plugin
                        must_be_survived(error)
                        _LOG.exception("the controller `%s` failed", each.controller.name)
        return count

    def next_time(self) -> int | None:
        """Return the time of the next run; None if there are no controllers."""
        return min((each.due for _, runs in self._of_plugins.values() for each in runs), default=None)
