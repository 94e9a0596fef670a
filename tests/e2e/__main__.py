"""Runs the live tests, all or those of given files: `python -m tests.e2e [pytest arguments]`.

Exit code 2 without a control plane to run them on.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from .build import CannotBuild, binary, cached_binary

FOLDER = Path(__file__).resolve().parent


def paths_of(arguments: list[str]) -> list[str]:
    """Return the arguments that name live tests: `FILE` or `FILE::TEST` below this folder."""
    named = ((each, Path(each.partition("::")[0]).resolve()) for each in arguments)
    return [each for each, path in named if path.exists() and path.is_relative_to(FOLDER)]


def main(arguments: list[str]) -> int:
    if not os.environ.get("KOORD_POLICY_E2E_KUBECONFIG"):
        try:
            if not cached_binary().exists():
                print("building kube-apiserver, etcd, kube-scheduler and kube-controller-manager, once: "
                      "this takes 5 to 20 minutes", file=sys.stderr)
            start = time.monotonic()
            path = binary()
        except CannotBuild as error:
            print(f"make e2e: {error}", file=sys.stderr)
            return 2
        if time.monotonic() - start > 5:
            print(f"built {path} in {time.monotonic() - start:.0f} s", file=sys.stderr)
    os.environ["KOORD_POLICY_E2E"] = "1"
    return int(pytest.main(["-rs", "-n", "2", *arguments, *([] if paths_of(arguments) else [str(FOLDER)])]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
