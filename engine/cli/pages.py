"""The pages that commands write to the file of `--report`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from .exits import Stop

_ENDINGS: Final = (".html", ".htm")


def check_page(path: Path | None) -> None:
    """Check the path of `--report` before anything is run; None is valid.

    Raises:
        Stop: no page can be written there.
    """
    if path is None:
        return
    if path.suffix not in _ENDINGS:
        raise Stop(f"`--report {path}`: the name must end with {' or '.join(_ENDINGS)}")
    if not path.absolute().parent.is_dir():
        raise Stop(f"`--report {path}`: there is no directory `{path.parent}`")
