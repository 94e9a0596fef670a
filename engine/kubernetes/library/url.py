"""URLs as Go reads them (apiserver `pkg/cel/library/urls.go`).

`url.ParseRequestURI` decides what is one; `url.Parse`, which knows fragments, tells its parts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar, Final
from urllib.parse import unquote, unquote_to_bytes

from koordpolicy.engine.cel.check.environment import Cost, Function, Overload
from koordpolicy.engine.cel.values.types import BOOL, STRING, Type, list_of, map_of
from koordpolicy.engine.cel.values.values import EvaluationError

_COST: Final = Cost(0, ((0, 0.1),))
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_HOST_CHARACTERS: Final = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:\[\]<>\"%\u0080-\U0010ffff-]*")
_PORT: Final = re.compile(r"(?::[0-9]*)?")
_PATH_PLAIN: Final = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~$&+,/:;=@!'()*[]%",
)
_UNESCAPED_IN_PATH: Final = _PATH_PLAIN - frozenset(b"!'()*[]%")
_HOST_PLAIN: Final = _PATH_PLAIN | frozenset(b'<>"')
_FRAGMENT_PLAIN: Final = _PATH_PLAIN | frozenset(b"?")
_UNESCAPED_IN_FRAGMENT: Final = _FRAGMENT_PLAIN - frozenset(b"'[]%")
_LONGEST: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class URL:
    """An absolute URL, or an absolute path; equal to another of the same string."""

    cel_type: ClassVar[Type] = Type("kubernetes.URL")

    text: str
    """The string of it, escaped as Go does; two spellings of one URL are equal."""
    scheme: str = field(compare=False)
    host: str = field(compare=False)
    path: str = field(compare=False)
    query: str = field(compare=False)

    @staticmethod
    def parse(text: str) -> URL:
        """Return the URL of a string; raise `ValueError` for any other string."""
        return _parse(text)

    def __str__(self) -> str:
        return self.text

    @property
    def hostname(self) -> str:
        """The host without its port, an IPv6 address without its brackets."""
        if self.host.startswith("["):
            return self.host[1 : self.host.index("]")]
        return self.host.partition(":")[0]

    @property
    def port(self) -> str:
        """The port; empty if there is none."""
        tail = self.host.rpartition("]")[2]
        return tail.rpartition(":")[2] if ":" in tail else ""

    @property
    def escaped_path(self) -> str:
        """The path with everything escaped that has to be."""
        return _escaped(self.path, _PATH_PLAIN, _UNESCAPED_IN_PATH)

    def parameters(self) -> dict[str, list[str]]:
        """Return the query's parameters, unescaped; malformed ones are omitted."""
        result: dict[str, list[str]] = {}
        for part in self.query.split("&"):
            if not part or ";" in part or _ESCAPE.search(part):
                continue
            key, _, value = part.partition("=")
            result.setdefault(_unescaped(key), []).append(_unescaped(value))
        return result


def _escaped(text: str, valid: frozenset[int], unescaped: frozenset[int]) -> str:
    """Return a text as it is if its characters are valid; else escaped anew, as Go does."""
    if all(each in valid for each in text.encode("utf-8")):
        return text
    return "".join(chr(each) if each in unescaped else f"%{each:02X}" for each in unquote_to_bytes(text))


def _unescaped(text: str) -> str:
    return unquote(text.replace("+", " "))


@lru_cache(maxsize=1024)
def _parse(text: str) -> URL:
    found = _read(text)
    whole, mark, fragment = text.partition("#")
    if not mark:
        return found
    if _ESCAPE.search(fragment):
        raise ValueError(f"`{text[:100]}` is not a URL: invalid escape in its fragment")
    found = _read(whole)
    if not fragment:
        return found
    return replace(found, text=f"{found.text}#{_escaped(fragment, _FRAGMENT_PLAIN, _UNESCAPED_IN_FRAGMENT)}")


def _read(text: str) -> URL:
    """Return the URL of a string without a fragment; a `#` is a character as any other."""
    if not text:
        raise ValueError("an empty string is not a URL")
    shown = text[:100]
    if _CONTROL.search(text) or len(text) > _LONGEST:
        raise ValueError(f"`{shown}` is not a URL: it holds control characters")
    if text == "*":
        return URL(text, "", "", "*", "")
    scheme, rest = "", text
    match = _SCHEME.fullmatch(text)
    if match is not None:
        scheme, rest = match[1].lower(), match[2]
    elif text.startswith(":"):
        raise ValueError(f"`{shown}` is not a URL: its scheme is missing")
    rest, mark, query = rest.partition("?")
    if not rest.startswith("/"):
        if scheme:
            return URL(f"{scheme}:{rest}{mark}{query}", scheme, "", "", query)  # opaque, such as mailto:a@b
        raise ValueError(f"`{shown}` is not a URL: invalid URI for request")
    host = authority = ""
    if rest.startswith("//") and (scheme or not rest.startswith("///")):
        authority, slash, path = rest[2:].partition("/")
        rest = slash + path
        user, at, host = authority.rpartition("@")
        if at and not re.fullmatch(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*", user):
            raise ValueError(f"`{shown}` is not a URL: invalid user")
        _check_host(host, shown)
        authority = f"//{user}{at}{_escaped(host, _HOST_PLAIN, _HOST_PLAIN)}" if host or at or rest else ""
    if _ESCAPE.search(rest):
        raise ValueError(f"`{shown}` is not a URL: invalid escape in its path")
    if host.startswith("["):
        host = host.replace("%25", "%", 1)  # begins a zone
    begin = f"{scheme}:" if scheme else ""
    shown = f"{begin}{authority}{_escaped(rest, _PATH_PLAIN, _UNESCAPED_IN_PATH)}{mark}{query}"
    return URL(shown, scheme, host, rest, query)


def _check_host(host: str, shown: str) -> None:
    if host.startswith("["):
        head, bracket, port = host.rpartition("]")
        if not bracket:
            raise ValueError(f"`{shown}` is not a URL: missing `]` in its host")
        if not re.fullmatch(r"[0-9A-Fa-f:.%\w-]*", head[1:]):
            raise ValueError(f"`{shown}` is not a URL: invalid host")
    else:
        name, colon, port = host.partition(":")
        port = colon + port
        if not _HOST_CHARACTERS.fullmatch(name) or _ESCAPE.search(name):
            raise ValueError(f"`{shown}` is not a URL: invalid character in its host")
    if not _PORT.fullmatch(port):
        raise ValueError(f"`{shown}` is not a URL: invalid port")


def _url(text: str) -> URL:
    try:
        return _parse(text)
    except ValueError as error:
        raise EvaluationError(str(error)) from None


def _is_url(text: str) -> bool:
    try:
        _read(text)
    except ValueError:
        return False
    return True


_URL: Final = URL.cel_type
_EXAMPLE: Final = "url('https://example.com:80/a?k=v')"

URLS: Final = (
    Function(
        "url", (Overload("string_to_url", (STRING,), _URL, _url, cost=_COST),), "The URL of a string.",
        "url('https://example.com') == url('https://example.com')",
    ),
    Function(
        "isURL", (Overload("is_url", (STRING,), BOOL, _is_url),), "True if a string is a URL.",
        "isURL('https://example.com') && !isURL('example.com')",
    ),
    Function(
        "getScheme", (Overload("url_get_scheme", (_URL,), STRING, lambda a: a.scheme, member=True),),
        "The scheme, empty where there is none.", f"{_EXAMPLE}.getScheme() == 'https'",
    ),
    Function(
        "getHost", (Overload("url_get_host", (_URL,), STRING, lambda a: a.host, member=True),),
        "The host with its port.", f"{_EXAMPLE}.getHost() == 'example.com:80'",
    ),
    Function(
        "getHostname", (Overload("url_get_hostname", (_URL,), STRING, lambda a: a.hostname, member=True),),
        "The host without its port.", f"{_EXAMPLE}.getHostname() == 'example.com'",
    ),
    Function(
        "getPort", (Overload("url_get_port", (_URL,), STRING, lambda a: a.port, member=True),),
        "The port as a string.", f"{_EXAMPLE}.getPort() == '80'",
    ),
    Function(
        "getEscapedPath", (Overload("url_get_escaped_path", (_URL,), STRING, lambda a: a.escaped_path, member=True),),
        "The path, escaped.", f"{_EXAMPLE}.getEscapedPath() == '/a'",
    ),
    Function(
        "getQuery",
        (Overload("url_get_query", (_URL,), map_of(STRING, list_of(STRING)), lambda a: a.parameters(), member=True),),
        "The query's parameters, unescaped.", f"{_EXAMPLE}.getQuery() == {{'k': ['v']}}",
    ),
)
