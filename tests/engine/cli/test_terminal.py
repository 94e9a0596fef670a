from __future__ import annotations

import io
import subprocess
import sys

from rich.console import Console

from koordpolicy.engine.cli.terminal import _table


def lines(headers, rows, width):
    return _table(headers, rows, Console(width=width, file=io.StringIO(), markup=False, highlight=False))


def test_only_the_last_column_of_a_table_is_wrapped():
    rows = [["shop/web-5d4f7c9b8-x2x7q", 3, "one two three four five six seven eight"]]
    assert lines(["pod", "score", "why"], rows, 60) == [
        "pod                       score  why",
        "shop/web-5d4f7c9b8-x2x7q      3  one two three four five six",
        "                                 seven eight",
    ]


def test_names_stay_whole_where_the_terminal_is_narrower_than_they_are():
    rows = [["shop/web-5d4f7c9b8-x2x7q", "general-purpose-node-17", "ok"]]
    assert lines(["pod", "node", "why"], rows, 20) == [
        "pod                       node                     why",
        "shop/web-5d4f7c9b8-x2x7q  general-purpose-node-17  ok",
    ]


def test_where_that_is_not_enough_the_other_columns_are_wrapped_between_words():
    rows = [["keep-off-hot-nodes", "filter score reserve", "Pods avoid hot nodes, and others do too."]]
    assert lines(["name", "points", "description"], rows, 60) == [
        "name                points   description",
        "keep-off-hot-nodes  filter   Pods avoid hot nodes, and",
        "                    score    others do too.",
        "                    reserve",
    ]


def test_a_path_is_known_to_be_the_standard_output_however_it_is_named(tmp_path):
    file = tmp_path / "out"
    code = """
import pathlib, sys
from koordpolicy.engine.cli.terminal import is_standard_output
print([is_standard_output(each and pathlib.Path(each)) for each in (None, *sys.argv[1:])])
"""
    with file.open("w") as out:
        subprocess.run([sys.executable, "-c", code, "/dev/stdout", str(file), "/dev/null", str(tmp_path / "gone")],
                       stdout=out, check=True)
    assert file.read_text() == "[False, True, True, False, False]\n"
