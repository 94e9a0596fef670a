"""Parts of timestamps and durations (cel-spec `doc/langdef.md`, "Timezones" and "List of Standard Definitions")."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from ..check.environment import Function, Overload
from ..values.types import DURATION, INT, STRING, TIMESTAMP
from ..values.values import Duration, Timestamp, is_fixed_zone

_MILLISECOND: Final = 1_000_000
_STEPS_PER_NAME: Final = 100


def _steps_in_zone(_: Timestamp, zone: str) -> int:
    """Return the steps of finding a zone: of one by name they are those of reading a file, as most strings are none."""
    return 0 if is_fixed_zone(zone) else _STEPS_PER_NAME


def _of_timestamp(name: str, id_: str, part: Callable[[datetime], int], doc: str, example: str) -> Function:
    def zoned(moment: Timestamp, zone: str) -> int:
        local, years = moment.in_zone(zone)
        return part(local) + (years if id_ == "year" else 0)

    def utc(moment: Timestamp) -> int:
        return zoned(moment, "")

    overloads = (
        Overload(f"timestamp_to_{id_}", (TIMESTAMP,), INT, utc, member=True),
        Overload(f"timestamp_to_{id_}_with_tz", (TIMESTAMP, STRING), INT, zoned, member=True, walk=_steps_in_zone),
    )
    return Function(name, overloads, doc, example)


def _also_of_duration(function: Function, id_: str, unit_ns: int) -> Function:
    def total(span: Duration) -> int:
        return abs(span.ns) // unit_ns * (1 if span.ns >= 0 else -1)

    overload = Overload(f"duration_to_{id_}", (DURATION,), INT, total, member=True)
    return Function(function.name, (*function.overloads, overload), function.doc, function.example)


_SECOND_NS: Final = 1000 * _MILLISECOND
_MOMENT: Final = "timestamp('2026-03-01T10:20:30.456Z')"

TIME: Final = (
    _of_timestamp("getFullYear", "year", lambda t: t.year, "The year.", f"{_MOMENT}.getFullYear() == 2026"),
    _of_timestamp("getMonth", "month", lambda t: t.month - 1, "The month, 0 to 11.", f"{_MOMENT}.getMonth() == 2"),
    _of_timestamp(
        "getDate", "day_of_month_1_based", lambda t: t.day, "The day of the month, 1 to 31.",
        f"{_MOMENT}.getDate() == 1",
    ),
    _of_timestamp(
        "getDayOfMonth", "day_of_month", lambda t: t.day - 1, "The day of the month, 0 to 30.",
        f"{_MOMENT}.getDayOfMonth() == 0",
    ),
    _of_timestamp(
        "getDayOfWeek", "day_of_week", lambda t: t.isoweekday() % 7, "The day of the week, 0 (Sunday) to 6.",
        f"{_MOMENT}.getDayOfWeek() == 0",
    ),
    _of_timestamp(
        "getDayOfYear", "day_of_year", lambda t: t.timetuple().tm_yday - 1, "The day of the year, 0 to 365.",
        f"{_MOMENT}.getDayOfYear() == 59",
    ),
    _also_of_duration(
        _of_timestamp(
            "getHours", "hours", lambda t: t.hour, "The hour of the day; of a duration all whole hours.",
            f"{_MOMENT}.getHours('+02:00') == 12",
        ),
        "hours", 3600 * _SECOND_NS,
    ),
    _also_of_duration(
        _of_timestamp(
            "getMinutes", "minutes", lambda t: t.minute, "The minute of the hour; of a duration all whole minutes.",
            "duration('1h30m').getMinutes() == 90",
        ),
        "minutes", 60 * _SECOND_NS,
    ),
    _also_of_duration(
        _of_timestamp(
            "getSeconds", "seconds", lambda t: t.second, "The second of the minute; of a duration all whole seconds.",
            f"{_MOMENT}.getSeconds() == 30",
        ),
        "seconds", _SECOND_NS,
    ),
    _also_of_duration(
        _of_timestamp(
            "getMilliseconds", "milliseconds", lambda t: t.microsecond // 1000,
            "The millisecond of the second; of a duration all whole milliseconds (cel-go's reading).",
            f"{_MOMENT}.getMilliseconds() == 456 && duration('1.5s').getMilliseconds() == 1500",
        ),
        "milliseconds", _MILLISECOND,
    ),
)
