"""Build the documentation site: `python tools/build_site.py` writes build/site.

Pages link to each other, and to files of the repository, by relative paths. So the pages and what they link to are
copied to build/site-pages in their places, where the links hold too, and Zensical builds them from there. A broken
link, a linked heading that does not exist, and a page that is in no section are errors.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml

PROJECT = Path(__file__).parents[1]
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md", "examples/*/README.md")
_LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")


def pages(project: Path = PROJECT) -> list[str]:
    """Return the paths of all pages of the site, sorted."""
    return sorted({path.relative_to(project).as_posix() for pattern in PAGES for path in project.glob(pattern)})


def sections(nav: Sequence[Any], project: Path = PROJECT) -> list[Any]:
    """Return the navigation with patterns replaced by the pages that match them and are not listed by themselves."""
    listed = {each for each in _leaves(nav) if "*" not in each}
    found: list[Any] = []
    for entry in nav:
        if isinstance(entry, Mapping):
            found += [{title: sections(below, project) if isinstance(below, list) else below}
                      for title, below in entry.items()]
        elif "*" in entry:
            matching = sorted(path.relative_to(project).as_posix() for path in project.glob(entry))
            found += [each for each in matching if each not in listed]
        else:
            found.append(entry)
    return found


def _leaves(nav: Iterable[Any]) -> Iterator[str]:
    for entry in nav:
        if isinstance(entry, Mapping):
            for below in entry.values():
                yield from _leaves(below if isinstance(below, list) else [below])
        else:
            yield entry


def unlisted(nav: Sequence[Any], project: Path = PROJECT) -> list[str]:
    """Return the pages that are in no section."""
    return sorted(set(pages(project)) - {*_leaves(sections(nav, project))})


def needed_files(project: Path = PROJECT) -> Iterator[str]:
    """Yield the paths of all pages, and of the files that they link to; a link to a directory is an error."""
    waiting, seen = pages(project), set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        yield name
        path = project / name
        for target in _LINK.findall(path.read_text(encoding="utf-8")) if path.suffix == ".md" else ():
            linked = (path.parent / unquote(target)).resolve()
            if linked.is_dir():
                raise SystemExit(f"{name} links to the directory `{target}`: link to a file in it")
            if linked.is_file() and linked.is_relative_to(project.resolve()):
                waiting.append(linked.relative_to(project.resolve()).as_posix())


def main() -> int:
    """Stage the pages and build the site."""
    build = PROJECT / "build"
    staged = build / "site-pages"
    configuration = yaml.safe_load((PROJECT / "mkdocs.yml").read_text(encoding="utf-8"))
    if missing := unlisted(configuration["nav"]):
        print(f"mkdocs.yml: in no section of `nav`: {', '.join(missing)}", file=sys.stderr)
        return 1
    shutil.rmtree(staged, ignore_errors=True)
    for name in needed_files():
        (staged / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PROJECT / name, staged / name)
    configuration |= {"docs_dir": "site-pages", "site_dir": "site", "nav": sections(configuration["nav"])}
    written = build / "site.yml"
    written.write_text(yaml.safe_dump(configuration, sort_keys=False), encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(written)],
                          check=False)
    if done.returncode == 0:
        print(f"the site is in {build / 'site'}: open index.html through a server, such as "
              "`python3 -m http.server --directory build/site`")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
