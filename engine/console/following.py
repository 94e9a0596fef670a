"""Following: a live cluster, and policies wherever they come from, become new states of the console."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Final, TypeAlias

from koordpolicy.engine.cluster.kinds import Read
from koordpolicy.engine.cluster.sources.watched_cluster import WatchedCluster
from koordpolicy.engine.documents import Documents, load
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.reload.follow import PolicyFollower
from koordpolicy.engine.reload.reloader import Reloader
from koordpolicy.engine.reload.settings import ReloadSettings
from koordpolicy.engine.reload.source_state import SourceReader, SourceState, active_files
from koordpolicy.engine.reload.startup import InvalidAtStart
from koordpolicy.engine.reload.status import UNAVAILABLE
from koordpolicy.engine.reload.vet import VETTING, Vetter
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.profiles.profile import all_reads_of
from koordpolicy.engine.source import PolicyError, Problem, Source

from .policy_set import PolicySet
from .state import ConsoleState
from .view_thread import ViewThread

if TYPE_CHECKING:
    from koordpolicy.engine.reload.bundle_source import BundleFollower

MakeSet: TypeAlias = Callable[[Documents, Sequence[Source]], PolicySet]
"""Compiles documents; those that are invalid are part of the result, and do not decide."""
MakeState: TypeAlias = Callable[[ConsoleState, PolicySet], ConsoleState]
"""Returns the state of the same cluster under other policies; raises `PolicyError` if they cannot run."""

USER_AGENT: Final = "koord-policy/console"
WHOLE: Final = ("Node", "Pod", "NodeMetric")
"""Kinds that are followed with all fields, since expressions of the page may read any; other kinds only with the fields
that policies read.
"""
_SLICE_S: Final = 0.2
_SHORTEST_S: Final = 1.0
_LONGEST_S: Final = 30.0
_LOG: Final = logging.getLogger(__name__)


def console_reads(settings: Settings, registry: Registry) -> list[Read]:
    """Return the kinds and fields that views of a live cluster read under some policies."""
    others = (read for plugin in registry.plugins.values()
              if plugin.framework is not Framework.SCHEDULER and plugin.source for read in plugin.reads)
    return [*all_reads_of(settings.profiles, registry), *others, *map(Read, WHOLE)]


class ClusterFollowing:
    """Applies the changes of a live cluster in the thread that computes views, at most once a second."""

    def __init__(
        self, watched: WatchedCluster, views: ViewThread, *, shortest: float = _SHORTEST_S, longest: float = _LONGEST_S,
    ) -> None:
        """A new state comes `shortest` seconds after the last one at the earliest, and without any change after
        `longest`, as measurements expire.
        """
        self._watched = watched
        self._views = views
        self._shortest = shortest
        self._longest = longest
        self._woken = threading.Event()
        self._stop = threading.Event()
        self._renewed = 0.0
        self._thread = threading.Thread(target=self._run, name="cluster", daemon=True)

    def start(self) -> None:
        """Begin; the cluster is listed already."""
        self._watched.listen(self._woken.set)
        self._thread.start()

    def close(self) -> None:
        """End all requests; waits for nothing but them."""
        self._stop.set()
        self._woken.set()
        self._watched.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._woken.wait(self._longest)
            self._woken.clear()
            try:
                while not self._stop.is_set() and self._apply():
                    pass
            except CancelledError:
                return  # the thread of the views has ended
            except Exception:
                _LOG.exception("changes of the cluster were not applied")
            self._stop.wait(self._shortest)

    def _apply(self) -> bool:
        """Apply changes for a while; return whether there are more."""
        more = False

        def apply(state: ConsoleState) -> ConsoleState | None:
            nonlocal more
            before = self._watched.applied
            more = self._watched.apply(_SLICE_S)
            now = time.monotonic()
            if self._watched.applied == before and now - self._renewed < self._longest:
                return None
            self._renewed = now
            state.renew(self._watched.now())
            return state

        try:
            changing = self._views.change(apply)
        except RuntimeError:  # the thread of the views has ended
            self._stop.set()
            return False
        changing.result()
        return more


class PolicyFollowing:
    """Reloads policies when their sources change (`Reloader`), and replaces the state; also its builder and observer.

    Invalid documents are activated with the others, and do not decide: the page shows them with their problems.
    """

    def __init__(
        self, readers: Sequence[SourceReader | str], views: ViewThread, make_set: MakeSet, make_state: MakeState, *,
        python_plugins: Iterable[Plugin], follower: PolicyFollower | None = None,
        bundles: BundleFollower | None = None, vetter: Vetter | None = None,
        cover: Callable[[Registry], None] = lambda _: None,
    ) -> None:
        """`cover` is called in the reloading thread with new policies, and returns when the cluster has what they read.

        `follower` follows the readers that are in an API server, `bundles` those in registries; both are closed at the
        end. `vetter` compiles new policies in another process first.
        """
        self._views = views
        self._make_set = make_set
        self._make_state = make_state
        self._follower = follower
        self._vetter = vetter
        first = views.state.policies
        self._built: dict[tuple[str, ...], PolicySet] = {_key(first.sources.values()): first}
        """The last two sets by their files."""
        self._shown: tuple[object, ...] | None = None
        self.reloader = Reloader(
            Live(), readers, self, ReloadSettings(invalid_at_start=InvalidAtStart.WAIT),
            python_plugins=python_plugins, observers=(self, *(() if bundles is None else (bundles,))))
        self.reloader.stage_with(cover)
        for each in (follower, bundles):
            if each is not None:
                each.on_change(self.reloader.wake)

    def start(self) -> None:
        """Observe the sources from now on, in a thread."""
        self.reloader.start()

    def close(self) -> None:
        """End the observation."""
        self.reloader.close()

    # The builder, in the reloading thread

    def __call__(self, sources: Sequence[Source]) -> Iterable[Plugin]:
        """Return the plugins of the valid documents; raises `PolicyError` if the vetting process ends or is absent."""
        known = _key(sources) in self._built
        if self._vetter is not None and not known:
            try:
                self._vetter.vet(sources)
            except PolicyError as error:
                if any(each.code in (VETTING, UNAVAILABLE) for each in error.problems):
                    raise
        return self._set_of(sources).plugins

    def groups(self, sources: Sequence[Source]) -> Iterable[frozenset[str]]:  # noqa: ARG002 - the protocol's
        """Return nothing: all files change together."""
        return ()

    def holds_policies(self, source: Source) -> bool:  # noqa: ARG002 - the protocol's
        """Return true: a source may be empty here."""
        return True

    def warnings(self, sources: Sequence[Source]) -> Iterable[Problem]:  # noqa: ARG002 - the protocol's
        """Return nothing: the linter's findings have them."""
        return ()

    def _set_of(self, sources: Sequence[Source], problems: tuple[Problem, ...] = ()) -> PolicySet:
        key = (*_key(sources), *(each.message for each in problems))
        found = self._built.get(key)
        if found is None:
            found = self._make_set(Documents(problems=problems) + load(sources), sources)
            self._built[key] = found
            while len(self._built) > 2:
                del self._built[next(iter(self._built))]
        return found

    # The observer, in the reloading thread

    def started(self) -> None:
        """Do nothing: nothing is written."""

    def published(self, states: Sequence[SourceState]) -> None:
        """Replace the state if other files are active, or others refused."""
        problems = tuple(dict.fromkeys(each for state in states for each in (*state.read_problems, *state.problems)))
        shown = tuple(state.active.digest if state.active is not None else "" for state in states), problems
        if shown == self._shown:
            return
        first, self._shown = self._shown is None, shown
        files = list(active_files(states).values())
        try:
            policies = self._set_of(files, problems)
        except PolicyError as error:
            _LOG.error("the policies cannot be shown: %s", error)
            return
        if first and policies is self._views.state.policies:
            return

        def replace(state: ConsoleState) -> ConsoleState:
            return self._make_state(state, policies)

        try:
            self._views.change(replace).add_done_callback(_report)
        except RuntimeError:
            return  # the thread of the views has ended

    def closed(self) -> None:
        """End the requests for policies."""
        if self._follower is not None:
            self._follower.close()


def _key(sources: Iterable[Source]) -> tuple[str, ...]:
    return tuple(sorted(f"{each.name}\0{each.digest.hex()}" for each in sources))


def _report(done: Future[None]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        _LOG.error("the new policies cannot be shown: %s", error)
