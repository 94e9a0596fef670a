"""Random expressions: typed ones, which mostly compile, and texts that nobody would write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hypothesis import strategies as st

from koordpolicy.engine.cel.check.environment import Environment, Function, Overload
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

WORDS: Final = ("app", "zone", "pool", "a", "b", "cpu", "memory", "x", "")
LITERALS: Final[Mapping[str, Sequence[str]]] = {
    BOOL.name: ("true", "false"),
    INT.name: ("0", "1", "-1", "2", "3", "7", "100", "9223372036854775807", "-9223372036854775808", "0x10"),
    UINT.name: ("0u", "1u", "18446744073709551615u"),
    DOUBLE.name: ("0.0", "-0.0", "1.5", "-2.5", "1e308", "9223372036854775808.0", "(0.0 / 0.0)", "(1.0 / 0.0)"),
    STRING.name: (
        "''", "'a'", "'web-1'", "'app'", "'zone'", "'1'", "'1.5'", "'é😀'", "'1h'", "'500m'", "'1Gi'", "'10.0.0.1'",
        "'10.0.0.0/8'", "'1.2.3'", "'https://example.com:80/a?b=c'", "'2026-01-01T00:00:00Z'", "'[a-z]+'", "'('",
        "r'\\d'", "'%s %d'",
    ),
    BYTES.name: ("b''", "b'a'", "b'\\xff'"),
    TIMESTAMP.name: (
        "timestamp('2026-01-01T00:00:00Z')", "timestamp('0001-01-01T00:00:00Z')", "timestamp('9999-12-31T23:59:59Z')",
    ),
    DURATION.name: ("duration('1h')", "duration('-1.5s')", "duration('0s')", "duration('100000h')"),
    NULL.name: ("null",),
    DYN.name: ("dyn(1)", "dyn('a')", "dyn(1.5)", "dyn(null)", "dyn([1, 'a'])", "dyn({'a': 1})", "dyn(2u)", "dyn(true)"),
    "type": ("int", "string", "type(1)", "list"),
    "kubernetes.Quantity": ("quantity('1Gi')", "quantity('-500m')", "quantity('1e100')"),
    "net.IP": ("ip('10.0.0.1')", "ip('::1')"),
    "net.CIDR": ("cidr('10.0.0.0/8')", "cidr('::/0')"),
    "kubernetes.Semver": ("semver('1.2.3')", "semver('1.0.0-rc.1')"),
    "kubernetes.URL": ("url('https://example.com:80/a?b=c')", "url('/a')"),
    "kubernetes.NamedFormat": ("format.uuid()", "format.dns1123Label()"),
}
TYPES: Final = (
    BOOL, BOOL, BOOL, INT, INT, DOUBLE, STRING, DYN, UINT, BYTES, TIMESTAMP, DURATION, list_of(INT), list_of(STRING),
    map_of(STRING, STRING), map_of(STRING, INT), list_of(list_of(INT)), optional_of(INT), optional_of(STRING),
    *map(Type, (
        "kubernetes.Quantity", "net.IP", "net.CIDR", "kubernetes.Semver", "kubernetes.URL",
    )),
)
_PLAIN: Final = (INT, INT, STRING, STRING, DOUBLE, BOOL, UINT)
_INFIX: Final = {
    "_+_": "+", "_-_": "-", "_*_": "*", "_/_": "/", "_%_": "%", "_==_": "==", "_!=_": "!=", "_<_": "<", "_<=_": "<=",
    "_>_": ">", "_>=_": ">=", "@in": "in",
}
_PREDICATES: Final = ("all", "exists", "exists_one")
_DEEPEST_PATH: Final = 4
_MOST_PATHS: Final = 40


class Grammar:
    """Strategies for the expressions of one environment; with `extensions` also of optionals and two-variable loops."""

    def __init__(self, environment: Environment, *, extensions: bool = True) -> None:
        self._paths = _paths(environment)
        self._extensions = extensions
        self._types = [each for each in TYPES if extensions or each.name != "optional_type"]
        self._calls = [
            (function, overload) for function in environment.functions.values() for overload in function.overloads
            if function.name != "@not_strictly_false" and (extensions or not _is_optional(function, overload))
        ]

    def expressions(self, depth: int = 3) -> st.SearchStrategy[str]:
        """Return expressions of any type; nearly all compile where they stand."""
        @st.composite
        def whole(draw: Any) -> str:
            return self._expression(draw, draw(st.sampled_from(self._types)), depth, ())

        return whole()

    def of(self, type_: Type, depth: int = 3) -> st.SearchStrategy[str]:
        """Return expressions of one type."""
        @st.composite
        def whole(draw: Any) -> str:
            return self._expression(draw, type_, depth, ())

        return whole()

    def _expression(self, draw: Any, wanted: Type, depth: int, names: tuple[tuple[str, Type], ...]) -> str:
        ways = ["leaf", "leaf", "path", "path"]
        if depth > 0:
            ways += ["call", "call", "call", "choice", *(["optional"] if self._extensions else []), "stray"]
            if wanted == BOOL:
                ways += ["logic", "logic", "predicate", "presence", "compare"]
            if wanted.name == "list":
                ways += ["map", "filter", "literal"]
            elif wanted.name == "map":
                ways += ["literal"]
        way = draw(st.sampled_from(ways))
        if way == "stray" and draw(st.integers(0, 3)):
            way = "call"
        match way:
            case "path":
                known = [name for name, type_ in names if type_ == wanted] * 3 + list(self._paths.get(str(wanted), ()))
                if known:
                    return draw(st.sampled_from(known))
            case "stray":
                return self._expression(draw, draw(st.sampled_from(self._types)), depth - 1, names)
            case "choice":
                parts = [self._expression(draw, each, depth - 1, names) for each in (BOOL, wanted, wanted)]
                return "({} ? {} : {})".format(*parts)
            case "logic":
                left, right = (self._expression(draw, BOOL, depth - 1, names) for _ in range(2))
                return f"({left} {draw(st.sampled_from(('&&', '||')))} {right})"
            case "compare":
                type_ = draw(st.sampled_from(_PLAIN))
                left, right = (self._expression(draw, type_, depth - 1, names) for _ in range(2))
                return f"({left} {draw(st.sampled_from(('<', '<=', '>', '>=', '==', '!=')))} {right})"
            case "presence":
                known = [
                    path for paths in self._paths.values() for path in paths if "." in path and not path.endswith("]")
                ]
                if known:
                    return f"has({draw(st.sampled_from(known))})"
            case "optional":
                known = [path for path in self._paths.get(str(wanted), ()) if "." in path and "[" not in path]
                if known:
                    path = draw(st.sampled_from(known)).replace(".", ".?", 1)
                    return f"{path}.orValue({self._expression(draw, wanted, depth - 1, names)})"
            case "predicate" | "map" | "filter":
                return self._loop(draw, way, wanted, depth, names)
            case "call":
                return self._call(draw, wanted, depth, names)
            case _:
                pass
        return self._leaf(draw, wanted, depth, names)

    def _leaf(self, draw: Any, wanted: Type, depth: int, names: tuple[tuple[str, Type], ...]) -> str:
        literals = LITERALS.get(wanted.name)
        if literals:
            return draw(st.sampled_from(literals))
        count = draw(st.integers(0, 3))
        if wanted.name == "list":
            return (
                f"[{', '.join(self._expression(draw, wanted.parameters[0], depth - 1, names) for _ in range(count))}]"
            )
        if wanted.name == "map":
            key, value = wanted.parameters
            entries = [
                f"{self._expression(draw, key, 0, names)}: {self._expression(draw, value, depth - 1, names)}"
                for _ in range(count)
            ]
            return "{" + ", ".join(entries) + "}"
        if wanted.name == "optional_type":
            inner = self._expression(draw, wanted.parameters[0], depth - 1, names)
            return draw(
                st.sampled_from((f"optional.of({inner})", "optional.none()", f"optional.ofNonZeroValue({inner})")),
            )
        known = self._paths.get(str(wanted))
        return draw(st.sampled_from(known)) if known else "null"

    def _loop(self, draw: Any, way: str, wanted: Type, depth: int, names: tuple[tuple[str, Type], ...]) -> str:
        element = wanted.parameters[0] if way == "filter" else draw(st.sampled_from(_PLAIN))
        over = map_of(element, INT) if draw(st.integers(0, 4)) == 0 and element in (INT, STRING) else list_of(element)
        items = self._expression(draw, over, depth - 1, names)
        if way == "predicate" and draw(st.integers(0, 2)) == 0:
            # Over whatever the objects hold.
            known = [
                path for type_, paths in self._paths.items() if type_.startswith(("list(", "map(")) for path in paths
            ]
            if known:
                items = draw(st.sampled_from(known))
                element = DYN
        name = f"v{len(names)}"
        inside = (*names, (name, element))
        test = self._expression(draw, BOOL, depth - 1, inside)
        match way:
            case "predicate":
                return f"{items}.{draw(st.sampled_from(_PREDICATES))}({name}, {test})"
            case "filter":
                return f"{items}.filter({name}, {test})"
            case _:
                each = self._expression(draw, wanted.parameters[0], depth - 1, inside)
                second = draw(st.sampled_from((f"{test}, ", "", "")))
                if self._extensions and draw(st.integers(0, 3)) == 0:
                    return f"{items}.transformList(i{len(names)}, {name}, {second}{each})"
                return f"{items}.map({name}, {second}{each})"

    def _call(self, draw: Any, wanted: Type, depth: int, names: tuple[tuple[str, Type], ...]) -> str:
        fitting = []
        for function, overload in self._calls:
            bound = matched(overload.result, wanted)
            if bound is not None:
                fitting.append((function, overload, bound))
        if not fitting:
            return self._leaf(draw, wanted, depth, names)
        function, overload, bound = draw(st.sampled_from(fitting))
        for variable in sorted(variables(overload)):
            if variable not in bound:
                bound[variable] = draw(st.sampled_from(_PLAIN))
        arguments = [self._expression(draw, filled(each, bound), depth - 1, names) for each in overload.parameters]
        return rendered(function, overload, arguments)


def rendered(function: Function, overload: Overload, arguments: Sequence[str]) -> str:
    """Return a call as text."""
    name = function.name
    if name in _INFIX:
        return f"({arguments[0]} {_INFIX[name]} {arguments[1]})"
    if name in ("!_", "-_"):
        return f"{name[0]}({arguments[0]})"
    if name == "_[_]":
        return f"({arguments[0]})[{arguments[1]}]"
    if overload.member:
        return f"({arguments[0]}).{name}({', '.join(arguments[1:])})"
    return f"{name}({', '.join(arguments)})"


def _is_optional(function: Function, overload: Overload) -> bool:
    """Return whether a call is written with optionals: by its name, its operator or its types."""
    return any(word in function.name for word in ("optional", "?")) or any(
        "optional_type" in str(each) for each in (overload.result, *overload.parameters))


def _paths(environment: Environment) -> dict[str, tuple[str, ...]]:
    """Return the readable paths by type, shallow ones first."""
    found: dict[str, list[str]] = {}
    pending = [(name, each.type, 0) for name, each in environment.variables.items()]
    for text, type_, depth in pending:  # grows while it is walked
        known = found.setdefault(str(type_), [])
        if len(known) < _MOST_PATHS:
            known.append(text)
        if depth >= _DEEPEST_PATH:
            continue
        declared = environment.types.get(type_.name)
        if declared is not None:
            pending += [
                (f"{text}.{name}", each.type, depth + 1)
                for name, each in declared.fields.items() if name.isidentifier()
            ]
            if declared.index is not None:
                pending.append((f"{text}['x/y']", declared.index, depth + 1))
        elif type_.name == "list" and type_.parameters:
            pending.append((f"{text}[0]", type_.parameters[0], depth + 1))
        elif type_.name == "map" and type_.parameters:
            pending += [
                (f"{text}['app']", type_.parameters[1], depth + 1), (f"{text}.zone", type_.parameters[1], depth + 1),
            ]
        elif type_ == DYN and depth < 2:
            pending += [(f"{text}.a", DYN, depth + 1), (f"{text}['b']", DYN, depth + 1), (f"{text}[0]", DYN, depth + 1)]
    return {type_: tuple(texts) for type_, texts in found.items()}


def matched(pattern: Type, wanted: Type) -> dict[str, Type] | None:
    if pattern.variable:
        return {pattern.name: wanted}
    if pattern.name != wanted.name or len(pattern.parameters) != len(wanted.parameters):
        return None
    bound: dict[str, Type] = {}
    for left, right in zip(pattern.parameters, wanted.parameters, strict=True):
        inner = matched(left, right)
        if inner is None:
            return None
        bound |= inner
    return bound


def variables(overload: Overload) -> set[str]:
    found: set[str] = set()
    pending = list(overload.parameters)
    while pending:
        each = pending.pop()
        if each.variable:
            found.add(each.name)
        pending += each.parameters
    return found


def filled(type_: Type, bound: Mapping[str, Type]) -> Type:
    if type_.variable:
        return bound[type_.name]
    return Type(type_.name, tuple(filled(each, bound) for each in type_.parameters))


# --- texts -----------------------------------------------------------------------------------------------------------

_TOKENS: Final = (
    "a", "b", "pod", "node", ".", ".?", "[", "]", "[?", "(", ")", "{", "}", ",", ":", "?", "!", "-", "+", "*", "/", "%",
    "<", "<=",
    "==", "!=", "&&", "||", " in ", "1", "1u", "0x", "1.", ".5", "1e9", "'", '"', "'''", '"""', "r'", "b'", "\\", "\\x",
    "\\u", "`",
    "true", "null", "has(", ".all(", ".map(x, ", "cel.bind(x, ", "if", "namespace", "__class__", "@result", "//", "\n",
    "\r", "\x00",
    "é", "😀", "\ud800", "\x0b", "9" * 30, "dyn(", "type(", ".format([", "matches(", "{a:", "{'a': ", "?:", "a.b{", "_",
    "$",
)
_NAMES: Final = (
    "__class__", "__globals__", "__dict__", "__init__", "__subclasses__", "__mro__", "__builtins__", "__import__",
    "gi_frame", "func_code",
    "__reduce__", "__getattribute__", "cel_type", "ns", "items", "keys", "get", "pop", "encode", "mro",
)
_HOSTILE: Final = (
    "{0}.{1}", "''.{1}", "''.format.{1}", "(1).{1}", "[].{1}", "{{}}.{1}", "{0}['{1}']", "{0}[0].{1}", "type(1).{1}",
    "int.{1}", "{1}",
    "{1}('os')", "{0}.{1}()", "{0}.{1}.{1}.{1}", "'{{0.{1}}}'.format([{0}])", "'%s'.format([{1}])", "{0}.map({1}, {1})",
    "cel.bind({1}, 1, {1})", "size.{1}", "{0}.?{1}.value()", "has({0}.{1})", "optional.of({0}).{1}",
    "duration('1s').{1}", "quantity('1').{1}",
    "ip('::1').{1}", "b''.{1}", "lists.{1}", "variables.{1}", "string(type({0}).{1})", "{0}.{1} == {0}.{1}",
    "dyn({0}).{1}", "''.matches('{1}').{1}",
    "{{'{1}': 1}}.{1}", "[1].map(x, x.{1})", "timestamp('2026-01-01T00:00:00Z').{1}", "(0).{1}.{1}", "null.{1}",
    "true.{1}", "{0}.{1}('a').{1}",
)
_SHAPES: Final = (
    ("(", "1", ")"), ("[", "1", "]"), ("!", "true", ""), ("-", "1", ""), ("a.", "b", ""), ("1 + ", "1", ""),
    ("true && ", "true", ""),
    ("true ? 1 : ", "1", ""), ("(true ? ", "1", " : 1)"), ("[1].map(x, ", "x", ")"), ("[1, 2, 3].all(x, ", "true", ")"),
    ("a[", "1", "]"), ("{1: ", "1", "}"),
    ("size(", "a", ")"), ("dyn(", "a", ")"), ("cel.bind(x, 1, ", "x", ")"), ("a == ", "1", ""), ("'a' + ", "'a'", ""),
    ("1,", "1", ""), ("a in ", "b", ""),
    ("has(", "a.b", ")"), ("[", "", ""), ("a.b(", "1", ")"), ("", "a", ".b"), ("", "a", "[0]"), ("", "a", ".f()"),
    ("", "[1]", ".map(x, x)"), ("'", "", ""), ("\\", "'", ""),
    ("a{b: ", "1", "}"), ("optional.of(", "1", ")"), ("", "1", " + 1"), ("", "a", " && a"), ("{", "", "}"),
    ("a.?b", "", ".?c"),
    ("cel.bind(x, 'aaaaaaaaaa', ", "x", " + x)"), ("[[1, 2, 3, 4, 5, 6, 7, 8]].map(x, x + x).map(x, ", "x + x", ")"),
    ("lists.range(1000).all(x, ", "true", ")"), ("lists.range(1000000).map(x, ", "x", ")"),
)


@st.composite
def soups(draw: Any) -> str:
    """Tokens in any order."""
    return "".join(draw(st.lists(st.one_of(st.sampled_from(_TOKENS), st.characters()), max_size=30)))


@st.composite
def hostile(draw: Any) -> str:
    """Ways to ask for what lies behind a value."""
    name = draw(st.sampled_from(("pod", "node", "a", "b", "pod.metadata", "pod.spec.containers", "requests", "now")))
    return draw(st.sampled_from(_HOSTILE)).format(name, draw(st.sampled_from(_NAMES)))


@st.composite
def shapes(draw: Any) -> str:
    """One thing in itself, over and over."""
    before, inner, after = draw(st.sampled_from(_SHAPES))
    count = draw(st.one_of(st.integers(0, 12), st.integers(0, 300), st.integers(0, 30_000)))
    return before * count + inner + after * count


@st.composite
def spoilt(draw: Any, texts: st.SearchStrategy[str]) -> str:
    """A sound expression in which something was removed, doubled or exchanged."""
    text = draw(texts)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 6)))
        text = text[:start] + draw(
            st.one_of(st.just(""), st.sampled_from(_TOKENS), st.just(text[start:end] * 2)),
        ) + text[end:]
    return text
