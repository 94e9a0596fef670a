"""The kubelet's own API: the pods that run on the node, and the kubelet's configuration.

koordlet does not verify the kubelet's certificate, and so sends its token to whatever answers. Here it is verified
unless an option switches that off.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.faults import ApiFault
from koordpolicy.engine.client.list_parser import ListParser
from koordpolicy.engine.client.transport import ApiError, ConnectionFailed, Transport
from koordpolicy.engine.source import PolicyError

_LOG: Final = logging.getLogger(__name__)

PODS: Final = "/pods/"
CONFIG: Final = "/configz"
ADDRESS_TYPES: Final = ("InternalIP", "Hostname", "InternalDNS", "ExternalIP", "ExternalDNS")
_PORT: Final = 10250
_LARGEST: Final = 64 << 20
"""Bytes of an answer at most: thousands of pods."""


@dataclass(frozen=True, slots=True)
class KubeletSettings:
    """The way to the kubelet."""

    address: str = ""
    """Host or address; empty for the address of the Node of the preferred type."""
    address_type: str = "InternalIP"
    port: int = 0
    """0 for the port that the Node names, or 10250."""
    read_only_port: int = 0
    """Above 0: plain HTTP to this port without credentials, which the kubelet must have switched on."""
    certificate_authority: str | None = None
    """The file that verifies the kubelet's certificate; None for the authority of the API server. The kubelet's own
    certificate (`/var/lib/kubelet/pki/kubelet.crt`) pins one that no authority has signed."""
    server_name: str | None = None
    """The name in the kubelet's certificate, if that is not the address."""
    verify: bool = True
    interval: float = 10.0
    """Seconds between two lists of pods."""
    timeout: float = 3.0
    """Seconds for one answer."""

    def __post_init__(self) -> None:
        """Check the values; raises `ValueError`."""
        if self.address_type not in ADDRESS_TYPES:
            raise ValueError(f"there is no address type `{self.address_type}`, only {', '.join(ADDRESS_TYPES)}")
        if not self.interval > 0 or not self.timeout > 0:
            raise ValueError("interval and timeout of the kubelet must be above 0 seconds")
        if not 0 <= self.port < 65_536 or not 0 <= self.read_only_port < 65_536:
            raise ValueError("a port is a number up to 65535")

    @property
    def warning(self) -> str:
        """A warning about its safety that is to be logged at start; empty if there is nothing."""
        if self.read_only_port:
            return (f"the kubelet's read-only port {self.read_only_port} is not authenticated: any process on the node "
                    "that takes the port decides which pods are seen")
        if not self.verify:
            return ("the kubelet's certificate is not verified: the agent's token is sent to whatever answers at its "
                    "address")
        return ""

    def connection(self, node: Mapping[str, Any] | None, api: Connection) -> Connection | None:
        """Return the connection to the kubelet; None until the Node has an address.

        Credentials, and authorities unless others are set, are those of the API server.
        """
        host = self.address or _address(node, self.address_type)
        if not host:
            return None
        host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        if self.read_only_port:
            return Connection(f"http://{host}:{self.read_only_port}")
        return Connection(
            f"https://{host}:{self.port or _node_port(node)}", api.credentials,
            self.certificate_authority or api.certificate_authority, api.client_certificate, verify=self.verify,
            server_name=self.server_name)


KubeletObserver = Callable[[str, int, float], object]
"""Called in the event loop with path, status (0 without an answer) and seconds of each GET to the kubelet."""


class KubeletError(Exception):
    """No usable answer of the kubelet, and what to do."""


class Kubelet:
    """The kubelet of the node. Belongs to one event loop."""

    def __init__(self, settings: KubeletSettings, api: Connection, observer: KubeletObserver | None = None) -> None:
        self.settings = settings
        self._api = api
        self._observer = observer
        self._transport: Transport | None = None
        if settings.warning:
            _LOG.warning("%s", settings.warning)

    async def close(self) -> None:
        """End its connections."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()

    async def pods(self, node: Mapping[str, Any] | None) -> list[msgspec.Raw]:
        """Return the pods of the kubelet, each in its JSON; `node` has its address.

        Raises `KubeletError` if there is no complete list of objects in time.
        """
        with self._observed(PODS):
            return await self._pods(node)

    async def _pods(self, node: Mapping[str, Any] | None) -> list[msgspec.Raw]:
        parser = ListParser()
        found: list[msgspec.Raw] = []
        try:
            transport = await self._open(node)
            async with asyncio.timeout(self.settings.timeout), aclosing(
                    transport.chunks(PODS, query={}, silence=self.settings.timeout, retries=0)) as chunks:
                size = 0
                async for chunk in chunks:
                    size += len(chunk)
                    if size > _LARGEST:
                        raise KubeletError(f"its list of pods is longer than {_LARGEST >> 20} MiB")
                    found += [each.raw for each in parser.feed(chunk)]
            found += [each.raw for each in parser.close()]
        except TimeoutError:
            raise KubeletError(self._late()) from None
        except (ValueError, RecursionError) as error:
            why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise KubeletError(f"it does not answer with a list of pods: {why}") from None
        except (ApiError, ConnectionFailed, PolicyError) as error:
            raise KubeletError(self._advised(error, "nodes/pods")) from None
        return found

    async def configuration(self, node: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the kubelet's configuration (`kubeletconfig` of `/configz`); raises `KubeletError`."""
        try:
            with self._observed(CONFIG):
                text = await (await self._open(node)).request("GET", CONFIG, timeout=self.settings.timeout, retries=0)
            found = msgspec.json.decode(text)
        except (ValueError, RecursionError) as error:
            raise KubeletError(f"its configuration is not JSON: {error}") from None
        except (ApiError, ConnectionFailed, PolicyError) as error:
            raise KubeletError(self._advised(error, "nodes/configz")) from None
        config = found.get("kubeletconfig") if isinstance(found, dict) else None
        if not isinstance(config, dict):
            raise KubeletError("its configuration has no object `kubeletconfig`")
        return config

    @contextmanager
    def _observed(self, path: str) -> Iterator[None]:
        """Measure a request; one that was not sent, as the address is not known, is none."""
        begun, code = time.monotonic(), 200
        try:
            yield
        except BaseException as error:
            cause = error if isinstance(error, ApiError) else error.__context__
            code = cause.code if isinstance(cause, ApiError) else 0
            raise
        finally:
            if self._observer is not None and self._transport is not None:
                self._observer(path, code, time.monotonic() - begun)

    async def _open(self, node: Mapping[str, Any] | None) -> Transport:
        connection = self.settings.connection(node, self._api)
        if connection is None:
            raise KubeletError("its address is not known: the Node has none of the type "
                               f"{self.settings.address_type}, or is not known yet")
        if self._transport is not None and self._transport.connection != connection:
            await self.close()
        if self._transport is None:
            self._transport = Transport(connection, user_agent="koord-policy-agent", rate=0)
        return self._transport

    def _late(self) -> str:
        return f"it does not answer within {self.settings.timeout:g} s"

    def _advised(self, error: Exception, resource: str) -> str:
        if isinstance(error, ApiError):
            if error.code in {401, 403}:
                return f"{error}: grant `get` on `{resource}` (before Kubernetes 1.36 on `nodes/proxy`)"
            return str(error)
        if isinstance(error, ConnectionFailed):
            return f"{error.fault.message}: {_help(error.fault)}"
        return str(error)


def _help(fault: ApiFault) -> str:
    if "certificate" in fault.message:
        return ("name its authority (`--kubelet-certificate-authority`) or its name (`--kubelet-server-name`); a "
                "kubelet with `serverTLSBootstrap` has a certificate of the cluster's authority")
    return "is the kubelet running, and do address and port fit?"


def _address(node: Mapping[str, Any] | None, address_type: str) -> str:
    status = (node or {}).get("status")
    addresses = status.get("addresses") if isinstance(status, Mapping) else None
    for each in addresses if isinstance(addresses, list) else ():
        if isinstance(each, Mapping) and each.get("type") == address_type and isinstance(each.get("address"), str):
            return str(each["address"])
    return ""


def _node_port(node: Mapping[str, Any] | None) -> int:
    place: Any = node or {}
    for step in ("status", "daemonEndpoints", "kubeletEndpoint", "Port"):
        place = place.get(step) if isinstance(place, Mapping) else None
    return place if isinstance(place, int) and not isinstance(place, bool) and 0 < place < 65_536 else _PORT
