"""Results of golden cases: the interface of adapters and runner.

An adapter is a module `tests/golden/<suite>.py` (the suites stand in `suites.py`) with

    def run(path: Path, *, full: bool = False) -> Iterator[Result]: ...

It yields one result per case of the file, in the file's order, with an id that is the case's own (`id`, or what names
it: section and name, a group and the expression). A case of a feature that is not built yet is a failed one whose
detail is `not built yet`; an adapter never skips. `full` asks for the long form of suites that have a short one.

An adapter whose files take minutes may also have

    def parts(path: Path, *, full: bool = False) -> Sequence[str]: ...
    def run_part(path: Path, part: str, *, full: bool = False) -> Iterator[Result]: ...

The runner then shares the parts among its processes, and the results stand in the order of the parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Result:
    """One case: the suite it belongs to, its id within the suite, whether it was met, and if not, what differed."""

    suite: str
    id: str
    passed: bool
    detail: str = ""
    agreement: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Of a case with several parts: by part how many values agree, and of how many. The runner adds them up."""
