"""Events: changes of the cluster's objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from koordpolicy.engine.records import fast_init

if TYPE_CHECKING:
    from .objects.pods import PodInfo


@fast_init
@dataclass(frozen=True, slots=True)
class Event:
    """A change of one object: it was added (`old` is None), changed, or deleted (`new` is None).

    Of pods, `old_pod` and `new_pod` are the cluster's pods before and after, with their node; `assumed` is true if the
    scheduler itself assumed or forgot the pod.
    """

    kind: str
    key: str
    old: Mapping[str, Any] | None = None
    new: Mapping[str, Any] | None = None
    old_pod: PodInfo | None = None
    new_pod: PodInfo | None = None
    assumed: bool = False
