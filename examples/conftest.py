"""JSON that the examples' commands print is held against the published schemas."""

from __future__ import annotations

from tests.output_schemas import _outputs_are_as_their_schemas_say  # noqa: F401 - a fixture of every test
