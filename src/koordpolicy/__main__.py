"""The command `koord-policy`: composes the engine and the built-in plugins."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; the exit code is the result."""
    return 0


if __name__ == "__main__":
    sys.exit(main())
