"""JSON Schema (draft 2020-12) for untrusted schemas and data.

A schema refers to itself only: there is no registry, so nothing is fetched from a network or a file. Patterns are
RE2's, equality is by hash, and steps and depth of each validation are limited, so that its time is bounded by the size
of schema and data. `schema_check` checks a schema, `schema_run` validates data by it. `docs/decisions` explains why the
library jsonschema is not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .schema_check import ObservePattern, SchemaCheck
from .schema_faults import BadSchema, SchemaFault
from .schema_run import SchemaRun, Steps, StepsExceeded


class JsonSchema:
    """A checked schema: every keyword has a valid value, every reference a target.

    `declared` is the schema as plain data, `targets` the schema that each reference in it leads to.
    """

    __slots__ = ("_members", "_tracked", "declared", "targets")

    def __init__(self, declared: Any, observe_pattern: ObservePattern | None = None) -> None:
        """Check a schema given as plain data, which must not be changed later.

        `observe_pattern` is called with the path, the text and the number of RE2's states of every pattern.

        Raises `BadSchema` with at most a hundred faults.
        """
        check = SchemaCheck(declared, observe_pattern)
        check.run()
        if check.faults:
            raise BadSchema(check.faults)
        self.declared = declared
        self.targets: Mapping[str, Any] = check.targets
        self._tracked = check.tracked
        self._members: dict[int, frozenset[Any]] = {}

    def part(self, declared: Any) -> JsonSchema:
        """Return a subschema, for instance of one property.

        References are relative to the whole schema. `declared` must be part of it.
        """
        part = object.__new__(JsonSchema)
        part.declared, part.targets, part._tracked = declared, self.targets, self._tracked
        part._members = self._members
        return part

    def faults(self, data: Any, steps: Steps | None = None) -> list[SchemaFault]:
        """Return the faults of plain data; empty if it is valid.

        An exceeded bound is a fault at the root, with the keyword `bound`. Without `steps` the number of steps is not
        bounded, for trusted schemas.
        """
        run = SchemaRun(self.targets, self._tracked, steps, self._members)
        try:
            return run.apply(self.declared, data, (), set())
        except StepsExceeded as error:
            return [SchemaFault((), "bound", str(error), value=data)]
