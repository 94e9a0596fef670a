"""Values of `--policies` that name policies in an API server: `configmap:NAMESPACE/NAME` and `crd`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from koordpolicy.engine.source import PolicyError, Problem

from .client_options import namespace_name, object_name
from .exits import Stop

if TYPE_CHECKING:
    from koordpolicy.engine.reload.api_source import ApiSource
    from koordpolicy.engine.reload.follow import PolicyFollower
    from koordpolicy.engine.reload.mount import Version
    from koordpolicy.engine.reload.source_state import SourceState

_CONFIGMAP: Final = "configmap:"
CRD: Final = "crd"
_LEASE: Final = "koord-policy-status"
_LEASE_S: Final = (60.0, 40.0, 10.0)
"""Duration of the Lease, renew deadline and retry period: a status that comes a minute later does no harm."""


def in_cluster(path: str | Path) -> bool:
    """Return whether a value of `--policies` names policies in an API server; `./crd` is a file."""
    return isinstance(path, str) and (path == CRD or path.startswith(_CONFIGMAP))


def sources_of(paths: Iterable[str | Path]) -> dict[str, ApiSource]:
    """Return the sources in an API server that these values name.

    Raises:
        Stop: one of them is named twice, or names no ConfigMap.
    """
    found: dict[str, ApiSource] = {}
    for path in paths:
        if not isinstance(path, str) or not in_cluster(path):
            continue
        from koordpolicy.engine.reload.api_source import parse  # few commands have one

        try:
            source = parse(path)
        except PolicyError as error:
            raise Stop(f"{error.problems[0].message}: {error.problems[0].help}") from None
        if path in found:
            raise Stop(f"`{path}` is named twice: leave one out")
        if source is not None:
            found[path] = source
    return found


def follower_of(sources: Iterable[ApiSource], context: str | None) -> PolicyFollower:
    """Return a started follower of these sources, in the cluster of a kubeconfig's context (see `load_connection`)."""
    from koordpolicy.engine.client.kubeconfig import load_connection  # for a live cluster only
    from koordpolicy.engine.reload.follow import PolicyFollower

    follower = PolicyFollower(tuple(sources), load_connection(context))
    follower.start()
    return follower


def listed(paths: Iterable[str | Path], context: str | None) -> Mapping[str, Version]:
    """Return the versions that an API server has of the sources in these values, by value; reads them once.

    Raises:
        Stop: a value is not usable.
        PolicyError: the API server does not answer, or lists no such objects.
    """
    sources = sources_of(paths)
    if not sources:
        return {}
    follower = follower_of(sources.values(), context)
    try:
        follower.wait()
        readings = {path: source.read() for path, source in sources.items()}
    finally:
        follower.close()
    problems = [Problem(f"`{path}` cannot be read: {reading.stamp.reason}", help=reading.stamp.help, code="cluster")
                for path, reading in readings.items() if reading.version is None]
    problems += [Problem(warning, help="create it, or name another one", code="cluster")
                 for reading in readings.values() for warning in reading.warnings]
    if problems:
        raise PolicyError(problems)
    return {path: reading.version for path, reading in readings.items() if reading.version is not None}


class ClusterPolicies:
    """The policies in an API server that a server follows, and the status of objects; observes its reloader.

    Raises `PolicyError` if there is no way into the cluster.
    """

    def __init__(
        self, sources: Iterable[ApiSource], context: str | None, lease_name: tuple[str, str] | None,
    ) -> None:
        """Begins to follow, and waits for the first lists; `lease_name` is that of `--status-lease`."""
        from koordpolicy.engine.reload.api_source import ObjectSource
        from koordpolicy.engine.reload.object_status import StatusWriter

        self._follower = follower_of(sources, context)
        self._lease_name = lease_name
        objects = next((each for each in self._follower.sources if isinstance(each, ObjectSource)), None)
        self._writer = None if objects is None else StatusWriter(
            objects, self._follower.write_status, self._follower.leads)
        self._follower.wait()

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call a function after each change of policies, from another thread; it must not block."""
        self._follower.on_change(changed)

    def started(self) -> None:
        """Take part in the election of the server that writes status."""
        from koordpolicy.engine.client.kubeconfig import SERVICE_ACCOUNT
        from koordpolicy.engine.client.leader_election import LeaseSettings, new_identity

        if self._writer is None:
            return
        own = SERVICE_ACCOUNT / "namespace"
        namespace, name = self._lease_name or (
            own.read_text("utf-8").strip() if own.is_file() else "kube-system", _LEASE)
        lease_s, renew_s, retry_s = _LEASE_S
        self._follower.elect(
            LeaseSettings(namespace, name, new_identity(), lease_s=lease_s, renew_s=renew_s, retry_s=retry_s))

    def published(self, states: Sequence[SourceState]) -> None:
        """Write the status of the objects that differs."""
        if self._writer is not None:
            self._writer.published(states)

    def closed(self) -> None:
        """End all requests, and release the Lease."""
        self._follower.close()


def lease(text: str) -> tuple[str, str]:
    """Read an option's value that is a Lease's namespace and name."""
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise argparse.ArgumentTypeError(f"`{text}` is not a Lease such as kube-system/{_LEASE}")
    return namespace_name(namespace), object_name(name)
