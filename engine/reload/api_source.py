"""Sources of policies in an API server: one ConfigMap, or the objects of our kinds.

What informers deliver is stored here, in their thread; the reloading thread reads versions of it, as it reads a
directory. A source is unreadable until the first lists have arrived. Afterwards it stays readable, with the last known
objects, while the API server does not answer.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from koordpolicy.engine.documents import VERSION, is_policy_file
from koordpolicy.engine.documents.objects import APPLIED, object_source, text_of
from koordpolicy.engine.source import PolicyError, Problem, Source

from .mount import Presence, SourceLimits, SourceReading, Stamp, Version, version_of
from .source_state import ReloadUnit

if TYPE_CHECKING:
    from koordpolicy.engine.client.informer import Change

CONFIGMAP: Final = "configmap:"
"""The beginning of `--policies configmap:NAMESPACE/NAME`."""
CRD: Final = "crd"
"""The value of `--policies` for the objects of our kinds."""


_REFUSALS: Final = ("401", "403")
"""The beginnings of faults of requests that are refused."""


class Followed(Protocol):
    """The state of an informer, see `client.informer.InformerView`."""

    @property
    def synced(self) -> bool:
        """True once the first list was delivered."""
        ...

    @property
    def fault(self) -> str:
        """The error of the last attempt; empty if the watch runs."""
        ...

    @property
    def absent(self) -> bool:
        """True if the server does not have the kind."""
        ...


class ApiSource:
    """The common part of both: thread-safe storage with a stamp. `deliver` is called with the changes of informers."""

    unit: ReloadUnit | None = None
    consistent: bool = True

    def __init__(self, path: str, *, limits: SourceLimits | None = None, help: str = "") -> None:  # noqa: A002 - as `Problem` calls it
        """`help` says what to do if the API server refuses to list the objects."""
        self.path = path
        self._limits = limits or SourceLimits()
        self._help = help
        self._lock = threading.Lock()
        self._revision = 0
        self._views: Callable[[], Sequence[Followed]] = tuple

    def follow(self, views: Callable[[], Sequence[Followed]]) -> None:
        """Set the function that returns the states of the informers that deliver to this source."""
        self._views = views

    @property
    def synced(self) -> bool:
        """True once all objects were listed."""
        views = self._views()
        return bool(views) and all(view.synced for view in views)

    @property
    def refused(self) -> bool:
        """True if the API server refuses to list the objects, or does not have the kind: waiting does not help."""
        return any(view.absent or view.fault.startswith(_REFUSALS) for view in self._views())

    @property
    def trouble(self) -> str:
        """The reason why changes may be missed at present; empty if none is."""
        return next((view.fault for view in self._views() if view.fault), "") if self.synced else ""

    def name_of(self, relative: str) -> str:
        """Return the full name of a file, for messages."""
        return f"{self.path}/{relative}"

    def source_of(self, relative: str, text: str) -> Source:
        """Return the text of a file with its full name."""
        return Source(self.name_of(relative), text)

    def stamp(self) -> Stamp:
        """Return the stamp, without reading any object."""
        if not self.synced:
            fault = next((view.fault for view in self._views() if view.fault), "")
            return Stamp(Presence.UNREADABLE, reason=fault or "the API server has not answered yet",
                         help=self._help if self.refused else "look at the connection to the API server")
        return Stamp(Presence.CLUSTER, (self._revision,))

    def deliver(self, changes: Sequence[Change]) -> bool:
        """Take over changes of objects, in their order; return whether policies may differ by them."""
        with self._lock:
            changed = sum(self._take(change) for change in changes)
            self._revision += changed
            return bool(changed)

    def read(self, previous: Version | None = None) -> SourceReading:
        """Read all files; one whose content is in `previous` keeps its `Source` object."""
        stamp = self.stamp()
        if not stamp.readable:
            return SourceReading(stamp)
        with self._lock:
            stamp = Stamp(Presence.CLUSTER, (self._revision,))
            contents, warnings = self._contents()
        size = sum(len(each) for each in contents.values() if not isinstance(each, Problem))
        if len(contents) > self._limits.files or size > self._limits.total_bytes:
            return SourceReading(replace(
                stamp, presence=Presence.UNREADABLE,
                reason=f"it holds {len(contents)} policies with {size:,} bytes, and {self._limits.files} with "
                       f"{self._limits.total_bytes:,} bytes are read at most", help="delete those that are not needed"))
        version = version_of(self, contents, previous, limit=self._limits.file_bytes)
        return SourceReading(stamp, version, warnings=warnings)

    def _take(self, change: Change) -> bool:
        """Take over one change; return whether policies may differ by it."""
        raise NotImplementedError

    def _contents(self) -> tuple[Mapping[str, bytes | Problem], tuple[str, ...]]:
        """Return the bytes of each file, or its problem; and warnings."""
        raise NotImplementedError


class _ConfigMap(msgspec.Struct, gc=False):
    data: dict[str, str] | None = None
    binaryData: dict[str, str] | None = None  # noqa: N815 - as in the JSON


_CONFIGMAPS: Final = msgspec.json.Decoder(_ConfigMap)


class ConfigMapSource(ApiSource):
    """One ConfigMap: its keys are files, as if it were mounted. If it is deleted, it is empty."""

    def __init__(self, namespace: str, name: str, *, limits: SourceLimits | None = None) -> None:
        super().__init__(f"{CONFIGMAP}{namespace}/{name}", limits=limits, help=(
            f"the server needs the right to list and watch the ConfigMap `{name}` in the namespace `{namespace}`"))
        self.namespace = namespace
        self.name = name
        self._content: _ConfigMap | None = None
        self._fault = ""

    def _take(self, change: Change) -> bool:
        if (change.namespace, change.name) != (self.namespace, self.name):
            return False
        before = self._content, self._fault
        self._content, self._fault = None, ""
        if not change.deleted and change.raw is not None:
            try:
                self._content = _CONFIGMAPS.decode(change.raw)
            except (ValueError, RecursionError) as error:
                self._content, self._fault = _ConfigMap(), str(error)
        return before != (self._content, self._fault)

    def _contents(self) -> tuple[Mapping[str, bytes | Problem], tuple[str, ...]]:
        if self._content is None:
            return {}, (f"there is no ConfigMap `{self.name}` in the namespace `{self.namespace}`",)
        if self._fault:
            return {"data": Problem(f"`{self.path}` cannot be read: {self._fault}", code="unreadable-file")}, ()
        contents: dict[str, bytes | Problem] = {
            key: text.encode("utf-8", "surrogatepass")
            for key, text in sorted((self._content.data or {}).items()) if is_policy_file(key)}
        for key, encoded in sorted((self._content.binaryData or {}).items()):
            if is_policy_file(key):
                try:
                    contents[key] = base64.b64decode(encoded, validate=True)
                except (ValueError, binascii.Error):
                    contents[key] = Problem(f"`{self.name_of(key)}` is not in base64", code="unreadable-file")
        return contents, ()


class _Metadata(msgspec.Struct, gc=False):
    name: str
    uid: str = ""
    generation: int = 0
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Object(msgspec.Struct, gc=False):
    metadata: _Metadata
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


_OBJECTS: Final = msgspec.json.Decoder(_Object)


@dataclass(frozen=True, slots=True)
class PolicyObject:
    """One object as it was last delivered."""

    kind: str
    name: str
    uid: str
    generation: int
    content: bytes | Problem
    """The text that is compiled, or why there is none."""
    digest: str
    """The sha256 of the content as in `Version.hashes`: empty if there is none."""
    status: Mapping[str, Any]
    sequence: int
    """The number of the delivery; another one means that the object was written since."""


class ObjectSource(ApiSource):
    """The objects of our kinds. Each is taken or refused by itself, together with the objects that it references."""

    unit = ReloadUnit.FILE

    def __init__(self, *, limits: SourceLimits | None = None) -> None:
        super().__init__(CRD, limits=limits, help=(
            "install the kinds with `koord-policy crd | kubectl apply --server-side -f -`, and give the server the "
            "right to list and watch them"))
        self._objects: dict[str, PolicyObject] = {}
        self._sequence = 0

    def name_of(self, relative: str) -> str:
        """Return the full name of an object, for messages."""
        return f"{self.path}:{relative}"

    def source_of(self, relative: str, text: str) -> Source:
        """Return the text of an object, whose problems name fields."""
        return object_source(self.name_of(relative), text)

    @property
    def objects(self) -> Mapping[str, PolicyObject]:
        """The objects as they were last delivered, by `KIND/NAME`."""
        with self._lock:
            return dict(self._objects)

    @property
    def sequence(self) -> int:
        """The number of the last delivery."""
        return self._sequence

    def _take(self, change: Change) -> bool:
        relative = f"{change.kind}/{change.name}"
        self._sequence += 1
        before = self._objects.pop(relative, None)
        if change.deleted or change.raw is None:
            return before is not None
        try:
            decoded = _OBJECTS.decode(change.raw)
            content: bytes | Problem = (text := _text(change.kind, decoded))
            digest = hashlib.sha256(text).hexdigest()
            status = msgspec.json.decode(decoded.status)
            generation = decoded.metadata.generation
        except (ValueError, RecursionError) as error:
            why = str(error) or type(error).__name__
            content = Problem(f"`{self.name_of(relative)}` cannot be read: {why}", code="unreadable-file")
            status, generation, digest = {}, 0, ""
        self._objects[relative] = PolicyObject(
            change.kind, change.name, change.uid, generation, content, digest,
            status if isinstance(status, dict) else {}, self._sequence)
        return before is None or before.content != content

    def _contents(self) -> tuple[Mapping[str, bytes | Problem], tuple[str, ...]]:
        return {relative: each.content for relative, each in self._objects.items()}, ()


def _text(kind: str, decoded: _Object) -> bytes:
    """Return the text of an object's document: what its author wrote, without what the API server adds."""
    metadata: dict[str, Any] = {"name": decoded.metadata.name}
    annotations = {key: text for key, text in (decoded.metadata.annotations or {}).items() if key != APPLIED}
    if decoded.metadata.labels:
        metadata["labels"] = decoded.metadata.labels
    if annotations:
        metadata["annotations"] = annotations
    return text_of({
        "apiVersion": VERSION, "kind": kind, "metadata": metadata,
        "spec": msgspec.json.decode(decoded.spec)}).encode("utf-8", "surrogatepass")


def parse(path: str) -> ApiSource | None:
    """Return the source in an API server that a value of `--policies` names; None for a file or directory.

    Raises `PolicyError` if it is no `configmap:NAMESPACE/NAME`.
    """
    if path == CRD:
        return ObjectSource()
    if not path.startswith(CONFIGMAP):
        return None
    namespace, slash, name = path.removeprefix(CONFIGMAP).partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise PolicyError([Problem(f"`{path}` names no ConfigMap", code="usage",
                                   help=f"write `{CONFIGMAP}NAMESPACE/NAME`")])
    return ConfigMapSource(namespace, name)
