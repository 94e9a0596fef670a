"""The layer of a bundle: policy files as a tar archive that depends on their names and contents only.

The archive is neither compressed nor free in anything: ustar headers with mode 0644, no owner and no times, files
sorted by name. The same files are the same bytes on every machine, and bytes that differ from what `pack` writes for
the files in them are refused: so there are no links, devices, extensions, repetitions, or names that lead elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from koordpolicy.engine.documents import is_left_out, is_policy_file

from .faults import BundleFault

MOST_FILES: Final = 5_000
LARGEST: Final = 64 << 20
"""The maximum size of all files together, in bytes."""
LARGEST_LAYER: Final = LARGEST + (MOST_FILES + 1) * 1024 + 10240
"""The maximum size of a layer, in bytes: a header and a padded block for each file."""
_BLOCK: Final = 512
_END: Final = b"\0" * (2 * _BLOCK)
_NAME: Final = 100
_PREFIX: Final = 155
_CONTROL: Final = re.compile("[\0-\x1f\x7f\\\\]")


class _Malformed(Exception):
    """The message says how an archive is not as it should be."""


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return the layer of files, by relative name.

    Raises `BundleFault` for names that a bundle cannot have, and for too many or too large files.
    """
    if len(files) > MOST_FILES or sum(map(len, files.values())) > LARGEST:
        raise BundleFault(f"{len(files)} files with {sum(map(len, files.values())):,} bytes are too many",
                          f"a bundle has at most {MOST_FILES:,} files with {LARGEST >> 20} MiB together",
                          code="too-large")
    try:
        return _archive(dict(sorted(files.items(), key=lambda each: each[0].encode("utf-8", "surrogateescape"))))
    except _Malformed as why:
        raise BundleFault(f"a file cannot be in a bundle: {why}", "rename it", code="file-name") from None


def unpack(layer: bytes) -> dict[str, bytes]:
    """Return the files of a layer; raises `BundleFault` if it is not one that `pack` writes."""
    try:
        files = _files(layer)
        # Compared as a whole, so that nothing in a header is left unchecked.
        same = _archive(files) == layer
    except _Malformed as why:
        raise _refusal(str(why)) from None
    if not same:
        raise _refusal("it is not the archive that `koord-policy push` writes for its files")
    return files


def _refusal(why: str) -> BundleFault:
    return BundleFault(f"the layer of policies is refused: {why}", "push the policies with `koord-policy push`",
                       code="malformed-bundle")


def _archive(files: Mapping[str, bytes]) -> bytes:
    """Return the archive of files in their order; raises `_Malformed` for a name that a bundle cannot have."""
    return b"".join((*(part for name, content in files.items() for part in (
        _header(name, len(content)), content, b"\0" * (-len(content) % _BLOCK))), _END))


def _files(layer: bytes) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    before = b""
    place = 0
    while layer[place:place + _BLOCK].strip(b"\0"):
        header = layer[place:place + _BLOCK]
        raw = b"/".join(filter(None, (header[345:500].rstrip(b"\0"), header[:_NAME].rstrip(b"\0"))))
        try:
            name, size = raw.decode("utf-8"), int(header[124:135], 8)
        except ValueError:
            raise _Malformed("the header of a file is damaged") from None
        if size < 0 or place + _BLOCK + size > len(layer):
            raise _Malformed(f"`{name}` is cut off")
        if raw <= before and files:
            raise _Malformed(f"`{name}` is there twice, or not in order")
        if len(files) >= MOST_FILES:
            raise _Malformed(f"it has more than {MOST_FILES:,} files")
        files[name] = layer[place + _BLOCK:place + _BLOCK + size]
        before = raw
        place += _BLOCK + size + -size % _BLOCK
    return files


def _header(name: str, size: int) -> bytes:
    """Return the ustar header of a file; raises `_Malformed` for a name that a bundle cannot have."""
    *directories, file = name.split("/")
    if not is_policy_file(file):
        raise _Malformed(f"`{name}` is no name of a policy file")
    if any(not each or is_left_out(each) for each in directories):
        raise _Malformed(f"`{name}` leads out of its directory, or into a hidden one")
    if _CONTROL.search(name):
        raise _Malformed(f"`{name}` has a control character or a backslash")
    try:
        prefix, short = _divided(name.encode("utf-8"))
    except UnicodeEncodeError:
        raise _Malformed(f"the name `{name}` is not in UTF-8") from None
    header = b"".join((
        short.ljust(_NAME, b"\0"), b"0000644\0", b"0000000\0", b"0000000\0", b"%011o\0" % size, b"00000000000\0",
        b" " * 8, b"0", b"\0" * 100, b"ustar\x0000", b"\0" * 64, b"0000000\0", b"0000000\0",
        prefix.ljust(_PREFIX, b"\0"), b"\0" * 12))
    return header[:148] + b"%06o\0 " % sum(header) + header[156:]


def _divided(name: bytes) -> tuple[bytes, bytes]:
    """Return prefix and name of a header: divided at the first slash after which the rest is short enough."""
    if len(name) <= _NAME:
        return b"", name
    place = name.find(b"/", len(name) - _NAME - 1)
    if place < 0 or place > _PREFIX:
        raise _Malformed(f"`{name.decode()}` has more than {_PREFIX + _NAME} bytes, or a part of it more than {_NAME}")
    return name[:place], name[place + 1:]
