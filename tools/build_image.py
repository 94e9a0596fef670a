"""Build the image of all servers: `make image`.

The command of `--with` (by default podman, buildah or docker, the first that this machine has) gets the Containerfile,
its arguments and the tag. With `--wheels` pip runs here and not in the build, which then needs no network: the locked
wheels are brought into a directory, by their hashes, unless they are there already. They are those for this
interpreter's version and platform, which must be the base's.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

try:
    from tools.release import declared_version
except ImportError:  # run as a script
    from release import declared_version

ROOT = Path(__file__).parents[1]
TAG = "koord-policy:latest"
LOCKS = ("runtime", "certificates")
"""The lock files of `requirements/` that are installed into the image."""
BUILDERS = {"podman": "podman build", "buildah": "buildah build", "docker": "docker build"}


class CannotBuildImage(Exception):
    """The message says what is wrong, and what to do."""


def main() -> int:
    """Build; the exit code is the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", default=TAG, help=f"the name of the image ({TAG})")
    parser.add_argument("--base", metavar="IMAGE", help="another base with Python 3.11 or newer and its venv module")
    parser.add_argument("--wheels", type=Path, metavar="DIRECTORY", help="install from here, without a network")
    parser.add_argument("--with", dest="builder", metavar="COMMAND", help="such as `buildah build --isolation chroot`")
    options = parser.parse_args()
    try:
        build(options.tag, base=options.base, wheels=options.wheels,
              builder=None if options.builder is None else shlex.split(options.builder))
    except CannotBuildImage as error:
        print(f"no image: {error}", file=sys.stderr)
        return 1
    return 0


def build(tag: str = TAG, *, base: str | None = None, wheels: Path | None = None,
          builder: list[str] | None = None) -> None:
    """Build the image of the work tree.

    Raises:
        CannotBuildImage: Without a builder, without the pages of the console, or if a command fails.
    """
    words = builder or installed_builder()
    if not (ROOT / "engine" / "console" / "static" / "index.html").exists():
        raise CannotBuildImage("the pages of the console are not built: run `make web`")
    version = declared_version((ROOT / "src" / "koordpolicy" / "__init__.py").read_text(encoding="utf-8"))
    values = {"VERSION": version, "REVISION": revision(), "LOCKS": " ".join(LOCKS)}
    if base is not None:
        values["BASE"] = base
    if wheels is not None:
        download(wheels)
        words = [*words, "--build-context", f"wheels={wheels.resolve()}"]
    for name, value in values.items():
        words = [*words, "--build-arg", f"{name}={value}"]
    run([*words, "--file", str(ROOT / "Containerfile"), "--tag", tag, str(ROOT)])


def installed_builder() -> list[str]:
    """Return the command of the first builder that is on the path."""
    for name, command in BUILDERS.items():
        if shutil.which(name):
            return command.split()
    raise CannotBuildImage(f"there is none of {', '.join(BUILDERS)} on the path: install one, or name it by --with")


def revision() -> str:
    """Return the commit of the work tree, with `-changed` if the tree differs from it; `unknown` outside of Git."""
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=-changed"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def download(wheels: Path) -> None:
    """Bring the locked wheels into a directory, unless it has them from an earlier call; what else it holds stays.

    Other wheels there do no harm: the locks have versions and hashes.
    """
    files = [ROOT / "requirements" / f"{name}.txt" for name in (*LOCKS, "build")]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files) + sys.version.encode()).hexdigest()
    stamp = wheels / ".complete"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == digest:
        return
    try:
        wheels.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotBuildImage(f"`{wheels}` cannot be a directory of wheels: {error.strerror}") from None
    for file in files:
        run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
             "--only-binary", ":all:", "--require-hashes", "--dest", str(wheels), "--requirement", str(file)])
    stamp.write_text(digest, encoding="utf-8")


def run(words: list[str]) -> None:
    """Run a command whose output is shown; refuse to go on where it fails."""
    try:
        done = subprocess.run(words, cwd=ROOT, check=False)
    except OSError as error:
        raise CannotBuildImage(f"`{words[0]}` cannot be run: {error.strerror}") from None
    if done.returncode:
        raise CannotBuildImage(f"`{shlex.join(words)}` ended with {done.returncode}")


if __name__ == "__main__":
    sys.exit(main())
