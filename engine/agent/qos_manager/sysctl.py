"""Changes of kernel settings that can be reverted, and the features of the kernel's scheduler."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from koordpolicy.engine.framework.qos import Readings

from .node_slo import node_name

SCHED_FEATURES_FILE: Final = "sys/kernel/debug/sched_features"


class OriginalTexts:
    """The texts of files before their first change on each node, so that changes can be reverted."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str], str] = {}

    def write(self, readings: Readings, file: str, text: str) -> tuple[tuple[str, str], ...]:
        """Return the write of a file, if it exists and has another text; its present text is remembered."""
        present = readings.files.get(file)
        if present is None or present.strip() == text:
            return ()
        self._texts.setdefault((node_name(readings), file), present.strip())
        return ((file, text),)

    def files(self, readings: Readings) -> Iterable[str]:
        """Return the changed files of the node."""
        return [file for node, file in self._texts if node == node_name(readings)]

    def restore(self, readings: Readings, file: str) -> tuple[tuple[str, str], ...]:
        """Return the write that reverts a file; empty if it was not changed, or has the text already."""
        text = self._texts.pop((node_name(readings), file), None)
        if text is None or readings.files.get(file, text).strip() == text:
            return ()
        return ((file, text),)


def feature_states(text: str) -> dict[str, bool]:
    """Return the scheduler features of `sched_features` by name, with their state (`NO_NAME` is off)."""
    names = text.split()
    return {each.removeprefix("NO_"): not each.startswith("NO_") for each in names}


def feature_text(name: str, on: bool) -> str:
    """Return the text that switches a scheduler feature on or off."""
    return f"{name}\n" if on else f"NO_{name}\n"
