"""Connections of processes that must stay small: service accounts and simple kubeconfigs, without the official client.

To import the official client costs more memory than all that a node agent does with it. What only it can do (exec
plugins, identity providers, several files that are merged) is still left to it.
"""

from __future__ import annotations

import atexit
import base64
import binascii
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from koordpolicy.engine.files import create_private
from koordpolicy.engine.source import PolicyError, Problem

from .connection import (
    DEFAULT_KUBECONFIG,
    SERVICE_ACCOUNT,
    Connection,
    Credentials,
    FixedCredentials,
    TokenFile,
    load_connection,
)

_LOG: Final = logging.getLogger(__name__)

_LARGEST: Final = 4 << 20
_ONLY_OFFICIAL: Final = ("exec", "auth-provider")


def load_plain_connection(
    context: str | None = None, *, configuration_file: str | os.PathLike[str] | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> Connection:
    """Return the connection that `load_connection` returns for the same arguments.

    Tokens in files and authorities are followed when they are replaced. For users with an exec plugin or an identity
    provider, and for several files in KUBECONFIG, the official client is imported, which is logged.

    Raises `PolicyError` if the configuration is missing or wrong.
    """
    named = os.environ.get("KUBECONFIG") if configuration_file is None else os.fspath(configuration_file)
    if context is None and not named and not Path(DEFAULT_KUBECONFIG).expanduser().exists() and (
            "KUBERNETES_SERVICE_HOST" in os.environ):
        return _of_service_account(service_account)
    files = named or DEFAULT_KUBECONFIG
    if os.pathsep in files:
        return _official(context, configuration_file, "KUBECONFIG names several files")
    path = Path(files).expanduser()
    config = _read(path)
    user, cluster = _parts(config, context, path)
    only = next((name for name in _ONLY_OFFICIAL if user.get(name)), None)
    if only is not None:
        return _official(context, configuration_file, f"the user of `{path}` has `{only}`")
    return _of_kubeconfig(path, user, cluster)


def _official(context: str | None, configuration_file: str | os.PathLike[str] | None, why: str) -> Connection:
    _LOG.warning("%s: the official client reads it, which takes 20 MB of memory", why)
    return load_connection(context, configuration_file=configuration_file)


def _of_service_account(directory: Path) -> Connection:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT") or "443"
    token, authority = directory / "token", directory / "ca.crt"
    for file in (token, authority):
        if not os.access(file, os.R_OK):
            raise _fault(f"the service account cannot be used: `{file}` cannot be read",
                         "mount its token into the pod (`automountServiceAccountToken`)")
    return Connection(f"https://{_bracketed(host)}:{port}", TokenFile(token), str(authority))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _read(path: Path) -> Mapping[str, Any]:
    import yaml  # noqa: PLC0415 - most agents read no kubeconfig

    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise _fault(f"the kubeconfig `{path}` is larger than {_LARGEST >> 20} MiB", "name another one")
        config = yaml.safe_load(text)
    except FileNotFoundError:
        raise _fault(f"there is no kubeconfig `{path}`", "name one in the environment variable KUBECONFIG") from None
    except OSError as error:
        raise _fault(f"the kubeconfig `{path}` cannot be read: {error.strerror}",
                     "check the path and who may read it") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]
        raise _fault(f"the kubeconfig `{path}` is not YAML: {why}", "correct it, or name another one") from None
    if not isinstance(config, Mapping):
        raise _fault(f"the kubeconfig `{path}` is not an object", "`kubectl config view` shows what is in it")
    return config


def _parts(
    config: Mapping[str, Any], context: str | None, path: Path,
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return user and cluster of a context."""
    name = context or config.get("current-context")
    if not isinstance(name, str) or not name:
        raise _fault(f"the kubeconfig `{path}` names no current context", "choose one: `kubectl config use-context`")
    chosen = _named(config, "contexts", "context", name, path)
    cluster = _named(config, "clusters", "cluster", chosen.get("cluster"), path)
    user = _named(config, "users", "user", chosen.get("user"), path) if chosen.get("user") else {}
    return user, cluster


def _named(config: Mapping[str, Any], field: str, inner: str, name: object, path: Path) -> Mapping[str, Any]:
    entries = config.get(field)
    for each in entries if isinstance(entries, list) else ():
        if isinstance(each, Mapping) and each.get("name") == name:
            value = each.get(inner)
            if value is None:
                return {}
            if isinstance(value, Mapping):
                return value
    raise _fault(f"the kubeconfig `{path}` has no {inner} `{name}`", "`kubectl config view` shows what is in it")


def _of_kubeconfig(path: Path, user: Mapping[str, Any], cluster: Mapping[str, Any]) -> Connection:
    server = cluster.get("server")
    if not isinstance(server, str) or not server.startswith(("http://", "https://")):
        raise _fault(f"the kubeconfig `{path}` has no `server` with http:// or https://", "name the API server's URL")
    certificate = _file(path, user, "client-certificate")
    credentials: Credentials
    if user.get("token"):
        credentials = FixedCredentials(f"Bearer {user['token']}")
    elif user.get("tokenFile"):
        credentials = TokenFile(path.parent / str(user["tokenFile"]))
    elif user.get("username"):
        pair = f"{user['username']}:{user.get('password') or ''}"
        credentials = FixedCredentials(f"Basic {base64.b64encode(pair.encode()).decode()}")
    else:
        credentials = FixedCredentials()
    return Connection(
        server.rstrip("/"), credentials, _file(path, cluster, "certificate-authority"),
        (certificate, _file(path, user, "client-key")) if certificate else None,
        verify=cluster.get("insecure-skip-tls-verify") is not True,
        server_name=str(cluster["tls-server-name"]) if cluster.get("tls-server-name") else None,
        proxy=str(cluster["proxy-url"]) if cluster.get("proxy-url") else None)


def _file(path: Path, fields: Mapping[str, Any], field: str) -> str | None:
    """Return the file of a certificate or key; of one within the kubeconfig, a file that only this user may read."""
    data = fields.get(f"{field}-data")
    if data:
        try:
            return _written(base64.b64decode(str(data), validate=True))
        except (binascii.Error, ValueError):
            raise _fault(f"the kubeconfig `{path}`: `{field}-data` is not base64",
                         "`kubectl config view --raw` shows what is in it") from None
    return str(path.parent / str(fields[field])) if fields.get(field) else None


@cache
def _written(content: bytes) -> str:
    path = _directory() / f"{len(list(_directory().iterdir()))}.pem"
    with os.fdopen(create_private(path), "wb") as file:
        file.write(content)
    return str(path)


@cache
def _directory() -> Path:
    made = tempfile.mkdtemp(prefix="koord-policy-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def _fault(message: str, help: str) -> PolicyError:  # noqa: A002
    return PolicyError([Problem(f"no way into the cluster: {message}", help=help, code="cluster")])
