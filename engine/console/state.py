"""`ConsoleState`: the cluster and the policies that the views show, owned by one thread."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar
from zlib import crc32

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.kinds import Read
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.cluster.sources.changes import KindView
from koordpolicy.engine.flight_recorder.fields import Fields
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings, decide
from koordpolicy.engine.scheduler.explain.explanation import Explained, explain_pod
from koordpolicy.engine.scheduler.profiles.profile import ProfileSpec
from koordpolicy.engine.scheduler.verdict.verdict import Verdict
from koordpolicy.engine.source import PolicyError, Problem, did_you_mean

from .faults import faults_of
from .models.model import Fault
from .policy_set import PolicySet

if TYPE_CHECKING:
    from koordpolicy.engine.descheduler.config import DeschedulerConfiguration

T = TypeVar("T")
DEFAULT_PROFILE: Final = "default-scheduler"
MOST_PENDING: Final = 100
"""The maximum number of pending pods for which overviews compute decisions."""
_CACHED_DECISIONS: Final = 8
_NUMBERS: Final = count()


class UnknownNameError(LookupError):
    """The cluster or the policies have nothing of that name; the message suggests one."""


def settings_for(registry: Registry) -> Settings:
    """Return the settings of decisions: the profiles that policies name, with all default plugins."""
    named = {name for plugin in registry.plugins.values() for name in plugin.profiles or ()}
    return Settings(tuple(map(ProfileSpec, (DEFAULT_PROFILE, *sorted(named - {DEFAULT_PROFILE})))))


class ConsoleState:
    """A cluster at one time under one set of policies. It must be used by one thread at a time."""

    def __init__(self, cluster: Cluster, policies: PolicySet, *, now: int, name: str, settings: Settings | None = None,
                 lacking: Sequence[str] = (), fields: Fields | None = None,
                 descheduler: DeschedulerConfiguration | None = None,
                 watches: Callable[[], Mapping[str, KindView]] = dict) -> None:
        """`now` is in nanoseconds since the epoch; `name` is that of the cluster's source. `fields` are those of its
        objects, None for all. `watches` returns the state of the watch of each kind, of a cluster that is followed.

        `descheduler` is the configuration of dry descheduling cycles; None means one profile of the policies.

        Raises:
            PolicyError: a plugin cannot be made.
        """
        self.number = next(_NUMBERS)
        """Another one for each state."""
        self.cluster = cluster
        self.policies = policies
        self.now = now
        self.name = name
        self.lacking = tuple(lacking)
        self._fields = fields
        self.descheduler = descheduler
        self.watches = watches
        self.settings = settings or settings_for(policies.registry)
        self._scheduler = Scheduler(cluster, Live(policies.registry), self.settings, clock=lambda: self.now)
        self._explained: OrderedDict[str, Explained] = OrderedDict()
        self._pending: tuple[Verdict, ...] | None = None
        self._derived: dict[str, Any] = {}

    @cached_property
    def faults(self) -> tuple[Fault, ...]:
        """The problems of the policies, and the findings of the linter's rules, by place."""
        return tuple(faults_of(self.policies))

    def need(self, reads: Iterable[Read]) -> None:
        """Check that the objects have the fields that an expression reads.

        Raises:
            PolicyError: the recording that they come from does not contain a field.
        """
        if self._fields is None:
            return
        missing = sorted({each for read in reads for each in self._fields.missing(read)})
        if missing:
            raise PolicyError([Problem(f"the recording does not contain {', '.join(missing)}", help=(
                f"record with `--record-fields {','.join(missing)}`"), code="not-recorded")])

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot of the cluster at `now`."""
        return self.cluster.snapshot(self.now)

    @property
    def profiles(self) -> frozenset[str]:
        """The profiles that pods of the cluster use, and the default one."""
        known = {spec.name for spec in self.settings.profiles}
        named = {str((pod.get("spec") or {}).get("schedulerName")) for pod in self.cluster.objects("Pod").values()}
        return frozenset((named & known) | {DEFAULT_PROFILE})

    def pod(self, key: str) -> PodInfo:
        """Return a pod; raise `UnknownNameError` if it is unknown or has finished."""
        found = self.cluster.pod(key)
        if found is None:
            hint = did_you_mean(key, self.cluster.objects("Pod")) or "it may have finished"
            raise UnknownNameError(f"there is no pod `{key}` in the cluster: {hint}")
        return found

    def row(self, name: str) -> int:
        """Return the row of a node; raise `UnknownNameError` if it is unknown."""
        if name not in self.cluster.index:
            hint = did_you_mean(name, self.cluster.index) or f"it has {len(self.cluster.names)} nodes"
            raise UnknownNameError(f"there is no node `{name}` in the cluster: {hint}")
        return self.cluster.index[name]

    def explained(self, key: str) -> Explained:
        """Return the decision about a pod with all reasons, as if it were pending; cached for the last pods."""
        found = self._explained.get(key)
        if found is None:
            pod = self.pod(key)
            found = explain_pod(self._scheduler.profile_of(pod), pod, self.snapshot)
            self._explained[key] = found
            if len(self._explained) > _CACHED_DECISIONS:
                self._explained.popitem(last=False)
        self._explained.move_to_end(key)
        return found

    def pending(self) -> tuple[Verdict, ...]:
        """Return the decisions about the first `MOST_PENDING` pending pods, by priority; cached."""
        if self._pending is None:
            pods = sorted(self.cluster.pending, key=lambda pod: (-pod.priority, pod.key))[:MOST_PENDING]
            snapshot = self.snapshot
            self._pending = tuple(
                decide(self._scheduler.profile_of(pod), pod, snapshot, exhaustive=True) for pod in pods)
        return self._pending

    def derived(self, name: str, make: Callable[[], T]) -> T:
        """Return the value that a view computes from the whole state under its own name; cached until `forget`."""
        if name not in self._derived:
            self._derived[name] = make()
        found: T = self._derived[name]
        return found

    def renew(self, now: int) -> None:
        """Discard cached decisions, as the cluster has changed or time has passed; new ones are made as at `now`."""
        self.now = now
        self._scheduler.refresh()
        self.forget()

    def fork(self) -> Callable[[], ConsoleState]:
        """Return a function that makes an independent state of the same policies and of the present cluster.

        Another thread may call it, and must close the state; a function that is not called holds nothing open.
        """
        watches = dict(self.watches())
        make = partial(ConsoleState, self.cluster.fork(), self.policies, now=self.now, name=self.name,
                       settings=self.settings, lacking=self.lacking, fields=self._fields, descheduler=self.descheduler,
                       watches=lambda: watches)
        known = {"faults": self.faults} if "faults" in vars(self) else {}  # those of the same policies

        def made() -> ConsoleState:
            twin = make()
            vars(twin).update(known)
            return twin

        return made

    def close(self) -> None:
        """End the plugins; the state is not used any more."""
        self._scheduler.close()

    @property
    def layout(self) -> int:
        """A checksum of the nodes' names and their order, for colours that are stored by row."""
        return crc32("\0".join(self.cluster.names).encode("utf-8", "surrogatepass"))

    def forget(self) -> None:
        """Drop all cached values: they are outdated, or incomplete after a deadline that passed."""
        self._explained.clear()
        self._derived.clear()
        self._pending = None
