"""The sources of `top`: the cluster and the servers of its options, read again and again."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from koordpolicy.engine.client.server_calls import EndpointAnswer
from koordpolicy.engine.monitoring.figures import ServerFigures, server_figures
from koordpolicy.engine.monitoring.monitor import LONGEST_ANSWER, ServerMonitor, ServerState

from .cluster_loading import LIVE_CLUSTER, cluster_of, context_of, moment_of
from .endpoints import DEFAULT, caller_of, words_of
from .exits import Exit, Stop
from .top_frame import ClusterFigures, TopFrame, cluster_figures

if TYPE_CHECKING:
    from koordpolicy.engine.cluster.sources.watched_cluster import WatchedCluster
    from koordpolicy.engine.console.models.servers import ServersView

_SLICE_S: Final = 0.2
_USER_AGENT: Final = "koord-policy/top"
_Stamp = tuple[tuple[str, int, int], ...]


class TopSource:
    """Reads frames. `close` ends the requests."""

    def __init__(self, options: argparse.Namespace, *, watch: bool) -> None:
        """With `watch` a live cluster is listed once, and then watched."""
        self._options = options
        self._watch = watch and options.cluster is not None and options.now is None and (
            options.cluster.partition(":")[0] == LIVE_CLUSTER)
        self._monitor: ServerMonitor | None = None
        self._watched: WatchedCluster | None = None
        self._dump: tuple[_Stamp, ClusterFigures] | None = None

    def read(self) -> TopFrame:
        """Return the present figures of the cluster and the servers.

        Raises:
            Stop: the cluster cannot be read, or the name of a server has no address.
            PolicyError: as `cluster_of` does.
        """
        options = self._options
        servers: tuple[ServerFigures, ...] = ()
        view: ServersView | None = None
        if options.endpoints or options.cluster is None:
            servers, view = self._servers()
        return TopFrame(servers, None if options.cluster is None else self._cluster(options.cluster), view=view)

    def close(self) -> None:
        """End the requests; waits for nothing but them."""
        if self._monitor is not None:
            self._monitor.close()
        if self._watched is not None:
            self._watched.close()

    def _servers(self) -> tuple[tuple[ServerFigures, ...], ServersView]:
        from koordpolicy.engine.console.server_views import servers_view  # msgspec

        if self._monitor is None:
            caller = replace(caller_of(self._options), largest=LONGEST_ANSWER)
            words = words_of(self._options.endpoints or [DEFAULT], "--endpoints")
            self._monitor = ServerMonitor(words, lambda: caller, interval=self._options.interval)
        self._monitor.poll()
        found = self._monitor.view
        if found.unresolved:
            raise Stop(found.unresolved[0], Exit.EXCEEDED)
        return tuple(server_figures(_answer(each)) for each in found.servers), servers_view(found, 0.0)

    def _cluster(self, source: str) -> ClusterFigures:
        if self._watch:
            return self._of_watched(source)
        stamp = _stamp(Path(source))
        if stamp is not None and self._dump is not None and self._dump[0] == stamp:
            return self._dump[1]
        cluster = cluster_of(source)
        figures = cluster_figures(cluster, moment_of(self._options.now, source, cluster), source)
        self._dump = None if stamp is None else (stamp, figures)
        return figures

    def _of_watched(self, source: str) -> ClusterFigures:
        if self._watched is None:
            from koordpolicy.engine.client.kubeconfig import load_connection  # for a live cluster only
            from koordpolicy.engine.cluster.cluster import Cluster
            from koordpolicy.engine.cluster.kinds import Read
            from koordpolicy.engine.cluster.sources.watched_cluster import WatchedCluster

            watched = WatchedCluster(
                load_connection(context_of(source)), Cluster(kinds=frozenset({"Node", "Pod"})),
                [Read("Node"), Read("Pod"), Read("NodeMetric")], user_agent=_USER_AGENT)
            watched.start()
            self._watched = watched
        while self._watched.apply(_SLICE_S):
            pass
        return cluster_figures(self._watched.cluster, self._watched.now(), source)


def _answer(state: ServerState) -> EndpointAnswer:
    """Return the last answer of a server, or the reason why it has none."""
    if state.error or state.answer is None:
        return EndpointAnswer(state.endpoint, error=state.error or "it has not answered yet")
    if not state.answer.ok:
        return replace(state.answer, error="it reports no policies")
    return state.answer


def _stamp(path: Path) -> _Stamp | None:
    """Return the names, times and sizes of the files of a dump; None for a source that is none."""
    try:
        if path.is_file():
            files = [path]
        elif path.is_dir():
            files = sorted(each for each in path.rglob("*") if each.is_file())
        else:
            return None
        return tuple((str(each), found.st_mtime_ns, found.st_size) for each in files for found in (each.stat(),))
    except OSError:  # changed just now
        return None
