"""Bodies of requests, read without trust: elements are counted before anything is decoded, and whole nodes stay bytes.

A body is bytes that somebody sent. Decoding costs up to 30 bytes of memory for each of them and holds the interpreter
meanwhile, so that what is decoded is bounded, and what only passes through (the nodes of `nodeCacheCapable: false`) is
cut out as it came. The border to msgspec.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar

import msgspec
import numpy as np

from ..cluster.api import Binding
from ..kubernetes.objects import json_kind

MOST_ELEMENTS: Final = 4 * 1024 * 1024
"""Elements (members, items and brackets) of a whole body: 5,000 whole nodes have about a million."""
MOST_OBJECT_ELEMENTS: Final = 200_000
"""Elements of one object that is decoded; the API server stores at most 1.5 MiB."""
MOST_OBJECT_BYTES: Final = 8 * 1024 * 1024
MOST_NAMES: Final = 100_000
"""Nodes of one request that are named."""
MOST_NODES: Final = 20_000
"""Nodes of one request that come whole."""
DEEPEST: Final = 100
"""Levels of nesting of an object that is decoded; those of Kubernetes have about 15."""
ELEMENT_BYTES: Final = 120
"""What one decoded element takes in memory at most, beside its text."""

_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9])?")
_SLICE: Final = 1 << 16
_LONGEST_COMPLAINT: Final = 1 << 20
_ENVELOPE: Final = "the body must be an object with `Pod` and `Nodes` or `NodeNames`"
_MARKS: Final = tuple(b",{[")
_Type = TypeVar("_Type")


class Malformed(ValueError):
    """A body that is no question of the protocol; the message says what is wrong with it, and where."""


class ExcessiveError(Malformed):
    """A body with more in it than is read; the message says which bound it exceeds."""


@dataclass(frozen=True, slots=True)
class SentNode:
    """A node as a request brings it: its JSON, and of its metadata what tells one version from another."""

    name: str
    uid: str
    version: str
    raw: msgspec.Raw

    def decoded(self) -> dict[str, Any]:
        """Return the object as listings have it: with the kind that Go leaves out, without managed fields.

        Raises:
            Malformed: it is nothing that can be read.
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


class _Metadata(msgspec.Struct, gc=False):
    name: str = ""
    uid: str | None = None
    resourceVersion: str | None = None  # noqa: N815 - as in the JSON


class _Head(msgspec.Struct, gc=False):
    metadata: _Metadata


_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items: Final = msgspec.json.Decoder(list[msgspec.Raw])
_heads: Final = msgspec.json.Decoder(list[_Head])
_texts: Final = msgspec.json.Decoder(list[str])


def count_elements(body: bytes | bytearray | msgspec.Raw) -> int:
    """Return how many elements JSON can have at most: its commas and opening brackets, also those within texts."""
    marks = np.frombuffer(body, np.uint8)
    count = 1
    for first in range(0, len(marks), _SLICE):  # a slice stays in the processor's cache
        part = marks[first:first + _SLICE]
        count += sum(int(np.count_nonzero(part == mark)) for mark in _MARKS)
    return count


def weight_of(text: bytes) -> int:
    """Return the most bytes that JSON, together with what it decodes to, takes in memory."""
    return 2 * len(text) + ELEMENT_BYTES * (1 + text.count(b",") + text.count(b"{") + text.count(b"["))


def read_envelope(body: bytes | bytearray) -> Envelope:
    """Read ExtenderArgs; keys of the envelope count in any case, as for Go (older types had lower-case ones).

    Raises:
        Malformed: it is none.
        ExcessiveError: there is more in it than is read.
    """
    fields = _envelope(body)
    names, nodes = fields.get("nodenames"), fields.get("nodes")
    if names is not None and nodes is not None:
        raise Malformed("both `Nodes` and `NodeNames` are given: kube-scheduler sends one of them")
    pod = _value(fields.get("pod"))
    return Envelope(pod, None if names is None else _names_of(names), None if nodes is None else _nodes_of(nodes))


def read_binding(body: bytes | bytearray) -> Binding:
    """Read ExtenderBindingArgs; keys count in any case.

    Raises:
        Malformed: it is none.
    """
    fields = {key.lower(): value for key, value in read_object(body).items()}
    texts: list[str] = []
    for name in ("PodNamespace", "PodName", "PodUID", "Node"):
        text = fields.get(name.lower())
        if not isinstance(text, str) or not text:
            raise Malformed(f"`{name}` is missing" if text in (None, "") else
                            f"`{name}` must be a text, not {json_kind(text)}")
        if not _NAME.fullmatch(text):
            raise Malformed(f"`{name}` is `{text[:100]}`, which is no name of an object")
        texts.append(text)
    return Binding(*texts)


def read_pod(body: bytes | bytearray) -> object:
    """Return the pod of a body that is a Pod, or ExtenderArgs with one.

    Raises:
        Malformed: the body is no object.
        ExcessiveError: there is more in it than is read.
    """
    fields = _envelope(body)
    return _value(fields["pod"]) if "pod" in fields else read_object(body)


def read_object(body: bytes | bytearray | msgspec.Raw) -> dict[str, Any]:
    """Decode a body that is one JSON object.

    Raises:
        Malformed: it is none.
        ExcessiveError: it has too many elements.
    """
    data = _value(body)
    if not isinstance(data, dict):
        raise Malformed(f"{_ENVELOPE}, not {json_kind(data)}")
    return data


def _envelope(body: bytes | bytearray) -> dict[str, msgspec.Raw]:
    """Return the members of the body by their keys in lower case; those that are null are left out."""
    _check_count(body, MOST_ELEMENTS, "the body")
    return _folded(_cut(_members, body, _ENVELOPE))


def _names_of(names: msgspec.Raw) -> list[str]:
    _check_count(names, MOST_NAMES, "`NodeNames`")
    try:
        return _texts.decode(names)
    except (ValueError, RecursionError):
        found = _value(names)
    if not isinstance(found, list):
        raise Malformed(f"`NodeNames` must be a list of texts, not {json_kind(found)}")
    place = next((place for place, name in enumerate(found) if not isinstance(name, str)), -1)
    if place >= 0:
        raise Malformed(f"`NodeNames[{place}]` must be a text, not {json_kind(found[place])}")
    raise Malformed("`NodeNames` holds a text that is no Unicode")


def _nodes_of(nodes: msgspec.Raw) -> list[SentNode]:
    items = _folded(_cut(_members, nodes, "`Nodes` must be a list of nodes")).get("items")
    if items is None:
        return []  # how Go writes an empty list
    try:
        # The heads come first: what is no list of nodes ends this at its first item, before anything is made of it.
        heads = _heads.decode(items)
    except RecursionError:
        raise _too_deep("the body") from None
    except ValueError as error:
        if count_elements(items) > MOST_OBJECT_ELEMENTS:
            raise Malformed(f"`Nodes.items` is no list of nodes: {error}") from None
        found = _cut(_items, items, "`Nodes.items` must be a list")
        heads = [_head_of(place, item) for place, item in enumerate(found)]
    if len(heads) > MOST_NODES:
        raise ExcessiveError(f"`Nodes` has {len(heads)} items, at most {MOST_NODES} are read")
    sent: list[SentNode] = []
    for place, (head, raw) in enumerate(zip(heads, _items.decode(items), strict=True)):
        metadata = head.metadata
        if not metadata.name:
            raise Malformed(f"`Nodes.items[{place}].metadata.name` is missing")
        sent.append(SentNode(metadata.name, metadata.uid or "", metadata.resourceVersion or "", raw))
    return sent


def _head_of(place: int, item: msgspec.Raw) -> _Head:
    """Return what names a node; raise `Malformed` with its place in the list where nothing does."""
    where = f"`Nodes.items[{place}]"
    node = _value(item)
    if not isinstance(node, dict):
        raise Malformed(f"{where}` must be an object, not {json_kind(node)}")
    metadata = node.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(metadata, dict) or not isinstance(name, str) or not name:
        raise Malformed(f"{where}.metadata.name` is missing")
    texts = [metadata.get(field) or "" for field in ("uid", "resourceVersion")]
    for field, text in zip(("uid", "resourceVersion"), texts, strict=True):
        if not isinstance(text, str):
            raise Malformed(f"{where}.metadata.{field}` must be a text, not {json_kind(text)}")
    return _Head(_Metadata(name, *texts))


def _cut(decoder: msgspec.json.Decoder[_Type], text: bytes | bytearray | msgspec.Raw, wanted: str) -> _Type:
    """Cut JSON into the pieces that the decoder says; `wanted` begins the complaint about another kind of value."""
    try:
        return decoder.decode(text)
    except RecursionError:
        raise _too_deep("the body") from None
    except ValueError as error:
        if len(memoryview(text)) > _LONGEST_COMPLAINT:
            raise Malformed(f"the body is no JSON that can be read: {error}") from None
        found = _value(text)  # it complains with line and column
        if isinstance(error, msgspec.ValidationError):
            raise Malformed(f"{wanted}, not {json_kind(found)}") from None
        raise Malformed(f"the body is no JSON that can be read: {error}") from None


def _folded(members: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    return {key.lower(): raw for key, raw in members.items() if bytes(memoryview(raw)[:5]) != b"null"}


def _value(text: bytes | bytearray | msgspec.Raw | None) -> Any:
    """Decode one JSON value as the API server would: finite numbers, UTF-8, bounded in elements and depth."""
    if text is None:
        return None
    if len(memoryview(text)) > MOST_OBJECT_BYTES:
        raise ExcessiveError(f"the object has {len(memoryview(text))} bytes, at most {MOST_OBJECT_BYTES} are read")
    count = _check_count(text, MOST_OBJECT_ELEMENTS, "the body")
    try:
        value = json.loads(bytes(text).decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite)
    except UnicodeDecodeError as error:
        raise Malformed(f"the body is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise _too_deep("the body") from None
    except json.JSONDecodeError as error:
        raise Malformed(f"the body is no JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except Malformed:
        raise
    except ValueError as error:  # a number with thousands of digits
        raise Malformed(f"the body is no JSON that can be read: {error}") from None
    if count > DEEPEST and _is_deeper(value, DEEPEST):
        raise _too_deep("the body")
    return value


def _check_count(text: bytes | bytearray | msgspec.Raw, most: int, where: str) -> int:
    count = count_elements(text)
    if count > most:
        raise ExcessiveError(f"{where} has up to {count} elements, at most {most} are read")
    return count


def _too_deep(where: str) -> Malformed:
    return Malformed(f"{where} is nested too deeply")


def _is_deeper(value: object, levels: int) -> bool:
    """Return whether anything is nested below so many levels of lists and objects; walks level by level."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(levels):
        level = [below for each in level for below in (each.values() if isinstance(each, dict) else each)
                 if isinstance(below, (dict, list))]
    return bool(level)


def _refuse_constant(text: str) -> NoReturn:
    raise Malformed(f"the body is no JSON: `{text}` is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Malformed(f"the body holds the number `{text[:40]}`, which is out of range")
    return value
