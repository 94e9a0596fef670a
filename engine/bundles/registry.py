"""A client of OCI registries: what the distribution specification 1.1 has for pushing and pulling.

Every answer is bounded in size and compared with the digest that it must have. Redirects are followed when reading
only, without the login beyond the registry itself, and never from TLS to plain HTTP. Plain HTTP is for loopback only.
"""

from __future__ import annotations

import contextlib
import json
import re
import ssl
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import urlencode, urljoin, urlsplit

from koordpolicy.engine.files import reason_of

from .faults import BundleFault
from .logins import DOCKER_HUB, NOBODY, Login, Logins
from .manifest import INDEX, LARGEST_MANIFEST, MANIFEST, Descriptor
from .reference import BundleReference, digest_of

_LOOPBACK: Final = re.compile(r"(?:localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]+)?")
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS: Final = 5
_PASSING: Final = frozenset({408, 429, 500, 502, 503, 504})
_PIECE: Final = 1 << 20
_LARGEST_REPLY: Final = 1 << 20
"""The maximum size of tokens and of descriptions of errors, in bytes."""
_LONGEST_RETRY_S: Final = 3600.0
_CHALLENGE: Final = re.compile(r'([A-Za-z0-9_-]+)="((?:[^"\\]|\\.){0,2000})"')
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_AGENT: Final = "koord-policy"


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """The way to registries: `ca` is a PEM file with authorities that are trusted beside those of the system, and
    `seconds` bounds each request.
    """

    ca: Path | None = None
    logins: Logins = field(default_factory=Logins)
    seconds: float = 30.0
    attempts: int = 1
    """The maximum number of attempts of a request that fails in a passing way."""
    sleep: Callable[[float], None] = time.sleep
    """Waits between attempts, for so many seconds."""


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Message
    content: bytes
    url: str


class RegistryClient:
    """A client for one repository. `write` demands the right to push. Not thread-safe."""

    def __init__(self, reference: BundleReference, access: RegistryAccess, *, write: bool = False) -> None:
        self._reference = reference
        self._access = access
        host = reference.registry
        plain = bool(_LOOPBACK.fullmatch(host)) and access.ca is None
        host = "registry-1.docker.io" if host in DOCKER_HUB else host
        self._base = f"{'http' if plain else 'https'}://{host}/v2/{reference.repository}"
        self._actions = "pull,push" if write else "pull"
        self._authorization = ""
        self._opener = _opener(access.ca, proxies=not plain)

    # Reading.

    def digest(self, tag: str) -> str | None:
        """Return the digest of the manifest that has a tag; None if there is none.

        Raises `BundleFault` if the registry does not answer, or refuses.
        """
        answer = self._request("HEAD", f"/manifests/{tag}", accept=MANIFEST, limit=0)
        if answer.status == 404:
            return None
        self._expect(answer, 200)
        named = answer.headers.get("Docker-Content-Digest", "")
        if _DIGEST.fullmatch(named):
            return str(named)
        found = self.manifest(tag)  # the header is optional
        return None if found is None else digest_of(found)

    def manifest(self, named: str) -> bytes | None:
        """Return the manifest with a tag or a digest; None if there is none. Raises `BundleFault`."""
        answer = self._request("GET", f"/manifests/{named}", accept=MANIFEST, limit=LARGEST_MANIFEST)
        if answer.status == 404:
            return None
        self._expect(answer, 200)
        if _DIGEST.fullmatch(named):
            self._compare(answer.content, named, "the manifest")
        return answer.content

    def referrers(self, digest: str) -> bytes | None:
        """Return the index of the manifests that refer to a manifest; None if there is none. Raises `BundleFault`."""
        answer = self._request("GET", f"/referrers/{digest}", accept=INDEX, limit=LARGEST_MANIFEST)
        if answer.status != 200:  # registries before version 1.1 of the specification have a tag instead
            answer = self._request("GET", f"/manifests/{digest.replace(':', '-')}", accept=INDEX,
                                   limit=LARGEST_MANIFEST)
        if answer.status == 404:
            return None
        self._expect(answer, 200)
        return answer.content

    def blob(self, descriptor: Descriptor) -> bytes:
        """Return the content of a descriptor; raises `BundleFault` if it is missing or another one."""
        answer = self._request("GET", f"/blobs/{descriptor.digest}", limit=descriptor.size)
        if answer.status == 404:
            raise self._fault(f"it does not have the blob {descriptor.digest}", "push the bundle again")
        self._expect(answer, 200)
        if len(answer.content) != descriptor.size:
            raise self._fault(f"it sent {len(answer.content):,} of {descriptor.size:,} bytes of {descriptor.digest}",
                              "try again", passing=True)
        self._compare(answer.content, descriptor.digest, "the blob")
        return answer.content

    # Writing.

    def put_blob(self, content: bytes) -> None:
        """Store a content, unless the registry has it; raises `BundleFault`."""
        digest = digest_of(content)
        if self._request("HEAD", f"/blobs/{digest}", limit=0).status == 200:
            return
        begun = self._request("POST", "/blobs/uploads/", body=b"")
        self._expect(begun, 202)
        url = _followed(begun.url, begun.headers.get("Location", ""))
        if not url:
            raise self._fault("it names no usable place for an upload", "look at its configuration")
        url += f"{'&' if urlsplit(url).query else '?'}{urlencode({'digest': digest})}"
        stored = self._request("PUT", url, body=content, kind="application/octet-stream")
        self._expect(stored, 201)

    def put_manifest(self, named: str, content: bytes) -> None:
        """Store a manifest under a tag or its digest; raises `BundleFault`."""
        self._expect(self._request("PUT", f"/manifests/{named}", body=content, kind=MANIFEST), 201)

    # Requests.

    def _request(
        self, method: str, path: str, *, accept: str = "*/*", body: bytes | None = None, kind: str = "",
        limit: int = _LARGEST_REPLY,
    ) -> _Answer:
        """Return the answer, at most `limit` bytes of it where it succeeds; logs in if the registry demands it."""
        url = path if "://" in path else self._base + path
        headers = {"Accept": accept, "Accept-Encoding": "identity", "User-Agent": _AGENT}
        if kind:
            headers["Content-Type"] = kind
        for attempt in range(1, self._access.attempts + 1):
            try:
                return self._logged_in(method, url, headers, body, limit)
            except BundleFault as fault:
                if not fault.passing or attempt == self._access.attempts:
                    raise
                self._access.sleep(max(fault.retry_after_s, float(attempt)))
        raise AssertionError("there is no attempt")

    def _logged_in(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, limit: int,
    ) -> _Answer:
        answer = self._redirected(method, url, headers, body, limit)
        # A place that the registry redirects to must not learn the login by a challenge of its own.
        own = _origin(answer.url) == _origin(self._base)
        if answer.status == 401 and own and (authorization := self._log_in(answer)):
            self._authorization = authorization
            answer = self._redirected(method, url, headers, body, limit)
        if answer.status in _PASSING:
            raise self._fault(f"it answered {answer.status}{_reason(answer)}", "try again later", passing=True,
                              retry_after_s=_retry_after(answer.headers))
        if answer.status in (401, 403):
            self._authorization = ""
            may = "push to" if "push" in self._actions else "pull from"
            raise self._fault(
                f"it does not permit this user to {may} `{self._reference.repository}`"
                f" ({answer.status}{_reason(answer)})",
                f"log in with `docker login {self._reference.registry}`, whose config.json is read from DOCKER_CONFIG "
                "or ~/.docker, or ask for the right")
        return answer

    def _redirected(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, limit: int,
    ) -> _Answer:
        for _ in range(_MOST_REDIRECTS + 1):
            sent = dict(headers)
            if self._authorization and _origin(url) == _origin(self._base):
                sent["Authorization"] = self._authorization
            answer = self._send(method, url, sent, body, limit)
            if answer.status not in _REDIRECTS or method not in ("GET", "HEAD"):
                return answer
            place = answer.headers.get("Location", "")
            url = _followed(url, place)
            if not url:
                raise self._fault(f"it redirects to `{place[:200]}`, which is not followed",
                                  "look at its configuration")
        raise self._fault("it redirects in circles", "look at its configuration")

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, limit: int,
    ) -> _Answer:
        request = urllib.request.Request(url, body, dict(headers), method=method)  # noqa: S310 - of a reference, or `_followed`
        try:
            # Not by urllib's chain of handlers for errors: every status is an answer here.
            with contextlib.closing(self._opener.open(request, timeout=self._access.seconds)) as response:
                assert isinstance(response, HTTPResponse)
                content = self._content(response, limit if response.status == 200 else _LARGEST_REPLY, method)
                return _Answer(response.status, response.headers, content, url)
        except URLError as error:
            raise self._unreachable(error.reason) from None
        except (OSError, HTTPException, ValueError) as error:
            raise self._unreachable(error) from None

    def _content(self, response: HTTPResponse, limit: int, method: str) -> bytes:
        if method == "HEAD":
            return b""
        end = time.monotonic() + self._access.seconds * 10
        content = bytearray()
        while piece := response.read1(_PIECE):
            content += piece
            if len(content) > limit:
                raise self._fault(f"it sends more than the {limit:,} bytes that are expected", "push the bundle again")
            if time.monotonic() > end:
                raise self._fault("it sends too slowly", "try again", passing=True)
        if response.length:
            raise self._fault(f"its answer ends {response.length:,} bytes early", "try again", passing=True)
        return bytes(content)

    def _unreachable(self, why: object) -> BundleFault:
        if isinstance(why, ssl.SSLCertVerificationError):
            return self._fault(f"its certificate is not trusted: {why.verify_message}",
                               "name its authority with `--registry-ca`", passing=True)
        if isinstance(why, ssl.SSLError):
            return self._fault(f"TLS with it fails: {(why.reason or str(why)).lower().replace('_', ' ')}",
                               "it may speak plain HTTP, which is for loopback only", passing=True)
        if isinstance(why, TimeoutError):
            return self._fault(f"it does not answer within {self._access.seconds:g} s", "try again later", passing=True)
        shown = reason_of(why) if isinstance(why, OSError) else str(why) or type(why).__name__
        return self._fault(f"it cannot be reached: {shown[:300]}", "check its name and the network", passing=True)

    # Logging in.

    def _log_in(self, answer: _Answer) -> str:
        """Return the Authorization header that a challenge demands; empty if there is no login for it."""
        login = self._access.logins.of(self._reference.registry)
        challenge = answer.headers.get("WWW-Authenticate", "")
        scheme = challenge.partition(" ")[0].lower()
        if scheme == "basic":
            return login.basic if login.basic != self._authorization else ""
        if scheme != "bearer":
            return ""
        fields = dict(_CHALLENGE.findall(challenge))
        realm = fields.get("realm", "")
        if "://" not in realm or not _followed(answer.url, realm):
            raise self._fault(f"it sends for a token to `{realm[:200]}`, which is not followed",
                              "look at its configuration")
        return self._token(realm, fields.get("service", ""), login)

    def _token(self, realm: str, service: str, login: Login) -> str:
        scope = f"repository:{self._reference.repository}:{self._actions}"
        headers = {"Accept": "application/json", "User-Agent": _AGENT, "Accept-Encoding": "identity"}
        query = {**({"service": service} if service else {}), "scope": scope}
        if login.identity_token:
            form = urlencode({**query, "grant_type": "refresh_token", "client_id": _AGENT,
                              "refresh_token": login.identity_token}).encode()
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            found = self._send("POST", realm, headers, form, _LARGEST_REPLY)
        else:
            if login != NOBODY:
                headers["Authorization"] = login.basic
            found = self._send("GET", f"{realm}{'&' if urlsplit(realm).query else '?'}{urlencode(query)}", headers,
                               None, _LARGEST_REPLY)
        if found.status in _PASSING:
            raise self._fault(f"its service of tokens answered {found.status}", "try again later", passing=True,
                              retry_after_s=_retry_after(found.headers))
        try:
            data = json.loads(found.content) if found.status == 200 else {}
            token = data.get("token") or data.get("access_token")
        except (ValueError, RecursionError, AttributeError):
            token = None
        # Of printable ASCII without blanks: it becomes part of a header.
        return f"Bearer {token}" if isinstance(token, str) and re.fullmatch(r"[!-~]+", token) else ""

    # Faults.

    def _expect(self, answer: _Answer, status: int) -> None:
        if answer.status != status:
            raise self._fault(f"it answered {answer.status}{_reason(answer)}", "look at its configuration")

    def _compare(self, content: bytes, digest: str, what: str) -> None:
        if digest_of(content) != digest:
            raise self._fault(f"{what} {digest} has another digest: {digest_of(content)}",
                              "it is damaged, or was exchanged: push it again, and look who may write there",
                              code="digest-mismatch")

    def _fault(
        self, why: str, help: str, *, passing: bool = False, retry_after_s: float = 0.0,  # noqa: A002 - as `Problem` calls it
        code: str = "registry",
    ) -> BundleFault:
        return BundleFault(f"the registry `{self._reference.registry}`: {why}", help, code=code, passing=passing,
                           retry_after_s=retry_after_s)


def _opener(ca: Path | None, *, proxies: bool) -> urllib.request.OpenerDirector:
    """Return an opener that follows nothing by itself; `proxies` says whether those of the environment are used."""
    context = ssl.create_default_context()
    if ca is not None:
        try:
            context.load_verify_locations(ca)
        except OSError as error:  # also ssl.SSLError, which is one
            raise BundleFault(f"`--registry-ca {ca}` cannot be used: {reason_of(error)}",
                              "name a file with certificates in PEM", code="unusable-ca") from None
    opener = urllib.request.OpenerDirector()
    for handler in (urllib.request.ProxyHandler(None if proxies else {}), urllib.request.HTTPHandler(),
                    urllib.request.HTTPSHandler(context=context)):
        opener.add_handler(handler)
    return opener


def _followed(before: str, place: str) -> str:
    """Return the URL of a place that an answer named; empty if it is none, or less safe than the URL before."""
    try:
        after = urljoin(before, place)
        url = urlsplit(after)
        safe = url.scheme == "https" or (url.scheme == "http" and before.startswith("http://")
                                         and bool(_LOOPBACK.fullmatch(url.netloc)))
        usable = bool(place) and safe and bool(url.hostname) and url.username is None
    except ValueError:
        return ""
    return after if usable else ""


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()


def _reason(answer: _Answer) -> str:
    """Return the error messages of an answer, as the end of a message."""
    try:
        errors: Any = json.loads(answer.content)["errors"]
        messages = "; ".join(str(each.get("message") or each["code"]) for each in errors[:3])
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, IndexError):
        return ""
    return f", {messages[:300]}" if messages else ""


def _retry_after(headers: Message) -> float:
    """Return the wait that an answer demands, in seconds: 0 to an hour."""
    text = str(headers.get("Retry-After", "")).strip()
    if text.isascii() and text.isdecimal():
        return min(float(text[:6]), _LONGEST_RETRY_S)
    try:
        wait = parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(wait, 0.0), _LONGEST_RETRY_S)
