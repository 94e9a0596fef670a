"""Named formats of names, labels and dates, as Kubernetes validates them (apiserver `pkg/cel/library/format.go`)."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import ClassVar, Final

from koordpolicy.engine.cel.check.environment import Cost, Function, Overload
from koordpolicy.engine.cel.values.types import STRING, Type, list_of, optional_of
from koordpolicy.engine.cel.values.values import NONE, EvaluationError, Optional, Timestamp

from .url import fault_of

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_LABEL_1035: Final = "[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE: Final = f"({_QUALIFIED})?"
_UUID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE)

_DOTTED: Final = re.compile(_SUBDOMAIN)
_LONGEST_LABEL: Final = 100_000
"""The maximum length of a string that is checked for dots; matching is linear."""
_LABEL_MESSAGE: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with"
    f" an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_SUBDOMAIN_MESSAGE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and"
    f" end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_LABEL_1035_MESSAGE: Final = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character,"
    " and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is"
    f" '{_LABEL_1035}')"
)
_KEY_MESSAGE: Final = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
    f" (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_QUALIFIED}')"
)
_VALUE_MESSAGE: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start"
    " and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is"
    f" '{_VALUE}')"
)


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """A named format; `check` returns the faults of a string.

    `pattern_size` is the number of characters that Kubernetes assumes for the format's pattern when it computes costs.
    """

    cel_type: ClassVar[Type] = Type("kubernetes.NamedFormat")

    name: str
    check: Callable[[str], list[str]]
    pattern_size: int

    def __str__(self) -> str:
        return self.name


def _matching(pattern: str, longest: int, message: str) -> Callable[[str], list[str]]:
    compiled = re.compile(pattern)

    def check(text: str) -> list[str]:
        problems = [f"must be no more than {longest} characters"] if len(text.encode("utf-8")) > longest else []
        # The length is tested first: long strings are refused anyway.
        if len(text) > 10 * longest or not compiled.fullmatch(text):
            problems.append(message)
        return problems

    return check


def _prefix(check: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """Return the check of a prefix, which may end with a dash (apimachinery `maskTrailingDash`).

    The dash is dropped with the character before it, whatever that is, and an `a` stands for both.
    """

    def check_prefix(text: str) -> list[str]:
        masked = len(text.encode("utf-8")) > 1 and text.endswith("-")
        return check(text.encode("utf-8")[:-2].decode("utf-8", "replace") + "a" if masked else text)

    return check_prefix


_matches_label = _matching(_LABEL, 63, _LABEL_MESSAGE)
_subdomain = _matching(_SUBDOMAIN, 253, _SUBDOMAIN_MESSAGE)


def _label(text: str) -> list[str]:
    problems = _matches_label(text)
    # A string that is a subdomain of any length, but not a label, has dots.
    if _LABEL_MESSAGE in problems and len(text) <= _LONGEST_LABEL and _DOTTED.fullmatch(text):
        problems[-1] = "must not contain dots"
    return problems


_label_1035 = _matching(_LABEL_1035, 63, _LABEL_1035_MESSAGE)
_label_value = _matching(_VALUE, 63, _VALUE_MESSAGE)


def _qualified_name(text: str) -> list[str]:
    parts = text.split("/")
    if len(parts) > 2:
        return [
            (
                f"a valid label key {_KEY_MESSAGE} with an optional DNS subdomain prefix and '/'"
                " (e.g. 'example.com/MyName')"
            ),
        ]
    problems = []
    if len(parts) == 2:
        if not parts[0]:
            problems.append("prefix part must be non-empty")
        else:
            problems += [f"prefix part {each}" for each in _subdomain(parts[0])]
    name = parts[-1]
    if not name:
        problems.append("name part must be non-empty")
    elif len(name) > 63:
        problems.append("name part must be no more than 63 characters")
    if len(name) > 1000 or not re.fullmatch(_QUALIFIED, name):
        problems.append(f"name part {_KEY_MESSAGE}")
    return problems


def _uri(text: str) -> list[str]:
    fault = fault_of(text)
    return [] if fault is None else [fault]


def _byte(text: str) -> list[str]:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return ["invalid base64"]
    return []


def _date(text: str) -> list[str]:
    try:
        if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            date.fromisoformat(text)
            return []
    except ValueError:
        pass
    return ["invalid date"]


def _datetime(text: str) -> list[str]:
    try:
        Timestamp.parse(text)
    except EvaluationError:
        return ["invalid datetime"]
    return []


_LONGEST: Final = 1_103
"""Characters of the longest pattern, that of URIs."""
_PER_PATTERN: Final = 0.25

FORMATS: Final = {
    each.name: each
    for each in (
        NamedFormat("dns1123Label", _label, 30),
        NamedFormat("dns1123Subdomain", _subdomain, 60),
        NamedFormat("dns1035Label", _label_1035, 30),
        NamedFormat("qualifiedName", _qualified_name, 60),
        NamedFormat("dns1123LabelPrefix", _prefix(_label), 30),
        NamedFormat("dns1123SubdomainPrefix", _prefix(_subdomain), 60),
        NamedFormat("dns1035LabelPrefix", _prefix(_label_1035), 30),
        NamedFormat("labelValue", _label_value, 40),
        NamedFormat("uri", _uri, _LONGEST),
        NamedFormat("uuid", lambda text: [] if _UUID.fullmatch(text) else ["does not match the UUID format"], 70),
        NamedFormat("byte", _byte, 84),
        NamedFormat("date", _date, 71),
        NamedFormat("datetime", _datetime, 71),
    )
}


def _validate(named: NamedFormat, text: str) -> Optional:
    problems = named.check(text)
    return Optional(list(problems)) if problems else NONE


def _cost(named: NamedFormat, text: str) -> int:
    return math.ceil((len(text) + 1) * 0.1) * math.ceil(named.pattern_size * _PER_PATTERN)


def _named(name: str) -> Optional:
    found = FORMATS.get(name)
    return NONE if found is None else Optional(found)


def _constant(named: NamedFormat) -> Callable[[], NamedFormat]:
    return lambda: named


_FORMAT: Final = NamedFormat.cel_type

FORMAT: Final = (
    *(
        Function(
            f"format.{name}", (Overload(f"format_{name}", (), _FORMAT, _constant(named)),), f"The format `{name}`.",
            f"format.{name}().validate('?%').hasValue()",
        )
        for name, named in FORMATS.items()
    ),
    Function(
        "format.named", (Overload("format_named", (STRING,), optional_of(_FORMAT), _named),),
        "The format of a name, if there is one.", "format.named('uuid').hasValue()",
    ),
    Function(
        "validate",
        (
            Overload(
                "format_validate", (_FORMAT, STRING), optional_of(list_of(STRING)), _validate, member=True,
                # A string of n characters costs ceil((n + 1) / 10) units, times those of the longest pattern at most.
                cost=Cost(276, ((1, 27.6),)), measure=_cost,
            ),
        ),
        "The faults of a string; none if it is valid.", "!format.dns1123Label().validate('my-name').hasValue()",
    ),
)
