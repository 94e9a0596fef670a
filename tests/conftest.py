"""How far property tests look: the same examples in every run of the tests, other ones in `make fuzz`."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
# `--hypothesis-profile explore` comes after this and wins.
settings.load_profile("repeatable")
