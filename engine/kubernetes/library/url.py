"""URLs as Go reads them (apiserver `pkg/cel/library/urls.go`).

`url.ParseRequestURI` decides what is one; `url.Parse`, which knows fragments, tells its parts.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import ClassVar, Final
from urllib.parse import unquote_to_bytes

from koordpolicy.engine.cel.check.environment import Cost, Function, Overload
from koordpolicy.engine.cel.values.types import BOOL, STRING, Type, list_of, map_of
from koordpolicy.engine.cel.values.values import EvaluationError

_COST: Final = Cost(0, ((0, 0.1),))
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_SEQUENCES: Final = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\", '"': '\\"',
}
_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_IN_HOST: Final = r"A-Za-z0-9._~!$&'()*+,;=:\[\]<>\"\-"
_BAD_IN_HOST: Final = re.compile(rf"%(?!25|[89A-Fa-f][0-9A-Fa-f])|[^{_IN_HOST}%\u0080-\U0010ffff]")
"""In a host only octets that are no ASCII are escaped, and `%25`."""
_BAD_IN_ZONE: Final = re.compile(
    r"%(?!2[0-24-9A-Ea-e]|3[0-9A-Ea-e]|4[1-9A-Fa-f]|5[0-9ABDFabdf]|6[1-9A-Fa-f]|7[0-9AEae])"
    rf"|[^{_IN_HOST}%\u0080-\U0010ffff]")
"""In a zone characters that need no escape may be escaped, and the space."""
_USER: Final = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*")
_PORT: Final = re.compile(r"(?::[0-9]*)?")
_PATH_PLAIN: Final = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~$&+,/:;=@!'()*[]%",
)
_UNESCAPED_IN_PATH: Final = _PATH_PLAIN - frozenset(b"!'()*[]%")
_UNESCAPED_IN_HOST: Final = _PATH_PLAIN - frozenset(b"/@%") | frozenset(b'<>"')
_UNESCAPED_IN_USER: Final = _UNESCAPED_IN_PATH - frozenset(b"/:@")
_FRAGMENT_PLAIN: Final = _PATH_PLAIN | frozenset(b"?")
_UNESCAPED_IN_FRAGMENT: Final = _FRAGMENT_PLAIN - frozenset(b"'[]%")
_NO_UTF_8: Final = dict.fromkeys(range(0xDC80, 0xDD00), "\ufffd")
"""The replacement of octets that are no UTF-8, by what `surrogateescape` makes of them."""
_LONGEST: Final = 1_000_000
_LONGEST_CACHED: Final = 256


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
        return _known(text) if len(text) <= _LONGEST_CACHED else _parse(text)

    def __str__(self) -> str:
        return self.text

    @property
    def traversal_size(self) -> int:
        """The steps of reading it (see `traversal`)."""
        return 1 + len(self.text) // 10

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
    if not text.encode("utf-8").translate(None, bytes(valid)):
        return text
    return _escape_octets(unquote_to_bytes(text), unescaped)


def _escape_octets(octets: bytes, unescaped: frozenset[int]) -> str:
    return octets.decode("latin-1").translate(_escapes(unescaped))


@cache
def _escapes(unescaped: frozenset[int]) -> dict[int, str]:
    """Return the escape sequences of the octets that need one."""
    return {each: f"%{each:02X}" for each in range(256) if each not in unescaped}


def _unescaped(text: str) -> str:
    return _readable(unquote_to_bytes(text.replace("+", " ")))


def _readable(octets: bytes) -> str:
    """Return the text of octets, with U+FFFD for each one that is no UTF-8, as Go reads a string."""
    return octets.decode("utf-8", "surrogateescape").translate(_NO_UTF_8)


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


_known: Final = lru_cache(maxsize=1024)(_parse)


def _read(text: str) -> URL:
    """Return the URL of a string without a fragment; a `#` is a character as any other (Go's `url.ParseRequestURI`)."""
    if _CONTROL.search(text):
        raise _Fault(text, "net/url: invalid control character in URL")
    if not text:
        raise _Fault(text, "empty url")
    if text == "*":
        return URL(text, "", "", "*", "")
    scheme, rest = "", text
    match = _SCHEME.fullmatch(text)
    if match is not None:
        scheme, rest = match[1].lower(), match[2]
    elif text.startswith(":"):
        raise _Fault(text, "missing protocol scheme")
    rest, mark, query = rest.partition("?")
    if not rest.startswith("/"):
        if scheme and len(text) <= _LONGEST:
            return URL(f"{scheme}:{rest}{mark}{query}", scheme, "", "", query)  # opaque, such as mailto:a@b
        raise _Fault(text, "invalid URI for request")
    if len(text) > _LONGEST:
        raise _Fault(text, "invalid URI for request")
    host = authority = ""
    try:
        if rest.startswith("//") and (scheme or not rest.startswith("///")):
            authority, slash, path = rest[2:].partition("/")
            rest = slash + path
            user, at, host = authority.rpartition("@")
            octets = _host(host)
            host = _readable(octets)
            authority = f"//{_user(user)}{at}{_escape_octets(octets, _UNESCAPED_IN_HOST)}" if host or at or rest else ""
        _check_escapes(rest)
    except ValueError as error:
        raise _Fault(text, str(error)) from None
    begin = f"{scheme}:" if scheme else ""
    shown = f"{begin}{authority}{_escaped(rest, _PATH_PLAIN, _UNESCAPED_IN_PATH)}{mark}{query}"
    return URL(shown, scheme, host, rest, query)


class _Fault(ValueError):
    """A string is no URL, for a `reason` in Go's words."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(f"`{text[:100]}` is not a URL: {reason}")
        self.reason = reason


def fault_of(text: str) -> str | None:
    """Return why a string is no URL, in the words of Go's `url.ParseRequestURI`; None if it is one."""
    try:
        _read(text)
    except _Fault as fault:
        return f"parse {_quoted(text)}: {fault.reason}"
    return None


def _quoted(text: str) -> str:
    """Return a string as Go's `strconv.Quote` writes it."""
    return '"' + "".join(each if each.isprintable() and each not in '"\\' else _sequence(each) for each in text) + '"'


def _sequence(character: str) -> str:
    code = ord(character)
    if character in _SEQUENCES:
        return _SEQUENCES[character]
    if 0xDC80 <= code <= 0xDCFF:  # an octet that is no character
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _check_escapes(text: str, bad: re.Pattern[str] = _ESCAPE) -> None:
    """Raise `ValueError` for the first invalid escape sequence or character, as Go's `unescape` does."""
    found = bad.search(text)
    if found is None:
        return
    if found[0] != "%":
        raise ValueError(f"invalid character {_quoted(found[0])} in host name")
    sequence = text[found.start() : found.start() + 3].encode("utf-8")[:3].decode("utf-8", "surrogateescape")
    raise ValueError(f"invalid URL escape {_quoted(sequence)}")


def _user(user: str) -> str:
    """Return a user and password, escaped anew."""
    if not _USER.fullmatch(user):
        raise ValueError("net/url: invalid userinfo")
    name, colon, password = user.partition(":")
    for each in (name, password):
        _check_escapes(each)
    parts = (name, password) if colon else (name,)
    return colon.join(_escape_octets(unquote_to_bytes(each), _UNESCAPED_IN_USER) for each in parts)


def _host(host: str) -> bytes:
    """Return the octets of a host with its port, unescaped (Go's `parseHost`): they may be no UTF-8."""
    opened, closed = host.rfind("["), host.rfind("]")
    if opened < 0:
        place = host.find(":")
        _check_port(host[place:] if place >= 0 else "")
        _check_escapes(host, _BAD_IN_HOST)
        return unquote_to_bytes(host)
    if closed < 0:
        raise ValueError("missing ']' in host")
    _check_port(host[closed + 1 :])
    name, mark, zone = host[opened + 1 : closed].partition("%25")
    _check_escapes(name, _BAD_IN_HOST)
    _check_escapes(mark + zone, _BAD_IN_ZONE)
    name = unquote_to_bytes(name + mark + zone).decode("utf-8", "surrogateescape")
    if opened > 0:
        raise ValueError("invalid IP-literal")
    try:
        address = ipaddress.ip_address(name) if "/" not in name else None
    except ValueError:
        address = None
    if address is None:
        raise ValueError(f"invalid host: ParseAddr({_quoted(name)}): unable to parse IP")
    if address.version == 4:
        raise ValueError("invalid IP-literal")
    return f"[{name}]{host[closed + 1 :]}".encode()


def _check_port(port: str) -> None:
    if not _PORT.fullmatch(port):
        raise ValueError(f"invalid port {_quoted(port)} after host")


def _url(text: str) -> URL:
    try:
        return URL.parse(text)
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
