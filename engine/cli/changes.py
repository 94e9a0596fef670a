"""Which files changed since a commit, as git says."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .exits import Stop


def changed_since(reference: str, directory: Path) -> frozenset[Path]:
    """Return the files of the work tree that differ from a commit, new ones that git does not know yet included.

    Raises `Stop` where there is no git, no repository or no such commit.
    """
    if reference.startswith("-"):
        raise Stop(f"`{reference}` is not the name of a commit")
    root = Path(_git(directory, "rev-parse", "--show-toplevel").rstrip("\n"))
    _git(directory, "rev-parse", "--verify", "--quiet", f"{reference}^{{commit}}", missing=reference)
    changed = _git(root, "diff", "--name-only", "--no-renames", "-z", reference, "--")
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return frozenset((root / name).resolve() for name in (changed + new).split("\0") if name)


def _git(directory: Path, *arguments: str, missing: str = "") -> str:
    try:
        done = subprocess.run(  # noqa: S603 - fixed words, and a name that git itself has verified
            ["git", *arguments], cwd=directory, capture_output=True, text=True, check=False,  # noqa: S607
        )
    except FileNotFoundError:
        raise Stop("`--changed-since` asks git, and there is no `git` here") from None
    if done.returncode:
        if missing:
            raise Stop(f"git knows no commit `{missing}`")
        words = done.stderr.strip().splitlines()
        raise Stop(f"git: {words[0].removeprefix('fatal: ') if words else 'it failed'}")
    return done.stdout
