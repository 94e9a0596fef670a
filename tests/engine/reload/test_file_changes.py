"""The files that a change of policies adds, removes and replaces."""

from __future__ import annotations

from koordpolicy.engine.reload.file_changes import FileChange, file_changes, files_of, to_json
from koordpolicy.engine.reload.history import GenerationRecord
from koordpolicy.engine.reload.mount import Version
from koordpolicy.engine.source import Source


def files(**texts: str) -> dict[str, Source]:
    return {name: Source(f"/etc/{name}", text) for name, text in texts.items()}


def test_files_that_differ_are_listed_by_name():
    assert file_changes(files(a="1", b="1", c="1"), files(d="2", c="1", b="2")) == (
        FileChange("a", "1", None), FileChange("b", "1", "2"), FileChange("d", None, "2"))


def test_files_of_several_sources_have_the_path_of_theirs():
    one, other = (Version.of(files(a=text), {"a": "x"}) for text in "12")
    assert {name: source.text for name, source in files_of(GenerationRecord(1, "x", 0.0, {"/p": one})).items()} == {
        "a": "1"}
    assert {name: source.text for name, source in files_of(
        GenerationRecord(1, "x", 0.0, {"/p": one, "/q": other})).items()} == {"/p/a": "1", "/q/a": "2"}
    assert files_of(None) == {}


def test_long_texts_are_left_out_by_name():
    changes = (FileChange("a", None, "123"), FileChange("b", "1234", "56"), FileChange("c", "1", None))
    assert to_json(changes, most=9) == {"changes": [
        {"file": "a", "before": None, "after": "123"}, {"file": "b", "before": "1234", "after": "56"}],
        "changesLeftOut": ["c"]}
    assert to_json(changes)["changes"] == [each.to_json() for each in changes]
    assert "changesLeftOut" not in to_json(changes)
