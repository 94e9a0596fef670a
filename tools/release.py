"""Build the source distribution and the wheel, and try both as users would: `make release`.

The version stands in `src/koordpolicy/__init__.py`. The wheel is built twice, from the work tree and from the source
distribution, and both hold the same. Each of the two files is then installed into an environment of its own, with the
locked dependencies, and the installed command checks the policies that came with it. `dist/` holds the files, their
checksums, and notes: the CHANGELOG's section of the version, or what is not yet released. With `--tag` the tag must be
the version's, and the section must be there.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PLACES = (
    "import sys, koordpolicy; from pathlib import Path; "
    "print(koordpolicy.__version__, Path(koordpolicy.__file__).resolve().parent)"
)


class NotReleasable(Exception):
    """The message says what is wrong."""


def main() -> int:
    """Build, check, report; the exit code is the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", help="the tag that is released, such as v0.1.0: it must be the version's")
    tag = parser.parse_args().tag
    try:
        release(tag)
    except NotReleasable as error:
        print(f"not releasable: {error}", file=sys.stderr)
        return 1
    return 0


def release(tag: str | None = None) -> None:
    """Leave the checked files in `dist/`."""
    version = declared_version((ROOT / "src" / "koordpolicy" / "__init__.py").read_text(encoding="utf-8"))
    check_tag(version, tag)
    notes = changes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version, final=tag is not None)
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        # `build` makes the wheel from the source distribution; `--wheel` makes one from the work tree.
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, ROOT)
        run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", scratch / "tree", ROOT)
        wheel, source = only(DIST, "*.whl"), only(DIST, "*.tar.gz")
        compare(contents(only(scratch / "tree", "*.whl")), contents(wheel))
        for file in (wheel, source):
            print(f"checking {file.name}", flush=True)
            try_out(file, version, scratch / file.suffix.lstrip("."))
    sums = "".join(f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in (source, wheel))
    (DIST / "SHA256SUMS").write_text(sums, encoding="utf-8")
    (DIST / "NOTES.md").write_text(notes, encoding="utf-8")
    print(f"koord-policy {version} is in {DIST.relative_to(ROOT)}/:\n{sums}", end="")


def declared_version(module: str) -> str:
    """Return the version that a module's text declares."""
    found = re.search(r'^__version__ = "([^"]+)"$', module, re.MULTILINE)
    if found is None:
        raise NotReleasable("src/koordpolicy/__init__.py declares no `__version__`")
    return found[1]


def check_tag(version: str, tag: str | None) -> None:
    """Refuse a tag of another version."""
    if tag is not None and tag != f"v{version}":
        raise NotReleasable(f"the tag `{tag}` is not `v{version}`, the version in src/koordpolicy/__init__.py")


def changes(changelog: str, version: str, *, final: bool) -> str:
    """Return the section of a version; unless it is final, what is not yet released stands for it."""
    sections = {}
    for section in re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        sections[title.split(" ")[0]] = text.strip()
    unreleased = sections.get("Unreleased")
    if not final and unreleased:
        return unreleased + "\n"
    if not sections.get(version):
        raise NotReleasable(f"CHANGELOG.md has no section `## {version}`: its changes stand under `## Unreleased`")
    if unreleased:
        raise NotReleasable(f"CHANGELOG.md has changes under `## Unreleased`: move them to {version}")
    return sections[version] + "\n"


def contents(wheel: Path) -> dict[str, bytes]:
    """Return the contents of a wheel, without the list of its files."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith(".dist-info/RECORD")}


def compare(tree: dict[str, bytes], source: dict[str, bytes]) -> None:
    """Refuse a source distribution that makes another wheel than the work tree."""
    differing = sorted(name for name in tree.keys() | source.keys() if tree.get(name) != source.get(name))
    if differing:
        raise NotReleasable(f"a wheel from the source distribution differs in {', '.join(differing[:5])}")


def try_out(file: Path, version: str, scratch: Path) -> None:
    """Install a file into a fresh environment, and check with its command the policies that came with it."""
    environment, elsewhere = scratch / "environment", scratch / "elsewhere"
    elsewhere.mkdir(parents=True)
    run(sys.executable, "-m", "venv", environment)
    python, command = environment / "bin" / "python", environment / "bin" / "koord-policy"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps")
    build, runtime = (ROOT / "requirements" / f"{name}.txt" for name in ("build", "runtime"))
    run(*pip, "--require-hashes", "--requirement", build, "--requirement", runtime)
    run(*pip, "--no-index", "--no-build-isolation", file)
    run(python, "-m", "pip", "--disable-pip-version-check", "check")
    installed, _, place = run(python, "-I", "-c", PLACES, folder=elsewhere).strip().partition(" ")
    if installed != version or not Path(place).is_relative_to(environment.resolve()):
        raise NotReleasable(f"{file.name} installs {installed} in {place}")
    if run(command, "--version", folder=elsewhere) != f"koord-policy {version}\n":
        raise NotReleasable(f"the command of {file.name} does not report the version {version}")
    run(command, "lint", "--strict", Path(place) / "policies" / "scheduler", folder=elsewhere)


def only(folder: Path, pattern: str) -> Path:
    """Return the one file of a folder."""
    [found] = folder.glob(pattern)
    return found


def run(*words: str | Path, folder: Path = ROOT) -> str:
    """Run a command and return what it prints; refuse to go on where it fails."""
    done = subprocess.run([str(each) for each in words], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotReleasable(f"`{' '.join(map(str, words))}` ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
