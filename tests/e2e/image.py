"""The image of all servers, built by the Containerfile and run by podman as the manifests of deploy/ say.

No registry is needed: the base is Debian of this machine's release, made once by debootstrap from the mirror that its
apt uses, into the cache of the live tests. Images and containers of a run lie in a directory of the tests; mounts are
those of a namespace of each command, and end with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tools import build_image

from .build import CannotBuild, cache_directory
from .scheduler_process import GRACE_S, until

TOOLS: Final = ("buildah", "podman", "runc", "debootstrap", "unshare")
PACKAGES: Final = "python3,python3-venv"
BASE: Final = "localhost/koord-policy-base"
TAG: Final = "localhost/koord-policy"
_MEMORY: Final = Path("/dev/shm")
_PREFIX: Final = "koord-policy-image-"
_LIMITS: Final = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")  # podman's own may exceed ours


def lacking() -> str:
    """Return why this machine cannot build and run images; empty if it can."""
    if os.geteuid() != 0:
        return "builds a base and runs containers: needs root"
    missing = [name for name in TOOLS if shutil.which(name) is None]
    return f"there is no {', '.join(missing)}: `apt-get install {' '.join(missing)}`" if missing else ""


def base_store() -> Path:
    """Return the directory of the storage that holds the base, made if it is not in the cache.

    Raises:
        CannotBuild: Without a mirror, or if debootstrap fails.
    """
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    recipe = f"1 {release} {platform.machine()} {PACKAGES}"
    path = cache_directory() / f"image-base-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"
    if path.exists():
        return path
    mirror = _mirror_of(release)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        scratch = Path(folder)
        # In memory: dpkg waits for the disk after each file. The file system is gone with the namespace.
        _run("sh", "-ec", """
            mkdir "$0/base" && mount -t tmpfs tmpfs "$0/base"
            debootstrap --variant=minbase --include="$1" "$2" "$0/base" "$3"
            rm -rf "$0"/base/var/cache/apt/archives/*.deb "$0"/base/var/lib/apt/lists/* "$0"/base/etc/apt/sources.list
            tar -C "$0/base" --numeric-owner -cf "$0/base.tar" .
            """, folder, PACKAGES, release, mirror)
        (scratch / "Containerfile").write_text("FROM scratch\nADD base.tar /\n")
        _run("buildah", *Storage(scratch / "store", scratch / "run").options, "build", "--isolation", "chroot",
             "--tag", BASE, folder)
        (scratch / "store").rename(path)
    return path


def _mirror_of(release: str) -> str:
    """Return the mirror that this machine's apt takes its release from. Raises CannotBuild if apt has no lists."""
    ours = platform.freedesktop_os_release()["ID"]
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN) $(RELEASE) $(COMPONENT) $(REPO_URI)",
         "Created-By: Packages"], capture_output=True, text=True, check=False).stdout.splitlines()
    for origin, of, component, mirror in (line.split() for line in targets if len(line.split()) == 4):
        if (origin.lower(), of, component) == (ours, release, "main"):
            return mirror
    raise CannotBuild(f"apt has no lists of {ours} `{release}` main: run `apt-get update`")


class Storage:
    """A place for images and containers, beside a storage that is only read."""

    def __init__(self, root: Path, state: Path, below: Path | None = None) -> None:
        more = () if below is None else ("--storage-opt", f"additionalimagestore={below}")
        self.options = ("--root", str(root), "--runroot", str(state), "--storage-driver", "overlay", *more)


def _run(*command: str) -> str:
    """Run a command in a namespace of mounts; returns what it prints.

    Raises:
        CannotBuild: With the end of its output, if it fails.
    """
    done = subprocess.run(["unshare", "--mount", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    if done.returncode:
        raise CannotBuild(f"`{' '.join(command)[:300]}` failed:\n{done.stdout[-3000:]}")
    return done.stdout


@contextlib.contextmanager
def built(run: Path) -> Iterator[Image]:
    """The image of the work tree, built once for all workers of a run of the tests, whose directory is the name.

    It lies in memory, as a base and an image are written file by file, and is removed by the last worker; what a run
    that was killed has left is removed by the next one.
    """
    cache_directory().mkdir(parents=True, exist_ok=True)
    name = f"{_PREFIX}{hashlib.sha256(str(run).encode()).hexdigest()[:16]}"
    directory = _MEMORY / name
    with contextlib.ExitStack() as stack:
        with _locked(cache_directory() / "image.lock", fcntl.LOCK_EX):
            for left in _MEMORY.glob(f"{_PREFIX}*"):
                _remove_unused(left)
            directory.mkdir(exist_ok=True)
            stack.enter_context(_locked(directory / "used", fcntl.LOCK_SH))
            image = Image(directory)
        try:
            yield image
        finally:
            stack.close()
            with _locked(cache_directory() / "image.lock", fcntl.LOCK_EX):
                _remove_unused(directory)


@contextlib.contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, how)
        yield


def _remove_unused(directory: Path) -> None:
    """Remove the storage of a run of which no worker is left."""
    with contextlib.suppress(OSError), _locked(directory / "used", fcntl.LOCK_EX | fcntl.LOCK_NB):
        shutil.rmtree(directory)


class Image:
    """The image, built of the work tree without a network for pip."""

    def __init__(self, directory: Path) -> None:
        """Build it into a directory, unless it is there. Raises CannotBuild."""
        self._storage = Storage(directory / "store", directory / "run", base_store())
        if not (directory / "built").exists():
            self._base_version()
            builder = ["buildah", *self._storage.options, "build", "--isolation", "chroot", "--pull=never"]
            _run(sys.executable, str(Path(build_image.__file__)), "--tag", TAG, "--base", BASE,
                 "--wheels", str(cache_directory() / "image-wheels"), "--with", shlex.join(builder))
            (directory / "built").touch()

    def _base_version(self) -> None:
        """Raises CannotBuild if the base has another Python than ours, for which the wheels are."""
        found = self.run("-c", "import sys; print(*sys.version_info[:2], sep='.')", image=BASE, entry="python3").stdout
        ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
        if found.strip() != ours:
            raise CannotBuild(f"the base has Python {found.strip()}, and the wheels are for Python {ours} of the tests")

    def configuration(self) -> dict[str, Any]:
        """Return the image's configuration in OCI's words, and its size in bytes as `Size`."""
        found: dict[str, Any] = json.loads(_run("podman", *self._storage.options, "image", "inspect", TAG))[0]
        return {**found["Config"], "Size": found["Size"]}

    def command(self, *arguments: str, options: Sequence[str] = (), network: str = "none", image: str = TAG,
                entry: str | None = None) -> list[str]:
        """Return the command that runs a container as Kubernetes runs ours: nothing can be written, nothing gained.

        podman itself would mount writable directories at /tmp and /run of a read-only container; Kubernetes does not.
        """
        return ["unshare", "--mount", "podman", *self._storage.options, "--cgroup-manager", "cgroupfs",
                "--events-backend", "none", "--runtime", "runc", "run", "--rm", "--pull=never", *_LIMITS, "--read-only",
                "--read-only-tmpfs=false", "--network", network, "--cap-drop", "all", "--security-opt",
                "no-new-privileges", *options, *(() if entry is None else ("--entrypoint", entry)), image, *arguments]

    def run(self, *arguments: str, image: str = TAG, entry: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a container to its end, without a network."""
        return subprocess.run(self.command(*arguments, image=image, entry=entry), capture_output=True, text=True,
                              timeout=120, check=False)

    @contextlib.contextmanager
    def running(self, log: Path, *arguments: str, options: Sequence[str] = ()) -> Iterator[Container]:
        """A container in this machine's network, which podman ends with SIGTERM."""
        with log.open("w") as output, subprocess.Popen(
                self.command(*arguments, options=options, network="host"), stdout=output, stderr=output) as process:
            container = Container(process, log)
            try:
                yield container
            finally:
                if process.poll() is None:
                    container.stop()


class Container:
    """A running container; `log` has what it printed."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def check(self) -> bool:
        """Return true. Raises AssertionError if the container has ended."""
        ended = self._process.poll()
        assert ended is None, f"ended with {ended}:\n{self.log}"
        return True

    def wait_for(self, line: Callable[[str], bool]) -> str:
        """Return the first line for which this holds. Raises AssertionError if the container ends without."""
        return until(lambda: next(filter(line, self.log.splitlines()), "") if self.check() else "")

    def stop(self) -> int:
        """Send SIGTERM and return the exit code of the container."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(GRACE_S)
