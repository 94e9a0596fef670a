"""The model of analyses: an audit, or the effect of a draft, which is computed in the background."""

from __future__ import annotations

from .model import JobView
from .playground import EffectView
from .policies import AuditView


class AnalysisView(JobView, frozen=True, kw_only=True, rename="camel"):
    """An audit, or the comparison of a draft with the active policies: how far it is, or its result.

    It is `analysing`; `of` is 1000.
    """

    time: float
    """The time that it is of, in seconds since the epoch: the cluster may have changed since."""
    nodes: int
    pods: int
    """The pods that run or wait."""
    audit: AuditView | None = None
    effect: EffectView | None = None
