"""Instant queries of a Prometheus server, for plugins that run between two cycles and may wait for an answer.

https://prometheus.io/docs/prometheus/latest/querying/api/#instant-queries
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec

from koordpolicy.engine.client.kubeconfig import SERVICE_ACCOUNT
from koordpolicy.engine.client.server_calls import Caller

_TIMEOUT_S: Final = 10.0
_LARGEST: Final = 16 * 1024 * 1024
"""The largest answer in bytes: about 100,000 samples."""
_INSTANCE: Final = "instance"
"""The label of a sample with the name of its node."""
_UNAUTHORIZED: Final = 401


class _Sample(msgspec.Struct):
    metric: dict[str, str] = {}
    value: tuple[float, str] = (0.0, "")


class _Data(msgspec.Struct, rename="camel"):
    result_type: str = ""
    result: list[Any] = []


class _Answer(msgspec.Struct):
    status: str = ""
    data: _Data = msgspec.field(default_factory=_Data)
    error: str = ""


@dataclass(frozen=True, slots=True)
class PrometheusServer:
    """A server, which is called with a query.

    The bearer token is read from `token_file` for each query, as mounted Secrets are renewed; without a file it is that
    of the pod's service account, if there is one and the connection is encrypted. Certificates are verified by the
    authorities of the system and of the cluster.
    """

    url: str
    token_file: str = ""

    def __call__(self, query: str) -> Mapping[str, float]:
        """Return the samples of an instant query by their label `instance`.

        Raises:
            ValueError: there is no whole answer within 10 s, or one that is no vector with that label.
        """
        try:
            return _samples(self._answer(query))
        except ValueError as error:
            raise ValueError(f"error getting node usage: the query of {self.url} failed: {error}") from None

    def _answer(self, query: str) -> Mapping[str, Any]:
        caller = Caller(self._token(), self._context(), _TIMEOUT_S, _LARGEST, what="Prometheus")
        answer = caller.ask(self.url, f"/api/v1/query?{urlencode({'query': query})}")
        if answer.error:
            raise ValueError("it wants another token" if answer.code == _UNAUTHORIZED else answer.error)
        return answer.data

    @property
    def _is_encrypted(self) -> bool:
        return urlsplit(self.url).scheme == "https"

    def _token(self) -> str:
        own = SERVICE_ACCOUNT / "token"
        if not self.token_file and not (self._is_encrypted and own.is_file()):
            return ""
        try:
            token = Path(self.token_file or own).read_text(encoding="ascii").strip()
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it has other characters than ASCII"
            raise ValueError(f"its token cannot be read: {reason}") from None
        # A line break in a header would be an error that shows the token.
        if not token or not token.isprintable():
            raise ValueError("its token file holds no token")
        return token

    def _context(self) -> ssl.SSLContext | None:
        if not self._is_encrypted:
            return None
        context, authority = ssl.create_default_context(), SERVICE_ACCOUNT / "ca.crt"
        if authority.is_file():
            try:
                context.load_verify_locations(authority)
            except (OSError, ssl.SSLError) as error:
                raise ValueError(f"the cluster's authority cannot be read: {error}") from None
        return context


def _samples(content: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the samples of an answer; raise `ValueError` if it is no vector of nodes."""
    answer = msgspec.convert(content, _Answer)
    if answer.status != "success":
        raise ValueError(answer.error or "its answer is no success")
    if answer.data.result_type != "vector":
        raise ValueError(f'expected query results to be of type "vector", got "{answer.data.result_type}" instead')
    samples = msgspec.convert(answer.data.result, list[_Sample])
    found = {each.metric.get(_INSTANCE, ""): float(each.value[1]) for each in samples}
    if "" in found:
        raise ValueError("the collected metrics sample is missing 'instance' key")
    return found
