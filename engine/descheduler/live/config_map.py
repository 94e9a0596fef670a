"""A text under one key of a ConfigMap, in which processes leave each other state."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from koordpolicy.engine.client.io_thread import Submitter
from koordpolicy.engine.client.resources import ApiResource, ObjectReference
from koordpolicy.engine.client.transport import ApiError, ConnectionFailed, Transport
from koordpolicy.engine.client.writes import ClusterWriter, WriteStatus
from koordpolicy.engine.source import PolicyError

from ..proof.store import StoreChangedError

CONFIG_MAPS: Final = ApiResource("ConfigMap", "", "v1", "configmaps")
_NOT_FOUND: Final = 404
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConfigMapText:
    """The text as it was read, with the version of its ConfigMap."""

    text: str | None = None
    """None if there is no such key."""
    version: str = ""
    """Empty if there is no ConfigMap."""


class ConfigMapKey:
    """One key of a ConfigMap, which is created if there is none; each request is waited for."""

    def __init__(
        self, io: Submitter, transport: Transport, writer: ClusterWriter, *, namespace: str, name: str, key: str,
        request_s: float = 10.0,
    ) -> None:
        """`transport` and `writer` belong to the loop of `io`."""
        self._io = io
        self._transport = transport
        self._writer = writer
        self._reference = ObjectReference(CONFIG_MAPS, namespace, name)
        self._key = key
        self._request_s = request_s

    @property
    def name(self) -> str:
        """Namespace and name of the ConfigMap."""
        return f"{self._reference.namespace}/{self._reference.name}"

    def read(self) -> ConfigMapText:
        """Return the text; raises `OSError` if it cannot be read."""
        try:
            content = self._result(self._transport.request(
                "GET", self._reference.path(), timeout=self._request_s, retries=0))
        except (ApiError, ConnectionFailed, PolicyError) as error:
            if isinstance(error, ApiError) and error.code == _NOT_FOUND:
                return ConfigMapText()
            raise OSError(str(error)) from None
        return self._text(content)

    def write(self, text: str, version: str) -> ConfigMapText:
        """Replace the text in the ConfigMap of this version, with an empty one create it; other keys stay.

        Raises:
            StoreChangedError: it has another version, or there is one already, or none any more.
            OSError: it was refused, or has no answer: then it may have been written.
        """
        reference, body = self._reference, {"data": {self._key: text}}
        if version:
            result = self._result(self._writer.merge_patch(reference, body, resource_version=version))
        else:
            metadata = {"name": reference.name, "namespace": reference.namespace}
            result = self._result(self._writer.create(
                CONFIG_MAPS, {"metadata": metadata, **body}, namespace=reference.namespace))
        if result.status is WriteStatus.CONFLICT or (version and result.status is WriteStatus.GONE):
            raise StoreChangedError(f"the ConfigMap {self.name} was changed meanwhile")
        if not result.done:
            raise OSError(f"{result.status.value}: {result.message}")
        return self._text(result.answer or b"{}")

    def _text(self, content: bytes) -> ConfigMapText:
        try:
            found: Any = json.loads(content)
            text = (found.get("data") or {}).get(self._key)
            version = (found.get("metadata") or {}).get("resourceVersion")
        except (ValueError, AttributeError, RecursionError):
            raise OSError(f"the answer about the ConfigMap {self.name} is none") from None
        return ConfigMapText(text if isinstance(text, str) else None, str(version or ""))

    def _result(self, request: Coroutine[Any, Any, T]) -> T:
        try:
            future = self._io.submit(request)
        except RuntimeError as error:
            raise OSError(str(error)) from None
        try:
            return future.result(self._request_s)
        except FutureTimeoutError:
            future.cancel()
            raise OSError(f"the API server has not answered within {self._request_s:g} s") from None
