"""Linter: rules that find mistakes in valid documents, in single ones and in the whole set.

All rules are in one table (`rules.RULES`), each a small function that yields its findings. They read checked
expressions (`subject`), their possible values (`ranges`) and their thresholds of utilization (`watermarks`).
"""

from __future__ import annotations

from .configuration import LintConfiguration as LintConfiguration
from .findings import LintFinding as LintFinding
from .findings import check as check
from .findings import strict as strict
from .rules import RULES as RULES
from .rules import LintRule as LintRule
from .subject import Whole as Whole
from .subject import subjects as subjects
from .subject import suites as suites
from .subject import whole_of as whole_of
