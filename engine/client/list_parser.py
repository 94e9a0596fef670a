"""Splits the JSON of a list into its objects while it arrives.

A list at `resourceVersion=0` comes unpaged: 50,000 pods are 250 MB. To decode them in one call would hold the
interpreter for a second; here no call sees more than one object.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

_LARGEST: Final = 64 << 20
"""Bytes of one object at most. The API server accepts 1.5 MiB from etcd, and somewhat more in all."""
_SPACE: Final = b" \t\r\n"
_TRAILING: Final = re.compile(r"trailing characters \(byte (\d+)\)")
_INVALID: Final = re.compile(r"malformed: .* \(byte (\d+)\)")
_LONGEST_ESCAPE: Final = len(r"\ud83d\ude00")
_ALIKE: Final = len('{"metadata":')
"""Bytes with which the objects of a list begin alike, at most."""
_RAW: Final = msgspec.json.Decoder(msgspec.Raw)
_KEYS: Final = msgspec.json.Decoder(str)


class ListMetadata(msgspec.Struct):
    """The metadata of a list."""

    resourceVersion: str = ""  # noqa: N815 - as in the JSON
    next: str | None = msgspec.field(default=None, name="continue")


class ListedObject(NamedTuple):
    """An object of a list."""

    raw: msgspec.Raw
    """A copy of its JSON."""
    read: Any
    """The result of the parser's `read`; None if it raised."""


_State: TypeAlias = Literal["start", "key", "colon", "value", "comma", "item", "between", "end"]
"""The token that is expected next: within the list, and (`item`, `between`) within its `items`."""
_METADATA: Final = msgspec.json.Decoder(ListMetadata)


class ListParser:
    """The parser of one list. Its fields may be in any order, as servers write built-in and custom kinds differently.

    Raises `ValueError` (or `RecursionError`) for a text that is not a list of objects.
    """

    def __init__(self, read: Callable[[bytes], Any] | None = None) -> None:
        """`read` is called with the JSON of each object, or a text that looks like it, and raises `ValueError` or
        `RecursionError` if it is no JSON: it is the same work to read an object and to find out where it ends.
        """
        self._reads = _RAW.decode if read is None else read
        self.metadata: ListMetadata | None = None
        """The list's metadata, once it was read."""
        self._buffer = b""
        self._retry_at = 0
        """The length of the buffer below which the value at its start is known to be incomplete."""
        self._state: _State = "start"
        self._key = ""
        self._empty = True
        self._between = b""
        """The end of an object and the beginning of the next one, if that begins as the first one; empty before."""

    def feed(self, chunk: bytes) -> list[ListedObject]:
        """Return the objects that are complete with this piece."""
        self._buffer += chunk
        if len(self._buffer) < self._retry_at:
            return []
        found: list[ListedObject] = []
        place = 0
        while (after := self._step(place, found)) is not None:
            place = after
        self._buffer = self._buffer[place:]
        if len(self._buffer) > _LARGEST:
            raise ValueError(f"an object of the list is longer than {_LARGEST >> 20} MiB")
        # A value that is incomplete is read again only when there is twice as much of it.
        self._retry_at = 2 * len(self._buffer)
        return found

    def close(self) -> list[ListedObject]:
        """Return the last objects. Raises `ValueError` if the list is incomplete, or has no metadata."""
        self._retry_at = 0
        found = self.feed(b"")
        if self._state != "end" or self.metadata is None:
            raise ValueError("the list ends early" if self._state != "end" else "the list has no metadata")
        return found

    def _step(self, place: int, found: list[ListedObject]) -> int | None:
        """Read one token or value at a place; return the place after it, or None if more text is needed."""
        buffer = self._buffer
        while place < len(buffer) and buffer[place] in _SPACE:
            place += 1
        if place == len(buffer):
            return None
        char = buffer[place:place + 1]
        match self._state:
            case "start":
                return self._punctuation(place, char, {b"{": "key"})
            case "key":
                if char == b"}":
                    self._state = "end"
                    return place + 1
                return self._read_key(place)
            case "colon":
                return self._punctuation(place, char, {b":": "value"})
            case "value":
                return self._read_value(place, char)
            case "comma":
                return self._punctuation(place, char, {b",": "key", b"}": "end"})
            case "item" if char == b"]" and self._empty:
                return self._punctuation(place, char, {b"]": "comma"})
            case "item":
                return self._read_alike(place, found) or self._read_item(place, char, found)
            case "between":
                return self._punctuation(place, char, {b",": "item", b"]": "comma"})
            case _:
                raise ValueError("there is text after the list")

    def _punctuation(self, place: int, char: bytes, states: dict[bytes, _State]) -> int:
        if char not in states:
            raise ValueError(f"`{char.decode('latin-1')}` is not expected here")
        self._state = states[char]
        return place + 1

    def _read_key(self, place: int) -> int | None:
        end = self._end_of_value(place)
        if end is None:
            return None
        self._key = _KEYS.decode(self._buffer[place:end])
        self._state = "colon"
        return end

    def _read_value(self, place: int, char: bytes) -> int | None:
        if self._key == "items" and char == b"[":
            self._state = "item"
            self._empty = True
            return place + 1
        end = self._end_of_value(place)
        if end is None:
            return None
        if self._key == "metadata":
            self.metadata = _METADATA.decode(self._buffer[place:end])
        elif self._key == "items" and self._buffer[place:end] != b"null":
            raise ValueError("`items` is not a list")
        self._state = "comma"
        return end

    def _read_alike(self, place: int, found: list[ListedObject]) -> int | None:
        """Read the objects that are followed by one that begins as the first of the list did; return the place of the
        next, None if there were none.

        Servers write all objects of a list alike, and to look for the next one takes less time than the decoder's
        error does. What looks like it may be inside of an object, but then the text before it is not JSON.
        """
        if not self._between:
            return None
        began, buffer, read = place, self._buffer, self._reads
        while (end := buffer.find(self._between, place)) >= 0:
            text = buffer[place:end + 1]
            try:
                found.append(ListedObject(msgspec.Raw(text), read(text)))
            except (ValueError, RecursionError):
                break
            place = end + 2
        return place if place > began else None

    def _read_item(self, place: int, char: bytes, found: list[ListedObject]) -> int | None:
        if char != b"{":
            raise ValueError("an item of the list is not an object")
        end = self._end_of_value(place)
        if end is None:
            return None
        text = self._buffer[place:end]
        try:
            read = self._reads(text)
        except (ValueError, RecursionError):
            read = None
        found.append(ListedObject(msgspec.Raw(text), read))
        self._between = self._between or b"}," + self._buffer[place:min(end, place + _ALIKE)]
        self._state = "between"
        self._empty = False
        return end

    def _end_of_value(self, place: int) -> int | None:
        """Return the end of the value that begins at a place; None if it is incomplete, or may be."""
        try:
            _RAW.decode(memoryview(self._buffer)[place:])
        except msgspec.DecodeError as error:
            # The decoder stops at the first character behind the value, and says which one that is, from 1.
            known = _TRAILING.search(str(error))
            if known is not None:
                return place + int(known[1]) - 1
            wrong = _INVALID.search(str(error))
            # An escape that is cut off is an invalid one.
            if wrong is None or place + int(wrong[1]) >= len(self._buffer) - _LONGEST_ESCAPE:
                return None
            raise
        return None  # it reaches to the end of the text: the next character decides
