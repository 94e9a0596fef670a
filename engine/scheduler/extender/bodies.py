"""Untrusted request bodies: elements are counted before anything is decoded, and whole nodes remain bytes.

Decoding costs up to 30 bytes of memory per byte and holds the interpreter meanwhile, so that the decoded part is
bounded, and the part that is only passed through (the nodes of `nodeCacheCapable: false`) is copied unchanged. This
module is the only one that uses msgspec.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

import msgspec
import numpy as np

from koordpolicy.engine import strict_json
from koordpolicy.engine.kubernetes.objects import json_kind, parse_fault

from .blocks import WHOLE, Blocks, Rest, free
from .pod_binder import Binding

MOST_ELEMENTS: Final = 125_000
"""Elements, by their commas, of a body up to 512 KiB, and of the end of a larger one."""
MOST_OBJECT_ELEMENTS: Final = 50_000
"""Elements (members and items, by their commas and opening brackets) of one object that is decoded."""
MOST_OBJECT_BYTES: Final = 2 * 1024 * 1024
"""Bytes of one object; the API server stores at most 1.5 MiB."""
MOST_NAMES: Final = 100_000
"""The maximum number of node names in one request."""
MOST_NODES: Final = 20_000
"""The maximum number of whole nodes in one request."""
DEEPEST: Final = 100
"""Levels of nesting of an object that is decoded; those of Kubernetes have about 15."""
ELEMENT_BYTES: Final = 120
"""The maximum memory of one decoded element, beside its text."""

_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9])?")
_BEGINS: Final = re.compile(rb'\s*\{\s*"metadata"\s*:\s*\{\s*"name"\s*:\s*"([^"\\]{1,253})"')
_SLICE: Final = 1 << 16
_LIST: Final = re.compile(rb'"(items|NodeNames)"\s{0,99}:\s{0,99}\[')
_MOST_TRIALS: Final = 64
"""Matches of a pattern that turn out to be elsewhere than in the list of nodes."""
_PIECE: Final = 64 * 1024
"""Bytes of a list that are decoded in one call, and up to the end of an item."""
_LONGEST_VALUE: Final = 128 * 1024
"""Bytes of JSON that are decoded in one call."""
_LONGEST_COMPLAINT: Final = 1 << 20
_ENVELOPE: Final = "the body must be an object with `Pod` and `Nodes` or `NodeNames`"
_MARKS: Final = tuple(b",{[")
_MARK: Final = b'"%b"' % secrets.token_hex(16).encode()
"""A text that no body has."""
_Type = TypeVar("_Type")


class MalformedBody(ValueError):
    """A malformed body; the message names the fault and its place."""


class ExcessiveError(MalformedBody):
    """A body that exceeds a bound; the message names the bound."""


@dataclass(frozen=True, slots=True)
class SentNode:
    """A node of a request: its JSON, and the metadata that distinguishes its versions."""

    name: str
    uid: str
    version: str
    raw: msgspec.Raw

    def decoded(self) -> dict[str, Any]:
        """Return the object as listings have it: with the kind that Go leaves out, without managed fields.

        Raises:
            MalformedBody: it is nothing that can be read.
        """
        item = read_object(self.raw)
        item["metadata"].pop("managedFields", None)
        return {"apiVersion": "v1", "kind": "Node", **item}


@dataclass(frozen=True, slots=True)
class Envelope:
    """ExtenderArgs, of which only the pod is decoded: the nodes come by name or whole, and the other is None."""

    pod: object
    names: Sequence[str] | None
    nodes: list[SentNode] | None
    weight: int = 0
    """The most bytes of memory that the pod takes."""


class _Metadata(msgspec.Struct, gc=False):
    name: str = ""
    uid: str | None = None
    resourceVersion: str | None = None  # noqa: N815 - as in the JSON


class _Head(msgspec.Struct, gc=False):
    metadata: _Metadata


_NULL: Final = msgspec.Raw(b"null")


class _Nodes(msgspec.Struct, forbid_unknown_fields=True):
    items: list[msgspec.Raw] | None = None
    """Go writes an empty list as null."""
    metadata: msgspec.Raw = _NULL
    kind: msgspec.Raw = _NULL
    apiVersion: msgspec.Raw = _NULL  # noqa: N815 - as in the JSON


class _Arguments(msgspec.Struct, forbid_unknown_fields=True):
    Pod: msgspec.Raw = _NULL
    Nodes: _Nodes | None = None
    NodeNames: msgspec.Raw = _NULL


_arguments: Final = msgspec.json.Decoder(_Arguments)
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items: Final = msgspec.json.Decoder(list[msgspec.Raw])
_heads: Final = msgspec.json.Decoder(_Head)
_texts: Final = msgspec.json.Decoder(list[str])
_text: Final = msgspec.json.Decoder(str)


def count_elements(body: bytes | bytearray | msgspec.Raw) -> int:
    """Return how many elements JSON can have at most: its commas and opening brackets, also those within strings."""
    return _count(body, _MARKS)


def _count(body: bytes | bytearray | msgspec.Raw, marks: tuple[int, ...]) -> int:
    text = np.frombuffer(body, np.uint8)
    count = 1
    for first in range(0, len(text), _SLICE):  # a slice stays in the processor's cache
        part = text[first:first + _SLICE]
        for mark in marks:
            count += int(np.count_nonzero(part == mark))
    return count


def weight_of(text: bytes) -> int:
    """Return the most bytes that JSON, together with what it decodes to, takes in memory."""
    return 2 * len(text) + ELEMENT_BYTES * (1 + text.count(b",") + text.count(b"{") + text.count(b"["))


class NodeReader:
    """Reads names and versions of nodes, once per content: most nodes are sent unchanged again and again.

    Caches the JSON of the last node of each name, `most` bytes in total.
    """

    def __init__(self, most: int = 48 * 1024 * 1024) -> None:
        self._most = most
        self._bytes = 0
        self._known: dict[bytes, SentNode] = {}

    def read(self, items: Sequence[msgspec.Raw]) -> list[SentNode]:
        """Return the nodes; raises `MalformedBody` with its place in the list where one is none."""
        if len(items) > MOST_NODES:
            raise ExcessiveError(f"`Nodes` has {len(items)} items, at most {MOST_NODES} are read")
        sent: list[SentNode] = []
        try:
            self._read(items, sent)
        except MalformedBody:
            free(sent)
            raise
        return sent

    def _read(self, items: Sequence[msgspec.Raw], sent: list[SentNode]) -> None:
        known = self._known
        for place, raw in enumerate(items):
            begins = _BEGINS.match(memoryview(raw))
            node = known.get(begins[1]) if begins is not None else None
            if node is None or node.raw != raw:
                node = _head_of(place, raw)
                if begins is not None:
                    node = self._remember(bytes(begins[1]), node)
            sent.append(node)

    def _remember(self, name: bytes, node: SentNode) -> SentNode:
        copy = replace(node, raw=node.raw.copy())  # the node of a request holds the whole body
        before = self._known.pop(name, None)
        self._bytes += len(memoryview(copy.raw)) - (0 if before is None else len(memoryview(before.raw)))
        self._known[name] = copy
        while self._bytes > self._most:
            self._bytes -= len(memoryview(self._known.pop(next(iter(self._known))).raw))
        return copy


@dataclass(slots=True)
class _Found:
    """ExtenderArgs, of which nothing but names is decoded."""

    pod: msgspec.Raw
    names: Sequence[str] | None
    items: list[msgspec.Raw] | None


def read_envelope(body: bytes | bytearray | Blocks, reader: NodeReader | None = None) -> Envelope:
    """Read ExtenderArgs; keys of the envelope count in any case, as for Go (older types had lower-case ones), but for
    those of a body that is larger than an object may be. Blocks are taken.

    Raises:
        MalformedBody: it is none.
        ExcessiveError: there is more in it than is read.
    """
    found = _find(body)
    pod, weight = _value(found.pod), weight_of(bytes(found.pod))
    if found.items is None:
        return Envelope(pod, found.names, None, weight)
    try:
        return Envelope(pod, None, (reader or NodeReader()).read(found.items), weight)
    finally:
        free(found.items)


def _find(body: bytes | bytearray | Blocks) -> _Found:
    if len(body) > WHOLE:
        found = _in_pieces(body if isinstance(body, Blocks) else Blocks.of(body))
        if isinstance(found, _Found):
            return found
        body = found
    elif isinstance(body, Blocks):
        body = body.joined()
    try:
        arguments = _arguments_of(body)
    except ExcessiveError:
        raise
    except (ValueError, RecursionError):
        arguments = _loosely(body)
    return _found(arguments.Pod, arguments.Nodes,
                  None if arguments.NodeNames == _NULL else _names_of(arguments.NodeNames))


def _found(pod: msgspec.Raw, nodes: _Nodes | None, names: Sequence[str] | None) -> _Found:
    if nodes is None:
        return _Found(pod, names, None)
    if names is not None:
        raise MalformedBody("both `Nodes` and `NodeNames` are given: kube-scheduler sends one of them")
    return _Found(pod, None, nodes.items or [])


def _in_pieces(body: Blocks) -> _Found | bytes:
    """Read a large body as kube-scheduler writes it; return one that is not written so as one piece, if it is short.

    The list of nodes, or of their names, is cut where an item seems to begin. Wherever else such bytes may be: that
    all pieces are lists of JSON values proves that the whole is one, with the same items.
    """
    rest = Rest(body)
    begin = _begin_of(rest)
    if begin is None:
        whole = rest.all(MOST_OBJECT_BYTES)
        if whole is None:
            raise ExcessiveError(
                f"the body has {len(body)} bytes, at most {MOST_OBJECT_BYTES} are read where it is not written as "
                "kube-scheduler does it: `Pod` with at most as many, then the list of `Nodes` or `NodeNames`")
        return whole
    if begin.Nodes is None:
        names, end = _list_of(rest, _NAMES)
        names += _names_of(end.NodeNames)[1:]
        if len(names) > MOST_NAMES:
            raise _too_many(_NAMES.name, MOST_NAMES)
        return _found(begin.Pod if end.Pod == _NULL else end.Pod, end.Nodes, names)
    items, end = _list_of(rest, _NODES)
    if end.Nodes is not None:
        items += (end.Nodes.items or [])[1:]
    return _found(begin.Pod if end.Pod == _NULL else end.Pod, _Nodes(items),
                  None if end.NodeNames == _NULL else _names_of(end.NodeNames))


def _begin_of(rest: Rest) -> _Arguments | None:
    """Remove what is before the first item of the list of nodes or names, and return it; None if that is not found."""
    for match in itertools.islice(rest.matches(_LIST, 0, MOST_OBJECT_BYTES), _MOST_TRIALS):
        whole = match[1] == b"items"
        try:
            # A mark in the place of the items shows which list it is that begins here.
            found = _arguments.decode(rest.until(match.end()) + _MARK + (b"]}}" if whole else b"]}"))
        except (ValueError, RecursionError):
            continue
        if whole:
            items = None if found.Nodes is None else found.Nodes.items
        else:
            items = _items.decode(found.NodeNames) if found.Nodes is None else None
        if items == [msgspec.Raw(_MARK)]:
            rest.drop(match.end())
            return found
    return None


@dataclass(frozen=True, slots=True)
class _List(Generic[_Type]):
    """One of the two lists that may be long."""

    name: str
    begin: bytes
    """ExtenderArgs up to its first item."""
    items: msgspec.json.Decoder[list[_Type]]
    between: re.Pattern[bytes]
    """Matches where an item seems to begin, with the comma before it."""
    most: int


_NODES: Final = _List(
    "Nodes", b'{"Nodes":{"items":[', _items,
    re.compile(rb'\}\s{0,99}(,)\s{0,99}\{\s{0,99}"(?:metadata|kind|apiVersion|spec|status)"\s{0,99}:'), MOST_NODES)
_NAMES: Final = _List("NodeNames", b'{"NodeNames":[', _texts, re.compile(rb'"\s{0,99}(,)\s{0,99}"'), MOST_NAMES)


def _list_of(rest: Rest, kind: _List[_Type]) -> tuple[list[_Type], _Arguments]:
    """Remove all; return the items but the last, and the arguments after them with a mark and the last item."""
    found: list[_Type] = []
    try:
        return found, _take_list(rest, kind, found)
    except MalformedBody:
        free(found)
        raise


def _take_list(rest: Rest, kind: _List[_Type], found: list[_Type]) -> _Arguments:
    while True:
        piece, fault = _next_piece(rest, kind)
        if piece is None:
            break
        found += piece
        if len(found) > kind.most:
            raise _too_many(kind.name, kind.most)
    last = rest.all(MOST_OBJECT_BYTES + WHOLE)
    if last is None:
        raise fault or ExcessiveError(f"an item of `{kind.name}` has more than the {MOST_OBJECT_BYTES} bytes that are "
                                      "read")
    empty = not found and last.lstrip().startswith(b"]")
    try:
        return _arguments_of(b"%b%b%b%b" % (kind.begin, _MARK, b"" if empty else b",", last))
    except RecursionError:
        raise _too_deep("the body") from None
    except ExcessiveError:
        raise
    except ValueError as error:
        raise MalformedBody(f"the body is not readable JSON: {error}") from None


def _next_piece(rest: Rest, kind: _List[_Type]) -> tuple[list[_Type] | None, MalformedBody | None]:
    """Remove some items of a list and return them; None if there is nothing after them, or what was wrong with them."""
    fault: MalformedBody | None = None
    for trial, match in enumerate(rest.matches(kind.between, _PIECE, MOST_OBJECT_BYTES)):
        text = rest.until(match.start(1))
        if len(text) > _LONGEST_VALUE:
            _check_count(text, 2 * MOST_OBJECT_ELEMENTS, f"an item of `{kind.name}`")
        try:
            piece = kind.items.decode(b"[%b]" % text)
        except RecursionError:
            return None, _too_deep("the body")
        except msgspec.ValidationError as error:
            return None, MalformedBody(f"`{kind.name}` must be a list of strings: {error}")
        except ValueError as error:
            # What seems to begin there is part of an item, unless nothing can be read at all.
            fault = fault or MalformedBody(f"the body is not readable JSON: {error}")
            if trial < _MOST_TRIALS:
                continue
            return None, fault
        if not piece:
            return None, fault
        rest.drop(match.end(1))
        return piece, None
    return None, fault


def _too_many(what: str, most: int) -> ExcessiveError:
    return ExcessiveError(f"`{what}` has more than the {most} items that are read")


def _arguments_of(body: bytes | bytearray) -> _Arguments:
    """Return the arguments as kube-scheduler writes them; raises `ExcessiveError`, or `ValueError` for other bodies."""
    if len(body) > 2 * MOST_ELEMENTS:
        # Cutting out a list takes 0.1 us for each item, and its length is known only then.
        count = _count(body, _MARKS[:1])
        if count > MOST_ELEMENTS:
            raise ExcessiveError(f"the body, or a part of it, has up to {count} elements, at most {MOST_ELEMENTS} are "
                                 "read in one piece")
    return _arguments.decode(body)


def _loosely(body: bytes | bytearray) -> _Arguments:
    """Return the arguments where they are not written as kube-scheduler writes them; it takes several passes."""
    fields = _members_of(body)
    nodes = fields.get("nodes")
    if nodes is None:
        return _Arguments(fields.get("pod", _NULL), None, fields.get("nodenames", _NULL))
    items = _folded(_cut(_members, nodes, "`Nodes` must be a list of nodes")).get("items")
    found = None if items is None else _cut(_items, items, "`Nodes.items` must be a list")
    return _Arguments(fields.get("pod", _NULL), _Nodes(found), fields.get("nodenames", _NULL))


def read_binding(body: bytes | bytearray) -> Binding:
    """Read ExtenderBindingArgs; keys count in any case.

    Raises:
        MalformedBody: it is none.
    """
    fields = {key.lower(): value for key, value in read_object(body).items()}
    texts: list[str] = []
    for name in ("PodNamespace", "PodName", "PodUID", "Node"):
        text = fields.get(name.lower())
        if not isinstance(text, str) or not text:
            raise MalformedBody(f"`{name}` is missing" if text in (None, "") else
                            f"`{name}` must be a string, not {json_kind(text)}")
        if not _NAME.fullmatch(text):
            raise MalformedBody(f"`{name}` is `{text[:100]}`, which is not the name of an object")
        texts.append(text)
    return Binding(*texts)


def read_pod(body: bytes | bytearray | Blocks) -> object:
    """Return the pod of a body that is a Pod, or ExtenderArgs with one. Blocks are taken.

    Raises:
        MalformedBody: the body is not an object.
        ExcessiveError: there is more in it than is read.
    """
    if len(body) > WHOLE:
        found = _in_pieces(body if isinstance(body, Blocks) else Blocks.of(body))
        if isinstance(found, _Found):
            return _value(found.pod)
        body = found
    elif isinstance(body, Blocks):
        body = body.joined()
    try:
        pod = _arguments_of(body).Pod
    except ExcessiveError:
        raise
    except (ValueError, RecursionError):
        pod = _NULL
    if pod != _NULL:
        return _value(pod)
    fields = _members_of(body)
    return _value(fields["pod"]) if "pod" in fields else read_object(body)


def read_object(body: bytes | bytearray | msgspec.Raw) -> dict[str, Any]:
    """Decode a body that is one JSON object.

    Raises:
        MalformedBody: it is none.
        ExcessiveError: it has too many elements.
    """
    data = _value(body)
    if not isinstance(data, dict):
        raise MalformedBody(f"{_ENVELOPE}, not {json_kind(data)}")
    return data


def _names_of(names: msgspec.Raw) -> list[str]:
    _check_count(names, MOST_NAMES, "`NodeNames`")
    try:
        return _texts.decode(names)
    except (ValueError, RecursionError):
        found = _value(names)
    if not isinstance(found, list):
        raise MalformedBody(f"`NodeNames` must be a list of strings, not {json_kind(found)}")
    place = next((place for place, name in enumerate(found) if not isinstance(name, str)), -1)
    if place >= 0:
        raise MalformedBody(f"`NodeNames[{place}]` must be a string, not {json_kind(found[place])}")
    raise MalformedBody("`NodeNames` contains a string that is not Unicode")


def _head_of(place: int, item: msgspec.Raw) -> SentNode:
    """Return a node; error messages name its place in the list."""
    try:
        metadata = _heads.decode(item).metadata
    except (ValueError, RecursionError):
        metadata = _Metadata(*_names_in(_value(item), f"`Nodes.items[{place}]"))
    if not metadata.name:
        raise MalformedBody(f"`Nodes.items[{place}].metadata.name` is missing")
    return SentNode(metadata.name, metadata.uid or "", metadata.resourceVersion or "", item)


def _names_in(node: object, where: str) -> list[str]:
    """Return name, UID and version of a decoded node; raise `MalformedBody` if it is not a node."""
    if not isinstance(node, dict):
        raise MalformedBody(f"{where}` must be an object, not {json_kind(node)}")
    metadata = node.get("metadata")
    if not isinstance(metadata, dict):
        raise MalformedBody(f"{where}.metadata.name` is missing")
    texts = [metadata.get(field) or "" for field in ("name", "uid", "resourceVersion")]
    for field, text in zip(("name", "uid", "resourceVersion"), texts, strict=True):
        if not isinstance(text, str):
            raise MalformedBody(f"{where}.metadata.{field}` must be a string, not {json_kind(text)}")
    return texts


def _cut(decoder: msgspec.json.Decoder[_Type], text: bytes | bytearray | msgspec.Raw, expected: str) -> _Type:
    """Split JSON into the pieces that the decoder yields.

    `expected` begins the message about a value of another type.
    """
    try:
        return decoder.decode(text)
    except RecursionError:
        raise _too_deep("the body") from None
    except ValueError as error:
        if len(memoryview(text)) > _LONGEST_COMPLAINT:
            raise MalformedBody(f"the body is not readable JSON: {error}") from None
        found = _value(text)  # its error has line and column
        if isinstance(error, msgspec.ValidationError):
            raise MalformedBody(f"{expected}, not {json_kind(found)}") from None
        raise MalformedBody(f"the body is not readable JSON: {error}") from None


def _members_of(body: bytes | bytearray) -> dict[str, msgspec.Raw]:
    """Return the members of the envelope by their lower-case keys, known or not."""
    if len(body) > 2 * MOST_OBJECT_ELEMENTS:
        count = _count(body, _MARKS[:1])
        if count > MOST_OBJECT_ELEMENTS:
            raise ExcessiveError(f"the body has up to {count} elements, at most {MOST_OBJECT_ELEMENTS} are read where "
                                 "it is not written as kube-scheduler does it: `Pod`, `Nodes` and `NodeNames` alone")
    return _folded(_cut(_members, body, _ENVELOPE))


def _folded(members: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    return {key.lower(): raw for key, raw in members.items() if bytes(memoryview(raw)[:5]) != b"null"}


def _value(text: bytes | bytearray | msgspec.Raw) -> Any:
    """Decode one JSON value as the API server would: finite numbers, UTF-8, bounded in elements and depth."""
    if len(memoryview(text)) > MOST_OBJECT_BYTES:
        raise ExcessiveError(f"the object has {len(memoryview(text))} bytes, at most {MOST_OBJECT_BYTES} are read")
    count = _check_count(text, MOST_OBJECT_ELEMENTS, "the body")
    try:
        value = _decoded(text)
    except UnicodeDecodeError as error:
        raise MalformedBody(f"the body is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise _too_deep("the body") from None
    except json.JSONDecodeError as error:
        raise MalformedBody(f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except MalformedBody:
        raise
    except ValueError as error:  # a number with thousands of digits
        raise MalformedBody(f"the body is not readable JSON: {parse_fault(error)}") from None
    if count > DEEPEST and _is_deeper(value, DEEPEST):
        raise _too_deep("the body")
    return value


def _decoded(text: bytes | bytearray | msgspec.Raw) -> Any:
    """Decode JSON, a large value in several calls."""
    if len(memoryview(text)) <= _LONGEST_VALUE:
        try:
            return strict_json.decode(bytes(text).decode("utf-8"), parse_float=_finite)
        except strict_json.ConstantError as error:  # its place is one in this part of the body
            raise MalformedBody(f"the body is not JSON: `{error.constant}` is not a number") from None
    kind = bytes(text).lstrip(b" \t\r\n")[:1]
    if kind == b"{":
        members = _members.decode(text)
        return dict(zip(members, _all_decoded(members.values()), strict=True))
    if kind == b"[":
        return list(_all_decoded(_items.decode(text)))
    if kind == b'"':
        return _text.decode(text)
    raise MalformedBody(f"the body is not readable JSON: a value has {len(memoryview(text))} bytes")


def _all_decoded(values: Iterable[msgspec.Raw]) -> Iterator[Any]:
    some: list[msgspec.Raw] = []
    size = 0
    for value in values:
        length = len(memoryview(value))
        if size + length > _LONGEST_VALUE:
            yield from _decoded(b"[%b]" % b",".join(some))
            some, size = [], 0
        if length > _LONGEST_VALUE // 2:
            yield _decoded(value)
        else:
            some.append(value)
            size += length + 1
    yield from _decoded(b"[%b]" % b",".join(some))


def _check_count(text: bytes | bytearray | msgspec.Raw, most: int, where: str) -> int:
    count = count_elements(text)
    if count > most:
        raise ExcessiveError(f"{where} has up to {count} elements, at most {most} are read")
    return count


def _too_deep(where: str) -> MalformedBody:
    return MalformedBody(f"{where} is nested too deeply")


def _is_deeper(value: object, levels: int) -> bool:
    """Return whether a value is nested deeper than `levels`; walks level by level."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(levels):
        level = [below for each in level for below in (each.values() if isinstance(each, dict) else each)
                 if isinstance(below, (dict, list))]
    return bool(level)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise MalformedBody(f"the body holds the number `{text[:40]}`, which is out of range")
    return value
