"""The profiles of one registry, and hot swap: the active and the staged set of profiles."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.border import describe
from koordpolicy.engine.framework.handle import Handle
from koordpolicy.engine.framework.instances import Adoption, Instances, Lease
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.source import PolicyError

from ..documents.plugin import make_instance
from .profile import Profile, ProfileSpec


@dataclass(frozen=True, slots=True)
class ProfileSet:
    """The profiles of one registry, by name, in the order of the settings. Immutable."""

    registry: Registry | None = None
    profiles: Mapping[str, Profile] = field(default_factory=dict)

    def profile_of(self, pod: PodInfo) -> Profile:
        """Return the profile that the pod names (`spec.schedulerName`), else the first one."""
        named = self.profiles.get(str((pod.object.get("spec") or {}).get("schedulerName", "")))
        return named or next(iter(self.profiles.values()))


class HotSwap:
    """Replaces the active profile set when the registry is replaced; never within a cycle.

    `stage` instantiates the plugins of a registry that is about to become the live one; any thread may call it.
    `activate` makes the set of the live registry the active one; only the owner of the cluster calls it, between
    cycles. If a registry's plugins cannot be instantiated, the active set stays, and `fault` is the reason.
    """

    def __init__(
        self, specs: Sequence[ProfileSpec], live: Live, handle: Callable[[str, str], Handle], *,
        made: Callable[[Sequence[Handle]], None] = lambda _: None, released: Callable[[Handle], None] = lambda _: None,
    ) -> None:
        """`handle` returns a plugin's handle, by profile and plugin.

        `made` is called with the handles of the plugins of a set once all of them are made, in the thread that made
        them; `released` with each handle whose plugin was closed. No set is active before `start` was called.
        """
        self.active = ProfileSet()
        self.fault: PolicyError | None = None
        self.trouble: tuple[str, ...] = ()
        """The errors of closing plugins of earlier registries."""
        self._specs = tuple(specs)
        self._live = live
        self._handle = handle
        self._made = made
        self._new: list[Handle] = []
        self._instances = Instances(
            self._new_handle, failed=self._note_close_failure, released=released, make=make_instance,
        )
        self._staged = ProfileSet()
        self._refused: Registry | None = None
        self._making: int | None = None

    def start(self) -> None:
        """Make the set of the live registry and activate it.

        Raises:
            PolicyError: a plugin cannot be made.
        """
        self._replace(self._live.registry)

    @property
    def newest(self) -> ProfileSet:
        """The set of the live registry if it is made already, which the next cycle runs; else the active one.

        Any thread may read it.
        """
        staged = self._staged
        return staged if staged.registry is self._live.registry else self.active

    @property
    def in_making(self) -> bool:
        """True if the calling thread instantiates or starts plugins."""
        return self._making == threading.get_ident()

    def stage(self, registry: Registry) -> None:
        """Make and start the plugins of a registry in advance, so that no cycle waits for them.

        Raises:
            PolicyError: a plugin cannot be made for a profile; nothing is changed.
        """
        with self._instances.staging(registry) as adoption:
            # Assigned once, after all plugins are made: the owner may read it at any time.
            self._staged = self._make(registry, adoption)

    def activate(self) -> ProfileSet:
        """Make the set of the live registry the active one, and return the active set."""
        registry = self._live.registry
        if registry is self.active.registry or registry is self._refused:
            return self.active
        staged = self._staged
        if staged.registry is None or staged.registry.generation < registry.generation:
            try:
                self._replace(registry)
            except PolicyError as error:
                self.fault, self._refused = error, registry
        elif staged.registry is registry:
            # A newer set may have been staged meanwhile; the next cycle activates it.
            with contextlib.suppress(LookupError):
                self._instances.adopt(registry)
                self.active, self.fault, self._refused = staged, None, None
        return self.active

    def lease(self) -> Lease:
        """Keep the plugins of the active set open until the lease is released, even if another set becomes active."""
        assert self.active.registry is not None
        return self._instances.lease(self.active.registry)

    def close(self) -> None:
        """Close all plugins."""
        self.active = ProfileSet()
        self._instances.close()

    def _replace(self, registry: Registry) -> None:
        # All plugins are made before any is replaced; unused plugins are closed afterwards.
        with self._instances.adopting(registry) as adoption:
            made = self._make(registry, adoption)
        self.active, self.fault, self._refused = made, None, None

    def _make(self, registry: Registry, adoption: Adoption) -> ProfileSet:
        self._making = threading.get_ident()
        self._new.clear()
        try:
            made = {spec.name: Profile.of(spec, registry, adoption) for spec in self._specs}
        finally:
            self._making = None
        self._made(self._new)
        return ProfileSet(registry, made)

    def _new_handle(self, profile: str, plugin: str) -> Handle:
        handle = self._handle(profile, plugin)
        self._new.append(handle)
        return handle

    def _note_close_failure(self, key: tuple[str, Framework, str, str, str], error: BaseException) -> None:
        self.trouble += (f"the scheduler plugin `{key[2]}` failed to close: {describe(error)}",)
