"""Informers: the objects of one kind, followed by list and watch, as changes without gaps.

The protocol is that of client-go's reflector: a streamed list where the server has it, else list and watch; bookmarks
move the version from which a broken watch goes on; a version that has expired leads to a new list, whose difference to
the last known objects is delivered. Beyond that protocol, a version that the server has not reached leads to a new list
too: etcd was restored from a backup. Objects are not decoded here beyond their identity, and none is held: those of a
list are delivered while it arrives.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

import msgspec

from koordpolicy.engine.records import fast_init
from koordpolicy.engine.source import PolicyError

from .faults import ApiFault
from .list_parser import ListedObject, ListMetadata, ListParser
from .pacing import Backoff
from .resources import HEADS, ApiResource, HeadMetadata
from .transport import ApiError, ConnectionFailed, Status, Transport

_LOG: Final = logging.getLogger(__name__)

_PAGE: Final = 500
_SHORT_WATCH_S: Final = 1.0
ABSENT_S: Final = 30.0
_BOOKMARKED_S: Final = 3
"""The time limit of a watch that waits for a bookmark, which comes two seconds before it."""
_INITIAL_END: Final = "k8s.io/initial-events-end"
_NO_VERSION: Final = "-"
"""The version of a known object that is to be delivered again; measurements have an empty one."""


class _BookmarkMetadata(msgspec.Struct, gc=False):
    annotations: dict[str, str] | None = None


class _Bookmark(msgspec.Struct, gc=False):
    metadata: _BookmarkMetadata = msgspec.field(default_factory=_BookmarkMetadata)


class _Frame(msgspec.Struct, gc=False):
    type: str
    object: msgspec.Raw


_FRAME: Final = msgspec.json.Decoder(_Frame)
_BOOKMARK: Final = msgspec.json.Decoder(_Bookmark)
_STATUS: Final = msgspec.json.Decoder(Status)


@fast_init
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
    read: tuple[dict[str, Any], bool] | None = None
    """The result of the informer's `read` for `raw`; None if it was not called, or raised."""


@dataclass(frozen=True, slots=True)
class InformerView:
    """The state of an informer, for other threads."""

    synced: bool = False
    """True once the first list was delivered."""
    heard: float = 0.0
    """Time of the last list, frame or bookmark, in seconds since the epoch; 0 for never."""
    fault: str = ""
    """The error of the last attempt; empty if the watch runs."""
    absent: bool = False
    """True if the server does not have the kind."""
    lists: int = 0
    watches: int = 0


def _number(version: str | None) -> int:
    """Return a resourceVersion as a number, in which they are ordered; 0 for one that is none."""
    return int(version) if version is not None and version.isdecimal() else 0


class _Expired(Exception):
    """The version from which to watch is too old."""


class Informer:
    """Follows the objects of one kind until it is cancelled. Belongs to one event loop; `view` may be read anywhere."""

    def __init__(
        self, transport: Transport, resource: ApiResource, deliver: Callable[[Sequence[Change]], None], *,
        listed: Callable[[], None] = lambda: None, namespace: str = "", field_selector: str | None = None,
        label_selector: str | None = None, streaming: bool | None = None, backoff: Backoff | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time, absent_s: float = ABSENT_S,
        read: Callable[[bytes], tuple[dict[str, Any], bool]] | None = None,
    ) -> None:
        """`deliver` is called in the loop with the changes in order, and `listed` after the last one of each list, or
        after an answer that the server does not have the kind; they must not block. If one of them raises, that is
        logged, and all objects are listed and delivered again.

        `namespace` limits it to the objects of one namespace. `streaming` says whether lists are requested as streams
        (WatchList); None for those after a list that broke while it arrived. `absent_s` seconds pass between two
        requests for a kind that the server does not have.

        `read` decodes an object and checks it, as `PartPool.decode` does, its identity and `resourceVersion` included.
        It is called with those of plain lists, so that the JSON of each is gone through once.

        In JSON a stream costs the server about three times the processor time of a list, which it also encodes object
        by object. But a list must arrive within the server's time limit of a request, and a stream has none.
        """
        self.view = InformerView()
        self._transport = transport
        self._resource = resource
        self._path = resource.path(namespace or None)
        self._deliver = deliver
        self._listed = listed
        self._selector = {name: text for name, text in (
            ("fieldSelector", field_selector), ("labelSelector", label_selector)) if text}
        self._streaming = streaming is True
        self._may_stream = streaming is not False
        self._backoff = backoff or Backoff(clock=clock)
        self._sleep = sleep
        self._clock = clock
        self._now = now
        self._absent_s = absent_s
        self._read = read or HEADS.decode
        self._known: dict[tuple[str, str], tuple[str, str]] = {}
        """UID and resourceVersion by namespace and name, as delivered."""
        self._unseen: dict[tuple[str, str], tuple[str, str]] = {}
        """The known objects that the list in progress has not shown yet."""
        self._highest = 0
        """The highest resourceVersion of the objects of the list in progress."""
        self._listing = False
        """True from the beginning of a list until one has ended well."""
        self._redeliver = False
        self._version: str | None = None
        """The resourceVersion from which the watch goes on; None before the first list."""
        self._version_unavailable = False
        self._broken = False
        """True after the connection of a watch broke, until a frame or a list arrives."""
        self._paged = False
        self._attempt: asyncio.Task[None] | None = None
        self._watching = False
        self._resume = False
        """True if the next attempt goes on with the watch instead of a list."""
        self._awaited: list[tuple[int, asyncio.Future[None]]] = []

    async def run(self) -> NoReturn:
        """Follow the objects. Ends by cancellation only: errors are logged, set in `view.fault` and retried."""
        current = asyncio.current_task()
        assert current is not None
        while True:
            self._attempt = asyncio.create_task(self._follow_and_pause())
            try:
                await self._attempt
            except asyncio.CancelledError:
                if current.cancelling():
                    raise  # else interrupted by `relist` or `reach`

    def relist(self) -> None:
        """List again now, also during a pause, and deliver all objects, also those that have not changed."""
        self._redeliver, self._resume = True, False
        self._interrupt()

    async def reach(self, version: int) -> None:
        """Return when all changes up to a resourceVersion were delivered, without a list.

        The watch is started anew with a short time limit, shortly before which the server sends a bookmark.
        """
        if self._is_reached(version):
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._awaited.append((version, reached))
        try:
            if self._watching:
                self._resume = not self._redeliver  # the list of a `relist` that has not begun may not be left out
                self._interrupt()
            await reached
        finally:
            self._awaited = [each for each in self._awaited if each[1] is not reached]

    def known(self) -> dict[tuple[str, str], tuple[str, str]]:
        """Return UID and resourceVersion of all delivered objects, by namespace and name; a copy."""
        return dict(self._known)

    def _interrupt(self) -> None:
        if self._attempt is not None:
            self._attempt.cancel()

    async def _follow_and_pause(self) -> None:
        seconds, failure = await self._follow_until_failure()
        await self._pause(seconds, failure)

    async def _pause(self, seconds: float, failure: Exception | None) -> None:
        """Wait until the next attempt; after a failure of the server no longer than until it has recovered."""
        # A server that answers 429 is there, and wants fewer requests.
        if failure is None or (isinstance(failure, ApiError) and failure.code == 429):
            await self._sleep(seconds)
        else:
            await self._transport.recovery.pause(self._path, seconds, self._sleep, followed=not self._listing)

    async def _follow_until_failure(self) -> tuple[float, Exception | None]:
        """List and watch; return the seconds until the next attempt, and the server's failure if there was one."""
        started = self._clock()
        try:
            resume, self._resume = self._resume, False
            if self._resource.poll_s:
                self._redeliver = True
                await self._list()
                return self._resource.poll_s, None
            if not resume:
                await (self._stream_list() if self._streaming else self._list())
            while True:
                await self._watch()
        except _Expired:
            # If each new version expires immediately, lists must not follow each other without a pause.
            return 0.0 if self._clock() - started >= _SHORT_WATCH_S else self._backoff.next(), None
        except (ApiError, ConnectionFailed) as error:
            if isinstance(error, ApiError) and self._says_absent(error):
                await self._note_absence()
                return self._absent_s, None
            self._failed(error)
            return self._backoff.next(), error
        except (PolicyError, ValueError, RecursionError) as error:
            self._failed(error)
        except Exception as error:
            # A fault of this program, or of `deliver`: it may not have received what is known here.
            self._redeliver = True
            _LOG.exception("%s cannot be followed, trying again", self._resource.plural)
            self.view = replace(self.view, fault=f"{type(error).__name__}: {error}")
        return self._backoff.next(), None

    def _says_absent(self, error: ApiError) -> bool:
        # A kind that is polled is served by another server, whose absence must hold nothing up.
        return error.code == 404 or (self._resource.poll_s > 0 and not self.view.synced and error.code >= 500)

    async def _note_absence(self) -> None:
        """Record that the server does not have the kind; if it says so twice, its objects are gone too."""
        if self.view.absent:
            self._unseen, self._known = self._known, {}
            self._version = None
            await self._deliver_deletions()
        self.view = replace(self.view, absent=True, fault="the cluster does not have it")
        self._listed()

    # Lists

    async def _list(self) -> None:
        try:
            version = await self._pages(self._list_version())
        except ApiError as error:
            if not error.expired and not error.too_large_version:
                raise
            self._version_unavailable = True
            version = await self._pages("")
        self._version_unavailable = False
        await self._end_list(version)

    def _list_version(self) -> str:
        """Return the resourceVersion of the next list: any at first, then at least the last known one.

        If the server does not have that one any more, the newest.
        """
        if self._version_unavailable:
            return ""
        return "0" if self._version is None else self._version

    async def _pages(self, version: str) -> str:
        """Deliver the changes of a list while it arrives; return its resourceVersion."""
        query = {**self._selector, "resourceVersion": version}
        if version in {"", "0"} or self._paged:
            query["limit"] = str(_PAGE)
        first = self._version is None
        self._begin_list()
        try:
            while True:
                try:
                    metadata = await self._page(query)
                except ApiError as error:
                    if not error.expired or "continue" not in query:
                        raise
                    # A list that expires between its pages is requested again from the first page.
                    self._begin_list()
                    query = {**self._selector, "resourceVersion": ""}
                    continue
                if not metadata.next:
                    return metadata.resourceVersion
                self._paged = self._paged or first
                query = {**self._selector, "limit": str(_PAGE), "continue": metadata.next}
        except BaseException:
            self._break_list()
            raise

    async def _page(self, query: dict[str, str]) -> ListMetadata:
        parser = ListParser(self._read)
        begun = False
        try:
            async with aclosing(self._transport.chunks(self._path, query=query)) as chunks:
                async for chunk in chunks:
                    begun = True
                    self._deliver_listed(parser.feed(chunk))
        except ConnectionFailed:
            self._streaming = begun and self._may_stream
            raise
        self._deliver_listed(parser.close())
        assert parser.metadata is not None
        return parser.metadata

    def _begin_list(self) -> None:
        if self._redeliver:
            self._redeliver = False
            self._known = {key: (uid, _NO_VERSION) for key, (uid, _) in self._known.items()}
        self._unseen = dict(self._known)
        self._highest = 0
        self._listing = True

    def _break_list(self) -> None:
        """Let the next list be none older than the objects that were delivered of this one."""
        self._unseen = {}
        if self._highest > _number(self._version):
            self._version = str(self._highest)

    async def _end_list(self, version: str) -> None:
        await self._deliver_deletions()
        self._listing = False
        self._heard(version, lists=self.view.lists + 1)
        self._listed()

    def _deliver_listed(self, items: Sequence[ListedObject]) -> None:
        changes = []
        for raw, read in items:
            head = _head_read(read) or self._head(raw)
            if head is None:
                continue
            key, version = (head.namespace, head.name), (head.uid, head.resourceVersion)
            self._unseen.pop(key, None)
            known = self._known.get(key)
            if known != version:
                self._known[key] = version
                self._highest = max(self._highest, _number(head.resourceVersion))
                changes.append(self._changed(head, raw, known, read if type(read) is tuple else None))
        if changes:
            self._deliver(changes)

    async def _deliver_deletions(self) -> None:
        """Deliver the deletion of all known objects that the list does not have."""
        deleted, self._unseen = [(*key, uid) for key, (uid, _) in self._unseen.items()], {}
        for start in range(0, len(deleted), _PAGE):
            changes = []
            for namespace, name, uid in deleted[start:start + _PAGE]:
                self._known.pop((namespace, name), None)
                changes.append(Change(self._resource.kind, namespace, name, uid, None, deleted=True))
            self._deliver(changes)
            await asyncio.sleep(0)

    def _changed(
        self, head: HeadMetadata, raw: msgspec.Raw, known: tuple[str, str] | None,
        read: tuple[dict[str, Any], bool] | None = None,
    ) -> Change:
        return Change(self._resource.kind, head.namespace, head.name, head.uid, raw, False,
                      known[0] if known is not None and known[0] != head.uid else None, read)

    async def _stream_list(self) -> None:
        """List by a watch that begins with all objects, and go on with it; falls back to a list if it is refused."""
        query = self._watch_query(self._list_version() if self._version is not None else "") | {
            "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        listed = self.view.lists
        self._begin_list()
        try:
            async with aclosing(self._frames(query)) as frames:
                async for frame, *others in frames:
                    if frame.type in {"ADDED", "MODIFIED"}:
                        self._deliver_listed([ListedObject(each.object, None) for each in (frame, *others)])
                    elif frame.type == "DELETED":
                        self._deliver_deleted(frame)
                    elif _INITIAL_END in (_BOOKMARK.decode(frame.object).metadata.annotations or {}):
                        self._version_unavailable = False
                        await self._end_list(HEADS.decode(frame.object).metadata.resourceVersion)
                        if self._awaited:
                            return  # a watch with a short time limit follows
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
            if self._version_unavailable or error.code in {404, 429} or self.view.lists > listed:
                raise
            if error.code not in {401, 403}:  # if the right to watch is missing, the list or the watch says so
                _LOG.info("the server does not stream lists of %s (%s): they are requested page by page",
                          self._resource.plural, error)
            self._streaming = self._may_stream = False
            await self._list()
        finally:
            if self.view.lists == listed:
                self._break_list()

    async def _watch(self) -> None:
        """Follow one watch from the current version to its end, or wait after a failure that needs no new list."""
        assert self._version is not None
        started = self._clock()
        delivered = False
        try:
            async with aclosing(self._frames(self._watch_query(self._version))) as frames:
                delivered = await self._follow(frames)
            if not delivered and self._clock() - started >= _SHORT_WATCH_S:
                await self._check_version()
        except ApiError as error:
            if error.expired:
                raise _Expired from error
            if error.code != 429:
                raise
            self._failed(error)
            failure: Exception | None = error
        except ConnectionFailed as error:
            self._broken = True
            self._failed(error)
            if self._clock() - started >= _SHORT_WATCH_S and not error.refused:
                return
            failure = error
        else:
            if delivered or self._clock() - started >= _SHORT_WATCH_S:
                return
            failure = None
        await self._pause(self._backoff.next(), failure)

    async def _check_version(self) -> None:
        """Raise `_Expired` if the server has not reached the current version, as when etcd was restored from a backup.

        Such a server accepts a watch from that version and sends nothing, not even bookmarks, until it has reached it.
        A server that does not say its version is trusted.
        """
        self._broken = False
        try:
            # Without the selector: before Kubernetes 1.31 the server would look for a match in all of etcd.
            body = await self._transport.request("GET", self._path, query={"limit": "1", "resourceVersion": ""})
            version = HEADS.decode(body).metadata.resourceVersion
        except (ValueError, RecursionError):
            return
        except ApiError as error:
            if error.code != 403:  # the right to list may be limited to the selector
                raise
            return
        if version and _number(version) < _number(self._version):
            _LOG.warning("the resourceVersion of the server's %s went back from %s to %s, as after a restore of etcd: "
                         "all are listed again", self._resource.plural, self._version, version)
            # An object may have got another content under its former version.
            self._redeliver = self._version_unavailable = True
            raise _Expired

    async def _follow(self, frames: AsyncIterator[Sequence[_Frame]]) -> bool:
        """Deliver the changes of a watch; return True if there were any."""
        delivered = False
        self._watching = True
        try:
            async for together in frames:
                for frame in together:
                    delivered = self._deliver_frame(frame) or delivered
        finally:
            self._watching = False
        return delivered

    def _deliver_frame(self, frame: _Frame) -> bool:
        """Deliver a change of a watch; return False for a frame that tells nothing."""
        if frame.type not in {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}:
            _LOG.warning("a watch of %s sends frames of the unknown type %.50r", self._resource.plural, frame.type)
            return False
        if frame.type == "DELETED":
            head = self._deliver_deleted(frame)
        else:
            head = self._head(frame.object)
            if head is not None and frame.type != "BOOKMARK":
                key = head.namespace, head.name
                known, self._known[key] = self._known.get(key), (head.uid, head.resourceVersion)
                self._deliver([self._changed(head, frame.object, known)])
        self._heard(head.resourceVersion if head is not None else "")
        return True

    def _deliver_deleted(self, frame: _Frame) -> HeadMetadata | None:
        head = self._head(frame.object)
        if head is not None:
            key = head.namespace, head.name
            self._known.pop(key, None)
            self._unseen.pop(key, None)
            self._deliver([Change(self._resource.kind, head.namespace, head.name, head.uid, frame.object,
                                  deleted=True)])
        return head

    async def _frames(self, query: dict[str, str]) -> AsyncGenerator[Sequence[_Frame], None]:
        """Yield the frames of a watch, one by one; those of new objects that arrived together come together."""
        self.view = replace(self.view, watches=self.view.watches + 1)
        async with aclosing(self._transport.stream(self._path, query=query)) as arrivals:
            async for lines in arrivals:
                added: list[_Frame] = []
                for line in lines:
                    try:
                        frame = _FRAME.decode(line)
                    except (ValueError, RecursionError):
                        if added:
                            yield added
                        raise
                    if frame.type == "ADDED":
                        added.append(frame)
                        continue
                    if added:
                        yield added
                        added = []
                    if frame.type == "ERROR":
                        status = _STATUS.decode(frame.object)
                        raise ApiError(status.code, status)
                    yield [frame]
                if added:
                    yield added

    def _head(self, raw: msgspec.Raw) -> HeadMetadata | None:
        """Return the key of an object; None, which is logged, for an object without one."""
        try:
            return HEADS.decode(raw).metadata
        except (ValueError, RecursionError) as error:
            _LOG.warning("one of the %s cannot be read, and is left out: %s", self._resource.plural, error)
            return None

    def _watch_query(self, version: str) -> dict[str, str]:
        # Random timeouts, so that not all watches of a client end at once.
        seconds = (_BOOKMARKED_S if self._awaited or self._broken
                   else random.randint(300, 600))  # noqa: S311 - no secret
        return {**self._selector, "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version,
                "timeoutSeconds": str(seconds)}

    def _is_reached(self, version: int) -> bool:
        return self.view.synced and _number(self._version) >= version

    def _heard(self, version: str, **changes: int) -> None:
        self._version = version or self._version
        self._broken = False
        self.view = replace(self.view, synced=True, heard=self._now(), fault="", absent=False, **changes)
        if self._awaited:
            for awaited, reached in self._awaited:
                if self._is_reached(awaited) and not reached.done():
                    reached.set_result(None)

    def _advised(self, error: BaseException, why: str) -> str:
        """Return why an attempt failed, and what to do."""
        plural = self._resource.plural
        if isinstance(error, ApiError) and error.code == 403:
            return f"{why}: grant `list` and `watch` on `{plural}`"
        if isinstance(error, ConnectionFailed):
            return f"{self._transport.connection.server}: {why}: {error.fault.help}"
        return why

    def _failed(self, error: BaseException) -> None:
        why = str(error) or type(error).__name__
        if why != self.view.fault:
            _LOG.warning("%s cannot be followed, trying again: %s", self._resource.plural, self._advised(error, why))
        self.view = replace(self.view, fault=why)


def _head_read(read: Any) -> HeadMetadata | None:
    """Return the identity of an object that was read; None if it is to be looked for in its JSON."""
    if type(read) is not tuple:
        return None if read is None else read.metadata
    metadata = read[0].get("metadata")
    if type(metadata) is not dict:
        return None
    of = metadata.get
    head = HeadMetadata(of("name", ""), of("namespace", ""), of("uid", ""), of("resourceVersion", ""))
    are_texts = type(head.name) is type(head.namespace) is type(head.uid) is type(head.resourceVersion) is str
    return head if are_texts else None
