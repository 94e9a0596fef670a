"""The lock files in `requirements/` agree with pyproject.toml, are complete, and have hashes."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).parents[1]
DECLARED = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = DECLARED["project"]["optional-dependencies"]
RUNTIME = DECLARED["project"]["dependencies"]
WANTED = {
    "build": DECLARED["build-system"]["requires"],
    "runtime": RUNTIME,
    "dev": [*RUNTIME, *EXTRAS["dev"]],
    "bench": [*RUNTIME, *EXTRAS["bench"]],
    "web": EXTRAS["web"],
    "certificates": EXTRAS["certificates"],
}
FILES = {name: PROJECT / "requirements" / f"{name}.txt" for name in WANTED}


def entries(name: str) -> list[tuple[Requirement, list[str]]]:
    """Return each requirement of a lock file with its hashes."""
    text = re.sub(r"^ *#.*\n", "", FILES[name].read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = []
    for entry in text.replace("\\\n", " ").splitlines():
        requirement, *hashes = entry.split("--hash=")
        found.append((Requirement(requirement), [each.strip() for each in hashes]))
    return found


def pins(name: str) -> dict[str, set[str]]:
    """Return the versions of each package; there may be one per platform."""
    found: dict[str, set[str]] = {}
    for requirement, _ in entries(name):
        [specifier] = requirement.specifier
        assert specifier.operator == "=="
        found.setdefault(canonicalize_name(requirement.name), set()).add(specifier.version)
    return found


def closure(wanted: list[str]) -> set[str]:
    """Return the names of all packages that the wanted ones need here, by the metadata of those installed."""
    left = [Requirement(each) for each in wanted]
    seen: set[tuple[str, str]] = set()
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                needed = requires(name) or []
            except PackageNotFoundError:
                pytest.fail(f"`{name}` is not installed: run `make test`, which installs what is locked")
            for each in map(Requirement, needed):
                if each.marker is None or each.marker.evaluate({"extra": extra}):
                    left.append(each)
    return {name for name, _ in seen}


@pytest.mark.parametrize("name", WANTED)
def test_everything_that_is_declared_is_locked_at_a_version_that_is_permitted(name: str):
    locked = pins(name)
    wrong = [
        each for each in map(Requirement, WANTED[name])
        if not (found := locked.get(canonicalize_name(each.name)))
        or not all(each.specifier.contains(version, prereleases=True) for version in found)
    ]
    assert wrong == [], "run `make lock`"


@pytest.mark.parametrize("name", WANTED)
def test_every_entry_has_hashes(name: str):
    assert [str(each) for each, hashes in entries(name) if not hashes] == []
    assert {each[:7] for _, hashes in entries(name) for each in hashes} == {"sha256:"}


@pytest.mark.parametrize("name", WANTED)
def test_a_lock_file_names_no_index(name: str):
    assert re.findall(r"://|^ *-[^-\n].*|^ *--(?!hash=).*", FILES[name].read_text(encoding="utf-8"), re.MULTILINE) == []


def test_a_package_has_the_same_versions_in_all_files():
    tools = pins("dev")
    for name in ("build", "runtime"):
        assert {each: tools[each] for each in pins(name)} == pins(name)
    rivals = pins("bench")
    assert {each: tools[each] for each in rivals.keys() & tools.keys()} == {
        each: versions for each, versions in rivals.items() if each in tools
    }


@pytest.mark.parametrize("name", ["build", "runtime", "dev"])
def test_a_lock_file_holds_what_is_needed_here_and_no_more(name: str):
    here = {
        canonicalize_name(each.name) for each, _ in entries(name) if each.marker is None or each.marker.evaluate()
    }
    assert here == closure(WANTED[name]), "run `make lock`"


def test_every_file_of_the_folder_is_checked():
    assert sorted((PROJECT / "requirements").iterdir()) == sorted(FILES.values())
