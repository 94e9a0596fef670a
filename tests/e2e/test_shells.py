"""The scripts of `koord-policy completion` in real shells, those of them that the machine has; and kubectl's."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from koordpolicy.engine.cli.completion import script

ZSH = """
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'PS1=; fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -D
koord-policy() { print -r -- "RA""N<$*>" }; print "READ""Y"'
zpty -r shell line '*READY*'
zpty -w shell $'koord-policy lint --chang\\tHEAD po\\t'
zpty -r shell line '*RAN<*>*'
print -r -- "${${line##*RAN<}%%>*}"
zpty -w shell $'koord-policy comple\\tba\\t'
zpty -r shell line '*RAN<*>*'
print -r -- "${${line##*RAN<}%%>*}"
"""


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"there is no {program} on this machine")


def output(*command: str, cwd: Path, **more: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=True, timeout=120,
                          env={**os.environ, **more})
    return done.stdout.splitlines()


@needs("zsh")
def test_zsh_completes_what_is_typed(tmp_path: Path):
    (tmp_path / "policies").mkdir()
    (tmp_path / "_koord-policy").write_text(script("zsh"))
    assert output("zsh", "-f", "-c", ZSH, cwd=tmp_path) == ["lint --changed-since HEAD policies", "completion bash"]


@needs("fish")
def test_fish_lists_candidates_with_descriptions(tmp_path: Path):
    (tmp_path / "policies").mkdir()
    (tmp_path / "koord-policy.fish").write_text(script("fish"))
    lines = ("koord-policy lint --ou", "koord-policy lint --output j", "koord-policy lint pol")
    program = "; ".join(f"complete -C '{line}'" for line in lines)
    assert output("fish", "-N", "-c", f"source koord-policy.fish; {program}", cwd=tmp_path) == [
        "--output\tformat of the report", "json\tformat of the report", "junit\tformat of the report", "policies/",
    ]


@needs("kubectl")
def test_kubectl_finds_the_plugin_and_its_completion(tmp_path: Path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    (tmp_path / "a.yaml").write_text("a:   1\n")
    assert output("kubectl", "koord-policy", "fmt", "a.yaml", cwd=tmp_path, PATH=path) == [
        "a.yaml", "1 of 1 file changed",
    ]
    assert output("kubectl", "__complete", "koord-policy", "lint", "--output", "j", cwd=tmp_path, PATH=path) == [
        "json", "junit", ":4",
    ]


def read_until(terminal: int, wanted: bytes) -> bytes:
    text, end = b"", time.monotonic() + 120
    while wanted not in text:
        ready, _, _ = select.select([terminal], [], [], 120)
        assert ready, f"{wanted!r} did not come, but {text!r}"
        assert time.monotonic() < end, f"{wanted!r} did not come, but {text[-4096:]!r}"
        text += os.read(terminal, 4096)
    return text


def test_top_ends_by_a_key_and_by_a_signal_and_restores_the_terminal():
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "koordpolicy", "top", "--cluster", "examples/cluster", "--interval", "0.1"]
    for end in ("q", "SIGTERM"):
        ours, theirs = os.openpty()
        before = termios.tcgetattr(theirs)
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=root,
                                   env={**os.environ, "NO_COLOR": "1", "TERM": "xterm", "LINES": "24", "COLUMNS": "80"})
        text = read_until(ours, b"q: quit")
        if end == "q":
            os.write(ours, b"q")
        else:
            process.terminate()
        text += read_until(ours, b"\x1b[?1049l")
        assert process.wait(timeout=120) == 0
        assert b"general-03" in text
        assert b"\x1b[3" not in text
        assert termios.tcgetattr(theirs) == before
        os.close(ours)
        os.close(theirs)
