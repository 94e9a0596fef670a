"""Addresses of the console's views, for events and explanations that lead to them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode, urlsplit

LONGEST_URL: Final = 256
"""The maximum length of the console's address, in characters: an event has room for its reason beside it."""
_FORBIDDEN: Final = re.compile(r"[\x00-\x20\x7f\"'<>`\\^{|}]")


@dataclass(frozen=True, slots=True)
class ConsoleLinks:
    """The addresses of views in the console that people reach at `url`; without one there are none."""

    url: str = ""

    @staticmethod
    def at(text: str) -> ConsoleLinks:
        """Return the links of a console's address, such as `https://console.example.org`.

        Raises:
            ValueError: it is no address of http or https, or has a query or a fragment.
        """
        try:
            parts = urlsplit(text)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            fits = False
        if not fits or len(text) > LONGEST_URL or _FORBIDDEN.search(text) or "?" in text or "#" in text or "@" in text:
            raise ValueError(f"`{text[:LONGEST_URL]}` is not an address such as https://console.example.org")
        return ConsoleLinks(text.rstrip("/"))

    def pod(self, key: str, node: str = "") -> str:
        """Return the address of the decision about a pod, of one node if it is named; empty without a console."""
        return self._view("pod", {"key": key, "node": node})

    def node(self, name: str) -> str:
        """Return the address of a node; empty without a console."""
        return self._view("map", {"node": name})

    def _view(self, view: str, query: dict[str, str]) -> str:
        given = {name: value for name, value in query.items() if value}
        return f"{self.url}/#/{view}?{urlencode(given, quote_via=quote)}" if self.url else ""
