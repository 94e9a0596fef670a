"""A text under one key of a ConfigMap."""

from __future__ import annotations

import pytest

from koordpolicy.engine.descheduler.live.config_map import ConfigMapText
from koordpolicy.engine.descheduler.proof.store import StoreChangedError

from .config_maps import PATH, ConfigMaps


def test_a_config_map_is_created_read_and_changed_without_its_other_keys():
    server = ConfigMaps()
    key = server.key("text")
    assert key.read() == ConfigMapText()
    assert key.write("one", "") == key.read() == ConfigMapText("one", "1")
    server.write(PATH, {"other": "x"})
    assert key.write("two", "2") == ConfigMapText("two", "3")
    assert server.objects[PATH]["data"] == {"text": "two", "other": "x"}


def test_what_somebody_else_wrote_is_not_overwritten():
    server = ConfigMaps()
    key, other = server.key("text"), server.key("text")
    version = key.write("one", "").version
    with pytest.raises(StoreChangedError, match="n/m"):
        other.write("two", "")
    other.write("two", version)
    with pytest.raises(StoreChangedError, match="n/m"):
        key.write("three", version)
    del server.objects[PATH]
    with pytest.raises(StoreChangedError, match="n/m"):
        key.write("three", "2")


def test_refusals_are_errors():
    server = ConfigMaps()
    server.code = 403
    with pytest.raises(OSError, match="403: no"):
        server.key("text").read()
    with pytest.raises(OSError, match="forbidden: "):
        server.key("text").write("x", "")


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b"\xff", b'{"data": 7}', b'{"metadata": "x"}', b"[" * 100_000])
def test_answers_that_are_no_config_map_are_errors(answer: bytes):
    server = ConfigMaps()
    version = server.key("text").write("one", "").version
    server.answer = answer
    for call in (server.key("text").read, lambda: server.key("text").write("two", version)):
        with pytest.raises(OSError, match="the answer about the ConfigMap n/m is none"):
            call()
