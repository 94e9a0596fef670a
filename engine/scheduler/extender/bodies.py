"""Untrusted request bodies: elements are counted before anything is decoded, and whole nodes remain bytes.

Decoding costs up to 30 bytes of memory per byte and holds the interpreter meanwhile, so that the decoded part is
bounded, and the part that is only passed through (the nodes of `nodeCacheCapable: false`) is copied unchanged. This
module is the only one that uses msgspec.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn, TypeVar

import msgspec
import numpy as np

from koordpolicy.engine.cluster.sources.api import Binding
from koordpolicy.engine.kubernetes.objects import json_kind

MOST_ELEMENTS: Final = 3 * 1024 * 1024
"""Elements (members and items, by their commas) of a whole body: 5,000 whole nodes have about a million."""
MOST_OBJECT_ELEMENTS: Final = 200_000
"""Elements of one object that is decoded; the API server stores at most 1.5 MiB."""
MOST_OBJECT_BYTES: Final = 8 * 1024 * 1024
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
_LONGEST_COMPLAINT: Final = 1 << 20
_ENVELOPE: Final = "the body must be an object with `Pod` and `Nodes` or `NodeNames`"
_MARKS: Final = tuple(b",{[")
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
    nodes: Sequence[SentNode] | None
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


_MANY: Final = 5 * MOST_NODES
"""The number of commas in a body above which its nodes are counted while they are split."""
_ABSENT: Final = msgspec.Raw()


@functools.cache
def _bounded() -> msgspec.json.Decoder[Any]:
    """Return a decoder of `_Arguments` that stops at the first node that is too many.

    Splitting a list takes 0.2 us per item and holds the interpreter; its length is known only afterwards. A structure
    that is decoded from a list stops at the first item without a field.
    """
    fields = [(f"n{number}", msgspec.Raw, _ABSENT) for number in range(MOST_NODES)]
    items = msgspec.defstruct("Items", fields, array_like=True, forbid_unknown_fields=True)
    others = [(name, msgspec.Raw, _NULL) for name in ("metadata", "kind", "apiVersion")]
    nodes = msgspec.defstruct("Nodes", [("items", items | None, None), *others], forbid_unknown_fields=True)
    return msgspec.json.Decoder(msgspec.defstruct(
        "Arguments", [("Pod", msgspec.Raw, _NULL), ("Nodes", nodes | None, None), ("NodeNames", msgspec.Raw, _NULL)],
        forbid_unknown_fields=True))


_arguments: Final = msgspec.json.Decoder(_Arguments)
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items: Final = msgspec.json.Decoder(list[msgspec.Raw])
_heads: Final = msgspec.json.Decoder(_Head)
_texts: Final = msgspec.json.Decoder(list[str])


def count_elements(body: bytes | bytearray | msgspec.Raw) -> int:
    """Return how many elements JSON can have at most: its commas and opening brackets, also those within texts."""
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
        known, sent = self._known, []
        for place, raw in enumerate(items):
            begins = _BEGINS.match(memoryview(raw))
            node = known.get(begins[1]) if begins is not None else None
            if node is None or node.raw != raw:
                node = _head_of(place, raw)
                if begins is not None:
                    node = self._remember(bytes(begins[1]), node)
            sent.append(node)
        return sent

    def _remember(self, name: bytes, node: SentNode) -> SentNode:
        copy = replace(node, raw=node.raw.copy())  # the node of a request holds the whole body
        before = self._known.pop(name, None)
        self._bytes += len(memoryview(copy.raw)) - (0 if before is None else len(memoryview(before.raw)))
        self._known[name] = copy
        while self._bytes > self._most:
            self._bytes -= len(memoryview(self._known.pop(next(iter(self._known))).raw))
        return copy


def read_envelope(body: bytes | bytearray, reader: NodeReader | None = None) -> Envelope:
    """Read ExtenderArgs; keys of the envelope count in any case, as for Go (older types had lower-case ones).

    Raises:
        MalformedBody: it is none.
        ExcessiveError: there is more in it than is read.
    """
    try:
        found = _arguments_of(body)
    except ExcessiveError:
        raise
    except (ValueError, RecursionError):
        found = _loosely(body)
    named = found.NodeNames != _NULL
    if named and found.Nodes is not None:
        raise MalformedBody("both `Nodes` and `NodeNames` are given: kube-scheduler sends one of them")
    pod, weight = _value(found.Pod), weight_of(bytes(found.Pod))
    if named:
        return Envelope(pod, _names_of(found.NodeNames), None, weight)
    if found.Nodes is None:
        return Envelope(pod, None, None, weight)
    return Envelope(pod, None, (reader or NodeReader()).read(found.Nodes.items or ()), weight)


def _arguments_of(body: bytes | bytearray) -> _Arguments:
    """Return the arguments as kube-scheduler writes them; raises `ExcessiveError`, or `ValueError` for other bodies."""
    if len(body) <= 2 * _MANY or _check_commas(body) <= _MANY:
        return _arguments.decode(body)
    try:
        found = _bounded().decode(body)
    except msgspec.ValidationError as error:
        if "at most length" in str(error):
            raise ExcessiveError(f"`Nodes` has more than the {MOST_NODES} items that are read") from None
        raise
    if found.Nodes is None or found.Nodes.items is None:
        return _Arguments(found.Pod, None if found.Nodes is None else _Nodes(), found.NodeNames)
    items = [item for item in msgspec.structs.astuple(found.Nodes.items) if item is not _ABSENT]
    return _Arguments(found.Pod, _Nodes(items), found.NodeNames)


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
                            f"`{name}` must be a text, not {json_kind(text)}")
        if not _NAME.fullmatch(text):
            raise MalformedBody(f"`{name}` is `{text[:100]}`, which is no name of an object")
        texts.append(text)
    return Binding(*texts)


def read_pod(body: bytes | bytearray) -> object:
    """Return the pod of a body that is a Pod, or ExtenderArgs with one.

    Raises:
        MalformedBody: the body is no object.
        ExcessiveError: there is more in it than is read.
    """
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
        raise MalformedBody(f"`NodeNames` must be a list of texts, not {json_kind(found)}")
    place = next((place for place, name in enumerate(found) if not isinstance(name, str)), -1)
    if place >= 0:
        raise MalformedBody(f"`NodeNames[{place}]` must be a text, not {json_kind(found[place])}")
    raise MalformedBody("`NodeNames` holds a text that is no Unicode")


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
            raise MalformedBody(f"{where}.metadata.{field}` must be a text, not {json_kind(text)}")
    return texts


def _cut(decoder: msgspec.json.Decoder[_Type], text: bytes | bytearray | msgspec.Raw, wanted: str) -> _Type:
    """Split JSON into the pieces that the decoder yields; `wanted` begins the message about a value of another type."""
    try:
        return decoder.decode(text)
    except RecursionError:
        raise _too_deep("the body") from None
    except ValueError as error:
        if len(memoryview(text)) > _LONGEST_COMPLAINT:
            raise MalformedBody(f"the body is no JSON that can be read: {error}") from None
        found = _value(text)  # its error has line and column
        if isinstance(error, msgspec.ValidationError):
            raise MalformedBody(f"{wanted}, not {json_kind(found)}") from None
        raise MalformedBody(f"the body is no JSON that can be read: {error}") from None


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
        value = json.loads(bytes(text).decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise MalformedBody(f"the body is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise _too_deep("the body") from None
    except json.JSONDecodeError as error:
        raise MalformedBody(f"the body is no JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except MalformedBody:
        raise
    except ValueError as error:  # a number with thousands of digits
        raise MalformedBody(f"the body is no JSON that can be read: {error}") from None
    if count > DEEPEST and _is_deeper(value, DEEPEST):
        raise _too_deep("the body")
    return value


def _check_commas(body: bytes | bytearray) -> int:
    """Return the number of commas in a body; raise `ExcessiveError` if there are too many."""
    count = _count(body, _MARKS[:1])
    if count > MOST_ELEMENTS:
        raise ExcessiveError(f"the body has up to {count} elements, at most {MOST_ELEMENTS} are read")
    return count


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


def _refuse_constant(text: str) -> NoReturn:
    raise MalformedBody(f"the body is no JSON: `{text}` is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise MalformedBody(f"the body holds the number `{text[:40]}`, which is out of range")
    return value
