from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tools.build_site import PROJECT, needed_files, sections, unlisted


def test_every_page_is_in_a_section_of_the_site():
    assert unlisted(yaml.safe_load((PROJECT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]) == []


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in {
        "README.md": "[b](docs/b.md#x), [out](https://a), [policy](p/a%20b.yaml)", "docs/a.md": "[up](../README.md)",
        "docs/b.md": "", "docs/c.md": "", "p/a b.yaml": "", "p/unused.yaml": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_patterns_stand_for_the_pages_that_are_not_listed(project: Path):
    nav = ["README.md", {"Pages": ["docs/b.md", "docs/*.md", {"Below": "docs/c.md"}]}]
    assert sections(nav, project) == ["README.md", {"Pages": ["docs/b.md", "docs/a.md", {"Below": "docs/c.md"}]}]
    assert unlisted(nav, project) == []
    assert unlisted(["README.md", "docs/b.md"], project) == ["docs/a.md", "docs/c.md"]


def test_pages_bring_what_they_link_to(project: Path):
    assert sorted(needed_files(project)) == ["README.md", "docs/a.md", "docs/b.md", "docs/c.md", "p/a b.yaml"]
    (project / "docs" / "c.md").write_text("[directory](../p)")
    with pytest.raises(SystemExit, match=r"docs/c.md links to the directory `../p`"):
        sorted(needed_files(project))
