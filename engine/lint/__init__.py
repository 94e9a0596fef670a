"""What is valid and still wrong: rules over documents, and over the whole set of them.

Rules stand in one table (`rules.RULES`), each a small function that yields what it found. They look at checked
expressions (`subject`), at what these can be (`ranges`) and at the shares of usage that they mean (`watermarks`).
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
