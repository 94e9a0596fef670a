"""Conversion of v1alpha2 PolicyTests to their internal form. Nodes are validated against their schema before."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from koordpolicy.engine.cel.values.values import EvaluationError, Timestamp
from koordpolicy.engine.source import Problems, Source, Span, did_you_mean

from .nodes import YamlNode, to_plain
from .specs import parse_duration
from .suites import (
    EVERY_OTHER,
    ActionExpectation,
    Case,
    ErrorExpectation,
    Expectation,
    ExpectedEviction,
    ExpectedRefusal,
    ExpectedResult,
    ExpectedVeto,
    Fixtures,
    Invalid,
    MeasuredPeriod,
    ProblemExpectation,
    Role,
    RoundExpectation,
    ScoreExpectation,
    Survivor,
    TestSpec,
)

DEFAULT_NOW: Final = "2026-01-01T00:00:00Z"
DEFAULT_EVERY: Final = "1m"
_BEST_EFFORT: Final = ("usage", "request", "realLimit")
_RANGE: Final = re.compile(r"([0-9]+)\.\.([0-9]+)")
_EXPECTATIONS: Final = (
    "preEnqueue", "preFilter", "filter", "score", "order", "place", "refused", "rounds", "evictionFilter", "eviction",
    "evicts",
    "keeps", "roles", "errors", "expectInvalid",
)
_MOST_BASES: Final = 50
"""The maximal number of fixtures that one is based on, each on the next."""
_WITH_POD: Final = ("preEnqueue", "preFilter", "filter", "score", "order", "place", "refused")


def convert_suite(node: YamlNode, problems: Problems) -> TestSpec:
    """Return the internal form of a PolicyTest's spec."""
    return _Reader(problems).suite(node)


class _Reader:
    """Reads the parts of one suite."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems

    def suite(self, node: YamlNode) -> TestSpec:
        fields = node.fields
        fixtures = fields.get("fixtures")
        for section in ("nodes", "pods"):
            self._check_bases(section, _fields(_fields(fixtures).get(section)))
        cases = [self._case(each) for each in _items(fields.get("cases"))]
        first: dict[str, Case] = {}
        for case in cases:
            other = first.setdefault(case.name, case)
            if other is not case:
                self._complain(
                    f"two cases are named `{case.name}`, the first in line {other.span.place[1]}", case.span,
                    "rename one", "duplicate-name",
                )
        return TestSpec(
            policies=_texts(fields.get("policies")),
            plugin=_text(fields.get("plugin")),
            profile=_text(fields.get("profile")),
            now_ns=self._moment(fields.get("now"), DEFAULT_NOW) or 0,
            seed=_plain(fields.get("seed"), 0),
            params=_plain(fields.get("params"), {}),
            fixtures=_fixtures(fixtures) if fixtures is not None else Fixtures(),
            metrics=self._metrics(fields.get("metrics")),
            cgroups=_plain(fields.get("cgroups"), {}),
            host=_plain(fields.get("host"), {}),
            cases=tuple(cases),
            survivors=tuple(
                Survivor(each.fields["at"].text, each.fields["change"].text, each.fields["because"].text, each.span)
                for each in _items(fields.get("survivors"))
            ),
        )

    def _check_bases(self, section: str, fixtures: Mapping[str, YamlNode]) -> None:
        """Report bases that there are not, and fixtures that are based on themselves or on too many others."""
        bases = {name: each.fields["from"] for name, each in fixtures.items() if "from" in each.fields}
        lengths: dict[str, int] = {}
        for name in bases:
            chain: dict[str, int] = {}
            here = name
            while here in bases and here not in lengths and here not in chain:
                chain[here] = len(chain)
                here = bases[here].text
            if here in chain:
                members = [each for each, place in chain.items() if place >= chain[here]]
                self._complain(f"the fixture `{here}` is based on itself: {' -> '.join((*members[:4], here))}",
                               bases[here].span, "name another base, or write out what it has")
            elif here not in fixtures:
                self._complain(f"there is no fixture `{here}` under `{section}`", bases[[*chain][-1]].span,
                               did_you_mean(here, fixtures), "unknown-fixture")
            for distance, each in enumerate(reversed(chain), start=1 + lengths.get(here, 0)):
                lengths[each] = distance
                if distance == _MOST_BASES + 1:
                    self._complain(f"the fixture `{each}` has more than {_MOST_BASES} bases, one on the other",
                                   bases[each].span, "write out what it has")

    def _case(self, node: YamlNode) -> Case:
        fields = node.fields
        name = fields["name"]
        given = [key for key in _EXPECTATIONS if key in fields]
        if not given:
            self._complain(f"the case `{name.text}` expects nothing", name.span,
                           f"give it one of {', '.join(f'`{each}`' for each in _EXPECTATIONS)}", "missing-field")
        needing = [key for key in given if key in _WITH_POD]
        if needing and "pod" not in fields:
            self._complain(f"the case `{name.text}` has no `pod` that `{needing[0]}` could be about", name.span,
                           "name a fixture, or write one", "missing-field")
        if "expectInvalid" in given and len(given) > 1:
            self._complain("what is refused decides nothing else", fields["expectInvalid"].place, "make it two cases")
        pod, every, evicts = fields.get("pod"), fields.get("every"), fields.get("evicts")
        overlay = fields.get("with")
        return Case(
            name=name.text,
            span=name.span,
            description=_text(fields.get("description")) or "",
            plugin=_text(fields.get("plugin")),
            beside=_texts(fields.get("beside")) or (),
            profile=_text(fields.get("profile")),
            now_ns=self._moment(fields.get("now"), None),
            seed=_plain(fields.get("seed"), None),
            params=_plain(fields.get("params"), {}),
            pod=pod.text if pod is not None and not pod.fields and pod.value != {} else None,
            pod_given=to_plain(pod) if pod is not None and isinstance(pod.value, Mapping) else None,
            nodes=_texts(fields.get("nodes")),
            overlay=_plain(overlay, {}),
            pre_enqueue=_one(fields.get("preEnqueue")),
            pre_filter=_one(fields.get("preFilter")),
            filter=tuple(_by_subject(fields.get("filter"))),
            score=tuple(self._scores(fields.get("score"))),
            order=tuple(_texts(each) if each.items else (each.text,) for each in _items(fields.get("order"))),  # type: ignore[misc]
            place=_one_or_many(fields.get("place")),
            refused=tuple(
                ExpectedRefusal(key, *_split(each.text), each.span)
                for key, each in _fields(fields.get("refused")).items()
            ),
            metrics=self._metrics(fields.get("metrics")),
            cgroups=_plain(fields.get("cgroups"), {}),
            rounds=tuple(self._round(each) for each in _items(fields.get("rounds"))),
            eviction_filter=tuple(_by_subject(fields.get("evictionFilter"))),
            eviction=tuple(
                ExpectedEviction(
                    key, _text(each.fields.get("mode")), _plain(each.fields.get("gracePeriodSeconds"), None), each.span,
                    _text(each.fields.get("error")),
                )
                for key, each in _fields(fields.get("eviction")).items()
            ),
            cycles=_plain(fields.get("cycles"), 1),
            every_ns=self._duration(every) if every is not None else parse_duration(DEFAULT_EVERY),
            evicts=_texts(evicts) if evicts is not None and not isinstance(evicts.value, int) else None,
            evicted_count=evicts.value if evicts is not None and isinstance(evicts.value, int) else None,
            keeps=tuple(
                ExpectedVeto(key, each.text, each.span)
                if not each.fields
                else ExpectedVeto(key, each.fields["by"].text, each.span, _text(each.fields.get("message")))
                for key, each in _fields(fields.get("keeps")).items()
            ),
            roles=tuple(Role(key, each.text, each.span) for key, each in _fields(fields.get("roles")).items()),
            errors=_errors(fields.get("errors")),
            expect_invalid=self._invalid(fields["expectInvalid"]) if "expectInvalid" in fields else None,
        )

    def _scores(self, node: YamlNode | None) -> Iterator[ScoreExpectation]:
        if node is None:
            return
        for subject, each in (node.fields or {EVERY_OTHER: node}).items():
            if each.fields:
                yield ScoreExpectation(subject, each.span, result=ExpectedResult.ERROR, rule=each.fields["error"].text,
                                       message=_text(each.fields.get("message")))
            elif isinstance(each.scalar, int):
                yield ScoreExpectation(subject, each.span, each.scalar, each.scalar)
            elif (found := _RANGE.fullmatch(each.text)) is not None:
                low, high = int(found[1]), int(found[2])
                if low > high or high > 100:
                    self._complain(f"`{each.text}` is not a range of scores", each.span,
                                   "write `0..100` or a part of it")
                yield ScoreExpectation(subject, each.span, low, high)
            else:
                yield ScoreExpectation(subject, each.span, result=ExpectedResult.SKIP)

    def _metrics(self, node: YamlNode | None) -> tuple[MeasuredPeriod, ...]:
        return tuple(
            MeasuredPeriod(self._duration(each.fields["for"]), _plain(each.fields.get("usage"), None),
                   _plain(each.fields.get("pods"), {}), _plain(each.fields.get("containers"), {}),
                   {name: amount for name, amount in _plain(each.fields.get("bestEffort"), {}).items()
                    if name in _BEST_EFFORT})
            for each in _items(node)
        )

    def _round(self, node: YamlNode) -> RoundExpectation:
        fields = node.fields
        if not fields.keys() & {"true", "holds", "actions", "errors"}:
            self._complain("this round expects nothing", node.span,
                           "give it one of `true`, `holds`, `actions`, `errors`", "missing-field")
        start = self._duration(fields["at"])
        end = self._duration(fields["until"]) if "until" in fields else start
        if end < start:
            self._complain("`until` lies before `at`", fields["until"].span, "a round counts from the first one")
        true, holds, actions = (fields.get(name) for name in ("true", "holds", "actions"))
        return RoundExpectation(
            start, end, node.span,
            None if true is None else frozenset(_texts(true) or ()),
            None if holds is None else frozenset(_texts(holds) or ()),
            None if actions is None else tuple(_action(each) for each in actions.items),
            _errors(fields.get("errors")),
        )

    def _invalid(self, node: YamlNode) -> Invalid:
        fields = node.fields
        document, file = fields.get("document"), fields.get("file")
        if (document is None) == (file is None):
            self._complain("what must be refused is given by `document` or by `file`", node.place, "write one of them")
        text: Source | None = document.part if document is not None else None
        return Invalid(text, _text(file), tuple(_problem(each) for each in fields["problems"].items))

    def _duration(self, node: YamlNode) -> int:
        try:
            return parse_duration(node.text)
        except ValueError as error:
            self._complain(str(error), node.span)
            return 0

    def _moment(self, node: YamlNode | None, default: str | None) -> int | None:
        if node is None:
            return None if default is None else Timestamp.parse(default).ns
        try:
            return Timestamp.parse(node.text).ns
        except EvaluationError as error:
            self._complain(error.message, node.span)
            return 0

    def _complain(self, message: str, span: Span, hint: str = "", code: str = "invalid-value") -> None:
        self._problems.add(message, span, help=hint, code=code)


def _items(node: YamlNode | None) -> tuple[YamlNode, ...]:
    return () if node is None else node.items


def _fields(node: YamlNode | None) -> Mapping[str, YamlNode]:
    return {} if node is None else node.fields


def _text(node: YamlNode | None) -> str | None:
    return None if node is None else node.text


def _texts(node: YamlNode | None) -> tuple[str, ...] | None:
    return None if node is None else tuple(each.text for each in node.items)


def _plain(node: YamlNode | None, default: Any) -> Any:
    return default if node is None else to_plain(node)


def _one_or_many(node: YamlNode | None) -> tuple[str, ...] | None:
    if node is None:
        return None
    return _texts(node) if isinstance(node.value, tuple) else (node.text,)


def _split(text: str) -> tuple[str, str]:
    plugin, _, rule = text.partition("/")
    return plugin, rule


def _fixtures(node: YamlNode) -> Fixtures:
    fields = node.fields
    return Fixtures(
        _texts(fields.get("files")) or (), _plain(fields.get("nodes"), {}), _plain(fields.get("pods"), {}),
        tuple(_plain(fields.get("objects"), [])),
    )


def _expectation(subject: str, node: YamlNode) -> Expectation:
    fields = node.fields
    if not fields:
        return Expectation(subject, ExpectedResult(node.text), node.span)
    result = ExpectedResult.FAIL if "fail" in fields else ExpectedResult.ERROR
    return Expectation(subject, result, node.span, fields[result.value].text, _text(fields.get("message")),
                       _text(fields.get("reason")))


def _one(node: YamlNode | None) -> Expectation | None:
    return None if node is None else _expectation("", node)


def _by_subject(node: YamlNode | None) -> Iterator[Expectation]:
    if node is not None:
        for subject, each in (node.fields or {EVERY_OTHER: node}).items():
            yield _expectation(subject, each)


def _errors(node: YamlNode | None) -> tuple[ErrorExpectation, ...]:
    return tuple(
        ErrorExpectation(each.fields["item"].text, each.span,
                         *(_text(each.fields.get(name)) for name in ("subject", "reason", "message")))
        for each in _items(node)
    )


def _action(node: YamlNode) -> ActionExpectation:
    fields = node.fields
    return ActionExpectation(
        fields["item"].text, node.span, _text(fields.get("kind")), _text(fields.get("subject")),
        _plain(fields.get("values"), {}), _plain(fields.get("writes"), None), _plain(fields.get("recovers"), False),
    )


def _problem(node: YamlNode) -> ProblemExpectation:
    if not node.fields:
        return ProblemExpectation(node.span, node.text)
    fields = node.fields
    return ProblemExpectation(node.span, _text(fields.get("message")), _text(fields.get("code")),
                              _plain(fields.get("line"), None))
