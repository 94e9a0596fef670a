from __future__ import annotations

from .fake_server import serve  # noqa: F401 - a fixture
