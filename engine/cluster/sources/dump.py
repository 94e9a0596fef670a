"""A dump of a live cluster: the objects of some kinds as one List, written while they arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import IO, Final

import msgspec

from koordpolicy.engine.client.faults import of_status
from koordpolicy.engine.client.list_parser import ListedObject, ListMetadata, ListParser
from koordpolicy.engine.client.resources import BY_KIND, HEADS, ApiResource
from koordpolicy.engine.client.transport import ApiError, ConnectionFailed, Transport
from koordpolicy.engine.source import PolicyError, Problem

_PAGE: Final = 500
_RESTARTS: Final = 3
_HEAD: Final = b'{"apiVersion":"v1","kind":"List","items":['
_TAIL: Final = b"\n]}\n"


@dataclass(frozen=True, slots=True)
class Dumped:
    """The contents of a dump."""

    objects: Mapping[str, int]
    """The number of objects by kind, also of kinds without any."""
    omitted: Mapping[str, str]
    """Why a kind is not in the dump: the cluster does not have it, or forbids to list it."""
    faults: tuple[str, ...]
    """Objects that cannot be decoded, and are left out."""
    bytes: int


class _Unlisted(Exception):
    """A kind cannot be listed; the message says why."""


async def dump(
    transport: Transport, kinds: Iterable[str], file: IO[bytes], *, progress: Callable[[int], None] = lambda _: None,
) -> Dumped:
    """Write all objects of these kinds to a file that can be cut, and return what it contains.

    Objects are whole, but for `metadata.managedFields`, as kubectl prints them. `progress` is called with the number of
    kinds that are done.

    Raises:
        PolicyError: nodes or pods cannot be listed, the cluster cannot be reached, or answers something else.
        OSError: the file cannot be written.
    """
    objects: dict[str, int] = {}
    omitted: dict[str, str] = {}
    faults: list[str] = []
    file.write(_HEAD)
    for number, kind in enumerate(kinds, start=1):
        resource = BY_KIND.get(kind)
        if resource is None:
            omitted[kind] = "where the API serves it is not known"
            continue
        try:
            objects[kind] = await _Kind(transport, resource, file, faults).write(first=not any(objects.values()))
        except _Unlisted as error:
            if resource.required:
                raise PolicyError([Problem(
                    f"{resource.plural} cannot be listed: {error}", code="cluster",
                    help=f"grant `list` on `{resource.plural}` cluster-wide")]) from None
            omitted[kind] = str(error)
        except ConnectionFailed as error:
            raise PolicyError([Problem(
                f"the cluster at {transport.connection.server} cannot be reached: {error.fault.message}",
                help=error.fault.help, code="cluster")]) from None
        progress(number)
    file.write(_TAIL)
    return Dumped(objects, omitted, tuple(faults), file.tell())


class _Kind:
    """Writes the objects of one kind."""

    def __init__(self, transport: Transport, resource: ApiResource, file: IO[bytes], faults: list[str]) -> None:
        self._transport, self._resource, self._file, self._faults = transport, resource, file, faults
        self._objects = 0
        self._first = False

    async def write(self, *, first: bool) -> int:
        """Write the objects and return how many there are; `first` if none was written before."""
        start, known = self._file.tell(), len(self._faults)
        for _ in range(_RESTARTS):
            self._objects, self._first = 0, first
            try:
                await self._pages()
            except ApiError as error:
                if not error.expired:
                    raise _Unlisted(self._why(error)) from None
                # The list expired between its pages, and is read again.
                self._file.seek(start)
                self._file.truncate()
                del self._faults[known:]
            else:
                return self._objects
        raise _Unlisted("the list expires before it is read")

    async def _pages(self) -> None:
        query = {"limit": str(_PAGE)}
        while (token := (await self._page(query)).next) is not None and token:
            query = {"limit": str(_PAGE), "continue": token}

    async def _page(self, query: Mapping[str, str]) -> ListMetadata:
        parser = ListParser()
        try:
            async with aclosing(self._transport.chunks(self._resource.path(), query=query)) as chunks:
                async for chunk in chunks:
                    self._add(parser.feed(chunk))
            self._add(parser.close())
        except (ValueError, RecursionError) as error:
            server = self._transport.connection.server
            raise PolicyError([Problem(
                f"the cluster at {server} answers with something else than a list of {self._resource.plural}: {error}",
                help="is this a Kubernetes API server?", code="cluster")]) from None
        assert parser.metadata is not None
        return parser.metadata

    def _add(self, items: Iterable[ListedObject]) -> None:
        for raw, _ in items:
            try:
                item = msgspec.json.decode(raw, type=dict)
                content = msgspec.json.encode(
                    {"apiVersion": self._resource.api_version, "kind": self._resource.kind} | _without_managers(item))
            except (ValueError, RecursionError) as error:
                self._faults.append(f"{self._resource.kind} `{_name_of(raw)}` is left out: {error}")
                continue
            self._file.write((b"\n" if self._first else b",\n") + content)
            self._first = False
            self._objects += 1

    def _why(self, error: ApiError) -> str:
        if error.code == 404:
            return "the cluster does not have it"
        body = {"message": error.message}
        return of_status(error.code, msgspec.json.encode(body), verb="list", resource=self._resource.plural).message


def _without_managers(item: dict[str, object]) -> dict[str, object]:
    """Return an object without `metadata.managedFields`."""
    metadata = item.get("metadata")
    if isinstance(metadata, dict):
        metadata.pop("managedFields", None)
    return item


def _name_of(raw: msgspec.Raw) -> str:
    try:
        head = HEADS.decode(raw).metadata
    except (ValueError, RecursionError):
        return "?"
    return f"{head.namespace}/{head.name}" if head.namespace else head.name
