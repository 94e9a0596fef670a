"""Generate docs/lint.md, the page of the linter's rules, from their table: `python tools/generate_lint_page.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from koordpolicy.engine.lint import RULES, LintRule

_HEAD: Final = """\
# Lint

`koord-policy lint PATH...` first makes the checks that a document must pass before it runs: YAML, schema, types and
cost of every expression. Valid documents may still contain mistakes; the rules on this page find some of them. The page
is generated from `engine/lint/rules.py`; every example in it is a test.

```sh
koord-policy lint policies
koord-policy lint policies --strict --output sarif
koord-policy lint policies/descheduler --config examples/10-descheduler/config.yaml
koord-policy lint --rules
```

Reports about an expression are certain: they follow from constants, from the bounds of measured and counted values, and
from the enclosing conditions. Uncertain cases are not reported. Rules such as `always-true` count params as unknown,
because profiles change them; rules that compare plugins with each other use the values in the documents.

## Severities and ignores

The settings are in `koord-policy.yaml`, in the working directory or a parent up to the root of the repository, or in
`--settings FILE`:

```yaml
lint:
  rules:
    missing-description: warning   # off, note, warning or error; by name or id
    KP018: "off"
  ignores:
  - paths: [policies/trace/**, "*.generated.yaml"]
    rules: [plugins-fight]         # all rules if omitted
    reason: they replay a published study one at a time
```

A comment ignores rules on its own line or, if it stands alone, on the next line. It must give a reason. A comment that
ignores nothing is reported:

```yaml
    expression: requested.cpu >= 0  # koord-policy: ignore KP010 because it shows how a filter is written
```

Faults of YAML, schema, names, types and cost limits cannot be ignored: such a document does not run.

## Exit codes and options

| exit code | meaning |
| --- | --- |
| 0 | no errors; there may be warnings and notes, with `--strict` notes only |
| 2 | usage: a path, an option or a commit that does not exist |
| 3 | errors |
| 6 | not finished within `--timeout` (120 s); the message names the file that was being checked |

- `--output` is `text`, `json`, `sarif` (code scanning), `junit`, `github` (annotations of a workflow), `gitlab` (code
  quality) or `lsp-json` (diagnostics of an editor; `-` with `--stdin-name FILE` reads unsaved text).
- `--fix` applies the fixes of rules that have one; comments and layout of the file are preserved.
- `--changed-since REF` checks all files, since rules compare documents with each other, and reports the
  violations in files that differ from a commit, and violations elsewhere that involve such files.
- `--config FILE` takes component configurations (`KubeSchedulerConfiguration`, `DeschedulerConfiguration`,
  `DeschedulerPolicy`, the `slo-controller-config` ConfigMap) into account: the plugins that their profiles name, and
  their thresholds.
- `.pre-commit-hooks.yaml` and [the examples for GitHub and GitLab](../examples/{EXAMPLE}/README.md) run it in CI and
  before commits.

## Large sets

The time is proportional to the size of the text. Rules that compare documents with each other compare at most 1,000,000
pairs, and report the first document whose pairs were omitted; each names at most ten other documents per document.

## Rules

| id | name | severity | fixed by `--fix` |
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
