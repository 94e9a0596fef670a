"""Instant queries of a Prometheus server, for plugins that run between two cycles and may wait for an answer.

https://prometheus.io/docs/prometheus/latest/querying/api/#instant-queries
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urlsplit

import msgspec

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_TIMEOUT_S: Final = 10.0
_LARGEST: Final = 16 * 1024 * 1024
"""The largest answer in bytes: about 100,000 samples."""
_INSTANCE: Final = "instance"
"""The label of a sample with the name of its node."""


class _Sample(msgspec.Struct):
    metric: dict[str, str] = {}
    value: tuple[float, str] = (0.0, "")


class _Data(msgspec.Struct, rename="camel"):
    result_type: str = ""
    result: msgspec.Raw = msgspec.Raw(b"[]")


class _Answer(msgspec.Struct):
    status: str = ""
    data: _Data = msgspec.field(default_factory=_Data)
    error: str = ""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirections: they would get the token."""

    def redirect_request(self, *_: object) -> None:
        return None


_OPENER: Final = urllib.request.build_opener(_NoRedirects)
_ANSWER: Final = msgspec.json.Decoder(_Answer)
_SAMPLES: Final = msgspec.json.Decoder(list[_Sample])


@dataclass(frozen=True, slots=True)
class PrometheusServer:
    """A server, which is called with a query.

    The bearer token is read from `token_file` for each query, as mounted Secrets are renewed; without a file it is that
    of the pod's service account, if there is one and the connection is encrypted.
    """

    url: str
    token_file: str = ""

    def __call__(self, query: str) -> Mapping[str, float]:
        """Return the samples of an instant query by their label `instance`.

        Raises:
            ValueError: there is no answer within 10 s, or one that is no vector with that label.
        """
        request = urllib.request.Request(  # noqa: S310 - its scheme is checked where arguments are
            f"{self.url.rstrip('/')}/api/v1/query?{urlencode({'query': query})}", headers=self._headers())
        try:
            with _OPENER.open(request, timeout=_TIMEOUT_S) as answer:
                body = answer.read(_LARGEST + 1)
        except urllib.error.HTTPError as error:
            with error:
                body = error.read(_LARGEST)
            raise ValueError(f"{self._failed}: {error.code} {error.reason}{_explained(body)}") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise ValueError(f"{self._failed}: {reason or type(reason).__name__}") from None
        if len(body) > _LARGEST:
            raise ValueError(f"{self._failed}: its answer is larger than {_LARGEST:,} bytes")
        try:
            return _samples(body)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self._failed}: {error}") from None

    @property
    def _failed(self) -> str:
        return f"error getting node usage: the query of {self.url} failed"

    def _headers(self) -> dict[str, str]:
        if not self.token_file and not (urlsplit(self.url).scheme == "https" and SERVICE_ACCOUNT.is_file()):
            return {}
        try:
            token = Path(self.token_file or SERVICE_ACCOUNT).read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise ValueError(f"{self._failed}: its token cannot be read: {error}") from None
        return {"Authorization": f"Bearer {token}"}


def _samples(body: bytes) -> Mapping[str, float]:
    """Return the samples of an answer; raise `ValueError` if it is no vector of nodes."""
    answer = _ANSWER.decode(body)
    if answer.status != "success":
        raise ValueError(answer.error or "its answer is no success")
    if answer.data.result_type != "vector":
        raise ValueError(f'expected query results to be of type "vector", got "{answer.data.result_type}" instead')
    found = {each.metric.get(_INSTANCE, ""): float(each.value[1]) for each in _SAMPLES.decode(answer.data.result)}
    if "" in found:
        raise ValueError("the collected metrics sample is missing 'instance' key")
    return found


def is_url(text: str) -> bool:
    """Return whether a text is the URL of an HTTP server."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _explained(body: bytes) -> str:
    try:
        error = _ANSWER.decode(body).error
    except (ValueError, RecursionError):
        return ""
    return f": {error}" if error else ""
