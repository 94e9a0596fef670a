"""Logins of registries, as `docker login` stores them: in Docker's `config.json`, or in a credential helper."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from koordpolicy.engine.files import reason_of

from .faults import BundleFault

DOCKER_HUB: Final = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})
_DOCKER_HUB_KEY: Final = "https://index.docker.io/v1/"
_LARGEST: Final = 4 << 20
_HELPER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HELPER_S: Final = 30.0
_TOKEN_USER: Final = "<token>"  # noqa: S105 - the name that helpers give to tokens

RunHelper = Callable[[str, str], str | None]
"""Returns the output of a credential helper (its name, the registry); None if it has no login."""


@dataclass(frozen=True, slots=True)
class Login:
    """A user with a password, or an identity token."""

    user: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        """The value of an Authorization header with user and password; empty without a user."""
        if not self.user:
            return ""
        return f"Basic {base64.b64encode(f'{self.user}:{self.password}'.encode()).decode()}"


NOBODY: Final = Login()


def run_helper(name: str, registry: str) -> str | None:
    """Run `docker-credential-NAME get`; raises `BundleFault` if it is missing or fails."""
    command = f"docker-credential-{name}"
    try:
        ended = subprocess.run([command, "get"], input=registry, capture_output=True, text=True, check=False,  # noqa: S603 - the user's own configuration names it
                               timeout=_HELPER_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        why = "it did not end" if isinstance(error, subprocess.TimeoutExpired) else (error.strerror or "").lower()
        raise BundleFault(f"the credential helper `{command}` cannot be run: {why}",
                          "install it, or remove it from Docker's config.json", code="login") from None
    except UnicodeDecodeError:
        raise BundleFault(f"the credential helper `{command}` prints no text", code="login") from None
    if ended.returncode:
        output = (ended.stdout + ended.stderr).strip()
        if "credentials not found" in output:
            return None
        raise BundleFault(f"the credential helper `{command}` fails: {output[:300]}", "run `docker login` again",
                          code="login")
    return ended.stdout


class Logins:
    """Finds logins in `config.json` of DOCKER_CONFIG or `~/.docker`, which is read each time: tokens are replaced."""

    def __init__(
        self, environment: Mapping[str, str] | None = None, *, run: RunHelper = run_helper,
    ) -> None:
        self._environment = os.environ if environment is None else environment
        self._run = run

    @property
    def path(self) -> Path:
        """The file that is read."""
        directory = self._environment.get("DOCKER_CONFIG")
        if directory:
            return Path(directory) / "config.json"
        return Path(self._environment.get("HOME") or "~").expanduser() / ".docker" / "config.json"

    def of(self, registry: str) -> Login:
        """Return the login of a registry, `NOBODY` if there is none.

        Raises `BundleFault` if the file cannot be used, or a credential helper fails.
        """
        data = self._read()
        key = _DOCKER_HUB_KEY if registry in DOCKER_HUB else registry
        helpers = data.get("credHelpers")
        helper = helpers.get(registry) if isinstance(helpers, dict) else None
        helper = helper or data.get("credsStore")
        if helper:
            if not isinstance(helper, str) or not _HELPER.fullmatch(helper):
                raise self._fault("it names a credential helper that has no usable name")
            text = self._run(helper, key)
            if text is not None:
                return _of_helper(helper, text)
        auths = data.get("auths")
        for name, entry in auths.items() if isinstance(auths, dict) else ():
            if name == key or _host(name) == registry:
                found = self._of_entry(name, entry)
                if found != NOBODY:
                    return found
        return NOBODY

    def _read(self) -> dict[str, Any]:
        try:
            with self.path.open("rb") as file:
                content = file.read(_LARGEST)
            data = json.loads(content)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise self._fault(reason_of(error)) from None
        except (ValueError, RecursionError):
            raise self._fault("it is not JSON") from None
        if not isinstance(data, dict):
            raise self._fault("it is not a JSON object")
        return data

    def _of_entry(self, name: str, entry: object) -> Login:
        if not isinstance(entry, dict):
            return NOBODY
        if isinstance(entry.get("identitytoken"), str) and entry["identitytoken"]:
            return Login(identity_token=entry["identitytoken"])
        if not entry.get("auth"):
            return NOBODY
        try:
            user, colon, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
        except (ValueError, TypeError):
            user, colon, password = "", "", ""
        if not colon:
            raise self._fault(f"`auth` of `{name}` is not user and password in base64")
        return Login(user, password.rstrip("\0"))

    def _fault(self, why: str) -> BundleFault:
        return BundleFault(f"logins cannot be read from `{self.path}`: {why}",
                           "run `docker login`, or name another directory in DOCKER_CONFIG", code="login")


def _of_helper(helper: str, text: str) -> Login:
    try:
        data = json.loads(text)
        user, secret = data["Username"], data["Secret"]
    except (ValueError, RecursionError, TypeError, KeyError):
        user = secret = None
    if not isinstance(user, str) or not isinstance(secret, str):
        raise BundleFault(f"the credential helper `docker-credential-{helper}` prints no login", code="login")
    return Login(identity_token=secret) if user == _TOKEN_USER else Login(user, secret)


def _host(key: str) -> str:
    """Return the host of a key of `auths`, which may be a URL."""
    return re.sub(r"^https?://", "", key).partition("/")[0]
