"""The only YAML reader of the engine: text to nodes with positions.

Scalars follow YAML 1.2's core schema: `true` and `false` are the only booleans (`yes` and `on` are strings),
`012` is the decimal number twelve and `0o14` the octal one, `null` and `~` are null. Duplicate keys,
custom tags, merge keys and keys that are not scalars are errors. Size, nesting and the expansion of aliases are
bounded, so that the cost of a text is bounded by its size.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from koordpolicy.engine.source import PolicyError, Problem, Problems, Source, Span, syntax_hint

from .scalars import locate

if TYPE_CHECKING:
    from yaml.events import Event

LARGEST_FILE: Final = 10 * 1024 * 1024
"""The maximum size of a file in bytes; ten times the limit of a ConfigMap."""
DEEPEST: Final = 64
"""The maximal nesting of mappings and lists."""
_MOST_NODES: Final = 250_000
_MOST_PROBLEMS: Final = 200
_MOST_RESTARTS: Final = 20
"""The maximum number of times that reading resumes after a syntax error: each costs as much as reading the rest of the
file."""
_MOST_EXPANDED: Final = 100_000
"""The maximal number of nodes that the aliases of one file expand to."""
_MOST_EXPANDED_CHARACTERS: Final = LARGEST_FILE
"""The maximal number of characters that the aliases of one file expand to."""

Value: TypeAlias = str | int | float | bool | None

_NULL: Final = frozenset(("", "~", "null", "Null", "NULL"))
_BOOL: Final = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT: Final = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_MOST_DIGITS: Final = 1_000
_NUMBER_STARTS: Final = frozenset("+-.0123456789")
_CORE: Final = "tag:yaml.org,2002:"
_FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PIECE: Final = 1 << 16
_PROPERTIES: Final = re.compile(r"(?:[&!]\S*(?:\s+|#[^\n]*\n)*)+")
"""An anchor or a tag and the text before its scalar, which cannot begin with `&` or `!`."""
_MARKER: Final = re.compile(r"^---(?=\s|$)", re.MULTILINE)


@dataclass(frozen=True, eq=False)
class YamlNode:
    """A scalar, a list or a mapping of a YAML document.

    `value` is the scalar's value, a tuple of nodes, or a mapping from key to node. `key` is the place of the node's
    key; `size` the number of nodes in it, and `characters` that of their scalars and keys, aliases expanded.
    """

    source: Source
    start: int
    end: int
    value: Value | tuple[YamlNode, ...] | Mapping[str, YamlNode]
    key: Span | None = None
    style: str = ""
    text: str = ""
    """A scalar's text before it was resolved to a number, a boolean or null."""
    size: int = 1
    characters: int = 0

    @property
    def span(self) -> Span:
        """The place of the value; of a mapping or a list in block style it is its first line."""
        if isinstance(self.value, tuple | Mapping) or self.style in ("|", ">"):
            line_end = self.source.text.find("\n", self.start)
            end = self.end if line_end == -1 else min(self.end, line_end)
            return Span(self.source, self.start, max(end, self.start + 1))
        return Span(self.source, self.start, max(self.end, self.start + 1))

    @property
    def place(self) -> Span:
        """The place of the key, or of the value if there is no key: problems of the field point at it."""
        return self.key or self.span

    @property
    def fields(self) -> Mapping[str, YamlNode]:
        """The fields of a mapping; empty for anything else."""
        return self.value if isinstance(self.value, Mapping) else {}

    @property
    def items(self) -> tuple[YamlNode, ...]:
        """The items of a list; empty for anything else."""
        return self.value if isinstance(self.value, tuple) else ()

    @property
    def scalar(self) -> Value:
        """The value of a scalar; None for anything else."""
        return None if isinstance(self.value, tuple | Mapping) else self.value

    @cached_property
    def part(self) -> Source:
        """The text of a scalar as a part of its file, each character in its place."""
        return self.source.part(self.text, locate(self.source.text, self.start, self.end, self.style, self.text))

    def at(self, *path: str | int) -> YamlNode | None:
        """Return the node at a path of keys and list positions, or None."""
        node: YamlNode | None = self
        for step in path:
            if node is None:
                return None
            if isinstance(step, str):
                node = node.fields.get(step)
            else:
                items = node.items
                node = items[step] if -len(items) <= step < len(items) else None
        return node

    def walk(self) -> Iterator[YamlNode]:
        """Yield this node and all below it."""
        yield self
        below = self.value.values() if isinstance(self.value, Mapping) else self.items
        for node in below:
            yield from node.walk()


def to_plain(node: YamlNode) -> Any:
    """Return the node as plain data: dicts, lists and scalars."""
    value = node.value
    if isinstance(value, Mapping):
        return {key: to_plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [to_plain(each) for each in value]
    return value


def decode(name: str, data: bytes, *, limit: int = LARGEST_FILE) -> Source:
    """Return bytes as a source of that name; raises `PolicyError` if they are too many or not UTF-8."""
    if len(data) > limit:
        raise PolicyError([Problem(
            f"`{name}` is larger than {limit} bytes", Source(name, "").span(0), "split it into several files",
            code="too-large",
        )])
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise PolicyError([Problem(
            "the file is UTF-16", Source(name, "").span(0), "save it as UTF-8", code="not-utf-8",
        )])
    text = ""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for first in range(0, len(data), _PIECE):
        buffered = len(decoder.getstate()[0])
        try:
            piece = decoder.decode(data[first:first + _PIECE], final=first + _PIECE >= len(data))
        except UnicodeDecodeError as error:
            start = first - buffered + error.start
            before = data[:start].decode("utf-8")
            source = Source(name, before + data[start:][:200].decode("utf-8", "replace"))
            raise PolicyError([Problem(
                f"byte 0x{data[start]:02x} at offset {start} is not UTF-8", source.span(len(before)),
                "save the file as UTF-8", code="not-utf-8",
            )]) from None
        # The text grows in place: to join all pieces would hold the interpreter while new memory is written to.
        text += piece if text else piece.removeprefix("\ufeff")
    return Source(name, text)


def read_file(path: Path, *, name: str = "", limit: int = LARGEST_FILE) -> Source:
    """Return a file as a source, never reading more than `limit` bytes (and one); raises `PolicyError`."""
    shown = name or str(path)
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise PolicyError([
            Problem(f"cannot read `{shown}`: {reason}", Source(shown, "").span(0), code="unreadable"),
        ]) from None
    return decode(shown, data, limit=limit)


def _forbidden(text: str) -> re.Match[str] | None:
    # In pieces: a single search through a megabyte blocks other threads for 5 ms.
    for start in range(0, len(text), _PIECE):
        if (found := _FORBIDDEN.search(text, start, start + _PIECE)) is not None:
            return found
    return None


def read(source: Source, problems: Problems | None = None) -> tuple[YamlNode, ...]:
    """Return the documents of a YAML (or JSON) text, without empty ones.

    With `problems`, problems are added to it and the readable documents are returned; without, `PolicyError` is raised.
    After a syntax error reading resumes at the next `---`.
    """
    gathered = Problems() if problems is None else problems
    found = gathered.found
    nodes: list[YamlNode] = []
    bad = _forbidden(source.text)
    if bad is not None:
        shown = f"U+{ord(bad[0]):04X}"
        gathered.add(
            f"the character {shown} is not allowed in YAML", source.span(bad.start()),
            help="is this a text file?" if "\0" in source.text else "write it as an escape in double quotes",
            code="yaml-syntax",
        )
    else:
        start = 0
        for _ in range(_MOST_RESTARTS):
            following = _read_from(source, start, nodes, found)
            if following is None:
                break
            start = following
    if problems is None:
        gathered.raise_errors()
    return tuple(node for node in nodes if node.value is not None)


class _Stream:
    """A text from an offset on, as a stream: the parser reads it in pieces, and other threads have their turn after
    each piece, also within a long comment or scalar.
    """

    def __init__(self, text: str, start: int) -> None:
        self._text = text
        self._start = start

    def read(self, size: int) -> str:
        """Return the next `size` characters; fewer at the end."""
        begin, self._start = self._start, self._start + size
        return self._text[begin:self._start]


def _read_from(source: Source, start: int, nodes: list[YamlNode], found: list[Problem]) -> int | None:
    """Read documents from an offset; return the offset to resume at after a syntax error."""
    import yaml  # noqa: PLC0415 - not every command reads YAML

    # The parser in C is ten times as fast; the one in Python is used if PyYAML was built without it.
    loader: Any = getattr(yaml, "CLoader", yaml.Loader)
    parser = loader(_Stream(source.text, start))
    composer = _Composer(source, start, found)
    try:
        while True:
            event = parser.get_event()
            if event is None:
                return None
            node = composer.take(event)
            if node is not None:
                nodes.append(node)
    except _StopReading:
        return None
    except yaml.MarkedYAMLError as error:
        offset = _report(source, start, error, found)
    except yaml.YAMLError as error:  # pragma: no cover - characters are looked at before
        found.append(Problem(f"not YAML: {error}", source.span(start), code="yaml-syntax"))
        return None
    finally:
        parser.dispose()
    following = _MARKER.search(source.text, offset)
    return following.start() if following and following.start() > start else None


def _report(source: Source, start: int, error: Any, found: list[Problem]) -> int:
    mark = error.problem_mark or error.context_mark
    offset = start + (mark.index if mark else 0)
    message = str(error.problem or error.context or "not YAML").strip()
    context = error.context or ""
    if context and error.context_mark is not None:
        line, column = source.position(start + error.context_mark.index)
        elsewhere = context != message and error.context_mark.index != (mark.index if mark else -1)
        context = f", {context} that begins at {line}:{column}" if elsewhere else ""
    place = min(offset, max(len(source.text.rstrip()) - 1, 0)) if offset >= len(source.text.rstrip()) else offset
    found.append(Problem(f"{message}{context}", source.span(place), syntax_hint(source.text, place, message),
                         code="yaml-syntax"))
    return offset


class _StopReading(Exception):
    """A bound was exceeded: the rest of the text is not read."""


@dataclass(slots=True)
class _Open:
    """A list or a mapping that is being read."""

    start: int
    mapping: bool
    anchor: str | None
    key: Span | None
    items: list[YamlNode]
    fields: dict[str, YamlNode]
    is_key: bool = False
    pending: tuple[str, Span] | None = None
    skipping: bool = False
    size: int = 1
    characters: int = 0


class _Composer:
    """Builds nodes from events, one document after the other, without recursion."""

    def __init__(self, source: Source, offset: int, found: list[Problem]) -> None:
        import yaml.events  # noqa: PLC0415 - as above

        self.kinds = yaml.events
        self.source = source
        self.offset = offset
        self.found = found
        self.open: list[_Open] = []
        self.anchors: dict[str, YamlNode | None] = {}
        self.expanded = self.expanded_characters = 0
        self.events = 0
        self.before = len(found)

    def problem(self, message: str, span: Span, hint: str = "", code: str = "yaml-syntax") -> None:
        self.found.append(Problem(message, span, hint, code=code))
        if len(self.found) - self.before >= _MOST_PROBLEMS:
            raise _StopReading

    def take(self, event: Event) -> YamlNode | None:
        """Process one event; return a document when it is complete."""
        kinds = self.kinds
        self.events += 1
        if self.events > _MOST_NODES:
            self.problem(
                f"there are more than {_MOST_NODES} nodes in this file", self.span_of(event),
                "split it into several files", "too-large",
            )
            raise _StopReading
        if isinstance(event, kinds.ScalarEvent):
            return self.scalar(event)
        if isinstance(event, kinds.CollectionStartEvent):
            self.begin(event, mapping=isinstance(event, kinds.MappingStartEvent))
        elif isinstance(event, kinds.CollectionEndEvent):
            return self.end(event)
        elif isinstance(event, kinds.AliasEvent):
            return self.alias(event)
        elif isinstance(event, kinds.DocumentStartEvent):
            self.anchors = {}
        return None

    def span_of(self, event: Any) -> Span:
        start, end = self.offset + event.start_mark.index, self.offset + event.end_mark.index
        line_end = self.source.text.find("\n", start)
        return Span(self.source, start, max(start + 1, end if line_end == -1 else min(end, line_end)))

    def awaits_key(self) -> bool:
        return bool(self.open) and self.open[-1].mapping and self.open[-1].pending is None

    def key_of_next(self) -> Span | None:
        pending = self.open[-1].pending if self.open else None
        return pending[1] if pending else None

    def scalar(self, event: Any) -> YamlNode | None:
        start, end = self.offset + event.start_mark.index, self.offset + event.end_mark.index
        text: str = event.value
        style: str = event.style or ""
        if self.awaits_key():
            self.begin_field(text, Span(self.source, start, max(end, start + 1)), plain=not style)
            return None
        if (properties := _PROPERTIES.match(self.source.text, start, end)) is not None:
            start = properties.end()
        value = self.understand(event, text, style)
        node = YamlNode(self.source, start, end, value, self.key_of_next(), style, text, characters=len(text))
        if event.anchor:
            self.anchors[event.anchor] = node
        return self.add(node)

    def begin_field(self, key: str, span: Span, *, plain: bool) -> None:
        mapping = self.open[-1]
        mapping.pending = (key, span)
        mapping.characters += len(key)
        if key == "<<" and plain:
            self.problem("merge keys are not part of YAML 1.2", span, "write the fields out")
            mapping.skipping = True
        elif (first := mapping.fields.get(key)) is not None:
            line, column = self.source.position(first.place.start)
            self.problem(
                f"the key `{key}` is here twice, first at {line}:{column}", span, "remove one of them", "duplicate-key",
            )
            mapping.skipping = True

    def understand(self, event: Any, text: str, style: str) -> Value:
        tag = event.tag
        if tag in (None, "!"):
            if style or tag == "!":
                return text
            return self.plain(text, event)
        name = tag.removeprefix(_CORE)
        if name == "str":
            return text
        value = self.plain(text, event)
        types: dict[str, tuple[type, ...]] = {
            "int": (int,), "float": (int, float), "bool": (bool,), "null": (type(None),),
        }
        if tag == name or name not in types:
            own = tag.startswith("!") and not style
            hint = "put quotes around all of it: a `!` at the start makes a tag" if own else "remove it"
            self.problem(f"the tag `{tag}` is not supported", self.span_of(event), hint)
            return text if style else value
        if type(value) not in types[name]:
            self.problem(f"`{text}` is not of the type `!!{name}`", self.span_of(event))
        return float(value) if name == "float" and isinstance(value, int) else value

    def plain(self, text: str, event: Any) -> Value:
        if text in _NULL:
            return None
        if text in _BOOL:
            return _BOOL[text]
        if text[0] not in _NUMBER_STARTS:
            return text
        if _INT.fullmatch(text):
            if len(text) <= _MOST_DIGITS:
                number = int(text, 0) if text[1:2] in ("o", "x") else int(text)
                if -(2**63) <= number < 2**64:
                    return number
            self.problem(f"the number {text[:40]} does not fit in 64 bits", self.span_of(event), code="out-of-range")
            # Other problems of the field must be true of the text: this is the nearest number in 64 bits.
            return -(2**63) if text[0] == "-" else 2**63 - 1
        if _FLOAT.fullmatch(text):
            return float(text)
        if _SPECIAL.fullmatch(text):
            return float(text.replace(".", "", 1))
        return text

    def begin(self, event: Any, *, mapping: bool) -> None:
        if len(self.open) >= DEEPEST:
            self.problem(f"nested deeper than {DEEPEST} levels", self.span_of(event), "flatten it", "too-deep")
            raise _StopReading
        is_key = self.awaits_key()
        if is_key:
            self.problem("a key must be a string", self.span_of(event), "is a `{{ }}` template not quoted?")
        expected = f"{_CORE}{'map' if mapping else 'seq'}"
        if event.tag not in (None, "!", expected):
            self.problem(f"the tag `{event.tag}` is not supported", self.span_of(event), "remove it")
        if event.anchor:
            self.anchors[event.anchor] = None
        start = self.offset + event.start_mark.index
        self.open.append(_Open(start, mapping, event.anchor, self.key_of_next(), [], {}, is_key))

    def end(self, event: Any) -> YamlNode | None:
        done = self.open.pop()
        value: tuple[YamlNode, ...] | Mapping[str, YamlNode] = done.fields if done.mapping else tuple(done.items)
        end = self.offset + event.end_mark.index
        node = YamlNode(
            self.source, done.start, max(end, done.start + 1), value, done.key, size=done.size,
            characters=done.characters,
        )
        if done.anchor:
            self.anchors[done.anchor] = node
        if done.is_key:  # already reported: its value is read and ignored
            self.open[-1].pending, self.open[-1].skipping = ("", node.span), True
            return None
        return self.add(node)

    def alias(self, event: Any) -> YamlNode | None:
        span = self.span_of(event)
        if self.awaits_key():
            self.problem("a key must be a string", span, "write the key out")
            self.open[-1].pending = ("", span)
            self.open[-1].skipping = True
            return None
        node = self.anchors.get(event.anchor)
        if node is None:
            known = event.anchor in self.anchors
            self.problem(
                f"`*{event.anchor}` stands inside of what it stands for" if known
                else f"no anchor `&{event.anchor}` before this", span, "write the value out", "bad-alias",
            )
            return self.add(YamlNode(self.source, span.start, span.end, None, self.key_of_next()))
        self.expanded += node.size
        self.expanded_characters += node.characters
        if self.expanded > _MOST_EXPANDED or self.expanded_characters > _MOST_EXPANDED_CHARACTERS:
            most = (
                f"{_MOST_EXPANDED} nodes" if self.expanded > _MOST_EXPANDED
                else f"{_MOST_EXPANDED_CHARACTERS} characters"
            )
            self.problem(
                f"the aliases of this file stand for more than {most}", span, "write the values out", "alias-bomb",
            )
            raise _StopReading
        copy = YamlNode(
            node.source, node.start, node.end, node.value, self.key_of_next(), node.style, node.text, node.size,
            node.characters,
        )
        return self.add(copy)

    def add(self, node: YamlNode) -> YamlNode | None:
        if not self.open:
            return node
        holder = self.open[-1]
        holder.size += node.size
        holder.characters += node.characters
        if not holder.mapping:
            holder.items.append(node)
            return None
        if holder.pending is not None and not holder.skipping:
            holder.fields[holder.pending[0]] = node
        holder.pending, holder.skipping = None, False
        return None
