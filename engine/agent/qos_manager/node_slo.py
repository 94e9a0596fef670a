"""Reads sections of a NodeSLO, and of annotations like them.

A field of the wrong type is an error with its path, an absent one is None.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.framework.qos import Readings


def node_name(readings: Readings) -> str:
    """Return the node's name."""
    return str((readings.node.get("metadata") or {}).get("name", ""))


@dataclass(frozen=True, slots=True)
class SLOSection:
    """An object in a NodeSLO with its path; a field that is absent or null reads as None."""

    values: Mapping[str, Any]
    path: str = "spec"

    def sub(self, *names: str) -> SLOSection | None:
        """Return the object at a path below, or None; raise `EvaluationError` if there is another value."""
        found: SLOSection | None = self
        for name in names:
            if found is None:
                return None
            value = found.values.get(name)
            path = f"{found.path}.{name}"
            if value is not None and not isinstance(value, Mapping):
                raise EvaluationError(f"`{path}` must be an object, not {value!r}")
            found = None if value is None else SLOSection(value, path)
        return found

    def whole(self, name: str) -> int | None:
        """Return a whole number; raise `EvaluationError` if there is another value."""
        value = self.values.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise EvaluationError(f"`{self.path}.{name}` must be a whole number, not {value!r}")
        return value

    def flag(self, name: str) -> bool | None:
        """Return a truth value; raise `EvaluationError` if there is another value."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise EvaluationError(f"`{self.path}.{name}` must be true or false, not {value!r}")
        return value

    def text(self, name: str) -> str:
        """Return a text, empty if there is none; raise `EvaluationError` if there is another value."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise EvaluationError(f"`{self.path}.{name}` must be a text, not {value!r}")
        return value or ""

    def each(self, name: str) -> Sequence[SLOSection]:
        """Return the objects of a list; raise `EvaluationError` if there is another value."""
        value = self.values.get(name) or ()
        if not isinstance(value, Sequence) or not all(isinstance(each, Mapping) for each in value):
            raise EvaluationError(f"`{self.path}.{name}` must be a list of objects, not {value!r}")
        return [SLOSection(each, f"{self.path}.{name}[{number}]") for number, each in enumerate(value)]


def node_slo_object(readings: Readings) -> Mapping[str, Any]:
    """Return the node's NodeSLO; raise `EvaluationError` (reason `NoNodeSLO`) if there is none."""
    slo = readings.object("NodeSLO")
    if slo is None:
        raise EvaluationError(f"node `{node_name(readings)}` has no NodeSLO", reason="NoNodeSLO")
    return slo


def node_slo(readings: Readings) -> SLOSection:
    """Return the spec of the node's NodeSLO; raise `EvaluationError` (reason `NoNodeSLO`) if there is none."""
    spec = node_slo_object(readings).get("spec") or {}
    if not isinstance(spec, Mapping):
        raise EvaluationError(f"`spec` must be an object, not {spec!r}")
    return SLOSection(spec)


@dataclass(slots=True)
class WarningLog:
    """Logs what a strategy left out, once for each subject until the message changes or the cause goes away."""

    log: logging.Logger
    _reported: dict[tuple[str, str], str] = field(default_factory=dict)

    @classmethod
    def of(cls, handle: Any, strategy: str) -> WarningLog:
        """Return one for the log of a strategy's handle, or for the strategy's own log without a handle."""
        return cls(getattr(handle, "log", None) or logging.getLogger(f"koordpolicy.qos.{strategy}"))

    def update(self, node: str, found: Mapping[str, str]) -> None:
        """Log the messages of a round by subject; subjects without one are good again."""
        for subject, message in found.items():
            if self._reported.get((node, subject)) != message:
                self._reported[node, subject] = message
                self.log.warning("%s: %s: %s", node, subject, message)
        for key in [key for key in self._reported if key[0] == node and key[1] not in found]:
            del self._reported[key]
