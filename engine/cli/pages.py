"""The pages that commands write where `--report` names a file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from .exits import Stop

_ENDINGS: Final = (".html", ".htm")


def check_page(path: Path | None) -> None:
    """Check what `--report` names, before anything is run; None is fine.

    Raises:
        Stop: no page can be written there.
    """
    if path is None:
        return
    if path.suffix not in _ENDINGS:
        raise Stop(f"`--report {path}`: the name must end with {' or '.join(_ENDINGS)}")
    if not path.absolute().parent.is_dir():
        raise Stop(f"`--report {path}`: there is no directory `{path.parent}`")


def write_page(path: Path, text: str) -> None:
    """Write a page, whole or not at all.

    Raises:
        Stop: it cannot be written.
    """
    from ..experiments.tables import write_whole  # noqa: PLC0415 - not every run writes one

    try:
        # Names from files may hold half a character, which no encoding has.
        write_whole(path, text.encode("utf-8", "replace"))
    except OSError as error:
        raise Stop(f"cannot write `{path}`: {(error.strerror or str(error)).lower()}") from None
