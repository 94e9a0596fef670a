"""Generate docs/lint.md, the page of the linter's rules, from their table: `python tools/generate_lint_page.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from koordpolicy.engine.lint import RULES, LintRule

_HEAD: Final = """\
# Lint

`koord-policy lint PATH...` first makes the checks that a document must pass before it runs: YAML, schema, types and
cost of every expression. What passes may still be wrong. This page lists the rules that look for that, generated from
`engine/lint/rules.py`; every example in it is a test.

```sh
koord-policy lint policies
koord-policy lint policies --strict --output sarif
koord-policy lint policies/descheduler --config examples/10-descheduler/config.yaml
koord-policy lint --rules
```

What a rule reports about an expression is certain: it follows from constants, from the bounds of what can be measured
and counted, and from the conditions around it. Where nothing is certain, nothing is reported. Params count as unknown
where a claim is "always", for profiles change them; where plugins meet each other they count as written.

## How much a rule weighs, and where it is silent

`koord-policy.yaml`, in the directory of the command or above it up to the root of the repository (or
`--settings FILE`):

```yaml
lint:
  rules:
    missing-description: warning   # off, note, warning or error; by name or id
    KP018: "off"
  ignores:
  - paths: [policies/trace/**, "*.generated.yaml"]
    rules: [plugins-fight]         # all rules where it is left out
    reason: they replay a published study one at a time
```

A comment keeps rules from speaking about its line, or alone on a line, about the next one. It says why; one that
ignores nothing is reported:

```yaml
    expression: requested.cpu >= 0  # koord-policy: ignore KP010 because it shows how a filter is written
```

Faults of YAML, schema, names, types and cost limits cannot be ignored: such a document does not run.

## Exit codes, and what else there is

| exit code | meaning |
| --- | --- |
| 0 | no errors; there may be warnings and notes, with `--strict` notes only |
| 2 | usage: a path, an option or a commit that does not exist |
| 3 | errors |
| 6 | not done within `--timeout` (120 s); the message names the file that was being worked on |

- `--output` is `text`, `json`, `sarif` (code scanning), `junit`, `github` (annotations of a workflow), `gitlab` (code
  quality) or `lsp-json` (what an editor publishes as diagnostics; with `-` and `--stdin-name FILE` for what is not
  saved yet).
- `--fix` mends what can be mended mechanically; comments and layout of the file stay as they are.
- `--changed-since REF` looks at all files, since documents work together, and reports only those that differ from a
  commit: findings in them, and findings elsewhere that are about them too.
- `--config FILE` takes component configurations (`KubeSchedulerConfiguration`, `DeschedulerConfiguration`, the
  `slo-controller-config` ConfigMap) into account: the plugins that their profiles name, and their thresholds.
- `.pre-commit-hooks.yaml` and [the examples for GitHub and GitLab](../examples/{EXAMPLE}/README.md) put it to work.

## Large sets

Linting takes time in proportion to the text. Rules that compare documents with each other look at 1,000,000 pairs at
most and report from which document on pairs were left out; each names at most ten partners of one document.

## Rules

| id | name | weight | mended by `--fix` |
| --- | --- | --- | --- |
"""


def page(example: str = "07-lint-in-ci") -> str:
    """Return the page as Markdown."""
    rows = [
        f"| [{rule.id}](#{rule.id.lower()}-{rule.name}) | {rule.name} | {rule.severity.name.lower()}"
        f" | {'yes' if rule.fixable else ''} |\n" for rule in RULES.values()
    ]
    return _HEAD.replace("{EXAMPLE}", example) + "".join(rows) + "".join(map(_section, RULES.values()))


def _section(rule: LintRule) -> str:
    return (
        f"\n### {rule.id} {rule.name}\n\n{_folded(rule.why)}\n\nAvoid:\n\n```yaml\n{rule.avoid.rstrip()}\n```\n\n"
        f"Prefer:\n\n```yaml\n{rule.prefer.rstrip()}\n```\n"
    )


def _folded(text: str, width: int = 118) -> str:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


if __name__ == "__main__":
    (Path(__file__).parents[1] / "docs" / "lint.md").write_text(page(), encoding="utf-8")
