from __future__ import annotations

import re

import pytest

from koordpolicy.engine.monitoring.addresses import UnresolvedError, addresses_of, check_address


def test_a_url_stands_for_itself_and_a_name_for_each_of_its_addresses():
    assert addresses_of("https://a.example.org:8443/path") == ["https://a.example.org:8443/path"]
    assert "http://127.0.0.1:8888/x" in addresses_of("dns+http://localhost:8888/x")
    assert addresses_of("dns+https://127.0.0.1") == ["https://127.0.0.1:443"]
    assert addresses_of("dns+http://[::1]:80") == ["http://[::1]:80"]


@pytest.mark.parametrize(
    "word", ["", "a:1", "ftp://a:1", "http://", "http://u@a:1", "http://a:0", "http://a:x", "dns+a"])
def test_other_texts_are_refused(word: str):
    with pytest.raises(ValueError, match=f"^{re.escape(word.removeprefix('dns+'))}$"):
        check_address(word)


@pytest.mark.parametrize("name", ["nobody.invalid", "a" * 300, "a..b"])
def test_a_name_without_an_address_is_reported(name: str):
    with pytest.raises(UnresolvedError, match=f"^`{name}` has no address: "):
        addresses_of(f"dns+http://{name}:1")
