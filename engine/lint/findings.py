"""Run of the rules: findings after ignores and severities are applied."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from koordpolicy.engine.source import Problem, Severity, Source, Span, did_you_mean

from .configuration import LintConfiguration
from .rules import RULES, LintRule, find
from .subject import TextEdit, Violation, Whole

_IGNORE: Final = re.compile(r"(?:^|(?<=\s))#\s*koord-policy:\s*ignore\b[ \t]*(?P<rest>[^\n]*)", re.MULTILINE)
_MARK: Final = "koord-policy:"
_WITHOUT_REASON: Final = RULES["KP040"]
_NEEDLESS: Final = RULES["KP041"]


@dataclass(frozen=True, slots=True)
class LintFinding:
    """A violation of a rule, with its effective severity."""

    rule: LintRule
    found: Violation
    severity: Severity

    @property
    def problem(self) -> Problem:
        """The finding as a problem; its code is the rule's id."""
        return Problem(self.found.message, self.found.span, self.found.help, self.severity,
                       self.rule.id)


@dataclass(slots=True)
class Ignore:
    """A comment that suppresses rules for a line."""

    source: Source
    start: int
    end: int
    line: int
    """The line to which it applies."""
    rules: tuple[LintRule, ...]
    reason: str
    unknown: tuple[str, ...]
    used: set[str]

    @property
    def span(self) -> Span:
        """The comment."""
        return Span(self.source, self.start, self.end)


def check(
    whole: Whole, sources: Iterable[Source], configuration: LintConfiguration,
    done: Callable[[int], None] = lambda _: None,
) -> tuple[LintFinding, ...]:
    """Return the findings of the rules in a set, without those that comments and the configuration ignore.

    With `whole.files` only findings in these files are returned, and rules about single documents run for theirs only.

    `sources` are the files, for their comments. `done` is called with the number of checked documents.
    """
    rules = [rule for rule in RULES.values() if configuration.level(rule) is not None]
    ignores = [each for source in sources if _is_checked(whole, source.name) for each in ignores_of(source)]
    by_line: dict[tuple[str, int], list[Ignore]] = {}
    for ignore in ignores:
        by_line.setdefault((ignore.source.name, ignore.line), []).append(ignore)
    findings = [
        finding for rule, found in _violations(whole, rules, done)
        if (finding := _weighed(rule, found, configuration)) is not None and not _ignored(finding, by_line)
    ]
    for ignore in ignores:
        for rule, found in _faults(ignore, configuration):
            finding = _weighed(rule, found, configuration)
            if finding is not None:
                findings.append(finding)
    return tuple(findings)


def _violations(
    whole: Whole, rules: list[LintRule], done: Callable[[int], None],
) -> Iterator[tuple[LintRule, Violation]]:
    of_policies = [(rule, rule.each) for rule in rules if rule.each is not None]
    of_suites = [(rule, rule.suite) for rule in rules if rule.suite is not None]
    for subjects, checks, first in (whole.subjects, of_policies, 1), (whole.suites, of_suites, len(whole.subjects) + 1):
        for number, subject in enumerate(subjects, start=first):
            if _is_checked(whole, subject.document.file):
                for rule, violations in checks:
                    for found in violations(subject):
                        yield rule, found
            done(number)
    for rule in rules:
        if rule.whole is not None:
            for found in rule.whole(whole):
                if found.span is None or _is_checked(whole, found.span.root().source.name):
                    yield rule, found


def _is_checked(whole: Whole, file: str) -> bool:
    return whole.files is None or file in whole.files


def _weighed(rule: LintRule, found: Violation, configuration: LintConfiguration) -> LintFinding | None:
    level = configuration.level(rule)
    if level is None or (found.span is not None and configuration.ignores(rule, found.span.root().source.name)):
        return None
    if found.severity is not None and level is rule.severity:
        level = found.severity
    return LintFinding(rule, found, level)


def _ignored(finding: LintFinding, by_line: dict[tuple[str, int], list[Ignore]]) -> bool:
    if finding.found.span is None or not by_line:
        return False
    name, line, _ = finding.found.span.place
    hits = [each for each in by_line.get((name, line), ()) if finding.rule in each.rules]
    for each in hits:
        each.used.add(finding.rule.id)
    return bool(hits)


def ignores_of(source: Source) -> Iterator[Ignore]:
    """Yield the ignore comments of a file."""
    if _MARK not in source.text:
        return
    for match in _IGNORE.finditer(source.text):
        listed, because, reason = match["rest"].partition("because")
        words = [word for word in re.split(r"[,\s]+", listed) if word]
        rules = tuple(rule for word in words if (rule := find(word)) is not None)
        line = source.position(match.start())[0]
        if not source.line(line)[: source.position(match.start())[1] - 1].strip():  # alone: applies to the next line
            line = _next_line(source, line)
        end = match.start() + len(match[0].rstrip())
        yield Ignore(source, match.start(), end, line, rules, reason.strip(" :") if because else "",
                     tuple(word for word in words if find(word) is None), set())


def _next_line(source: Source, line: int) -> int:
    last = source.position(len(source.text))[0]
    while line < last:
        line += 1
        text = source.line(line).strip()
        if text and not text.startswith("#"):
            return line
    return line


def _faults(ignore: Ignore, configuration: LintConfiguration) -> Iterator[tuple[LintRule, Violation]]:
    for word in ignore.unknown:
        hint = did_you_mean(word, [*RULES, *(rule.name for rule in RULES.values())])
        yield _NEEDLESS, Violation(f"there is no rule `{word}` to ignore", ignore.span, hint)
    if not ignore.rules and not ignore.unknown:
        yield _NEEDLESS, Violation("this comment names no rule to ignore", ignore.span,
                               "`# koord-policy: ignore KP007 because ...`")
    elif not ignore.reason:
        yield _WITHOUT_REASON, Violation("this comment gives no reason", ignore.span,
                                     "add `because` and the reason")
    for rule in ignore.rules:
        if rule.id not in ignore.used and configuration.level(rule) is not None:
            yield _NEEDLESS, Violation(
                f"`{rule.id}` reports nothing on this line", ignore.span, "remove the comment",
                fix=(lambda: _without(ignore)) if len(ignore.rules) == 1 and not ignore.unknown else None,
            )


def _without(ignore: Ignore) -> TextEdit:
    text = ignore.source.text
    line = text.rfind("\n", 0, ignore.start) + 1
    if not text[line : ignore.start].strip():  # the whole line goes
        stop = text.find("\n", ignore.end)
        return TextEdit(ignore.source, line, len(text) if stop == -1 else stop + 1, "")
    start = ignore.start
    while text[start - 1] in " \t":
        start -= 1
    return TextEdit(ignore.source, start, ignore.end, "")


def strict(findings: Iterable[LintFinding]) -> tuple[LintFinding, ...]:
    """Return the findings with warnings as errors; notes stay notes."""
    return tuple(
        replace(each, severity=Severity.ERROR) if each.severity is Severity.WARNING else each for each in findings
    )
