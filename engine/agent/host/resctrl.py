"""Mounting of resctrl, the kernel's file system for shares of caches and of memory bandwidth."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from koordpolicy.engine.framework.qos import Host


def has_resctrl(host: Host) -> bool:
    """Return whether the processors can be divided by cache and memory bandwidth."""
    return {"cat_l3", "mba"} <= host.flags


def mount_resctrl(root: str) -> str:
    """Mount resctrl unless it is mounted; return the reason why it is not, or an empty text.

    It stays mounted: others may have groups in it. Requires CAP_SYS_ADMIN.
    """
    directory = Path(root)
    if (directory / "schemata").exists():
        return ""
    if not directory.is_dir():
        return f"`{root}` does not exist: the kernel was built without resctrl"
    import ctypes  # noqa: PLC0415 - for few machines only

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"resctrl", os.fsencode(root), b"resctrl", 0, None) == 0:
        return ""
    number = ctypes.get_errno()
    if number == errno.EBUSY:
        return ""
    return f"resctrl cannot be mounted on `{root}`: {os.strerror(number)}"
