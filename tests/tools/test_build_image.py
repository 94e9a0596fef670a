"""`make image` gives a builder all that it needs, and says why where it cannot."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("build_image", ROOT / "tools" / "build_image.py")
build_image = importlib.util.module_from_spec(spec)
sys.path.insert(0, str(ROOT / "tools"))
spec.loader.exec_module(build_image)
sys.path.remove(str(ROOT / "tools"))


@pytest.fixture
def with_pages(tmp_path, monkeypatch):
    """A tree with the pages of the console."""
    page = tmp_path / "tree" / "engine" / "console" / "static" / "index.html"
    page.parent.mkdir(parents=True)
    page.touch()
    package = tmp_path / "tree" / "src" / "koordpolicy" / "__init__.py"
    package.parent.mkdir(parents=True)
    package.write_text('__version__ = "1.2.3"\n')
    (tmp_path / "tree" / "requirements").mkdir()
    for name in ("runtime", "certificates", "build"):
        (tmp_path / "tree" / "requirements" / f"{name}.txt").write_text(f"# {name}\n")
    monkeypatch.setattr(build_image, "ROOT", tmp_path / "tree")
    return tmp_path / "tree"


def recorder(directory, ended=0):
    """A builder that writes its arguments down."""
    script = directory / "builder"
    script.write_text(f"#!{sys.executable}\nimport json, sys\n"
                      f"open({str(directory / 'said')!r}, 'w').write(json.dumps(sys.argv[1:]))\nsys.exit({ended})\n")
    script.chmod(0o755)
    return str(script)


def test_the_builder_gets_the_containerfile_the_base_and_the_locks(with_pages, tmp_path):
    build_image.build("example.org/one:2", base="mine", builder=[recorder(tmp_path), "build"])
    assert json.loads((tmp_path / "said").read_text()) == [
        "build", "--build-arg", "VERSION=1.2.3", "--build-arg", "REVISION=unknown",
        "--build-arg", "LOCKS=runtime certificates", "--build-arg", "BASE=mine",
        "--file", str(with_pages / "Containerfile"), "--tag", "example.org/one:2", str(with_pages)]


def test_wheels_that_are_complete_are_not_downloaded_again(with_pages, tmp_path):
    locks = "".join(f"# {name}\n" for name in ("runtime", "certificates", "build"))
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / ".complete").write_text(hashlib.sha256(f"{locks}{sys.version}".encode()).hexdigest())
    (wheels / "one.whl").touch()
    build_image.build(wheels=wheels, builder=[recorder(tmp_path)])
    assert json.loads((tmp_path / "said").read_text())[:2] == ["--build-context", f"wheels={wheels}"]
    assert (wheels / "one.whl").exists()


def test_what_else_a_directory_holds_stays_beside_the_wheels(with_pages, tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "old.whl").touch()
    (wheels / ".complete").write_text("of other locks")
    build_image.build(wheels=wheels, builder=[recorder(tmp_path)])  # these locks name nothing
    locks = "".join(f"# {name}\n" for name in ("runtime", "certificates", "build"))
    assert {path.name: path.read_text() for path in wheels.iterdir()} == {
        "old.whl": "", ".complete": hashlib.sha256(f"{locks}{sys.version}".encode()).hexdigest()}


def test_without_pages_the_image_is_not_built(with_pages, tmp_path):
    (with_pages / "engine" / "console" / "static" / "index.html").unlink()
    with pytest.raises(build_image.CannotBuildImage, match="the pages of the console are not built: run `make web`"):
        build_image.build(builder=[recorder(tmp_path)])
    assert not (tmp_path / "said").exists()


def test_a_builder_that_is_missing_or_fails_is_named(with_pages, tmp_path, monkeypatch):
    with pytest.raises(build_image.CannotBuildImage, match="`no-such-builder` cannot be run: No such file"):
        build_image.build(builder=["no-such-builder"])
    with pytest.raises(build_image.CannotBuildImage, match=r"builder --build-arg .* ended with 3"):
        build_image.build(builder=[recorder(tmp_path, 3)])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build_image.CannotBuildImage, match="none of podman, buildah, docker on the path: install one"):
        build_image.build()


def test_the_revision_is_the_commit_and_says_whether_the_tree_has_changed(with_pages, monkeypatch):
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@example.org")

    def git(*words):
        done = subprocess.run(["git", *words], cwd=with_pages, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "one")
    commit = git("rev-parse", "HEAD")
    assert build_image.revision() == commit
    (with_pages / "requirements" / "build.txt").write_text("# other\n")
    assert build_image.revision() == f"{commit}-changed"
