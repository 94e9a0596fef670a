"""Fixtures of all tests.

Property tests look at the same examples in every run of the tests, and at other ones in `make fuzz`.
"""

from __future__ import annotations

from hypothesis import settings

from .output_schemas import _outputs_are_as_their_schemas_say  # noqa: F401 - a fixture of every test

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
# `--hypothesis-profile explore` comes after this and wins.
settings.load_profile("repeatable")
