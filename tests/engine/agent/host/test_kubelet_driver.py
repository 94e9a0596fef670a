from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from koordpolicy.engine.agent.host.kubelet_driver import DriverQuestion


def test_the_answer_is_not_awaited_and_a_failure_is_asked_again():
    asked: list[Future[dict[str, Any]]] = []

    def ask() -> Future[dict[str, Any]]:
        asked.append(Future())
        return asked[-1]

    question = DriverQuestion(ask)
    assert (question(), question(), len(asked)) == ("", "", 1)
    asked[0].set_exception(OSError("refused"))
    assert (question(), len(asked)) == ("", 2)
    asked[1].set_result({})
    assert (question(), len(asked)) == ("", 3)
    asked[2].set_result({"cgroupDriver": "cgroupfs"})
    assert (question(), len(asked)) == ("cgroupfs", 3)


def test_nobody_is_asked_while_the_node_is_not_known():
    assert DriverQuestion(lambda: None)() == ""
