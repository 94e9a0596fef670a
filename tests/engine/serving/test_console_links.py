"""Addresses of the console's views."""

from __future__ import annotations

import pytest

from koordpolicy.engine.serving.console_links import ConsoleLinks


def test_addresses_open_the_view_of_a_pod_or_node():
    links = ConsoleLinks.at("https://console.example.org:8443/koord/")
    assert links.pod("shop/web-1") == "https://console.example.org:8443/koord/#/pod?key=shop%2Fweb-1"
    assert links.pod("shop/web-1", "hot") == "https://console.example.org:8443/koord/#/pod?key=shop%2Fweb-1&node=hot"
    assert links.node("a b&c=d\u202e") == "https://console.example.org:8443/koord/#/map?node=a%20b%26c%3Dd%E2%80%AE"


def test_without_a_console_there_are_no_addresses():
    assert (ConsoleLinks().pod("shop/web-1"), ConsoleLinks().node("hot")) == ("", "")


@pytest.mark.parametrize("text", [
    "", "console.example.org", "javascript:alert(1)", "ftp://example.org", "http://", "http://[::1", "http://x/#/map",
    "http://x/?a", "http://x\ny", "http://user:secret@x", "http://x:0", "http://x:99999", "http://" + "x" * 300,
])
def test_other_texts_are_no_address_of_a_console(text: str):
    with pytest.raises(ValueError, match="is not an address such as"):
        ConsoleLinks.at(text)
