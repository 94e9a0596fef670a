from __future__ import annotations

import pytest

from koordpolicy.engine.experiments.journal import Busy, ExperimentOutcome, Journal, key_of

POINT = {"policy": "FGD", "seed": 42}
OUTCOME = ExperimentOutcome({"failed": 3, "gpu": 95.39}, {"gpu": [0.5, None, 95.39]}, 1.5)


def test_what_was_added_is_there_when_the_journal_is_opened_again(tmp_path):
    path = tmp_path / "runs.jsonl"
    with Journal(path) as journal:
        assert journal.finished == {}
        journal.add("a", POINT, OUTCOME)
    with Journal(path) as journal:
        assert journal.finished == {"a": OUTCOME}
        journal.add("b", POINT, OUTCOME)
    assert [line[:11] for line in path.read_text().splitlines()] == ['{"key": "a"', '{"key": "b"']


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_line_that_was_not_written_to_its_end_does_not_count_and_is_cut_off(tmp_path, cut):
    path = tmp_path / "runs.jsonl"
    with Journal(path) as journal:
        journal.add("a", POINT, OUTCOME)
        journal.add("b", POINT, OUTCOME)
    path.write_bytes(path.read_bytes()[:-cut])
    with Journal(path) as journal:
        assert list(journal.finished) == ["a"]
        journal.add("c", POINT, OUTCOME)
    with Journal(path) as journal:
        assert list(journal.finished) == ["a", "c"]


def test_lines_that_are_none_of_ours_do_no_harm(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text('nonsense\n{"key": "x"}\n[]\n')
    with Journal(path) as journal:
        assert journal.finished == {}
        journal.add("a", POINT, OUTCOME)
    with Journal(path) as journal:
        assert list(journal.finished) == ["a"]


def test_a_fresh_start_forgets_what_was_finished(tmp_path):
    path = tmp_path / "runs.jsonl"
    with Journal(path) as journal:
        journal.add("a", POINT, OUTCOME)
    with Journal(path, fresh=True) as journal:
        assert journal.finished == {}
    assert path.read_bytes() == b""


def test_a_second_writer_is_refused_and_harms_nothing(tmp_path):
    path = tmp_path / "runs.jsonl"
    with Journal(path) as journal:
        journal.add("a", POINT, OUTCOME)
        with pytest.raises(Busy):
            Journal(path, fresh=True)
    with Journal(path) as journal:
        assert list(journal.finished) == ["a"]


def test_another_value_another_input_is_another_experiment():
    keys = {key_of(point, inputs) for point in (POINT, {**POINT, "seed": 43}) for inputs in ("x", "y")}
    assert len(keys) == 4
    assert key_of({"seed": 42, "policy": "FGD"}, "x") in keys


@pytest.mark.parametrize("line", [
    "[" * 100_000, '{"a":' * 50_000, '{"key": 5, "figures": {}, "curves": {}, "seconds": 1}',
    '{"key": [], "figures": {}, "curves": {}, "seconds": 1}',
    '{"key": "x", "figures": [], "curves": {}, "seconds": 1}',
    '{"key": "x", "figures": {"a": "b"}, "curves": {}, "seconds": 1}',
    '{"key": "x", "figures": {}, "curves": {"a": 5}, "seconds": 1}',
    '{"key": "x", "figures": {}, "curves": {"a": [{}]}, "seconds": 1}',
    '{"key": "x", "figures": {}, "curves": {}, "seconds": "1"}',
    '{"key": "x", "figures": {"a": 1' + "0" * 400 + '}, "curves": {}, "seconds": 1}',
    '{"key": "x", "figures": {"a": NaN}, "curves": {}, "seconds": 1}', "\ud800", "null", "x" * (17 * 1024 * 1024),
])
def test_a_line_of_other_types_or_depth_is_left_out(tmp_path, line):
    path = tmp_path / "runs.jsonl"
    with Journal(path) as journal:
        journal.add("a", POINT, OUTCOME)
    with path.open("ab") as file:
        file.write(line.encode("utf-8", "surrogatepass") + b"\n")
    with Journal(path) as journal:
        assert journal.finished == {"a": OUTCOME}
        journal.add("b", POINT, OUTCOME)
    with Journal(path) as journal:
        assert list(journal.finished) == ["a", "b"]


def test_a_link_is_not_followed(tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "runs.jsonl"
    victim.write_bytes(b"theirs")
    path.symlink_to(victim)
    with pytest.raises(OSError, match="it is a symbolic link"):
        Journal(path, fresh=True)
    assert victim.read_bytes() == b"theirs"
