from __future__ import annotations

import io

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
