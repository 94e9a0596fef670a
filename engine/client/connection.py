"""The way to an API server: address, TLS and credentials, as a kubeconfig or a pod's service account describes them.

The official client's loader reads the configuration. Tokens in files and of exec plugins are read again when they
expire or are refused, and changed certificates are noticed, without a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

from koordpolicy.engine.source import PolicyError, Problem

from .faults import ApiFault, FaultError, of_configuration

_LOG: Final = logging.getLogger(__name__)

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
DEFAULT_KUBECONFIG: Final = "~/.kube/config"
_EXPIRY_S: Final = 5.0
"""The interval between two looks at the expiry of a plugin's credentials."""
_TOKEN_S: Final = 50.0  # client-go reads a token file again after about this time


class Credentials(Protocol):
    """The credentials of requests besides a client certificate. Belongs to one event loop."""

    async def header(self) -> str | None:
        """Return the value of the Authorization header; None for none."""
        ...

    def refused(self, header: str | None) -> None:
        """Obtain new credentials for the next request if `header` is still current: the server answered 401 to it."""
        ...


@dataclass(frozen=True, slots=True)
class FixedCredentials:
    """Credentials that never change."""

    value: str | None = field(default=None, repr=False)

    async def header(self) -> str | None:
        """Return the header."""
        return self.value

    def refused(self, header: str | None) -> None:
        """Do nothing: there are no others."""


class TokenFile:
    """A bearer token in a file that is replaced from time to time, as kubelet does with a service account's.

    The file is read again after 50 seconds and after a refusal. If it cannot be read or is empty, the old token stays,
    and the error is logged.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._header: str | None = None
        self._read_at = float("-inf")

    async def header(self) -> str | None:
        """Return the header of the newest readable token."""
        if self._clock() - self._read_at >= _TOKEN_S:
            self._read_at = self._clock()
            try:
                token = self._path.read_text("utf-8").strip()
            except (OSError, ValueError) as error:
                token, why = "", str(error)
            else:
                why = "the file is empty"
            if token:
                self._header = f"Bearer {token}"
            else:
                _LOG.warning("cannot read the token in %s, the last one stays in use: %s", self._path, why)
        return self._header

    def refused(self, header: str | None) -> None:
        """Read the file again for the next request."""
        if header == self._header:
            self._read_at = float("-inf")


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
        """Return the header; runs the plugin if the credentials were refused, or have expired for five seconds.

        Raises `PolicyError` if it fails.
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
        """Run the plugin before the next request."""
        if header == self._last:
            self._stale = True


@dataclass(frozen=True, slots=True)
class Connection:
    """An API server and how to authenticate there. `load_connection` makes it of a kubeconfig."""

    server: str
    """The URL, without a slash at its end."""
    credentials: Credentials = field(default_factory=FixedCredentials)
    certificate_authority: str | None = None
    """File; None for the system's authorities."""
    client_certificate: tuple[str, str | None] | None = None
    """Files of certificate and key."""
    verify: bool = True
    server_name: str | None = None
    """The name in the server's certificate, if it is not the host of the URL."""
    proxy: str | None = None

    def tls_state(self) -> tuple[object, ...]:
        """Return a value that differs once a file of certificates changed."""
        return tuple(_stat(name) for name in (self.certificate_authority, *(self.client_certificate or ())) if name)

    def tls(self) -> ssl.SSLContext | bool:
        """Return a new TLS context of the files as they are now; True for a server without TLS.

        Raises `OSError` if a file cannot be read, or holds no certificate.
        """
        if not self.server.startswith("https:"):
            return True
        context = ssl.create_default_context(cafile=self.certificate_authority)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.client_certificate:
            context.load_cert_chain(*self.client_certificate)
        return context


def load_connection(
    context: str | None = None, *, configuration_file: str | os.PathLike[str] | None = None,
) -> Connection:
    """Return the way into the cluster of a kubeconfig's context (None: its current one), or of the pod that this is.

    Raises `PolicyError` if the configuration is missing or wrong.
    """
    settings = load_settings(context, configuration_file=configuration_file)
    user = _user_of_files(context, configuration_file)
    credentials: Credentials
    token_file = user.get("tokenFile")
    if _inside(context, configuration_file):
        credentials = TokenFile(SERVICE_ACCOUNT / "token")
    elif token_file and not user.get("token"):
        credentials = TokenFile(_beside(token_file, configuration_file))
    elif user.get("exec") or user.get("auth-provider"):
        credentials = PluginCredentials(
            settings, lambda: load_settings(context, configuration_file=configuration_file))
    else:
        credentials = FixedCredentials(_header_of(settings))
    return Connection(
        server=settings.host.rstrip("/"), credentials=credentials, certificate_authority=settings.ssl_ca_cert,
        client_certificate=(settings.cert_file, settings.key_file) if settings.cert_file else None,
        verify=settings.verify_ssl, server_name=settings.tls_server_name, proxy=settings.proxy)


def load_settings(context: str | None, *, configuration_file: str | os.PathLike[str] | None = None) -> Any:
    """Return the settings of the official client (`kubernetes.client.Configuration`).

    Raises `PolicyError` if the configuration is missing or wrong, or its plugin returns no credentials.
    """
    client: Any = import_module("kubernetes.client")  # takes half a second, only for users of a live cluster
    config: Any = import_module("kubernetes.config")

    name = _files(configuration_file)
    settings = client.Configuration()
    settings.retries = 0  # the next listing is the next attempt; the library would write to the log meanwhile
    inside = _inside(context, configuration_file)
    try:
        if inside:
            config.load_incluster_config(client_configuration=settings)
        else:
            _load_kubeconfig(name, context, settings)
    except FaultError as error:
        fault = error.fault
        raise _no_way(context, fault) from None
    except Exception as error:  # the client raises its own errors, YAML's and the system's for a wrong file
        fault = (ApiFault(f"the service account cannot be used: {error}", "mount its token into the pod") if inside else
                 of_configuration(error, files=name, context=context, there=_exists(name)))
        raise _no_way(context, fault) from None
    return settings


def _no_way(context: str | None, fault: ApiFault) -> PolicyError:
    return PolicyError([Problem(f"no way into the cluster{f' `{context}`' if context else ''}: {fault.message}",
                                help=fault.help, code="cluster")])


def _files(configuration_file: str | os.PathLike[str] | None) -> str:
    if configuration_file is not None:
        return os.fspath(configuration_file)
    return os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG


def _exists(files: str) -> bool:
    return any(Path(part).expanduser().exists() for part in files.split(os.pathsep) if part)


def _inside(context: str | None, configuration_file: str | os.PathLike[str] | None) -> bool:
    """Return True if the process runs in a pod and no kubeconfig is named."""
    return (context is None and configuration_file is None and "KUBERNETES_SERVICE_HOST" in os.environ
            and not _exists(_files(None)))


def _load_kubeconfig(files: str, context: str | None, settings: Any) -> None:
    """Fill in the settings; raises the client's errors, and `FaultError` if the user's plugin returns no credentials.

    The client only logs errors of its plugin, and sends requests without credentials then.
    """
    kube_config: Any = import_module("kubernetes.config.kube_config")
    user = _user_of(kube_config.KubeConfigMerger(files).config, context)
    plugin = user.get("exec") if isinstance(user.get("exec"), Mapping) else None
    command = str((plugin or {}).get("command", ""))
    if plugin is not None and shutil.which(command) is None and not Path(command).exists():
        hint = " ".join(str(plugin.get("installHint") or "").split())
        raise FaultError(ApiFault(
            f"the kubeconfig's user is known by the command `{command}`, which is not installed here",
            hint or "install it, or use a context whose user has a token or a certificate"))
    kube_config.load_kube_config(config_file=files, context=context, client_configuration=settings)
    if plugin is not None and not settings.api_key and not settings.cert_file:
        raise FaultError(ApiFault(
            f"the command `{command}`, by which the kubeconfig's user is known, brought no credentials",
            "run it by hand: it says why, and may want you to log in"))


def _user_of_files(context: str | None, configuration_file: str | os.PathLike[str] | None) -> Mapping[str, Any]:
    if _inside(context, configuration_file):
        return {}
    kube_config: Any = import_module("kubernetes.config.kube_config")
    return _user_of(kube_config.KubeConfigMerger(_files(configuration_file)).config, context)


def _user_of(kubeconfig: Any, context: str | None) -> Mapping[str, Any]:
    """Return the user of a context, if a kubeconfig has one; the client reports a malformed one."""
    try:
        chosen = kubeconfig["contexts"].get_with_name(context or kubeconfig["current-context"])["context"]["user"]
        user = kubeconfig["users"].get_with_name(chosen)["user"].value
    except Exception:  # a kubeconfig may be anything
        return {}
    return user if isinstance(user, Mapping) else {}


def _beside(name: object, configuration_file: str | os.PathLike[str] | None) -> Path:
    """Return a path of a kubeconfig: relative ones are relative to its (first) file."""
    return Path(_files(configuration_file).split(os.pathsep)[0]).expanduser().parent / str(name)


def _header_of(settings: Any) -> str | None:
    for setting in settings.auth_settings().values():
        if setting["key"].lower() == "authorization":
            return str(setting["value"])
    if settings.username:
        with contextlib.suppress(TypeError):
            return str(settings.get_basic_auth_token())
    return None


def _stat(name: str) -> tuple[int, int, int] | None:
    try:
        stat = os.stat(name)  # noqa: PTH116 - a plain string of a file that may be absent
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
