"""Documents as objects of an API server: where each kind is served, and an object as the text that is compiled.

The text of an object is JSON in which every field has a line. People never see it: a problem in it has the path of its
field instead of line and column.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from koordpolicy.engine.source import Problems, Source

from .nodes import YamlNode, read
from .specs import Kind

APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
"""The annotation in which `kubectl apply` stores the whole object a second time."""
_PIECE: Final = 1 << 16
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPED: Final = re.compile("[^\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


PLURALS: Final[Mapping[Kind, str]] = {
    Kind.SCHEDULER: "schedulerplugins",
    Kind.QOS: "qosplugins",
    Kind.DESCHEDULER: "deschedulerplugins",
    Kind.PARAMS: "policyparams",
}
"""The names under which an API server has the kinds; PolicyTests stay beside the files that they test."""


def text_of(content: Mapping[str, Any]) -> str:
    """Return an object as JSON text that reads as YAML to the same values."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    # YAML takes some characters for line breaks, and refuses others. In pieces: one call holds the interpreter.
    return "".join(_ESCAPED.sub(_escape, text[first:first + _PIECE]) for first in range(0, len(text), _PIECE))


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found.group()):04x}"


def object_source(name: str, text: str) -> Source:
    """Return the text of an object as a source with this display name, whose problems name fields."""
    return Source(name, text, field_at=functools.partial(_field_at, text))


def _field_at(text: str, offset: int) -> str:
    """Return the path of the innermost field at an offset of an object's text; empty for the object itself."""
    nodes = _nodes(text)
    path = ""
    node = nodes[0] if nodes else None
    while node is not None:
        inner = None
        for key, each in node.fields.items():
            if each.start <= offset < each.end or (each.key is not None and each.key.start <= offset < each.key.end):
                inner, path = each, f"{path}.{key}" if _NAME.fullmatch(key) else f"{path}[{json.dumps(key)}]"
        for number, each in enumerate(node.items):
            if each.start <= offset < each.end:
                inner, path = each, f"{path}[{number}]"
        node = inner
    return path.removeprefix(".")


@functools.lru_cache(maxsize=8)
def _nodes(text: str) -> tuple[YamlNode, ...]:
    return tuple(read(Source("", text), Problems()))
