"""Logs of plugins, shown on standard error with `--log`."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from koordpolicy.engine.escaping import one_line, visible, visible_json
from koordpolicy.engine.source import did_you_mean

from .exits import Stop

EVERYTHING: Final = "*"
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
ROOT: Final = "koordpolicy.scheduler"
FORMATS: Final = ("text", "json")


class VisibleFormatter(logging.Formatter):
    """Formats records so that quoted text can neither control the terminal nor imitate another record (see
    `escaping`).
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as the base class has it
        """Return the line of the record: its message in one line."""
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line, followed by its traceback if it has one."""
        return visible(super().format(record))


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time (RFC 3339, UTC), level, logger, message; pod (`namespace/name`) and
    generation if the record has them as `extra`; exception, the text of a traceback.

    Text is escaped as in all JSON (see `escaping.visible_json`).
    """

    def __init__(self, generation: Callable[[], int | None] = lambda: None) -> None:
        """`generation` returns the active generation, for records without one; None if there is none yet."""
        super().__init__()
        self._generation = generation

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        data: dict[str, Any] = {"time": time, "level": record.levelname.lower(), "logger": record.name,
                                "message": record.getMessage()}
        pod, generation = getattr(record, "pod", None), getattr(record, "generation", None)
        if pod is not None:
            data["pod"] = pod
        generation = self._generation() if generation is None else generation
        if generation is not None:
            data["generation"] = generation
        if record.exc_info:
            data["exception"] = self.formatException(record.exc_info)
        return visible_json(json.dumps(data, default=str))


def add_format_argument(group: argparse._ArgumentGroup) -> None:
    """Declare `--log-format`, an option of servers."""
    group.add_argument("--log-format", choices=FORMATS,
                       help="how the log (standard error) is written: text, or a JSON object per line with time, "
                            "level, logger, message, and where they are known pod and generation (default: text)")


def start_server_logs(chosen: str | None, generation: Callable[[], int | None] = lambda: None) -> None:
    """Write the log of a server to standard error, in one of `FORMATS`; see `JsonFormatter` for `generation`."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter(generation) if chosen == "json" else
                         VisibleFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def log_visibly() -> None:
    """Format records that are logged before, or without, a set-up of logs like all others."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(VisibleFormatter("%(message)s"))


def log_level(text: str) -> tuple[str, int]:
    """Read `PLUGIN=LEVEL`; raises `ArgumentTypeError` for any other text."""
    plugin, equals, level = text.partition("=")
    if not equals or not plugin:
        raise argparse.ArgumentTypeError(f"`{text}` is not PLUGIN=LEVEL, such as `Coscheduling=debug`")
    if level.lower() not in LEVELS:
        hint = did_you_mean(level, LEVELS) or f"choose one of {', '.join(LEVELS)}"
        raise argparse.ArgumentTypeError(f"there is no level `{level}`: {hint}")
    return plugin, LEVELS[level.lower()]


def start_logs(levels: Sequence[tuple[str, int]], plugins: Collection[str], *, enabled: bool) -> None:
    """Write to standard error the logs of plugins from their level on and, if `enabled`, the scheduler's.

    Raises:
        Stop: a level is for a plugin that is not in `plugins`.
    """
    if not levels and not enabled:
        return
    for plugin, _ in levels:
        if plugin != EVERYTHING and plugin not in plugins:
            hint = did_you_mean(plugin, plugins) or "`koord-policy plugins` lists all"
            raise Stop(f"`--log {plugin}=...`: there is no scheduler plugin of that name: {hint}")
    handler = logging.StreamHandler()
    handler.setFormatter(VisibleFormatter("%(levelname).1s %(name)s: %(message)s"))
    root = logging.getLogger(ROOT)
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(logging.INFO if enabled else logging.WARNING)
    for plugin, level in levels:
        logging.getLogger(ROOT if plugin == EVERYTHING else f"{ROOT}.{plugin}").setLevel(level)
