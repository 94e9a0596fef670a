from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

PROJECT = Path(__file__).parents[1]
ROOT = PROJECT / "src" / "koordpolicy"
FOLDERS = ("engine", "builtin_plugins", "schemas", "policies")


def test_the_wheel_holds_exactly_the_files_of_the_folders(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(PROJECT)],
        check=True, capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == {*(name for folder in FOLDERS for name in files(folder)), *files_of_the_root()}


def files(folder):
    for path in (PROJECT / folder).rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"koordpolicy/{path.relative_to(PROJECT).as_posix()}"


def files_of_the_root():
    kit = {f"koordpolicy/testing/{path.name}" for path in (ROOT / "testing").glob("*.py")}
    return {f"koordpolicy/{path.name}" for path in ROOT.iterdir() if path.is_file()} | kit


def test_the_import_root_links_to_every_folder():
    assert {path.name: str(path.readlink()) for path in ROOT.iterdir() if path.is_symlink()} == {
        folder: f"../../{folder}" for folder in FOLDERS
    }
