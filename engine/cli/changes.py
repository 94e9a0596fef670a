"""Access to git: the files that changed since a commit, and the policies at a path in a commit."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from koordpolicy.engine.documents import Documents, is_left_out, is_policy_file, load
from koordpolicy.engine.documents.nodes import LARGEST_FILE, decode
from koordpolicy.engine.source import PolicyError, Problem, Source, in_order

from .exits import Stop

_FILE = "100"
"""The prefix of the mode of a file in a tree; the others are links and submodules."""
_NO_SUCH_NAME: Final = 1
"""The exit code of `git rev-parse --verify` for a name of no commit; it has others without a repository."""


def changed_since(reference: str, directory: Path) -> frozenset[Path]:
    """Return the files of the work tree that differ from a commit, including untracked ones.

    Raises `Stop` if there is no git, no repository or no such commit.
    """
    if reference.startswith("-"):
        raise Stop(f"`{reference}` is not the name of a commit")
    root = Path(_git(directory, "rev-parse", "--show-toplevel").rstrip("\n"))
    _git(directory, "rev-parse", "--verify", "--quiet", f"{reference}^{{commit}}", missing=reference)
    changed = _git(root, "diff", "--name-only", "--no-renames", "-z", reference, "--")
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return frozenset((root / name).resolve() for name in (changed + new).split("\0") if name)


def documents_at(reference: str, path: str, directory: Path, *, source_name: str) -> Documents:
    """Return the policy documents that a commit holds at a path, which is relative to the directory.

    A file is read whatever its name ends with, a directory as `documents.load_paths` reads one; links and other
    repositories in it are not followed. Places are reported as `REFERENCE:PATH`.

    Raises:
        Stop: there is no git, no repository, no such commit, or nothing at the path.
    """
    if reference.startswith("-"):
        raise Stop(f"`{reference}` is not the name of a commit")
    commit = _git(directory, "rev-parse", "--verify", "--quiet", f"{reference}^{{commit}}", missing=reference).strip()
    listed = _git(directory, "ls-tree", "-r", "-z", "-l", commit, "--", path)
    entries = [(*head.split(), name) for head, _, name in (each.partition("\t") for each in listed.split("\0") if each)]
    if not entries:
        raise Stop(f"the commit `{reference}` holds nothing at `{path}`")
    problems: list[Problem] = []
    blobs_of: dict[str, str] = {}
    for mode, _, blob, size, name in entries:
        if Path(name) != Path(path) and not _is_policy(name, path):
            continue
        shown = f"{reference}:{name}".encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        if not mode.startswith(_FILE):
            problems.append(Problem(f"cannot read `{shown}`: it is not a file", code="unreadable"))
        elif int(size) > LARGEST_FILE:
            problems.append(Problem(f"`{shown}` is larger than {LARGEST_FILE} bytes", code="too-large",
                                    help="split it into several files"))
        else:
            blobs_of[shown] = blob
    sources: list[Source] = []
    for shown, data in zip(blobs_of, _blobs(directory, blobs_of.values()), strict=True):
        try:
            sources.append(decode(shown, data))
        except PolicyError as error:
            problems.extend(error.problems)
    loaded = load(sources, source_name=source_name)
    return Documents(loaded.documents, in_order((*problems, *loaded.problems)), loaded.read)


def _is_policy(name: str, path: str) -> bool:
    """Return whether a file below a directory is a policy by its name, and by those of the directories between."""
    parts = Path(name).parts[len(Path(path).parts):]
    return is_policy_file(name.rpartition("/")[2]) and not any(map(is_left_out, parts))


def _blobs(directory: Path, names: Iterable[str]) -> Iterator[bytes]:
    """Yield the contents of objects, all read by one process."""
    content = _run_git(directory, "cat-file", "--batch", given="".join(f"{name}\n" for name in names).encode())
    at = 0
    while at < len(content):
        end = content.index(b"\n", at)
        size = int(content[at:end].rsplit(b" ", 1)[1])  # after the object's name and kind
        yield content[end + 1 : end + 1 + size]
        at = end + 1 + size + 1


def _git(directory: Path, *arguments: str, missing: str = "") -> str:
    return _run_git(directory, *arguments, missing=missing).decode("utf-8", "surrogateescape")


def _run_git(directory: Path, *arguments: str, missing: str = "", given: bytes = b"") -> bytes:
    try:
        done = subprocess.run(  # noqa: S603 - fixed words, and a name that git itself has verified
            ["git", *arguments], cwd=directory, input=given, capture_output=True, check=False,  # noqa: S607 - the user's own git
        )
    except FileNotFoundError:
        raise Stop("what stood in a commit is asked of git, and there is no `git` here") from None
    if done.returncode:
        if missing and done.returncode == _NO_SUCH_NAME:
            raise Stop(f"git has no commit `{missing}`")
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise Stop(f"git: {words[0].removeprefix('fatal: ') if words else 'it failed'}")
    return done.stdout
