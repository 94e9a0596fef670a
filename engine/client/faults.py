"""Faults of requests to an API server: the meaning of each status and exception, and the remedy.

A table, so that all callers report the same fault alike. Exceptions of the client's libraries are recognized by the
name of their class, as these take half a second to import.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.source import PolicyError, Problem

_LONGEST: Final = 300


@dataclass(frozen=True, slots=True)
class ApiFault:
    """A fault, as the end of a sentence, and what to do about it."""

    message: str
    help: str
    everywhere: bool = False
    """True if every other request would fail too."""


class FaultError(Exception):
    """A request failed."""

    def __init__(self, fault: ApiFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


_BY_STATUS: Final[Mapping[int, ApiFault]] = {
    400: ApiFault("the server does not understand the request", "is this a Kubernetes API server?"),
    401: ApiFault("the server does not accept the credentials",
               "renew the token or the certificate of the kubeconfig's user (`kubectl auth whoami` says whether it is "
               "valid)", everywhere=True),
    403: ApiFault("it is not allowed", "grant `{verb}` on `{resource}` to the user or service account"),
    404: ApiFault("the cluster does not have it", "install what defines it, if it is needed"),
    408: ApiFault("the server gave up on the request", "try again; if it goes on, look at the load of the API server"),
    409: ApiFault("it is there already, or was changed meanwhile", "nothing: kube-scheduler tries again"),
    429: ApiFault("the server has too many requests", "try again later, or give koord-policy a flow schema of its own "
               "(`kubectl get flowschemas`)"),
}
_OF_5XX: Final = ApiFault("the server fails",
                       "look at the health of the API server (`kubectl get --raw '/readyz?verbose'`)")
_OTHER_STATUS: Final = ApiFault("the server answers something else", "is this a Kubernetes API server?")

# By the number of OpenSSL's verification, see X509_V_ERR in its x509_vfy.h.
_BY_VERIFICATION: Final[Mapping[int, ApiFault]] = {
    9: ApiFault("its certificate is not valid yet", "compare the clocks of this machine and of the API server", True),
    10: ApiFault(
        "its certificate has expired", "renew the API server's certificate, or correct this machine's clock", True,
    ),
    62: ApiFault(
        "its certificate is for other names",
        "use one of its names as `server` of the kubeconfig's cluster, or name it as `tls-server-name`",
        True,
    ),
    64: ApiFault(
        "its certificate is for other addresses",
        "use one of its names as `server` of the kubeconfig's cluster, or name it as `tls-server-name`",
        True,
    ),
}
_UNKNOWN_AUTHORITY: Final = ApiFault(
    "its certificate is of an authority that is not known here",
    "name that authority's file as `certificate-authority` of the kubeconfig's cluster", True)
_TLS: Final = ApiFault(
    "TLS with it fails",
    "does `server` of the kubeconfig's cluster say https where the server does, "
    "and does the server accept the user's certificate?",
    True,
)

_BY_EXCEPTION: Final[tuple[tuple[Callable[[BaseException], bool], ApiFault], ...]] = (
    (
        lambda error: isinstance(error, socket.gaierror) or _named(error, "NameResolutionError"),
        ApiFault("its name is not known", "check `server` of the kubeconfig's cluster, and this machine's DNS", True),
    ),
    (
        lambda error: _named(error, "ProxyError"),
        ApiFault(
            "the proxy does not let it through",
            "check `HTTPS_PROXY` and `NO_PROXY`, and `proxy-url` of the kubeconfig's cluster",
            True,
        ),
    ),
    (
        lambda error: isinstance(error, ConnectionRefusedError),
        ApiFault(
            "nobody listens there",
            "is the API server running, and is `server` of the kubeconfig's cluster its address?",
            True,
        ),
    ),
    (
        lambda error: (
            isinstance(error, TimeoutError)
            or (_named(error, "ConnectTimeoutError", "ReadTimeoutError") and not _named(error, "NewConnectionError"))
        ),
        ApiFault(
            "it does not answer in time",
            "check the network in between (firewalls, VPN), and the load of the API server",
            True,
        ),
    ),
    (
        lambda error: isinstance(error, ConnectionError) or _named(
            error, "ProtocolError", "IncompleteRead", "ServerDisconnectedError", "ClientPayloadError",
        ),
        ApiFault(
            "it breaks off the connection",
            "check the API server, and load balancers and proxies in front of it",
            True,
        ),
    ),
)
_OTHER: Final = ApiFault("it cannot be reached", "check the address and the network", True)


def of_status(status: int, body: object, *, verb: str, resource: str) -> ApiFault:
    """Return the fault of a refusal by the API server; `body` is its response, usually a `Status`."""
    known = _BY_STATUS.get(status) or (_OF_5XX if 500 <= status < 600 else _OTHER_STATUS)
    detail = _detail_of(body)
    message = detail if status == 403 and detail else f"{known.message} ({status}{f': {detail}' if detail else ''})"
    return ApiFault(message, known.help.format(verb=verb, resource=resource) if "{" in known.help else known.help,
                 known.everywhere)


def of_exception(error: BaseException) -> ApiFault:
    """Return the fault of a failed connection."""
    for each in _causes(error):
        verification = getattr(each, "verify_code", None)
        if isinstance(each, ssl.SSLCertVerificationError) and verification is not None:
            return _BY_VERIFICATION.get(verification, _UNKNOWN_AUTHORITY)
    for each in _causes(error):
        if isinstance(each, ssl.SSLError) or _named(each, "SSLError"):
            return _TLS
    causes = list(_causes(error))
    return next((fault for fits, fault in _BY_EXCEPTION if any(map(fits, causes))), _OTHER)


def no_way(context: str | None, fault: ApiFault) -> PolicyError:
    """Return the error that a configuration leads to no cluster; `context` is the one that was named, or None."""
    return PolicyError([Problem(f"no way into the cluster{f' `{context}`' if context else ''}: {fault.message}",
                                help=fault.help, code="cluster")])


def of_configuration(error: BaseException, *, files: str, context: str | None) -> ApiFault:
    """Return the fault of a kubeconfig that the official client cannot use."""
    where = f"`{files}`"
    text = " ".join(str(error).removeprefix("Invalid kube-config file. ").split()).rstrip(".")[:_LONGEST]
    if type(error).__module__.partition(".")[0] == "yaml":
        return ApiFault(f"the kubeconfig {where} is not YAML: {text}", "correct it, or name another one in KUBECONFIG")
    if isinstance(error, OSError):
        return ApiFault(f"the kubeconfig {where}, or a file that it names, cannot be read: {error.strerror or text}",
                     "check the path and who may read it")
    if context is not None and "contexts" in text:
        return ApiFault(f"the kubeconfig {where} has no context `{context}`",
                     "name one of its contexts (`kubectl config get-contexts`)")
    if "current-context" in text or "contexts" in text:
        return ApiFault(f"the kubeconfig {where} names no current context that it has",
                     "choose one with `kubectl config use-context`, or name it: `kube:CONTEXT`")
    return ApiFault(f"the kubeconfig {where} cannot be used: {text}", "`kubectl config view` shows what is in it")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes: reasons of urllib3, causes, contexts, arguments."""
    seen: set[int] = set()
    todo: list[object] = [error]
    while todo:
        each = todo.pop(0)
        if not isinstance(each, BaseException) or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        todo += [getattr(each, "reason", None), getattr(each, "original_error", None), *each.args, each.__cause__,
                 each.__context__]


def _named(error: BaseException, *names: str) -> bool:
    return any(each.__name__ in names for each in type(error).__mro__)


def _detail_of(body: Any) -> str:
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body or "")
    try:
        text = str(json.loads(text)["message"])
    except (ValueError, TypeError, KeyError):
        text = text.strip()
        if text.startswith(("<", "{")):
            return ""
    return " ".join(text.split())[:_LONGEST]
