"""Rates of requests, by user and address."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from koordpolicy.engine.console.guard import Guard, NotPermitted, RateLimit, client_of
from koordpolicy.engine.serving.reviews import User


def test_a_client_has_a_burst_and_then_so_many_requests_per_second():
    now = [0.0]
    limit = RateLimit(per_second=2, burst=3, clock=lambda: now[0])
    assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert limit.take("b") == 0
    now[0] = 0.5
    assert [limit.take("a"), limit.take("a")] == [0, 0.5]
    now[0] = 100.0
    assert [limit.take("a", 3), limit.take("a")] == [0, 0.5]


def test_a_request_that_costs_more_takes_more_and_none_if_it_waits():
    limit = RateLimit(per_second=1, burst=10, clock=lambda: 0.0)
    assert [limit.take("a", 6), limit.take("a", 6), limit.take("a", 4)] == [0, 2, 0]


def test_clients_are_bounded_in_number_and_the_least_recent_is_forgotten():
    limit = RateLimit(per_second=1, burst=1, clock=lambda: 0.0)
    assert [limit.take(str(number)) for number in range(1024)] == [0] * 1024
    assert limit.take("0") == 1
    assert limit.take("another") == 0
    assert [limit.take("1"), limit.take("0")] == [0, 1]


def test_users_at_one_address_and_addresses_of_one_user_have_rates_of_their_own():
    guard = Guard(rate=RateLimit(per_second=1, burst=1, clock=lambda: 0.0))

    def counted(user: str, address: str) -> tuple[int, dict[str, str]]:
        transport: Any = type("Transport", (), {"get_extra_info": lambda _, name, default=None: (
            (address, 1) if name == "peername" else default)})()
        try:
            guard.count(client_of(make_mocked_request("GET", "/", transport=transport), User(user)), 1.0)
        except NotPermitted as refused:
            return refused.status, refused.headers
        return 200, {}

    permitted, limited = (200, {}), (429, {"Retry-After": "1"})
    assert [counted(*each) for each in (
        ("ana", "10.0.0.1"), ("ana", "10.0.0.1"), ("ben", "10.0.0.1"), ("ana", "10.0.0.2"), ("ben", "10.0.0.1"),
    )] == [permitted, limited, permitted, permitted, limited]


@pytest.mark.parametrize(("host", "origin", "status"), [
    ("localhost:1", None, 0), ("LOCALHOST:1", "http://localhost:1", 0), ("localhost:1", "https://localhost:1", 0),
    ("localhost:1", "http://localhost:2", 403), ("localhost:1", "http://localhost:1.evil.example", 403),
    ("localhost.evil.example", None, 421), ("", None, 421), ("[::1]:1", "http://[::1]:1", 0),
    ("127.0.0.1@evil.example", None, 421), ("localhost:1", "", 403),
])
def test_hosts_and_origins_are_compared_as_a_whole(host: str, origin: str | None, status: int):
    headers = {"Host": host} | ({} if origin is None else {"Origin": origin})
    request = make_mocked_request("POST", "/api/v1/changes/apply", headers=headers)
    try:
        Guard().check_address(request)
        found = 0
    except NotPermitted as refused:
        found = refused.status
    assert found == status
