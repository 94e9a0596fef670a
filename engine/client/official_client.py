"""Kubeconfigs whose users have an exec plugin or an identity provider, through the official client.

The client is imported only here, as that takes half a second and 20 MB of memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final

from .connection import Connection
from .faults import ApiFault, FaultError, no_way, of_configuration

_EXPIRY_S: Final = 5.0
"""The interval between two looks at the expiry of a plugin's credentials."""


def connection_of_exec_plugin(context: str, kubeconfig: Mapping[str, Any], command: str) -> Connection:
    """Return the connection of a user whom an exec plugin, the command `command`, authenticates.

    `kubeconfig` is the content of a kubeconfig in which all paths are absolute.

    Raises `PolicyError` if the client cannot use the configuration, or the plugin returns no credentials.
    """
    def load(settings: Any) -> None:
        kube_config: Any = import_module("kubernetes.config.kube_config")
        loader = kube_config.KubeConfigLoader(config_dict=copy.deepcopy(kubeconfig), active_context=context)
        loader.load_and_set(settings)
        if not settings.api_key and not settings.cert_file:
            # The client only logs errors of its plugin, and sends requests without credentials then.
            raise FaultError(ApiFault(
                f"the command `{command}`, by which the kubeconfig's user is known, brought no credentials",
                "run it by hand: it says why, and may want you to log in"))

    return _connection(partial(_settings, load, context, "of the exec plugin"))


def connection_of_identity_provider(context: str, files: str) -> Connection:
    """Return the connection of a user who has an identity provider (`auth-provider`).

    `files` are separated as in KUBECONFIG; renewed tokens are written into them, as kubectl does.

    Raises `PolicyError` if the client cannot use the configuration.
    """
    def load(settings: Any) -> None:
        kube_config: Any = import_module("kubernetes.config.kube_config")
        kube_config.load_kube_config(config_file=files, context=context, client_configuration=settings)

    return _connection(partial(_settings, load, context, files))


def _connection(load: Callable[[], Any]) -> Connection:
    settings = load()
    return Connection(
        server=settings.host.rstrip("/"), credentials=PluginCredentials(settings, load),
        certificate_authority=settings.ssl_ca_cert,
        client_certificate=(settings.cert_file, settings.key_file) if settings.cert_file else None,
        verify=settings.verify_ssl, server_name=settings.tls_server_name, proxy=settings.proxy)


class PluginCredentials:
    """Credentials of a kubeconfig's exec plugin or identity provider; the plugin runs in a thread."""

    def __init__(self, settings: Any, load: Callable[[], Any], clock: Callable[[], float] = time.monotonic) -> None:
        """`load` returns new settings of the official client, which runs the plugin."""
        self._settings = settings
        self._load = load
        self._clock = clock
        self._last: str | None = None
        self._read_at = float("-inf")
        self._stale = False
        self._lock = asyncio.Lock()

    async def header(self) -> str | None:
        """Return the header; runs the plugin if the credentials were refused or have expired.

        The expiry is looked at every five seconds. Raises `PolicyError` if the plugin fails.
        """
        if not self._stale and self._clock() - self._read_at < _EXPIRY_S:
            return self._last
        async with self._lock:
            if self._stale:
                self._settings = await asyncio.to_thread(self._load)
                self._stale = False
            elif self._clock() - self._read_at < _EXPIRY_S:
                return self._last
            self._last = await asyncio.to_thread(_header_of, self._settings)
            self._read_at = self._clock()
            return self._last

    def refused(self, header: str | None) -> None:
        """Let the next request run the plugin, unless the refused header has been replaced."""
        if header == self._last:
            self._stale = True


def _settings(load: Callable[[Any], None], context: str, files: str) -> Any:
    """Return new settings of the official client (`kubernetes.client.Configuration`), which `load` fills in."""
    client: Any = import_module("kubernetes.client")
    settings = client.Configuration()
    try:
        load(settings)
    except FaultError as error:
        raise no_way(context, error.fault) from None
    except Exception as error:  # the client raises its own errors, YAML's and the system's for a wrong file
        raise no_way(context, of_configuration(error, files=files, context=context)) from None
    return settings


def _header_of(settings: Any) -> str | None:
    for setting in settings.auth_settings().values():
        if setting["key"].lower() == "authorization":
            return str(setting["value"])
    if settings.username:
        with contextlib.suppress(TypeError):
            return str(settings.get_basic_auth_token())
    return None
