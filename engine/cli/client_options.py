"""Options of servers of a live cluster: the Lease, and the limits of requests to the API server."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from .durations import seconds
from .exits import Stop, refuse_given
from .numbers import number

if TYPE_CHECKING:
    from koordpolicy.engine.client.leader_election import LeaseSettings

LEASE_OPTIONS: Final = (
    "leader_elect_lease_duration", "leader_elect_renew_deadline", "leader_elect_retry_period",
    "leader_elect_resource_name", "leader_elect_resource_namespace")
LIMIT_OPTIONS: Final = ("kube_api_qps", "kube_api_burst")


def object_name(text: str) -> str:
    """Read an option's value that is the name of an object, as the API server takes it."""
    return _named(text, "dns1123Subdomain", "a name")


def namespace_name(text: str) -> str:
    """Read an option's value that is the name of a namespace."""
    return _named(text, "dns1123Label", "the name of a namespace")


def _named(text: str, form: str, what: str) -> str:
    from koordpolicy.engine.kubernetes.library.format import FORMATS

    if FORMATS[form].check(text):
        raise argparse.ArgumentTypeError(f"`{text}` is not {what}: lower case letters, digits, `-`"
                                         f"{' and `.`' if form == 'dns1123Subdomain' else ''}, such as my-name")
    return text


def add_lease_arguments(group: argparse._ArgumentGroup, *, verb: str, name: str, namespace: str) -> None:
    """Declare the options of the Lease; `verb` is what only its holder does."""
    group.add_argument("--leader-elect", metavar="BOOL", nargs="?", const=True, type=boolean,
                       help=f"{verb} only while this process holds the Lease, and end with exit code 1 when it is "
                            "lost; `--leader-elect=false` for a single process (default: true)")
    group.add_argument("--leader-elect-lease-duration", metavar="TIME", type=seconds,
                       help="how long others wait before they take over a Lease that is not renewed (default: 15s)")
    group.add_argument("--leader-elect-renew-deadline", metavar="TIME", type=seconds,
                       help="how long the leader tries to renew the Lease before it gives up (default: 10s)")
    group.add_argument("--leader-elect-retry-period", metavar="TIME", type=seconds,
                       help="the time between two attempts to acquire or renew the Lease (default: 2s)")
    group.add_argument("--leader-elect-resource-name", metavar="NAME", type=object_name,
                       help=f"the name of the Lease (default: {name})")
    group.add_argument("--leader-elect-resource-namespace", metavar="NAMESPACE", type=namespace_name,
                       help=f"its namespace (default: {namespace})")


def add_limit_arguments(group: argparse._ArgumentGroup, *, qps: int, burst: int) -> None:
    """Declare the limits of requests."""
    group.add_argument("--kube-api-qps", metavar="N", type=_rate,
                       help="requests per second to the API server, watches aside; events have a limit of their own, "
                            f"of the same size; 0 for no limit (default: {qps})")
    group.add_argument("--kube-api-burst", metavar="N", type=_burst,
                       help=f"requests that may be sent at once after a pause (default: {burst})")


def lease_of(
    options: argparse.Namespace, *, name: str, namespace: str, written: Mapping[str, Any] | None = None,
) -> LeaseSettings | None:
    """Return the Lease of the options, else of the `leaderElection` of a configuration; None without an election.

    Raises:
        Stop: its times contradict each other.
    """
    from koordpolicy.engine.client.leader_election import LeaseSettings, new_identity

    held = written or {}
    elects = held.get("leaderElect", True) if options.leader_elect is None else options.leader_elect
    if not elects:
        refuse_given(options, LEASE_OPTIONS, "goes without `--leader-elect=false`")
        return None
    try:
        times = {
            field: seconds(str(held[key])) if given is None else given
            for field, key, given in (
                ("lease_s", "leaseDuration", options.leader_elect_lease_duration),
                ("renew_s", "renewDeadline", options.leader_elect_renew_deadline),
                ("retry_s", "retryPeriod", options.leader_elect_retry_period))
            if given is not None or held.get(key)}
        return LeaseSettings(
            options.leader_elect_resource_namespace or held.get("resourceNamespace") or namespace,
            options.leader_elect_resource_name or held.get("resourceName") or name, new_identity(), **times)
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise Stop(f"the leader election: {error}") from None


def boolean(text: str) -> bool:
    """Read `true` or `false`; raises `ArgumentTypeError` for any other text."""
    if text.lower() not in {"true", "false"}:
        raise argparse.ArgumentTypeError(f"`{text}` is not true or false")
    return text.lower() == "true"


def _rate(text: str) -> float:
    return number(text, "number of requests per second, or 0 for no limit", lambda value: 0 <= value <= 1e6)


def _burst(text: str) -> int:
    return int(number(text, "whole number above 0", lambda value: value >= 1 and value == int(value)))
