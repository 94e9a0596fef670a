"""Options by which a server leaves to an API server who may read its endpoints; named as kube-scheduler's."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .composition import need_file
from .durations import seconds
from .exits import refuse_given

if TYPE_CHECKING:
    from koordpolicy.engine.client.connection import Connection
    from koordpolicy.engine.client.transport import Transport
    from koordpolicy.engine.serving.access import DelegatedAccess
    from koordpolicy.engine.serving.reviews import Reviews

IN_CLUSTER: Final = "in-cluster"
"""The value of the kubeconfig options that means the service account of this pod."""
_TIMES: Final = {
    "authentication_token_webhook_cache_ttl": "how long the API server's answer about a token is valid",
    "authorization_webhook_cache_authorized_ttl": "how long a permission is valid",
    "authorization_webhook_cache_unauthorized_ttl": "how long a refusal is valid",
}
_ALWAYS: Final = "/healthz,/livez,/readyz"
REVIEW_OPTIONS: Final = ("authentication_kubeconfig", "authorization_kubeconfig", *_TIMES)
"""The options of reviews, as attributes."""
OPTIONS: Final = (*REVIEW_OPTIONS, "authorization_always_allow_paths")


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Declare the options."""
    add_review_arguments(
        group, "ask this API server who sends a request for /metrics or /configz (TokenReview) and whether that user "
        "may read it (SubjectAccessReview)")
    group.add_argument("--authorization-always-allow-paths", metavar="PATH[,PATH]", type=_paths,
                       help=f"what everybody may read; a path may end with * (default: {_ALWAYS})")


def add_review_arguments(group: argparse._ArgumentGroup, purpose: str) -> None:
    """Declare the options of reviews by an API server."""
    group.add_argument("--authentication-kubeconfig", metavar="FILE",
                       help=f"{purpose}; `{IN_CLUSTER}` for the service account of this pod")
    group.add_argument("--authorization-kubeconfig", metavar="FILE",
                       help="ask this API server for permissions (default: that of --authentication-kubeconfig)")
    for name, text in _TIMES.items():
        group.add_argument(f"--{name.replace('_', '-')}", metavar="TIME", type=seconds, help=f"{text} (default: 10s)")


def protects(options: argparse.Namespace) -> bool:
    """Return whether a server authenticates its readers: their tokens are encrypted on their way, or it is demanded."""
    return options.tls_cert is not None or options.authentication_kubeconfig is not None


def refuse_without_effect(options: argparse.Namespace) -> None:
    """Raise `Stop` if one of the options is given to a server of a live cluster that does not authenticate its readers.

    It would be ignored, and everybody could read what its user believes to be protected.
    """
    if not protects(options):
        refuse_given(options, OPTIONS, "goes with `--tls-cert` or `--authentication-kubeconfig`: without them "
                     "everybody may read metrics and configuration")


def access_of(
    options: argparse.Namespace, connect: Callable[[], Connection] | None = None,
) -> DelegatedAccess | None:
    """Return the access control of requests; None if the server does not authenticate its readers.

    `connect` is the way to the API server without `--authentication-kubeconfig`: if that is None as well, so is the
    result.

    Raises:
        Stop: the options contradict each other, or there is no such kubeconfig.
        PolicyError: a kubeconfig is wrong.
    """
    if options.authentication_kubeconfig is None and connect is None:
        refuse_given(options, OPTIONS, "goes with `--authentication-kubeconfig`")
        return None
    from koordpolicy.engine.serving.access import ALWAYS_ALLOWED, DelegatedAccess

    paths = options.authorization_always_allow_paths
    return DelegatedAccess(reviews_of(options, connect), always_allowed=ALWAYS_ALLOWED if paths is None else paths)


def reviews_of(options: argparse.Namespace, connect: Callable[[], Connection] | None = None) -> Reviews:
    """Return the reviews by the API servers of the options.

    `connect` is the way to the API server without `--authentication-kubeconfig`.

    Raises:
        Stop: there is no such kubeconfig.
        PolicyError: a kubeconfig is wrong.
    """
    from koordpolicy.engine.serving.reviews import CACHE_S, CacheTimes, Reviews

    times = [CACHE_S if found is None else found for found in (getattr(options, name) for name in _TIMES)]
    for name in ("authentication_kubeconfig", "authorization_kubeconfig"):
        file = getattr(options, name)
        if file not in {None, IN_CLUSTER}:
            need_file(Path(file), f"`--{name.replace('_', '-')}` takes a kubeconfig")
    authentication = _transports(options.authentication_kubeconfig, connect)
    authorization = None
    if options.authorization_kubeconfig is not None:
        authorization = _transports(options.authorization_kubeconfig, None)
    return Reviews(authentication, authorization, times=CacheTimes(*times))


def _transports(file: str | None, connect: Callable[[], Connection] | None) -> Callable[[], Transport]:
    from koordpolicy.engine.client.kubeconfig import load_connection  # only servers need it
    from koordpolicy.engine.client.transport import Transport

    def load() -> Connection:
        if file is None:
            assert connect is not None
            return connect()
        return load_connection(configuration_file=None if file == IN_CLUSTER else file)

    load()  # a wrong file is reported when the server starts
    return lambda: Transport(load())


def _paths(text: str) -> tuple[str, ...]:
    paths = tuple(filter(None, (path.strip() for path in text.split(","))))
    for path in paths:
        if not path.startswith("/"):
            raise argparse.ArgumentTypeError(f"`{path[:100]}` is not a path such as /healthz")
    return paths
