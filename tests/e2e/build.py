"""The binary of the control plane: built once from `controlplane/` into a cache outside of the repository.

The cache's key is what the binary depends on: the sources, go.mod, go.sum and the version of Go.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parent / "controlplane"
KUBERNETES = "1.36.2"


class CannotBuild(Exception):
    """The message says what is missing, and what to do."""


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "koord-policy" / "e2e"


def cached_binary() -> Path:
    """The path at which the binary is or will be."""
    go = shutil.which("go")
    if go is None:
        raise CannotBuild(
            "the live tests build a Kubernetes control plane with Go, and there is no `go` on the path: install "
            "Go 1.26 or newer, or set KOORD_POLICY_E2E_KUBECONFIG to the kubeconfig of an empty cluster")
    version = subprocess.run([go, "env", "GOVERSION"], cwd=SOURCE, capture_output=True, text=True, check=False)
    if version.returncode:
        raise CannotBuild(f"`go env GOVERSION` failed: {version.stderr.strip()}")
    digest = hashlib.sha256(version.stdout.encode())
    for name in ("go.mod", "go.sum", "main.go"):
        digest.update((SOURCE / name).read_bytes())
    return cache_directory() / f"controlplane-{digest.hexdigest()[:16]}"


def binary() -> Path:
    """The binary, built if it is not in the cache.

    Raises:
        CannotBuild: Without Go, or if the build fails.
    """
    path = cached_binary()
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    major, minor, _ = KUBERNETES.split(".")
    stamp = "k8s.io/component-base/version"
    flags = f"-s -w -X {stamp}.gitVersion=v{KUBERNETES} -X {stamp}.gitMajor={major} -X {stamp}.gitMinor={minor}"
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        built = Path(scratch) / "controlplane"
        command = ["go", "build", "-trimpath", "-ldflags", flags, "-o", str(built), "."]
        environment = {**os.environ, "CGO_ENABLED": "0"}
        outcome = subprocess.run(command, cwd=SOURCE, env=environment, capture_output=True, text=True, check=False)
        if outcome.returncode:
            raise CannotBuild(f"`go build` of tests/e2e/controlplane failed:\n{outcome.stderr.strip()[-2000:]}")
        built.replace(path)
    return path
