"""Binaries for live tests, built once with Go into a cache outside of the repository.

They are the control plane, from `controlplane/`, Kubernetes' descheduler, of the modules in `descheduler/`, and CNCF's
registry, of those in `registry/`, and a program that evaluates expressions as Kubernetes does, from
`expressions/`. The environment variable KOORD_POLICY_E2E_KUBERNETES chooses one of `VERSIONS` of the
control plane.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parent / "controlplane"
VERSIONS = {"1.36": ("1.36.2", "go.mod"), "1.35": ("1.35.4", "go-1.35.mod"), "1.34": ("1.34.4", "go-1.34.mod")}
"""The releases of Kubernetes by minor version, each with the file of its modules; the first one is the default."""

DESCHEDULER = Path(__file__).parent / "descheduler" / "go.mod"
REGISTRY = Path(__file__).parent / "registry" / "go.mod"
EXPRESSIONS = Path(__file__).parent / "expressions"


class CannotBuild(Exception):
    """The message says what is missing, and what to do."""


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "koord-policy" / "e2e"


def chosen() -> tuple[str, Path]:
    """Return the release of Kubernetes, and the file of its modules.

    Raises:
        CannotBuild: The chosen version is none of `VERSIONS`.
    """
    version = os.environ.get("KOORD_POLICY_E2E_KUBERNETES") or next(iter(VERSIONS))
    if version not in VERSIONS:
        raise CannotBuild(f"KOORD_POLICY_E2E_KUBERNETES is `{version}`: choose one of {', '.join(VERSIONS)}")
    release, modules = VERSIONS[version]
    return release, SOURCE / modules


def cached_binary() -> Path:
    """The path at which the control plane's binary is or will be."""
    _, modules = chosen()
    return _cached("controlplane", modules, SOURCE / "main.go")


def binary() -> Path:
    """The control plane's binary, built if it is not in the cache.

    Raises:
        CannotBuild: Without Go, or if the build fails.
    """
    release, modules = chosen()
    major, minor, _ = release.split(".")
    stamp = "k8s.io/component-base/version"
    flags = f"-s -w -X {stamp}.gitVersion=v{release} -X {stamp}.gitMajor={major} -X {stamp}.gitMinor={minor}"
    return _built(cached_binary(), modules, ".", flags)


def descheduler_binary() -> Path:
    """Kubernetes' own descheduler of the default minor version, unchanged; built if it is not in the cache.

    Raises:
        CannotBuild: Without Go, or if the build fails.
    """
    path = _cached("descheduler", DESCHEDULER)
    return _built(path, DESCHEDULER, "sigs.k8s.io/descheduler/cmd/descheduler", "-s -w")


def registry_binary() -> Path:
    """The reference implementation of an OCI registry, unchanged; built if it is not in the cache.

    Raises:
        CannotBuild: Without Go, or if the build fails.
    """
    return _built(_cached("registry", REGISTRY), REGISTRY, "github.com/distribution/distribution/v3/cmd/registry",
                  "-s -w")


def expressions_binary() -> Path:
    """A program around Kubernetes' own CEL library, unchanged (`expressions/main.go`); built if it is not in the cache.

    Raises:
        CannotBuild: Without Go, or if the build fails.
    """
    modules = EXPRESSIONS / "go.mod"
    return _built(_cached("expressions", modules, EXPRESSIONS / "main.go"), modules, ".", "-s -w")


def _cached(name: str, modules: Path, *sources: Path) -> Path:
    """The path of a binary by what it depends on: its modules, their sums, sources of ours and the version of Go."""
    go = shutil.which("go")
    if go is None:
        raise CannotBuild(
            "the live tests build a Kubernetes control plane with Go, and there is no `go` on the path: install "
            "Go 1.26 or newer, or set KOORD_POLICY_E2E_KUBECONFIG to the kubeconfig of an empty cluster")
    version = subprocess.run([go, "env", "GOVERSION"], cwd=modules.parent, capture_output=True, text=True, check=False)
    if version.returncode:
        raise CannotBuild(f"`go env GOVERSION` failed: {version.stderr.strip()}")
    digest = hashlib.sha256(version.stdout.encode())
    for file in (modules, modules.with_suffix(".sum"), *sources):
        digest.update(file.read_bytes())
    return cache_directory() / f"{name}-{digest.hexdigest()[:16]}"


def _built(path: Path, modules: Path, package: str, flags: str) -> Path:
    """Return `path`, built if it does not exist; another process that wants it waits for the one that builds it."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    source = modules.parent
    with path.with_suffix(".lock").open("w") as lock, tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return path
        built = Path(scratch) / "built"
        command = ["go", "build", "-modfile", str(modules), "-trimpath", "-ldflags", flags, "-o", str(built), package]
        environment = {**os.environ, "CGO_ENABLED": "0"}
        outcome = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
        if outcome.returncode:
            raise CannotBuild(f"`go build` of tests/e2e/{source.name} failed:\n{outcome.stderr.strip()[-2000:]}")
        built.replace(path)
    return path
