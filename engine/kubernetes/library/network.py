"""IP addresses and CIDR blocks (apiserver `pkg/cel/library/ip.go` and `cidr.go`)."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final

from koordpolicy.engine.cel.check.environment import Cost, Function, Overload
from koordpolicy.engine.cel.values.types import BOOL, INT, STRING, Type
from koordpolicy.engine.cel.values.values import EvaluationError, no_overload

_COST: Final = Cost(0, ((0, 0.1),))
_IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class IP:
    """An IP address, version 4 or 6, without zone."""

    cel_type: ClassVar[Type] = Type("net.IP")

    address: _IPAddress

    @property
    def cel_size(self) -> int:
        """Its length in octets, which cost rules count."""
        return self.address.max_prefixlen // 8

    def __str__(self) -> str:
        return str(self.address)


@dataclass(frozen=True, slots=True)
class CIDR:
    """A block of addresses as written: equal only to one with the same address and the same length."""

    cel_type: ClassVar[Type] = Type("net.CIDR")

    address: _IPAddress
    length: int

    @property
    def cel_size(self) -> int:
        """The length of its network part in octets, which cost rules count."""
        return math.ceil(self.length / 8)

    def __str__(self) -> str:
        return f"{self.address}/{self.length}"

    def network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        """Return the block without host bits."""
        return ipaddress.ip_network((self.address, self.length), strict=False)


_IP: Final = IP.cel_type
_CIDR: Final = CIDR.cel_type


@lru_cache(maxsize=4096)
def _address(text: str) -> _IPAddress:
    """Return an address; raise `ValueError` for strings that Kubernetes rejects."""
    if "%" in text:
        raise ValueError(f"IP address `{text[:64]}` with zone value is not allowed")
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"`{text[:64]}` is not an IP address") from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        raise ValueError(f"IPv4-mapped IPv6 address `{text[:64]}` is not allowed")
    return address


def ip(text: str) -> IP:
    """Return the address that a string stands for."""
    try:
        return IP(_address(text))
    except ValueError as error:
        raise EvaluationError(str(error)) from None


@lru_cache(maxsize=4096)
def _block(text: str) -> CIDR:
    head, slash, tail = text.partition("/")
    short = tail.isascii() and tail.isdigit() and len(tail) <= 3 and (tail == "0" or not tail.startswith("0"))
    if not slash or not short:
        raise ValueError(f"`{text[:64]}` is not a CIDR block: write it as 10.0.0.0/8")
    address = _address(head)
    if int(tail) > address.max_prefixlen:
        raise ValueError(f"`{text[:64]}` is not a CIDR block: its length is out of range")
    return CIDR(address, int(tail))


def cidr(text: str) -> CIDR:
    """Return the block that a string stands for."""
    try:
        return _block(text)
    except ValueError as error:
        raise EvaluationError(str(error)) from None


def _is(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def test(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return test


def _is_canonical(text: str) -> bool:
    return str(ip(text)) == text


def _contains_ip(block: CIDR, address: IP) -> bool:
    network = block.network()
    return address.address.version == network.version and address.address in network


def _contains_cidr(block: CIDR, part: CIDR) -> bool:
    return (
        block.address.version == part.address.version
        and block.length <= part.length
        and part.address in block.network()
    )


def _containment(*, whole: bool, text: bool = False) -> Callable[[CIDR, object], int]:
    def measure(block: CIDR, other: object) -> int:
        """Return the cost of comparing with a block: its length twice, and once more if it is masked (`whole`).

        A `text` is read first.
        """
        size = block.cel_size
        cost = math.ceil(0.2 * size) + (math.ceil(0.1 * size) + 1 if whole else 0)
        return cost + (math.ceil(0.1 * len(other)) if text and isinstance(other, str) else 0)

    return measure


def _from_text(parse: Callable[[str], object], test: Callable[..., bool]) -> Callable[[CIDR, str], bool]:
    def evaluate(block: CIDR, text: str) -> bool:
        try:
            parsed = parse(text)
        except EvaluationError:
            raise no_overload() from None
        return test(block, parsed)

    return evaluate


def _is_link_local_multicast(value: IP) -> bool:
    address = value.address
    if isinstance(address, ipaddress.IPv4Address):
        return int(address) >> 8 == 0xE00000  # 224.0.0.0/24
    return address.packed[0] == 0xFF and address.packed[1] & 0x0F == 0x02


def _is_global_unicast(value: IP) -> bool:
    address = value.address
    broadcast = isinstance(address, ipaddress.IPv4Address) and int(address) == 0xFFFFFFFF
    return not (
        broadcast or address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local
    )


def _test(name: str, test: Callable[[IP], bool], doc: str, example: str) -> Function:
    return Function(name, (Overload(f"ip_{name}", (_IP,), BOOL, test, member=True),), doc, example)


NETWORK: Final = (
    Function(
        "ip", (
            Overload("string_to_ip", (STRING,), _IP, ip, cost=_COST),
            Overload("cidr_ip", (_CIDR,), _IP, lambda a: IP(a.address), member=True),
        ),
        "The address of a string; of a block, the address it is written with.", "ip('10.0.0.1').family() == 4",
    ),
    Function(
        "isIP", (Overload("is_ip", (STRING,), BOOL, _is(_address), cost=_COST),),
        "True if a string is an IP address.", "isIP('::1') && !isIP('10.0.0.256')",
    ),
    Function(
        "ip.isCanonical", (Overload("ip_is_canonical", (STRING,), BOOL, _is_canonical, cost=Cost(0, ((0, 0.2),))),),
        "True if an address is written in its shortest form.", "ip.isCanonical('2001:db8::abcd')",
    ),
    Function(
        "family", (Overload("ip_family", (_IP,), INT, lambda a: a.address.version, member=True),),
        "4 or 6.", "ip('::1').family() == 6",
    ),
    _test("isUnspecified", lambda a: a.address.is_unspecified, "0.0.0.0 or ::.", "ip('0.0.0.0').isUnspecified()"),
    _test("isLoopback", lambda a: a.address.is_loopback, "127.0.0.0/8 or ::1.", "ip('127.0.0.1').isLoopback()"),
    _test(
        "isLinkLocalMulticast", _is_link_local_multicast, "224.0.0.0/24 or ff02::/16.",
        "ip('224.0.0.1').isLinkLocalMulticast()",
    ),
    _test(
        "isLinkLocalUnicast", lambda a: a.address.is_link_local, "169.254.0.0/16 or fe80::/10.",
        "ip('fe80::1').isLinkLocalUnicast()",
    ),
    _test(
        "isGlobalUnicast", _is_global_unicast, "Neither multicast nor local to link or host.",
        "ip('192.168.0.1').isGlobalUnicast()",
    ),
    Function(
        "cidr", (Overload("string_to_cidr", (STRING,), _CIDR, cidr, cost=_COST),),
        "The block of a string; host bits may be set.", "cidr('192.168.0.0/16').prefixLength() == 16",
    ),
    Function(
        "isCIDR", (Overload("is_cidr", (STRING,), BOOL, _is(_block), cost=_COST),),
        "True if a string is a CIDR block.", "isCIDR('10.0.0.0/8') && !isCIDR('10.0.0.0')",
    ),
    Function(
        "containsIP",
        (
            Overload(
                "cidr_contains_ip", (_CIDR, _IP), BOOL, _contains_ip, member=True, cost=Cost(4),
                measure=_containment(whole=False),
            ),
            Overload(
                "cidr_contains_ip_string", (_CIDR, STRING), BOOL, _from_text(ip, _contains_ip), member=True,
                cost=Cost(4, ((1, 0.1),)), measure=_containment(whole=False, text=True),
            ),
        ),
        "True if a block contains an address.", "cidr('192.168.0.0/24').containsIP('192.168.0.1')",
    ),
    Function(
        "containsCIDR",
        (
            Overload(
                "cidr_contains_cidr", (_CIDR, _CIDR), BOOL, _contains_cidr, member=True, cost=Cost(7),
                measure=_containment(whole=True),
            ),
            Overload(
                "cidr_contains_cidr_string", (_CIDR, STRING), BOOL, _from_text(cidr, _contains_cidr), member=True,
                cost=Cost(7, ((1, 0.1),)), measure=_containment(whole=True, text=True),
            ),
        ),
        "True if a block contains another block.", "cidr('192.168.0.0/16').containsCIDR('192.168.10.0/24')",
    ),
    Function(
        "masked",
        (
            Overload(
                "cidr_masked", (_CIDR,), _CIDR, lambda a: CIDR(a.network().network_address, a.length), member=True,
            ),
        ),
        "The block without host bits.", "cidr('192.168.0.1/16').masked() == cidr('192.168.0.0/16')",
    ),
    Function(
        "prefixLength", (Overload("cidr_prefix_length", (_CIDR,), INT, lambda a: a.length, member=True),),
        "The length of the network part in bits.", "cidr('10.0.0.0/8').prefixLength() == 8",
    ),
    Function(
        "string",
        (
            Overload("ip_to_string", (_IP,), STRING, str),
            Overload("cidr_to_string", (_CIDR,), STRING, str),
        ),
    ),
)
