"""Texts of others in messages: at bounded length."""

from __future__ import annotations


def beginning(text: str, longest: int = 60) -> str:
    """Return the first `longest` characters of a text, with dots if there are more."""
    return text if len(text) <= longest else f"{text[:longest]}..."
