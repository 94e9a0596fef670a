"""Escaping of untrusted text for terminals, CI logs and machine-readable reports.

Names, labels, messages and file names of objects, documents and files may contain terminal control sequences,
bidirectional controls, invisible characters, and lines that a CI system interprets as commands. None of these is
printed; each removed character is replaced by U+FFFD.
"""

from __future__ import annotations

import re
from typing import Final

_FORBIDDEN: Final = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but tab and line feed
    r"\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb"
    r"\U0001d173-\U0001d17a\U000e0000-\U000e0fff"  # what is not seen, or turns the reading direction
    r"\ud800-\udfff"  # halves of characters, which no encoding has
)
_HIDDEN: Final = re.compile(f"[{_FORBIDDEN}]")
_COMMAND: Final = re.compile(r"(?m)^([^\S\n]*)::|##(?=(?:vso|teamcity|section|command)?\[)")
"""Commands of CI systems: GitHub reads `::` at the start of a line; GitHub, Azure Pipelines and TeamCity read `##[` and
`##name[` anywhere."""
_BREAKS: Final = re.compile(r"\s*\n\s*")


def visible(text: str) -> str:
    """Return text of any number of lines without terminal control sequences and CI commands.

    Line feeds and tabs stay. `::` at the start of a line becomes `\\::`, `##[` becomes `#\\#[`.
    """
    if _HIDDEN.search(text):
        text = _HIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
    return _COMMAND.sub(_quoted, text) if "::" in text or "##" in text else text


def one_line(text: str) -> str:
    """Return `visible` text in one line: a line feed and the blanks around it become one blank."""
    return visible(_BREAKS.sub(" ", text) if "\n" in text else text)


def visible_json(text: str) -> str:
    """Return equivalent JSON with all such characters and commands in its texts escaped."""
    if _HIDDEN.search(text):
        text = _HIDDEN.sub(_escaped, text)
    return text.replace("##", "#\\u0023") if "##" in text else text


def _quoted(found: re.Match[str]) -> str:
    return "#\\#" if found[0] == "##" else f"{found[1]}\\::"


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xd800 + (code >> 10):04x}\\u{0xdc00 + (code & 0x3ff):04x}"
