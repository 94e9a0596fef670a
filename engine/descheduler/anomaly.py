"""Anomaly detectors: they require several observations, so that a short load peak does not count.

The state machine is Koordinator's (pkg/descheduler/utils/anomaly). Time is an argument everywhere, in nanoseconds.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

_DEFAULT_TIMEOUT: Final = 60_000_000_000


@dataclass(frozen=True, slots=True)
class AnomalyCondition:
    """More than `abnormalities` observations make an anomaly; it lasts `timeout` or until enough normal ones."""

    abnormalities: int
    normalities: int
    timeout: int = 0
    """The timeout in nanoseconds; 0 and less mean a minute."""


class State(enum.Enum):
    """The state of a detector."""

    OK = "ok"
    ANOMALY = "anomaly"


class Detector:
    """Counts observations of one subject."""

    def __init__(self, condition: AnomalyCondition) -> None:
        self._condition = condition
        self._state = State.OK
        self._abnormal = 0  # in a row
        self._normal = 0  # in a row
        self._expiry = 0

    def state(self, now: int) -> State:
        """Return the state; an anomaly ends with its timeout."""
        over = self._expiry < now or self._normal > self._condition.normalities
        if self._state is State.ANOMALY and over:
            self._go(State.OK, now)
        return self._state

    def mark_abnormal(self, now: int) -> State:
        """Count an abnormal observation and return the state that follows."""
        self.state(now)
        self._abnormal += 1
        self._normal = 0
        if self._state is State.OK and self._abnormal > self._condition.abnormalities:
            self._go(State.ANOMALY, now)
        return self.state(now)

    def mark_normal(self, now: int) -> State:
        """Count a normal observation and return the state that follows."""
        self.state(now)
        self._normal += 1
        self._abnormal = 0
        return self.state(now)

    def reset(self, now: int) -> None:
        """End an anomaly; the counts of a normal detector stay."""
        if self._state is State.ANOMALY:
            self._go(State.OK, now)

    def _go(self, state: State, now: int) -> None:
        self._state = state
        self._abnormal = self._normal = 0
        timeout = self._condition.timeout if self._condition.timeout > 0 else _DEFAULT_TIMEOUT
        self._expiry = now + timeout if state is State.ANOMALY else 0


class Detectors:
    """Detectors by subject; one that was not updated for `lifetime` nanoseconds is dropped."""

    def __init__(self, lifetime: int) -> None:
        self.lifetime = lifetime
        self._held: dict[Hashable, tuple[int, Detector]] = {}

    def find(self, subject: Hashable, now: int) -> Detector | None:
        """Return the subject's detector, if there is one that has not expired."""
        until, detector = self._held.get(subject, (0, None))
        if detector is None or until < now:
            self._held.pop(subject, None)
            return None
        return detector

    def observe_abnormal(self, subject: Hashable, condition: AnomalyCondition | None, now: int) -> bool:
        """Count an abnormal observation and return whether the subject is abnormal.

        Without a condition, or with one required abnormality, the first observation suffices and no state is stored.
        """
        if condition is None or condition.abnormalities == 1:
            return True
        detector = self.find(subject, now) or Detector(condition)
        state = detector.mark_abnormal(now)
        self._held[subject] = (now + self.lifetime, detector)
        return state is State.ANOMALY

    def observe_normal(self, subject: Hashable, now: int) -> None:
        """Count a normal observation of a subject with a detector."""
        detector = self.find(subject, now)
        if detector is not None:
            detector.mark_normal(now)

    def reset(self, subject: Hashable, now: int) -> None:
        """End the subject's anomaly, if it is in one."""
        detector = self.find(subject, now)
        if detector is not None:
            detector.reset(now)
