"""Connections to a cluster, by a pod's service account or by a kubeconfig, as kubectl reads it.

It is read without the official client, which takes 20 MB of memory. That client is used only to run exec plugins and
identity providers.
"""

from __future__ import annotations

import atexit
import base64
import binascii
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn

from koordpolicy.engine.files import create_private

from .connection import Connection, Credentials, FixedCredentials, TokenFile
from .faults import ApiFault, FaultError, no_way

_LOG: Final = logging.getLogger(__name__)

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_DEFAULT: Final = "~/.kube/config"
_LARGEST: Final = 4 << 20
_PLUGINS: Final = ("exec", "auth-provider")
_LOOK: Final = "`kubectl config view` shows what is in it"


def load_connection(
    context: str | None = None, *, configuration_file: str | os.PathLike[str] | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> Connection:
    """Return the way into the cluster of a kubeconfig's context (None: its current one), or of the pod in which this
    process runs.

    The kubeconfig is `configuration_file`, else the files that KUBECONFIG names, else `~/.kube/config`. Of several
    files in KUBECONFIG the first one that has an entry counts, those that do not exist are skipped, and paths in each
    are relative to it. A pod without any kubeconfig uses its service account. Tokens in files and authorities are
    followed when they are replaced.

    Raises `PolicyError` if the configuration is missing or wrong, or its plugin returns no credentials.
    """
    try:
        named = os.environ.get("KUBECONFIG") if configuration_file is None else None
        if configuration_file is None and context is None and not named and (
                "KUBERNETES_SERVICE_HOST" in os.environ and not Path(_DEFAULT).expanduser().exists()):
            return _of_service_account(service_account)
        files = os.fspath(configuration_file) if configuration_file is not None else named or _DEFAULT
        paths = [Path(part).expanduser() for part in (files.split(os.pathsep) if named else [files]) if part]
        config = _Kubeconfig.read(paths, files)
        name = config.context(context)
        user, cluster = config.parts(name)
        plugin = next((name for name in _PLUGINS if user.fields.get(name)), None)
        if plugin is None:
            return _connection(user, cluster)
        command = _command(user) if plugin == "exec" else ""
    except FaultError as error:
        raise no_way(context, error.fault) from None
    from .official_client import connection_of_exec_plugin, connection_of_identity_provider  # noqa: PLC0415 - few do

    _LOG.info("the user of `%s` has `%s`: the official client reads it, which takes 20 MB of memory", files, plugin)
    if plugin == "exec":
        return connection_of_exec_plugin(name, config.resolved(name, command), command)
    # The client refuses empty files.
    not_empty = [str(path) for path, content in config.contents if content]
    return connection_of_identity_provider(name, os.pathsep.join(not_empty))


@dataclass(frozen=True, slots=True)
class _Entry:
    """The fields of a user, cluster or context, and the file that has them."""

    fields: Mapping[str, Any]
    path: Path

    def beside(self, name: object) -> Path:
        """Return a path that the entry names: relative ones are relative to its file."""
        return self.path.absolute().parent / Path(str(name)).expanduser()

    def absolute(self, *names: str) -> dict[str, Any]:
        """Return the fields, with absolute paths in those of these names."""
        return {**self.fields, **{name: str(self.beside(self.fields[name])) for name in names if self.fields.get(name)}}


@dataclass(frozen=True, slots=True)
class _Kubeconfig:
    """The contents of one or more files, the first one first."""

    files: str
    contents: Sequence[tuple[Path, Mapping[str, Any]]]

    @staticmethod
    def read(paths: Sequence[Path], files: str) -> _Kubeconfig:
        contents = [(path, content) for path in paths if (content := _read(path)) is not None]
        if not contents:
            _fail(f"there is no kubeconfig `{files}`", "name one in the environment variable KUBECONFIG")
        return _Kubeconfig(files, contents)

    def context(self, context: str | None) -> str:
        """Return the name of the context: the one that is named, else the current one."""
        name = context or next((each for _, content in self.contents if (each := content.get("current-context"))), None)
        if not isinstance(name, str):
            _fail(f"the kubeconfig `{self.files}` names no current context that it has",
                  "choose one with `kubectl config use-context`, or name it: `kube:CONTEXT`")
        return name

    def parts(self, name: str) -> tuple[_Entry, _Entry]:
        """Return user and cluster of a context."""
        chosen = self._named("contexts", "context", name)
        if chosen is None:
            _fail(f"the kubeconfig `{self.files}` has no context `{name}`",
                  "name one of its contexts (`kubectl config get-contexts`)")
        cluster = self._named("clusters", "cluster", chosen.fields.get("cluster"))
        user = self._named("users", "user", chosen.fields.get("user")) if chosen.fields.get("user") else (
            _Entry({}, chosen.path))
        for entry, kind in ((cluster, "cluster"), (user, "user")):
            if entry is None:
                _fail(f"the kubeconfig `{self.files}` has no {kind} `{chosen.fields.get(kind)}`", _LOOK)
        assert user is not None
        assert cluster is not None
        return user, cluster

    def resolved(self, name: str, command: str) -> dict[str, Any]:
        """Return a kubeconfig with the parts of a context only, whose paths are absolute, and this exec command."""
        user, cluster = self.parts(name)
        fields = user.absolute("client-certificate", "client-key")
        fields["exec"] = {**fields["exec"], "command": command}
        return {
            "current-context": name, "contexts": [{"name": name, "context": {"cluster": "cluster", "user": "user"}}],
            "clusters": [{"name": "cluster", "cluster": cluster.absolute("certificate-authority")}],
            "users": [{"name": "user", "user": fields}]}

    def _named(self, field: str, inner: str, name: object) -> _Entry | None:
        for path, content in self.contents:
            entries = content.get(field)
            for each in entries if isinstance(entries, list) else ():
                if isinstance(each, Mapping) and each.get("name") == name:
                    value = each.get(inner)
                    if value is None or isinstance(value, Mapping):
                        return _Entry(value or {}, path)
        return None


def _of_service_account(directory: Path) -> Connection:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT") or "443"
    token, authority = directory / "token", directory / "ca.crt"
    for file in (token, authority):
        if not os.access(file, os.R_OK):
            _fail(f"the service account cannot be used: `{file}` cannot be read",
                  "mount its token into the pod (`automountServiceAccountToken`)")
    return Connection(f"https://{_bracketed(host)}:{port}", TokenFile(token), str(authority))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _read(path: Path) -> Mapping[str, Any] | None:
    """Return the content of a file; None if there is none."""
    import yaml  # noqa: PLC0415 - a service account needs no YAML

    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            _fail(f"the kubeconfig `{path}` is larger than {_LARGEST >> 20} MiB", "name another one")
        config = yaml.safe_load(text)
    except FileNotFoundError:
        return None
    except OSError as error:
        _fail(f"the kubeconfig `{path}` cannot be read: {error.strerror}", "check the path and who may read it")
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]
        _fail(f"the kubeconfig `{path}` is not YAML: {why}", "correct it, or name another one in KUBECONFIG")
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        _fail(f"the kubeconfig `{path}` is not an object", _LOOK)
    return config


def _connection(user: _Entry, cluster: _Entry) -> Connection:
    server = cluster.fields.get("server")
    if not isinstance(server, str) or not server.startswith(("http://", "https://")):
        _fail(f"the kubeconfig `{cluster.path}` has no `server` with http:// or https://", "name the API server's URL")
    certificate = _file(user, "client-certificate")
    credentials: Credentials
    if user.fields.get("token"):
        credentials = FixedCredentials(f"Bearer {user.fields['token']}")
    elif user.fields.get("tokenFile"):
        credentials = TokenFile(user.beside(user.fields["tokenFile"]))
    elif user.fields.get("username"):
        pair = f"{user.fields['username']}:{user.fields.get('password') or ''}"
        credentials = FixedCredentials(f"Basic {base64.b64encode(pair.encode()).decode()}")
    else:
        credentials = FixedCredentials()
    named = cluster.fields
    return Connection(
        server.rstrip("/"), credentials, _file(cluster, "certificate-authority"),
        (certificate, _file(user, "client-key")) if certificate else None,
        verify=named.get("insecure-skip-tls-verify") is not True,
        server_name=str(named["tls-server-name"]) if named.get("tls-server-name") else None,
        proxy=str(named["proxy-url"]) if named.get("proxy-url") else None)


def _command(user: _Entry) -> str:
    """Return the command of an exec plugin, which must be there: a name, or an absolute path."""
    plugin = user.fields["exec"]
    if not isinstance(plugin, Mapping):
        _fail(f"the kubeconfig `{user.path}`: `exec` of the user is not an object", _LOOK)
    command = str(plugin.get("command") or "")
    if "/" in command:
        command = str(user.beside(command))
    if shutil.which(command) is None:
        hint = " ".join(str(plugin.get("installHint") or "").split())
        _fail(f"the kubeconfig's user is known by the command `{command}`, which is not installed here",
              hint or "install it, or use a context whose user has a token or a certificate")
    return command


def _file(entry: _Entry, field: str) -> str | None:
    """Return the file of a certificate or key; for one within the kubeconfig, a new file that only this user may
    read.
    """
    data = entry.fields.get(f"{field}-data")
    if data:
        try:
            return _written(base64.b64decode(str(data), validate=True))
        except (binascii.Error, ValueError):
            _fail(f"the kubeconfig `{entry.path}`: `{field}-data` is not base64",
                  "`kubectl config view --raw` shows what is in it")
    if not entry.fields.get(field):
        return None
    path = entry.beside(entry.fields[field])
    try:
        path.open("rb").close()
    except OSError as error:
        _fail(f"the kubeconfig `{entry.path}` names `{path}`, which cannot be read: {error.strerror}",
              "check the path and who may read it")
    return str(path)


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


def _fail(message: str, help: str) -> NoReturn:  # noqa: A002 - as `Problem` calls it
    raise FaultError(ApiFault(message, help))
