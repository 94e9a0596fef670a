"""Edits of files that preserve comments and layout."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from koordpolicy.engine.documents import YamlNode
from koordpolicy.engine.source import Source, Span

from .subject import TextEdit


def removal(document: YamlNode, path: tuple[str | int, ...]) -> TextEdit | None:
    """Return the edit that removes a field or a list's item; a list or mapping that would be empty goes too."""
    node, parent = document.at(*path), document.at(*path[:-1])
    if node is None or parent is None:
        return None
    if len(parent.fields) + len(parent.items) == 1 and len(path) > 2:
        return removal(document, path[:-1])
    text = node.source.text
    start = node.key.start if node.key is not None else node.start
    end = _content_end(node)
    if text[parent.start] in "[{":
        return _from_flow(node.source, start, end)
    line = text.rfind("\n", 0, start) + 1
    lead = text[line:start]
    if lead.strip(" ") not in ("", "-"):
        return None
    if lead.strip(" ") == "-" and node.key is not None:  # the first field of an item follows its dash
        following = min(
            (each.place.start for each in parent.fields.values() if each.place.start > start), default=None,
        )
        return None if following is None else TextEdit(node.source, start, following, "")
    stop = text.find("\n", end)
    return TextEdit(node.source, line, len(text) if stop == -1 else stop + 1, "")


def _content_end(node: YamlNode) -> int:
    """Return the offset of a node's last character; the parser's end may include comments."""
    if isinstance(node.value, Mapping | tuple) and node.source.text[node.start] not in "[{":
        ends = [_content_end(each) for each in (*node.fields.values(), *node.items)]
        return max(ends, default=node.end)
    return len(node.source.text[: node.end].rstrip()) if node.style in ("|", ">") else node.end


def _from_flow(source: Source, start: int, end: int) -> TextEdit:
    text = source.text
    after = end
    while after < len(text) and text[after] in " \n":
        after += 1
    if after < len(text) and text[after] == ",":
        after += 1
        while after < len(text) and text[after] == " ":
            after += 1
        return TextEdit(source, start, after, "")
    before = start
    while before > 0 and text[before - 1] in " \n":
        before -= 1
    return TextEdit(source, before - 1 if text[before - 1] == "," else start, end, "")


def replacement(span: Span, old: str, new: str) -> TextEdit | None:
    """Return the edit that replaces `old` by `new`; None if the file does not contain it literally."""
    root = span.root()
    place = root.source.text.find(old, root.start, max(root.end, root.start + len(old)))
    return TextEdit(root.source, place, place + len(old), new) if place >= 0 else None


def rewriting(span: Span, new: str, quote: str) -> TextEdit | None:
    """Return the edit that writes `new` in place of a part of a scalar that begins with a quote, or with none.

    Characters that the scalar's style escapes are escaped. None if the part is written in a way that is not understood,
    as one that continues in another line.
    """
    root, old = span.root(), span.source.text[span.start : span.end]
    written = root.source.text[root.start : root.end]
    if quote not in _ESCAPED:
        return TextEdit(root.source, root.start, root.end, new) if written == old else None
    read, write = _ESCAPED[quote]
    return TextEdit(root.source, root.start, root.end, write(new)) if read(written) == old else None


def _of_double_quotes(text: str) -> str | None:
    """Return the text of a part of a scalar in double quotes, if its escape sequences are those of JSON."""
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return None


_ESCAPED: Final[Mapping[str, tuple[Callable[[str], str | None], Callable[[str], str]]]] = {
    '"': (_of_double_quotes, lambda text: json.dumps(text, ensure_ascii=False)[1:-1]),
    "'": (lambda text: text.replace("''", "'") if "'" not in text.replace("''", "") else None,
          lambda text: text.replace("'", "''")),
}
"""The functions that read and write scalars in quotes, in YAML and in JSON, by the quote."""


def apply(edits: Iterable[TextEdit]) -> dict[str, str]:
    """Return the new texts by file name. Of overlapping edits the first is applied; linting again finds the others."""
    by_file: dict[str, list[TextEdit]] = {}
    for each in edits:
        rooted = _rooted(each)
        if rooted is not None:
            by_file.setdefault(rooted.source.name, []).append(rooted)
    changed: dict[str, str] = {}
    for name, found in by_file.items():
        text, last = found[0].source.text, len(found[0].source.text) + 1
        for edit in sorted(found, key=lambda each: (each.start, each.end), reverse=True):
            if edit.end <= last:
                text = text[: edit.start] + edit.text + text[edit.end :]
                last = edit.start
        changed[name] = text
    return changed


def _rooted(edit: TextEdit) -> TextEdit | None:
    """Return the edit in the file; None for one inside a part whose lines are not those of the file."""
    return edit if edit.source.parent is None else None
