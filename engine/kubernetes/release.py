"""Minor releases of Kubernetes whose kube-scheduler the built-in plugins can follow."""

from __future__ import annotations

import enum
import re
from typing import Final, NamedTuple

_TEXT: Final = re.compile(r"v?(\d{1,3})\.(\d{1,3})(\.\d{1,3})?")


class Release(NamedTuple):
    """A minor release of Kubernetes; an older one is less than a newer one."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


KUBERNETES_1_35: Final = Release(1, 35)
KUBERNETES_1_36: Final = Release(1, 36)
NEWEST: Final = KUBERNETES_1_36
RELEASES: Final = (KUBERNETES_1_35, KUBERNETES_1_36)


class BehaviourChange(enum.Enum):
    """The changes of kube-scheduler's behaviour since a release, which the built-in plugins follow.

    A value has the first release, the plugins, and what was done before and is done since. The page of the default
    plugins has these rows.
    """

    BALANCE_DIFFERENCE = (
        KUBERNETES_1_36, "NodeResourcesBalancedAllocation",
        "how balanced the node is with the pod: 100 less the standard deviation of the shares in percent",
        "50 + (50 + that with the pod - that without it) / 2, in integers",
    )
    IMAGE_VOLUMES = (
        KUBERNETES_1_36, "ImageLocality", "images of containers and init containers count",
        "those of image volumes count, too; the size that scores 100 still depends on the number of containers only",
    )
    NOMINATED_PODS_HELP = (
        KUBERNETES_1_36, "PodTopologySpread, InterPodAffinity",
        "a refused pod is tried again when a pod on a node changes",
        "also when one changes that is nominated to a node",
    )
    OWN_LABELS_HELP = (
        KUBERNETES_1_36, "InterPodAffinity", "a change of its own labels does not requeue a refused pod",
        "it does: others may have anti-affinity to the old ones only",
    )

    def __init__(self, since: Release, plugins: str, before: str, after: str) -> None:
        self.since = since
        self.plugins = plugins
        self.before = before
        self.after = after

    def is_in(self, kubernetes: Release) -> bool:
        """Return whether a release does it."""
        return kubernetes >= self.since


KOORDINATORS: Final = KUBERNETES_1_35
"""The release that koord-scheduler is built on."""
KOORD_SCHEDULER: Final = "koord-scheduler"
"""The profile that koord-scheduler ships."""


def release(text: str) -> Release:
    """Return the release that a text such as `1.36`, `v1.36` or `1.36.2` names.

    Raises:
        ValueError: it names none, or one that is not followed here.
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f"`{text}` is not a release of Kubernetes: write one such as `{NEWEST}`")
    named = Release(int(found[1]), int(found[2]))
    if named not in RELEASES:
        raise ValueError(f"Kubernetes `{text}` is not followed here: choose one of {', '.join(map(str, RELEASES))}")
    return named


def release_of(profile: str) -> Release:
    """Return the release that a profile follows by default: the newest, or the one of koord-scheduler."""
    return KOORDINATORS if profile == KOORD_SCHEDULER else NEWEST
