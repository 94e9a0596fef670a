"""Checks of `make release` before anything is published."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import koordpolicy

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("release", ROOT / "tools" / "release.py")
release = importlib.util.module_from_spec(spec)
spec.loader.exec_module(release)

RELEASED = "# Changelog\n\nWords.\n\n## Unreleased\n\n## 1.2.0 (2026-01-02)\n\n### Added\n\n- A.\n\n## 1.1.0\n\n- B.\n"
PENDING = RELEASED.replace("## Unreleased\n", "## Unreleased\n\n- C.\n")


def test_the_version_is_read_from_the_package():
    text = (ROOT / "src" / "koordpolicy" / "__init__.py").read_text()
    assert release.declared_version(text) == koordpolicy.__version__
    with pytest.raises(release.NotReleasable, match="declares no `__version__`"):
        release.declared_version("version = '1'\n")


def test_a_tag_must_be_that_of_the_version():
    release.check_tag("1.2.0", None)
    release.check_tag("1.2.0", "v1.2.0")
    with pytest.raises(release.NotReleasable, match=r"the tag `v1\.2\.1` is not `v1\.2\.0`"):
        release.check_tag("1.2.0", "v1.2.1")


def test_the_notes_are_the_section_of_the_version():
    assert release.changes(RELEASED, "1.2.0", final=True) == "### Added\n\n- A.\n"
    assert release.changes(RELEASED, "1.1.0", final=True) == "- B.\n"


def test_changes_without_a_version_are_built_and_never_released():
    assert release.changes(PENDING, "1.2.0", final=False) == "- C.\n"
    with pytest.raises(release.NotReleasable, match="has changes under `## Unreleased`"):
        release.changes(PENDING, "1.2.0", final=True)


@pytest.mark.parametrize("final", [False, True])
def test_a_version_without_a_section_is_not_released(final):
    with pytest.raises(release.NotReleasable, match=r"has no section `## 1\.3\.0`"):
        release.changes(RELEASED, "1.3.0", final=final)


def test_the_source_distribution_must_make_the_same_wheel():
    release.compare({"a.py": b"1", "b.py": b"2"}, {"b.py": b"2", "a.py": b"1"})
    with pytest.raises(release.NotReleasable, match=r"differs in a\.py, c\.py$"):
        release.compare({"a.py": b"1", "b.py": b"2"}, {"a.py": b"2", "b.py": b"2", "c.py": b""})


def test_a_command_that_fails_is_shown_with_what_it_printed():
    with pytest.raises(release.NotReleasable, match=r"`sh -c echo no; exit 3` ended with 3:\nno"):
        release.run("sh", "-c", "echo no; exit 3")


def test_the_changelog_has_one_section_per_version_newest_first():
    titles = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    versions = [title for title in titles if title != "Unreleased"]
    assert titles == ["Unreleased", *versions] or titles == versions
    assert [each for each in versions if not re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", each)] == []
    numbers = [tuple(map(int, each.split(" ")[0].split("."))) for each in versions]
    assert numbers == sorted(set(numbers), reverse=True)
