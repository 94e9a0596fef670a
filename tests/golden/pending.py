"""The pending lists: which golden cases do not pass yet, and why.

One file per suite in `pending/`, one `id<TAB>reason` per line, sorted by id; `#` begins a comment line. An id may hold
anything but line breaks and tabs, which are written as their escapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from .result import Result

DIRECTORY = Path(__file__).parent / "pending"


def as_line(name: str) -> str:
    """Return an id as it stands in a list: backslashes, tabs and line breaks escaped, a leading `#` too."""
    text = name.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
    return "\\#" + text[1:] if text.startswith("#") else text


def as_id(text: str) -> str:
    """Return the id that `as_line` wrote."""
    plain = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r", "#": "#"}
    result = []
    characters = iter(text)
    for character in characters:
        result.append(plain.get(next(characters, ""), "\\") if character == "\\" else character)
    return "".join(result)


def read(suite: str, directory: Path = DIRECTORY) -> dict[str, str]:
    """Return the reason per pending id of a suite; empty where it has no list.

    Raises:
        ValueError: a line has no reason, or an id stands there twice.
    """
    path = directory / f"{suite}.txt"
    reasons: dict[str, str] = {}
    if not path.exists():
        return reasons
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        text, _, reason = line.partition("\t")
        if not reason.strip():
            raise ValueError(f"{path.name}:{number}: `{text}` has no reason: write the id, a tab, and the reason")
        if as_id(text) in reasons:
            raise ValueError(f"{path.name}:{number}: `{text}` is listed twice")
        reasons[as_id(text)] = reason.strip()
    return reasons


def write(suite: str, results: Iterable[Result], reason: str, directory: Path = DIRECTORY) -> int:
    """Rewrite the list of a suite after a run and return how many it holds.

    What failed is listed, with the reason it had before, or else `reason`, or else what the result says where `reason`
    is empty. What passed is taken off; ids that the run did not meet stay, for they belong to other case directories.
    """
    old = read(suite, directory)
    results = list(results)
    met = {result.id for result in results}
    new = {name: why for name, why in old.items() if name not in met}
    for result in results:
        if not result.passed:
            new[result.id] = old.get(result.id) or reason or result.detail or "no reason given"
    path = directory / f"{suite}.txt"
    if new:
        path.write_text(render(suite, new), encoding="utf-8")
    else:
        path.unlink(missing_ok=True)
    return len(new)


def render(suite: str, reasons: Mapping[str, str]) -> str:
    """Return the text of a list."""
    lines = [f"# Golden cases of `{suite}` that do not pass yet: id, tab, reason. Rewritten by --write-pending."]
    lines += (f"{as_line(name)}\t{' '.join(reasons[name].split())}" for name in sorted(reasons))
    return "\n".join(lines) + "\n"
