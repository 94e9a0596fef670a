"""Minor releases of Kubernetes whose kube-scheduler the built-in plugins can follow."""

from __future__ import annotations

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
        raise ValueError(f"`{text}` is no release of Kubernetes: write one such as `{NEWEST}`")
    named = Release(int(found[1]), int(found[2]))
    if named not in RELEASES:
        raise ValueError(f"Kubernetes `{text}` is not followed here: choose one of {', '.join(map(str, RELEASES))}")
    return named


def release_of(profile: str) -> Release:
    """Return the release that a profile follows by default: the newest, or the one of koord-scheduler."""
    return KOORDINATORS if profile == KOORD_SCHEDULER else NEWEST
