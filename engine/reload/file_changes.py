"""The files that a promotion or a rollback would change, for whoever confirms it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from koordpolicy.engine.source import Source

from .history import GenerationRecord

MOST_CHARACTERS: Final = 4 << 20
"""The maximum number of characters of all texts in a list of changes; further files have none."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file that is added (`before` is None), removed (`after` is None) or replaced."""

    name: str
    before: str | None
    after: str | None

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        return {"file": self.name, "before": self.before, "after": self.after}


def file_changes(before: Mapping[str, Source], after: Mapping[str, Source]) -> tuple[FileChange, ...]:
    """Return the files that differ, by name."""
    found = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        change = FileChange(name, None if old is None else old.text, None if new is None else new.text)
        if change.before != change.after:
            found.append(change)
    return tuple(found)


def files_of(record: GenerationRecord | None) -> dict[str, Source]:
    """Return the files of a generation by their names below their source; of several sources with its path."""
    versions = record.versions if record is not None else {}
    return {f"{path}/{name}" if len(versions) > 1 else name: source
            for path, version in versions.items() for name, source in version.files.items()}


def to_json(changes: tuple[FileChange, ...], most: int = MOST_CHARACTERS) -> dict[str, object]:
    """Return plain data: `changes`, and in `changesLeftOut` the names of the files beyond `most` characters."""
    shown, left_out = [], []
    for each in changes:
        most -= len(each.before or "") + len(each.after or "")
        if most >= 0:
            shown.append(each.to_json())
        else:
            left_out.append(each.name)
    return {"changes": shown, **({"changesLeftOut": left_out} if left_out else {})}
