"""Publishes a set of policies: writes its files to a source, for promotions.

All files are written under temporary names and flushed, then renamed one after the other, then obsolete files are
deleted: errors (no permission, no space) occur before any change. Other readers of the directory may see a part of the
files meanwhile; the reloader does not, since it publishes in the observing thread.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from koordpolicy.engine.files import reason_of, write_new
from koordpolicy.engine.source import PolicyError, Problem

from .mount import LINK, Mount, Version

_BESIDE: Final = ".koord-policy-"
_REFUSED: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def content_of(mount: Mount, version: Version) -> dict[str, bytes]:
    """Return the contents of the files of a source's version, by relative name.

    Raises `PolicyError` if the source has changed since it was read.
    """
    files: dict[str, bytes] = {}
    for relative, digest in version.hashes.items():
        name = mount.name_of(relative)
        try:
            files[relative] = Path(name).read_bytes()
        except OSError as error:
            why = reason_of(error)
            raise _refusal(f"`{name}` cannot be read: {why}", "unreadable-file") from None
        if hashlib.sha256(files[relative]).hexdigest() != digest:
            raise _refusal(f"`{name}` has just been changed: nothing was published", "unsettled")
    return files


def publish(mount: Mount, files: Mapping[str, bytes]) -> None:
    """Replace the policy files of a source by these; other files in its directory stay.

    A mount with a replaceable `..data` link gets a new directory and one swap of that link, as the kubelet does it.
    Raises `PolicyError` if that fails; the source is then unchanged.
    """
    root = Path(mount.path).resolve()
    try:
        if "" in files and root.is_dir():
            raise _refusal(f"`{mount.path}` is a directory, and one file without a name is to be published",
                           "not-publishable")
        if (root / LINK).is_symlink():
            _swap(root, files)
        elif root.is_dir():
            _replace_all(root, mount.read().version, files)
        elif set(files) == {""}:
            _replace_all(root.parent, None, {root.name: files[""]})
        else:
            raise _refusal(f"`{mount.path}` is one file, and {len(files)} are to be published", "not-publishable")
    except OSError as error:
        why = reason_of(error)
        code = "read-only" if error.errno in _REFUSED else "not-publishable"
        raise _refusal(f"`{mount.path}` cannot be written: {why}", code) from None


def _swap(root: Path, files: Mapping[str, bytes]) -> None:
    if any("/" in name or not name for name in files):
        raise _refusal(f"`{root}` is a mounted volume, which has no directories within", "not-publishable")
    digest = hashlib.sha256(b"".join(name.encode("utf-8", "surrogateescape") + files[name] for name in sorted(files)))
    old = (root / LINK).readlink()
    new = root / f"..promoted-{digest.hexdigest()[:16]}"
    if old.name == new.name:
        return
    shutil.rmtree(new, ignore_errors=True)
    beside = root / f"{LINK}_promoted"
    try:
        new.mkdir()
        for name, content in files.items():
            write_new(new / name, content)
        beside.unlink(missing_ok=True)
        beside.symlink_to(new.name)
        beside.replace(root / LINK)
    except OSError:
        beside.unlink(missing_ok=True)
        shutil.rmtree(new, ignore_errors=True)
        raise
    for entry in root.iterdir():
        if entry.is_symlink() and not entry.name.startswith("..") and entry.name not in files:
            entry.unlink()
    for name in files:
        with contextlib.suppress(FileExistsError):
            (root / name).symlink_to(f"{LINK}/{name}")
    shutil.rmtree(root / old, ignore_errors=True)


def _replace_all(root: Path, before: Version | None, files: Mapping[str, bytes]) -> None:
    ready: list[tuple[Path, Path]] = []
    try:
        for name, content in files.items():
            file = root / name
            with contextlib.suppress(OSError):
                if file.read_bytes() == content:
                    continue
            file.parent.mkdir(parents=True, exist_ok=True)
            beside = file.with_name(f"{_BESIDE}{file.name}")
            ready.append((beside, file))
            beside.unlink(missing_ok=True)  # left by a killed publication, or a planted link
            write_new(beside, content)
            with contextlib.suppress(FileNotFoundError):
                beside.chmod(stat.S_IMODE(file.stat().st_mode))
        removed = [root / name for name in (before.hashes if before is not None else ()) if name not in files]
        for file in removed:
            # Deleting needs write access to the directory, which is checked before any change.
            if not os.access(file.parent, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
    except OSError:
        for beside, _ in ready:
            with contextlib.suppress(OSError):
                beside.unlink()
        raise
    for beside, file in ready:
        beside.replace(file)
    for file in removed:
        file.unlink(missing_ok=True)


def _refusal(message: str, code: str) -> PolicyError:
    return PolicyError([Problem(message, code=code)])
