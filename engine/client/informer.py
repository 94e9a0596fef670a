"""Informers: the objects of one kind, followed by list and watch, as changes without gaps.

The protocol is that of client-go's reflector: a streamed list where the server has it, else list and watch; bookmarks
move the version from which a broken watch goes on; a version that has expired leads to a new list, whose difference to
the last known objects is delivered. Objects are not decoded here beyond their identity.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final, NoReturn

import msgspec

from koordpolicy.engine.source import PolicyError

from .faults import ApiFault
from .pacing import Backoff
from .resources import HEADS, ApiResource, HeadMetadata
from .transport import ApiError, ConnectionFailed, Status, Transport

_LOG: Final = logging.getLogger(__name__)

_PAGE: Final = 500
_SHORT_WATCH_S: Final = 1.0
_INITIAL_END: Final = "k8s.io/initial-events-end"


class _BookmarkMetadata(msgspec.Struct, gc=False):
    annotations: dict[str, str] | None = None


class _Bookmark(msgspec.Struct, gc=False):
    metadata: _BookmarkMetadata = msgspec.field(default_factory=_BookmarkMetadata)


class _Frame(msgspec.Struct, gc=False):
    type: str
    object: msgspec.Raw


class _ListMetadata(msgspec.Struct):
    resourceVersion: str = ""  # noqa: N815 - as in the JSON
    next: str | None = msgspec.field(default=None, name="continue")


class _List(msgspec.Struct):
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


_FRAME: Final = msgspec.json.Decoder(_Frame)
_BOOKMARK: Final = msgspec.json.Decoder(_Bookmark)
_LIST: Final = msgspec.json.Decoder(_List)
_STATUS: Final = msgspec.json.Decoder(Status)


@dataclass(frozen=True, slots=True)
class Change:
    """An object that was added, changed or deleted.

    A deletion and a creation that the watch missed arrive as one change with two UIDs. A deletion that was found by a
    list has no object: `raw` is None.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    """The UID of the object now; of a deleted one its last."""
    raw: msgspec.Raw | None
    """The object in the server's JSON, of a deleted one its last state."""
    deleted: bool = False
    replaced_uid: str | None = None
    """The UID that the object of this name had before, if it was another."""


@dataclass(frozen=True, slots=True)
class InformerView:
    """The state of an informer, for other threads."""

    synced: bool = False
    """True once the first list was delivered."""
    heard: float = 0.0
    """Time of the last list, frame or bookmark, in seconds since the epoch; 0 for never."""
    fault: str = ""
    """The error of the last attempt; empty if the watch runs."""
    lists: int = 0
    watches: int = 0


class _Expired(Exception):
    """The version from which to watch is too old."""


class Informer:
    """Follows the objects of one kind until it is cancelled. Belongs to one event loop; `view` may be read anywhere."""

    def __init__(
        self, transport: Transport, resource: ApiResource, deliver: Callable[[Sequence[Change]], None], *,
        field_selector: str | None = None, streaming: bool = True, backoff: Backoff | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`deliver` is called in the loop with the changes in order, and must not block.

        `streaming` permits to request the list as a stream (WatchList).
        """
        self.view = InformerView()
        self._transport = transport
        self._resource = resource
        self._deliver = deliver
        self._selector = {"fieldSelector": field_selector} if field_selector else {}
        self._streaming = streaming
        self._backoff = backoff or Backoff(clock=clock)
        self._sleep = sleep
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[str, str]] = {}
        """UID and resourceVersion by namespace and name."""
        self._version: str | None = None
        """The resourceVersion from which the watch goes on; None before the first list."""
        self._version_unavailable = False
        self._paged = False

    async def run(self) -> NoReturn:
        """Follow the objects. Ends by cancellation only: errors are logged, set in `view.fault` and retried."""
        while True:
            started = self._clock()
            try:
                if self._streaming:
                    await self._stream_list()
                else:
                    await self._list()
                while True:
                    await self._watch()
            except _Expired:
                # If each new version expires immediately, lists must not follow each other without a pause.
                delay = 0.0 if self._clock() - started >= _SHORT_WATCH_S else self._backoff.next()
            except (ApiError, ConnectionFailed, PolicyError, ValueError, RecursionError) as error:
                self._failed(error)
                delay = self._backoff.next()
            await self._sleep(delay)

    async def _list(self) -> None:
        try:
            items, version = await self._pages(self._list_version())
        except ApiError as error:
            if not error.expired and not error.too_large_version:
                raise
            self._version_unavailable = True
            items, version = await self._pages("")
        self._version_unavailable = False
        self._replace(items, version)
        self._heard(lists=self.view.lists + 1)

    def _list_version(self) -> str:
        """Return the resourceVersion of the next list: any at first, then at least the last known one.

        If the server does not have that one any more, the newest.
        """
        if self._version_unavailable:
            return ""
        return "0" if self._version is None else self._version

    async def _pages(self, version: str) -> tuple[list[msgspec.Raw], str]:
        items: list[msgspec.Raw] = []
        query = {**self._selector, "resourceVersion": version}
        if version in {"", "0"} or self._paged:
            query["limit"] = str(_PAGE)
        while True:
            try:
                page = _LIST.decode(await self._transport.request("GET", self._resource.path(), query=query))
            except ApiError as error:
                if not error.expired or "continue" not in query:
                    raise
                # A list that expires between its pages is requested again from the first page.
                items.clear()
                query = {**self._selector, "resourceVersion": ""}
                continue
            items += page.items or ()
            if not page.metadata.next:
                return items, page.metadata.resourceVersion
            self._paged = self._paged or self._version is None
            query = {**self._selector, "limit": str(_PAGE), "continue": page.metadata.next}

    def _replace(self, items: Sequence[msgspec.Raw], version: str) -> None:
        """Deliver the difference between the known objects and a list."""
        before, self._known = self._known, {}
        changes: list[Change] = []
        for raw in items:
            head = HEADS.decode(raw).metadata
            key = head.namespace, head.name
            known = before.pop(key, None)
            self._known[key] = head.uid, head.resourceVersion
            if known != self._known[key]:
                # A copy: a slice would keep the whole page in memory.
                changes.append(self._changed(head, raw.copy(), known))
        changes += (
            Change(self._resource.kind, namespace, name, uid, None, deleted=True)
            for (namespace, name), (uid, _) in before.items())
        self._version = version
        self._deliver(changes)

    def _changed(self, head: HeadMetadata, raw: msgspec.Raw, known: tuple[str, str] | None) -> Change:
        return Change(self._resource.kind, head.namespace, head.name, head.uid, raw,
                      replaced_uid=known[0] if known is not None and known[0] != head.uid else None)

    async def _stream_list(self) -> None:
        """List by a watch that begins with all objects, and go on with it; falls back to a list if it is refused."""
        query = self._watch_query(self._list_version() if self._version is not None else "") | {
            "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        items: dict[tuple[str, str], msgspec.Raw] = {}
        listed = self.view.lists
        try:
            async with aclosing(self._frames(query)) as frames:
                async for frame in frames:
                    head = self._head(frame)
                    key = head.namespace, head.name
                    if frame.type in {"ADDED", "MODIFIED"}:
                        items[key] = frame.object
                    elif frame.type == "DELETED":
                        items.pop(key, None)
                    elif _INITIAL_END in (_BOOKMARK.decode(frame.object).metadata.annotations or {}):
                        self._version_unavailable = False
                        self._replace(tuple(items.values()), head.resourceVersion)
                        self._heard(lists=self.view.lists + 1)
                        try:
                            await self._follow(frames)
                        except ConnectionFailed as error:
                            self._failed(error)
                        return
            raise ConnectionFailed(
                ApiFault(f"the server ended a streamed list of {self._resource.plural} early",
                         "check the API server, and load balancers and proxies in front of it"),
                refused=False, broken=True)
        except ApiError as error:
            if error.expired and self.view.lists > listed:
                raise _Expired from error
            self._version_unavailable = error.expired or error.too_large_version
            if self._version_unavailable or error.code == 429 or self.view.lists > listed:
                raise
            _LOG.info("the server does not stream lists of %s (%s): they are requested page by page",
                      self._resource.plural, error)
            self._streaming = False
            await self._list()

    async def _watch(self) -> None:
        """Follow one watch from the current version to its end, or wait after a failure that needs no new list."""
        assert self._version is not None
        started = self._clock()
        delivered = False
        try:
            async with aclosing(self._frames(self._watch_query(self._version))) as frames:
                delivered = await self._follow(frames)
        except ConnectionFailed as error:
            self._failed(error)
            if self._clock() - started >= _SHORT_WATCH_S and not error.refused:
                return
        except ApiError as error:
            if error.expired:
                raise _Expired from error
            if error.code != 429:
                raise
            self._failed(error)
        else:
            if delivered or self._clock() - started >= _SHORT_WATCH_S:
                return
        await self._sleep(self._backoff.next())

    async def _follow(self, frames: AsyncIterator[_Frame]) -> bool:
        """Deliver the changes of a watch; return True if there were any."""
        delivered = False
        async for frame in frames:
            head = self._head(frame)
            delivered = True
            key = head.namespace, head.name
            if frame.type in {"ADDED", "MODIFIED"}:
                known = self._known.get(key)
                self._known[key] = head.uid, head.resourceVersion
                self._deliver([self._changed(head, frame.object, known)])
            elif frame.type == "DELETED":
                self._known.pop(key, None)
                self._deliver([Change(self._resource.kind, head.namespace, head.name, head.uid, frame.object,
                                      deleted=True)])
            elif frame.type != "BOOKMARK":
                _LOG.warning("a watch of %s sends frames of the unknown type %.50r", self._resource.plural, frame.type)
                continue
            self._version = head.resourceVersion or self._version
            self._heard()
        return delivered

    async def _frames(self, query: dict[str, str]) -> AsyncGenerator[_Frame, None]:
        self.view = replace(self.view, watches=self.view.watches + 1)
        async with aclosing(self._transport.stream(self._resource.path(), query=query)) as lines:
            async for line in lines:
                frame = _FRAME.decode(line)
                if frame.type == "ERROR":
                    status = _STATUS.decode(frame.object)
                    raise ApiError(status.code, status)
                yield frame

    def _head(self, frame: _Frame) -> HeadMetadata:
        return HEADS.decode(frame.object).metadata

    def _watch_query(self, version: str) -> dict[str, str]:
        # Random timeouts, so that not all watches of a client end at once.
        seconds = random.randint(300, 600)  # noqa: S311
        return {**self._selector, "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version,
                "timeoutSeconds": str(seconds)}

    def _heard(self, **changes: int) -> None:
        self.view = replace(self.view, synced=True, heard=time.time(), fault="", **changes)

    def _failed(self, error: BaseException) -> None:
        why = str(error) or type(error).__name__
        if why != self.view.fault:
            _LOG.warning("%s cannot be followed, trying again: %s", self._resource.plural, why)
        self.view = replace(self.view, fault=why)
