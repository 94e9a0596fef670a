"""Random expressions of Kubernetes' environment, with values of their variables; the same seed makes them again."""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from koordpolicy.engine.cel.check.environment import Function
from koordpolicy.engine.cel.values.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    NULL,
    STRING,
    TIMESTAMP,
    UINT,
    Type,
    list_of,
    map_of,
    optional_of,
)
from koordpolicy.engine.kubernetes.library import FUNCTIONS
from tests.fuzz.expressions import filled, matched, rendered, variables

Json: TypeAlias = Any
Names: TypeAlias = tuple[tuple[str, Type], ...]

QUANTITY, IP, CIDR, URL, SEMVER, FORMAT = map(Type, (
    "kubernetes.Quantity", "net.IP", "net.CIDR", "kubernetes.URL", "kubernetes.Semver", "kubernetes.NamedFormat"))
TEXTS: Final[Mapping[str, tuple[str, ...]]] = {
    "word": ("", "a", "b", "app", "web-1", "A Web", "é😀x", "ﬁ\u0301", "\u2028", "\x00", "\t tab\n", "\u0085 \u00a0",
             "\"q\\'", "ÀÉ", "a.b.c", "a,b,,c", "aaaa", "x" * 63, "y" * 64, "true", "TRUE", "t", "0", "False"),
    "number": ("1", "-1", "+1", "007", "0x10", "1_0", "9223372036854775807", "9223372036854775808",
               "-9223372036854775808",
               "18446744073709551615", "18446744073709551616", " 1", "1.5", "-0", "-0.0", ".5", "1.", "1e3", "1e400",
               "1e-400", "NaN", "nan", "inf", "-Inf", "+Infinity", "0x1p-2", "1e", "0b1"),
    "quantity": ("1", "0", "-1", "500m", "1.5Gi", "1Ki", "1k", "1K", "12e3", "1E3", "1E", "12E", "1e100", "-1e-20",
                 "0.1m", "1n",
                 "3u", "1e18", "1e19", "9223372036854775807", "9223372036854775808", "-9223372036854775809",
                 "0.0000000001", "+.5", "5.", "1.e3", "1Ei", "8Ei", "16Ei", "123456789012345678901234567890", "1e3m",
                 "mi",
                 "1.2.3", "999999999999999999999m", "340282366920938463463374607431768211456"),
    "ip": ("10.0.0.1", "0.0.0.0", "127.0.0.1", "255.255.255.255", "224.0.0.1", "169.254.1.1", "192.168.0.1", "::",
           "::1",
           "fe80::1", "ff02::1", "2001:db8::ABCD", "2001:0db8:0::1", "::ffff:10.0.0.1", "fe80::1%eth0", "10.0.0.01",
           "10.0.0",
           "1.2.3.256", "::10.0.0.1", "ff01::1", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "100::", "239.1.1.1"),
    "cidr": ("10.0.0.0/8", "10.1.2.3/8", "0.0.0.0/0", "::/0", "2001:db8::/32", "2001:db8::1/128", "10.0.0.0/33",
             "10.0.0.0/08",
             "192.168.0.0/16", "::ffff:10.0.0.0/104", "10.0.0.0/", "fe80::%a/64", "10.0.0.1/32", "10.0.0.0/-1"),
    "url": ("https://example.com:80/a?b=c", "/a", "http://", "https://[::1]:8080/p%20q?x=1&x=2&y",
            "ftp://u:p@host/%zz", "a/b",
            "mailto:a@b.c", "http://h/a b", "http://h?q=%41+b&=v&k", "//host/p", "http://h:port/", "http://h/p#frag",
            "HTTP://EXAMPLE.com/é", "http://h/?a;b", "http://[fe80::1%25eth0]/", "?a=b", "/p?q=%zz&r=1",
            "http://a\x7fb/"),
    "semver": ("1.2.3", "v1.2.3", "1.2", "1", "01.2.3", "1.0.0-rc.1", "1.0.0-rc.10+b.1", "1.0.0-alpha", "1.2.3-01",
               "1.2.3+",
               "18446744073709551615.0.0", "18446744073709551616.0.0", "1.0.0--", "v1", "1.2.3.4", "", "1.x.3"),
    "time": ("2026-01-01T00:00:00Z", "2026-03-01T10:20:30.456789123+05:30", "0001-01-01T00:00:00Z",
             "9999-12-31T23:59:59.999999999Z",
             "0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "2024-02-29T23:59:60Z", "2023-02-29T00:00:00Z",
             "2026-01-01",
             "2026-01-01t00:00:00z", "2026-01-01T00:00:00", "2026-01-01T00:00:00,5Z", "2026-01-01T24:00:00Z",
             "1969-12-31T23:59:59.5Z", "2026-01-01T00:00:00+24:00", "2026-01-01T00:00:00-23:59", "2026-1-1T0:0:0Z",
             "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00", "2026-07-01T12:00:00.1234567891Z"),
    "duration": ("1h", "-1.5s", "0", "1h30m", "90m", "100000h", "3000000h", "1ms", "1us", "1µs", "1μs", "1ns", ".5s",
                 "1.s", "1",
                 "1d", "", "+2m", "-9223372036854775808ns", "9223372036854775807ns", "9223372036854775808ns", "0.1ns",
                 "1h1h",
                 "--1s", "1e3s", "9223372036s", "9223372037s", "1.0000000001s"),
    "zone": ("UTC", "", "Local", "America/New_York", "Europe/Berlin", "+05:30", "-08:00", "05:30", "+25:00",
             "Nowhere/X", "Z",
             "Asia/Kolkata", "-00:30", "+5:3", "America/St_Johns", "utc", "02:00:00", "EST"),
    "pattern": ("a", "^[a-z]+$", "(", "[0-9]+", "", ".", "a*", "(?i)APP", "\\pL+", "x{2,3}", "x{1001}", "(a)(b)?",
                "\\d",
                "(?P<n>a)", "\\bw", "(?=a)", "\\1", "$", "é", "[^a]", "(?s).", "\\C", "\\z", "(?m)^a$", "a**",
                "\\Q.\\E"),
    "template": ("%s", "%d", "%f", "%.2f", "%e", "%b", "%o", "%x", "%X", "%%", "%s %s", "a", "%", "%q", "%.3e", "%.s",
                 "%d%%%s", "%5d",
                 "%.20f", "%.1000f", "%.-1f", "%s-%x-%.0f"),
    "format": ("dns1123Label", "dns1123Subdomain", "uuid", "date", "datetime", "byte", "uri", "labelValue",
               "qualifiedName",
               "dns1035Label", "dns1035LabelPrefix", "dns1123LabelPrefix", "dns1123SubdomainPrefix", "nothing"),
    "formatted": ("my-name", "My.Name", "a.b", "-a", "a-", "1a", "example.com/name", "a/b/c", "/n", "p/", "YQ==",
                  "YQ", "YQ=",
                  "2026-01-01", "2026-02-30", "2026-01-01T00:00:00Z", "123e4567-e89b-12d3-a456-426614174000",
                  "http://h/a", "/a", "a b",
                  "é", "x" * 63, "x" * 64, "x." * 126 + "x", "x." * 127 + "x", "_a", "a_b", "A" * 254, "a..b"),
}
_BY_PARAMETER: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "quantity": (("quantity",),), "isQuantity": (("quantity",),), "ip": (("ip",),), "isIP": (("ip",),),
    "ip.isCanonical": (("ip",),), "cidr": (("cidr",),), "isCIDR": (("cidr",),), "url": (("url",),),
    "isURL": (("url",),),
    "semver": (("semver",),), "isSemver": (("semver",),), "timestamp": (("time",),), "duration": (("duration",),),
    "int": (("number",),), "uint": (("number",),), "double": (("number",),), "bool": (("word",),),
    "matches": (("word", "formatted"), ("pattern",)), "find": (("word", "number"), ("pattern",)),
    "findAll": (("word", "number", "url"), ("pattern",)), "format": (("template",),), "format.named": (("format",),),
    "validate": ((), ("formatted", "word")), "containsIP": ((), ("ip",)), "containsCIDR": ((), ("cidr",)),
    **{f"get{part}": ((), ("zone",)) for part in (
        "FullYear", "Month", "Date", "DayOfMonth", "DayOfWeek", "DayOfYear", "Hours", "Minutes", "Seconds",
        "Milliseconds")},
}
"""The texts that the parameters of some functions are made of, receiver first."""
_INTS: Final = ("0", "1", "-1", "2", "3", "7", "10", "-7", "63", "64", "100", "0x1F", "-0x1", "2147483648",
                "9223372036854775807",
                "-9223372036854775808", "9007199254740993", "253402300799", "253402300800", "-62135596800",
                "-62135596801")
_UINTS: Final = ("0u", "1u", "2u", "7u", "0xFFu", "9223372036854775808u", "18446744073709551615u")
_DOUBLES: Final = ("0.0", "-0.0", "1.0", "1.5", "-2.5", "2.0", "0.1", "1e21", "1e20", "1e-7", "123456789.125",
                   "1e308", "5e-324",
                   "9223372036854775807.0", "9223372036854774784.0", "-9223372036854775808.0", "18446744073709551616.0",
                   "9007199254740993.0", "(0.0 / 0.0)", "(1.0 / 0.0)", "(-1.0 / 0.0)")
_BYTES: Final = ("b''", "b'a'", "b'\\xff'", "b'\\303\\251'", "b'é'", "b'abc'", "b'\\000'", "br'\\x'")
_SCALARS: Final = (BOOL, INT, UINT, DOUBLE, STRING, BYTES, TIMESTAMP, DURATION)
_ELEMENTS: Final = (INT, INT, STRING, STRING, DOUBLE, UINT, BOOL, BYTES, DURATION, TIMESTAMP, list_of(INT),
                    map_of(STRING, INT), DYN)
_OPAQUE: Final = (QUANTITY, IP, CIDR, URL, SEMVER, FORMAT)
VARIABLES: Final[Mapping[str, Type]] = {
    "flag": BOOL, "i": INT, "j": INT, "u": UINT, "x": DOUBLE, "s": STRING, "t": STRING, "raw": BYTES, "at": TIMESTAMP,
    "span": DURATION, "numbers": list_of(INT), "names": list_of(STRING), "reals": list_of(DOUBLE),
    "labels": map_of(STRING, STRING), "counts": map_of(STRING, INT), "byNumber": map_of(INT, STRING),
    "nested": list_of(list_of(INT)), "any": DYN, "object": DYN, "mixed": list_of(DYN), "table": map_of(DYN, DYN),
}
_RELATIONS: Final = ("==", "!=", "<", "<=", ">", ">=")
_PREDICATES: Final = ("all", "exists", "exists_one", "existsOne")
"""The last one is of two variables only."""
_KEYS: Final = ("a", "b", "app", "zone", "x", "nothing", "if")


class RandomExpressions:
    """Expressions and values. Most expressions compile; some have an operand of another type, or of an unknown one."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._calls = [
            (function, overload)
            for name, function in FUNCTIONS.items()
            for overload in function.overloads
            if name != "@not_strictly_false" and not overload.dynamic
        ]

    def expression(self) -> str:
        wanted = self._any(
            *_SCALARS,
            BOOL,
            BOOL,
            BOOL,
            INT,
            STRING,
            list_of(self._element()),
            list_of(DYN),
            map_of(STRING, self._element()),
            map_of(self._any(INT, BOOL, UINT), INT),
            optional_of(self._element()),
            DYN,
            *_OPAQUE,
            self._any(NULL, Type("type")),
        )
        return self._made(wanted, self._random.randint(1, 4), ())

    def values(self) -> dict[str, Json]:
        """A value for each variable, as the typed JSON of the golden files."""
        return {name: self._value(each, 3) for name, each in VARIABLES.items()}

    # --- expressions

    def _made(self, wanted: Type, depth: int, names: Names) -> str:
        if self._chance(0.02):
            wanted = self._any(*_SCALARS, DYN, list_of(INT), NULL, *_OPAQUE)
        if self._chance(0.08):
            inside = self._any(wanted, wanted, *_SCALARS) if self._chance(0.3) else wanted
            return f"dyn({self._made(inside, depth - 1, names)})"
        known = [name for name, each in (*VARIABLES.items(), *names) if each == wanted]
        inner = [name for name, each in names if each == wanted]
        if inner and self._chance(0.4):
            return self._any(*inner)
        if known and self._chance(0.15 if depth > 0 else 0.4):
            return self._any(*known)
        if depth <= 0:
            return self._leaf(wanted, depth, names)
        ways = ["call"] * 8 + ["leaf", "choice", "read", "value"]
        if wanted.name == "optional_type":  # cel-go takes optionals apart in `?:` and `optFlatMap`
            ways = ["call", "leaf", "optional read", "optional read", "optMap"]
        if wanted == BOOL:
            ways += ["logic"] * 3 + ["relation"] * 3 + ["presence", "predicate", "predicate", "membership"]
        elif wanted.name == "list":
            ways += ["map", "map", "filter", "transformList", "literal"]
        elif wanted.name == "map":
            ways += ["transformMap", "transformMapEntry", "literal", "literal"]
        elif wanted == DYN:
            ways = ["any", "any", "read", "field", "field", "leaf"]
        way = self._any(*ways)
        return getattr(self, f"_make_{way.replace(' ', '_')}")(wanted, depth, names)

    def _make_any(self, _: Type, depth: int, names: Names) -> str:
        inner = self._any(*_SCALARS, *_OPAQUE, list_of(INT), map_of(STRING, INT), optional_of(INT), NULL)
        return f"dyn({self._made(inner, depth - 1, names)})"

    def _make_field(self, _: Type, depth: int, names: Names) -> str:
        of = self._any("object", "any", "object") if self._chance(0.8) else self._made(DYN, depth - 1, names)
        return of + "".join(
            self._any(f".{self._any(*_KEYS)}", f"['{self._any(*_KEYS)}']", f"[{self._made(INT, 0, names)}]")
            for _ in range(self._random.randint(1, 2))
        )

    def _make_leaf(self, wanted: Type, depth: int, names: Names) -> str:
        return self._leaf(wanted, depth, names)

    _make_literal = _make_leaf

    def _make_choice(self, wanted: Type, depth: int, names: Names) -> str:
        return (
            f"({self._made(BOOL, depth - 1, names)} ? {self._made(wanted, depth - 1, names)}"
            f" : {self._made(wanted, depth - 1, names)})"
        )

    def _make_read(self, wanted: Type, depth: int, names: Names) -> str:
        if self._chance(0.5):
            return f"({self._made(list_of(wanted), depth - 1, names)})[{self._made(INT, 0, names)}]"
        key = self._any(STRING, STRING, INT, BOOL, UINT)
        items = self._made(map_of(key, wanted), depth - 1, names)
        if key == STRING and self._chance(0.4):
            return f"({items}).{self._any('a', 'b', 'app')}"
        return f"({items})[{self._made(self._any(key, key, DYN), 0, names)}]"

    def _make_value(self, wanted: Type, depth: int, names: Names) -> str:
        optional = self._made(optional_of(wanted), depth - 1, names)
        return self._any(f"{optional}.value()", f"{optional}.orValue({self._made(wanted, depth - 1, names)})")

    def _make_logic(self, wanted: Type, depth: int, names: Names) -> str:
        left, right = (self._made(BOOL, depth - 1, names) for _ in range(2))
        return self._any(f"({left} && {right})", f"({left} || {right})", f"!({left})")

    def _make_relation(self, wanted: Type, depth: int, names: Names) -> str:
        kind = self._any(
            *_SCALARS,
            INT,
            STRING,
            *_OPAQUE,
            list_of(self._element()),
            map_of(STRING, INT),
            DYN,
            DYN,
            optional_of(INT),
            NULL,
        )
        other = self._any(kind, kind, kind, kind, DYN) if kind in (INT, UINT, DOUBLE) or self._chance(0.5) else kind
        left, operator = self._made(kind, depth - 1, names), self._any(*_RELATIONS[:2], *_RELATIONS)
        return f"({left} {operator} {self._made(other, depth - 1, names)})"

    def _make_presence(self, wanted: Type, depth: int, names: Names) -> str:
        of = self._made(self._any(DYN, DYN, map_of(STRING, self._element())), depth - 1, names)
        return f"has(({of}).{self._any(*_KEYS)})"

    def _make_membership(self, wanted: Type, depth: int, names: Names) -> str:
        element = self._element()
        over = self._any(list_of(element), map_of(element if element in (INT, STRING) else STRING, INT))
        return f"({self._made(over.parameters[0], depth - 1, names)} in {self._made(over, depth - 1, names)})"

    def _make_predicate(self, wanted: Type, depth: int, names: Names) -> str:
        items, first, second = self._range(depth, names)
        if second is None:
            return f"{items}.{self._any(*_PREDICATES[:3])}({first[0]}, {self._made(BOOL, depth - 1, (*names, first))})"
        test = self._made(BOOL, depth - 1, (*names, first, second))
        return f"{items}.{self._any(*_PREDICATES)}({first[0]}, {second[0]}, {test})"

    def _make_map(self, wanted: Type, depth: int, names: Names) -> str:
        items, first, _ = self._range(depth, names, both=False)
        inside = (*names, first)
        test = f"{self._made(BOOL, depth - 1, inside)}, " if self._chance(0.3) else ""
        return f"{items}.map({first[0]}, {test}{self._made(wanted.parameters[0], depth - 1, inside)})"

    def _make_filter(self, wanted: Type, depth: int, names: Names) -> str:
        first = (f"v{len(names)}", wanted.parameters[0])
        return (
            f"{self._made(wanted, depth - 1, names)}.filter({first[0]}, {self._made(BOOL, depth - 1, (*names, first))})"
        )

    def _make_transformList(self, wanted: Type, depth: int, names: Names) -> str:  # noqa: N802 - the macro's name
        return self._transformed("transformList", wanted.parameters[0], depth, names)

    def _make_transformMap(self, wanted: Type, depth: int, names: Names) -> str:  # noqa: N802 - the macro's name
        return self._transformed("transformMap", wanted.parameters[-1], depth, names)

    def _make_transformMapEntry(self, wanted: Type, depth: int, names: Names) -> str:  # noqa: N802 - the macro's name
        items, first, second = self._range(depth, names, both=True)
        assert second is not None
        inside = (*names, first, second)
        key, value = (self._made(each, depth - 1, inside) for each in wanted.parameters)
        return f"{items}.transformMapEntry({first[0]}, {second[0]}, {{{key}: {value}}})"

    def _transformed(self, macro: str, wanted: Type, depth: int, names: Names) -> str:
        items, first, second = self._range(depth, names, both=True)
        assert second is not None
        inside = (*names, first, second)
        test = f"{self._made(BOOL, depth - 1, inside)}, " if self._chance(0.3) else ""
        return f"{items}.{macro}({first[0]}, {second[0]}, {test}{self._made(wanted, depth - 1, inside)})"

    def _range(
        self, depth: int, names: Names, *, both: bool | None = None,
    ) -> tuple[str, tuple[str, Type], tuple[str, Type] | None]:
        element = self._element()
        over = self._any(
            list_of(element),
            list_of(element),
            map_of(self._any(STRING, INT), element),
            DYN if self._chance(0.2) else list_of(element),
        )
        items = self._made(over, depth - 1, names)
        first, second = f"v{len(names)}", f"w{len(names)}"
        if both is None:
            both = self._chance(0.3)
        if over == DYN:
            return items, (first, DYN), (second, DYN) if both else None
        if both:
            return items, (first, INT if over.name == "list" else over.parameters[0]), (second, element)
        return items, (first, over.parameters[0]), None

    def _make_optional_read(self, wanted: Type, depth: int, names: Names) -> str:
        inner = wanted.parameters[0]
        if self._chance(0.4):
            return f"({self._made(list_of(inner), depth - 1, names)})[?{self._made(INT, 0, names)}]"
        items = self._made(map_of(STRING, inner), depth - 1, names)
        return self._any(
            f"({items}).?{self._any(*_KEYS[:6])}",
            f"({items})[?{self._made(STRING, 0, names)}]",
            f"({self._made(DYN, depth - 1, names)}).?{self._any(*_KEYS[:6])}",
        )

    def _make_optMap(self, wanted: Type, depth: int, names: Names) -> str:  # noqa: N802 - the macro's name
        return self._opt("optMap", wanted.parameters[0], depth, names)

    def _opt(self, macro: str, wanted: Type, depth: int, names: Names) -> str:
        element = self._element()
        first = (f"v{len(names)}", element)
        optional = self._made(optional_of(element), depth - 1, names)
        return f"{optional}.{macro}({first[0]}, {self._made(wanted, depth - 1, (*names, first))})"

    def _make_call(self, wanted: Type, depth: int, names: Names) -> str:
        fitting = [
            (function, overload, bound)
            for function, overload in self._calls
            if (bound := matched(overload.result, wanted)) is not None
            and not (overload.result.variable and wanted.name == "optional_type")
        ]  # no optionals of optionals
        if not fitting:
            return self._leaf(wanted, depth, names)
        function, overload, bound = self._any(*fitting)
        for name in sorted(variables(overload) - bound.keys()):
            bound[name] = self._element()
        arguments = [
            self._argument(function, position, filled(each, bound), depth, names)
            for position, each in enumerate(overload.parameters)
        ]
        if function.name == "format" and len(arguments) == 2 and self._chance(0.7):
            kinds = [self._any(*_SCALARS, DYN, list_of(INT)) for _ in range(self._any(0, 1, 1, 1, 2, 2))]
            arguments[1] = f"[{', '.join(self._made(each, depth - 1, names) for each in kinds)}]"
        return rendered(function, overload, arguments)

    def _argument(self, function: Function, position: int, wanted: Type, depth: int, names: Names) -> str:
        if function.name == "lists.range":  # cel-go makes the list at once, whatever its length
            return self._any("-1", "0", "3", "20", f"size({self._made(list_of(INT), depth - 1, names)})")
        texts = _BY_PARAMETER.get(function.name, ())
        if wanted == STRING and position < len(texts) and texts[position] and self._chance(0.8):
            made = quoted(self._any(*TEXTS[self._any(*texts[position])]), self._random)
            return f"dyn({made})" if self._chance(0.4) else made
        return self._made(wanted, depth - 1, names)

    def _leaf(self, wanted: Type, depth: int, names: Names) -> str:
        match wanted.name:
            case "bool":
                return self._any("true", "false")
            case "int":
                return self._any(*_INTS)
            case "uint":
                return self._any(*_UINTS)
            case "double":
                return self._any(*_DOUBLES)
            case "bytes":
                return self._any(*_BYTES)
            case "null":
                return "null"
            case "type":
                return self._any(
                    "int",
                    "string",
                    "list",
                    "map",
                    "bool",
                    "uint",
                    "double",
                    "bytes",
                    "null_type",
                    "type",
                    "type(type(1))",
                    "google.protobuf.Timestamp",
                    "google.protobuf.Duration",
                )
            case "string":
                return quoted(self._any(*TEXTS[self._any("word", "word", *TEXTS)]), self._random)
            case "list":
                count = self._any(0, 1, 2, 2, 3)
                return f"[{', '.join(self._made(wanted.parameters[0], depth - 1, names) for _ in range(count))}]"
            case "map":
                key, value = wanted.parameters
                entries = [
                    f"{self._leaf(key, 0, names)}: {self._made(value, depth - 1, names)}"
                    for _ in range(self._any(0, 1, 2))
                ]
                return "{" + ", ".join(entries) + "}"
            case "optional_type":
                inner = self._made(wanted.parameters[0], depth - 1, names)
                return self._any(f"optional.of({inner})", "optional.none()", f"optional.ofNonZeroValue({inner})")
            case "dyn":
                return self._any(
                    "any", "object", "object.a", "any[0]", f"dyn({self._leaf(self._any(*_SCALARS), 0, names)})",
                )
        name = {
            TIMESTAMP.name: "time",
            DURATION.name: "duration",
            QUANTITY.name: "quantity",
            IP.name: "ip",
            CIDR.name: "cidr",
            URL.name: "url",
            SEMVER.name: "semver",
        }.get(wanted.name)
        if name is None:
            return (
                self._any("format.uuid()", *(f"format.{each}()" for each in TEXTS["format"][:-1]))
                if wanted == FORMAT
                else "null"
            )
        function = {"time": "timestamp"}.get(name, name)
        text = quoted(self._any(*TEXTS[name][: None if self._chance(0.3) else 6]), self._random)
        return f"{function}(dyn({text}))" if self._chance(0.3) else f"{function}({text})"

    # --- values

    def _value(self, wanted: Type, depth: int) -> Json:
        match wanted.name:
            case "bool":
                return {"bool": self._chance(0.5)}
            case "int":
                return {"int": str(int(self._any(*_INTS), 0))}
            case "uint":
                return {"uint": str(int(self._any(*_UINTS)[:-1], 0))}
            case "double":
                return {
                    "double": self._any(
                        "0", "-0", "1", "1.5", "-2.5", "1e21", "NaN", "Inf", "-Inf", "9223372036854775808", "3",
                    ),
                }
            case "string":
                return {"string": self._any(*TEXTS[self._any("word", *TEXTS)])}
            case "bytes":
                return {"bytes": base64.b64encode(self._any(b"", b"a", b"\xff", "é".encode())).decode()}
            case "null":
                return {"null": None}
            case "list":
                return {
                    "list": [self._value(wanted.parameters[0], depth - 1) for _ in range(self._any(0, 1, 2, 3, 5, 12))],
                }
            case "map":
                key, value = wanted.parameters
                if key == DYN:
                    key = self._any(STRING, INT, BOOL, UINT)
                keys = {
                    str(each): each
                    for each in (
                        {"string": self._any(*_KEYS)} if key == STRING else self._value(key, 0)
                        for _ in range(self._any(0, 1, 2, 4))
                    )
                }
                return {"map": [[each, self._value(value, depth - 1)] for each in keys.values()]}
        if wanted == TIMESTAMP:
            return {
                "timestamp": self._any(
                    "2026-01-01T00:00:00Z",
                    "0001-01-01T00:00:00Z",
                    "9999-12-31T23:59:59.999999999Z",
                    "1969-12-31T23:59:59.5Z",
                    "2024-02-29T12:34:56.789Z",
                ),
            }
        if wanted == DURATION:
            return {
                "duration": self._any(
                    "0", "1", "-1500000000", "3600000000000", "9223372036854775807", "-9223372036854775808",
                ),
            }
        inner = [BOOL, INT, DOUBLE, STRING, NULL]
        if depth > 0:
            inner += [list_of(DYN), map_of(STRING, DYN), map_of(STRING, DYN)]
        return self._value(self._any(*inner), depth)

    def _element(self) -> Type:
        return self._any(*_ELEMENTS, *_OPAQUE) if self._chance(0.3) else self._any(*_ELEMENTS)

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _any(self, *choices: Any) -> Any:
        return self._random.choice(choices)


def quoted(text: str, chosen: random.Random) -> str:
    """Return a text as a literal, escaped in one of the ways."""
    quote = chosen.choice("'\"")
    if chosen.random() < 0.1 and "\\" in text and quote not in text and text.isprintable() and text.isascii():
        return f"r{quote}{text}{quote}"
    return quote + "".join(_escaped(each, quote, chosen) for each in text) + quote


def _escaped(each: str, quote: str, chosen: random.Random) -> str:
    if each in (quote, "\\"):
        return f"\\{each}"
    code = ord(each)
    if each.isprintable() and chosen.random() < 0.97:
        return each
    if code < 0x100:
        return chosen.choice((f"\\x{code:02x}", f"\\{code:03o}", f"\\u{code:04X}"))
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
