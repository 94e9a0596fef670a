from __future__ import annotations

from pathlib import Path

import pytest

from koordpolicy.engine.agent.states_informer.state_store import StateStore, StoredState

STATES = {"NodeSLO": StoredState(5.0, {"spec": {}}), "Pod": StoredState(7.0, [])}


def store(path: Path, node: str = "node", boot: str = "boot") -> StateStore:
    return StateStore(path / "state", node, boot=boot)


def saved(path: Path) -> StateStore:
    made = store(path)
    made.write(made.encode(STATES))
    return made


def test_states_come_back_with_their_times(tmp_path: Path):
    assert saved(tmp_path).load() == STATES
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert [each.name for each in (tmp_path / "state").iterdir()] == ["states.json"]


def test_without_a_file_there_are_no_states_and_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    assert store(tmp_path).load() == {}
    assert caplog.text == ""


def test_pods_of_an_earlier_start_of_the_machine_are_left_out(tmp_path: Path):
    saved(tmp_path)
    assert store(tmp_path, boot="other").load() == {"NodeSLO": STATES["NodeSLO"]}


@pytest.mark.parametrize(("content", "message"), [
    (b"", "the format is not `koord-policy/agent-states/1`"),
    (b"\xff\x00\n\n", "the format is not"),
    (b"koord-policy/agent-states/2 0 x\n", "the format is not"),
    (None, "is incomplete or was changed"),
])
def test_a_file_that_is_not_whole_is_not_used(
    tmp_path: Path, content: bytes | None, message: str, caplog: pytest.LogCaptureFixture,
):
    made = saved(tmp_path)
    made.path.write_bytes(made.path.read_bytes()[:-9] if content is None else content)
    assert made.load() == {}
    assert message in caplog.text


def test_states_of_another_node_and_links_are_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    made = saved(tmp_path)
    assert store(tmp_path, node="other").load() == {}
    assert "those of the node `node`" in caplog.text
    made.path.rename(tmp_path / "elsewhere")
    made.path.symlink_to(tmp_path / "elsewhere")
    assert made.load() == {}
    assert "it is a symbolic link" in caplog.text


def test_a_wrong_shape_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    made = store(tmp_path)
    made.write(made.encode({"Node": StoredState("now", {})}))  # type: ignore[arg-type]
    assert made.load() == {}
    assert "are not used" in caplog.text
