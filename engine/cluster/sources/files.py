"""Clusters from files: the output of `kubectl get nodes,pods,... -A -o yaml|json`, or a directory of such files."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

from koordpolicy.engine import strict_json
from koordpolicy.engine.files import reason_of
from koordpolicy.engine.kubernetes.objects import json_kind, parse_fault
from koordpolicy.engine.source import PolicyError, Problem, Problems, Source, Span, syntax_hint

from ..kinds import Objects

LARGEST: Final = 512 * 1024 * 1024
"""The maximum size of all files together, in bytes."""
DEEPEST: Final = 100
"""The maximum nesting of objects and lists; the API server's own objects stay below thirty."""

_SUFFIXES: Final = (".yaml", ".yml", ".json")
_QUANTITIES: Final = frozenset({"requests", "limits", "allocatable", "capacity", "overhead", "resources"})
_BRACKETS: Final = re.compile(r"[\[\]{}]")
_TEXTS_AND_BRACKETS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_BLANKS: Final = re.compile(r"[ \t\r\n]*")
_COLON: Final = re.compile(r"[ \t\r\n]*:[ \t\r\n]*")
_COMMA: Final = re.compile(r"[ \t\r\n]*,?[ \t\r\n]*")
_INDENTED: Final = re.compile(rf"^[ ?:-]{{{DEEPEST},}}", re.MULTILINE)
_SPLIT_LIMIT: Final = "split the dump, or raise the limit"
_Path: TypeAlias = tuple[int | str, ...]
"""The number of a document, then keys and indices."""


def load(path: str | Path, *, largest: int = LARGEST) -> Objects:
    """Return the API objects of a file or of all YAML and JSON files in a directory, in the files' order.

    Lists are split into their items. Quantities that are written as numbers become strings, and missing requests of a
    container become its limits, as the API server does; otherwise the objects are as written.

    It contains the kinds of its objects, and those of its typed lists (`NamespaceList`), which may be empty.

    Raises:
        PolicyError: a file cannot be read, is too large, or holds something else; every fault of all files.
    """
    path = Path(path)
    problems = Problems()
    found: list[Mapping[str, Any]] = []
    kinds: set[str] = set()
    left = largest
    for file in _files(path, problems):
        try:
            with file.open("rb") as opened:
                size = os.fstat(opened.fileno()).st_size
                # A device has no size, and may have no end.
                data = b"" if size > left else opened.read(left + 1)
            if max(size, len(data)) > left:
                problems.add(
                    f"`{file}` has {max(size, len(data))} bytes{'' if size else ' or more'}, more than the {largest} "
                    f"that are read", help=_SPLIT_LIMIT, code="too-large",
                )
                continue
            left -= len(data)
            objects = _read(_decoded(str(file), data))
            del data
            found += objects
            kinds |= objects.kinds
        except OSError as error:
            problems.add(f"`{file}` cannot be read: {reason_of(error)}", code="unreadable")
        except PolicyError as error:
            problems.extend(error.problems)
    problems.raise_errors()
    return Objects.of(found, kinds)


def read(source: Source) -> list[Mapping[str, Any]]:
    """Return the API objects of a text: JSON, or YAML with any number of documents.

    Raises:
        PolicyError: the text is neither, nests too deeply, or holds a value that is not an object.
    """
    return list(_read(source))


def _read(source: Source) -> Objects:
    try:
        documents = _json(source) if source.text.lstrip()[:1] in ("{", "[") else _yaml(source)
    except RecursionError:
        _refuse_depth(source, _too_deep(source.text))
    found: list[Mapping[str, Any]] = []
    kinds: set[str] = set()
    faults: list[tuple[_Path, str, str]] = []
    # Without aliases a text holds fewer values than characters.
    budget = [len(source.text) + 1]
    for number, document in enumerate(documents, 1):
        if document is None:
            continue
        _normalize(source, document, budget)
        if isinstance(document, dict) and isinstance(kind := document.get("kind"), str) and kind.endswith("List"):
            kinds.add(kind.removesuffix("List"))
        place = f"document {number}" if len(documents) > 1 else "the file"
        for where, path, item in _items(document, place, (number - 1,)):
            if not isinstance(item, dict):
                faults.append((path, f"{where} must be an object, not {json_kind(item)}",
                               "a dump is what `kubectl get nodes,pods -A -o yaml` prints"))
            elif not isinstance(item.get("kind"), str):
                faults.append((path, f"{where} has no `kind`", ""))
            else:
                if item["kind"] == "Pod":
                    _default_requests(item)
                found.append(item)
    if faults:
        spans = _spans(source, [path for path, _, _ in faults])
        raise PolicyError([Problem(message, span, advice, code="not-an-object")
                           for span, (_, message, advice) in zip(spans, faults, strict=True)])
    return Objects.of(found, kinds)


def _files(path: Path, problems: Problems) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    files = sorted(
        file for file in path.iterdir() if file.suffix in _SUFFIXES and not file.name.startswith(".") and file.is_file()
    )
    if not files:
        problems.add(f"`{path}` holds no files that end in {', '.join(_SUFFIXES)}", code="unreadable",
                     help="files of directories below it are not read; `kubectl get nodes,pods,nodemetrics -A -o yaml` "
                          "prints a dump")
    yield from files


def _decoded(name: str, data: bytes) -> Source:
    try:
        return Source(name, data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        before = Source(name, data[: error.start].decode("utf-8", "replace") + "\N{REPLACEMENT CHARACTER}")
        raise PolicyError([Problem(
            f"not UTF-8: byte {error.start} is 0x{data[error.start]:02x}", before.span(len(before.text) - 1),
            "save the file as UTF-8", code="not-utf-8",
        )]) from None


def _refuse_depth(source: Source, offset: int) -> NoReturn:
    raise PolicyError([Problem(
        f"nested more than {DEEPEST} levels deep", source.span(offset), code="too-deep",
    )]) from None


def _json(source: Source) -> list[Any]:
    try:
        return [strict_json.decode(source.text)]
    except strict_json.ConstantError as error:
        raise PolicyError([Problem(
            f"`{error.constant}` is not JSON", source.span(error.pos), code="json-syntax",
        )]) from None
    except json.JSONDecodeError as error:
        if source.text.lstrip()[:1] == "{" and error.msg != "Extra data" and _looks_like_flow(source.text):
            return _yaml(source)
        raise PolicyError([Problem(
            f"no JSON: {error.msg[:1].lower()}{error.msg[1:]}", source.span(min(error.pos, len(source.text))),
            code="json-syntax",
        )]) from None
    except ValueError as error:  # a number with thousands of digits
        raise PolicyError([Problem(f"no JSON: {parse_fault(error)}", source.span(0), code="json-syntax")]) from None


def _looks_like_flow(text: str) -> bool:
    """Return whether a text that is not JSON may be YAML in flow style: `{kind: Node}`."""
    return re.match(r"\s*\{\s*[A-Za-z]", text) is not None


def _yaml(source: Source) -> list[Any]:
    import yaml  # noqa: PLC0415 - not needed for JSON, nor for anything that reads no dump

    _check_depth(source)
    try:
        return list(yaml.load_all(source.text, Loader=_loader()))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        offset = _offset(source.text, mark.line, mark.column) if mark else 0
        message = str(error.problem or error.context)
        raise PolicyError([Problem(
            f"no YAML: {message}", source.span(offset), syntax_hint(source.text, offset, message), code="yaml-syntax",
        )]) from None
    except yaml.reader.ReaderError as error:
        position = error.position if isinstance(error.position, int) else 0
        raise PolicyError([Problem(
            f"no YAML: {error.reason}", source.span(min(position, len(source.text))), code="yaml-syntax",
        )]) from None
    except ValueError as error:  # a number with thousands of digits
        raise PolicyError([Problem(f"no YAML: {parse_fault(error)}", source.span(0), code="yaml-syntax")]) from None


def _check_depth(source: Source) -> None:
    """Raise if a text nests too deeply for a parser that recurses in C."""
    import yaml  # noqa: PLC0415 - not every cluster is read from YAML

    text = source.text
    depth = 0
    for bracket in _BRACKETS.finditer(text):
        depth += 1 if bracket[0] in "[{" else -1 if depth else 0
        if depth > DEEPEST:
            break
    else:
        if not _INDENTED.search(text):
            return
    # Possibly too deep (or there are brackets in strings): now each level is counted.
    depth = 0
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > DEEPEST:
                    mark: Any = event.start_mark
                    _refuse_depth(source, _offset(text, mark.line, mark.column))
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
    except yaml.YAMLError:
        return  # the loader reports it better


@functools.cache
def _loader() -> Any:
    """Return a YAML loader that knows the types of JSON only, by YAML 1.2's core schema."""
    import yaml  # noqa: PLC0415 - not every cluster is read from YAML

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]
        """Timestamps, sexagesimal numbers, `yes` and `no` are strings here, as they are in JSON."""

    core = "tag:yaml.org,2002:"
    Loader.yaml_implicit_resolvers = {}
    for tag, pattern, first in (
        ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
        ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
        ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
        ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
        ("merge", r"<<", "<"),
    ):
        Loader.add_implicit_resolver(core + tag, re.compile(rf"^(?:{pattern})$"), list(first))

    def integer(loader: Any, node: Any) -> int:
        text = loader.construct_scalar(node)
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)

    Loader.add_constructor(f"{core}int", integer)
    Loader.add_constructor(f"{core}float", lambda loader, node: float(loader.construct_scalar(node)))
    for tag in ("timestamp", "binary", "set", "omap", "pairs"):
        Loader.add_constructor(core + tag, base.construct_undefined)
    return Loader


def _offset(text: str, line: int, column: int) -> int:
    """Return the offset of a 0-based line and column; YAML ends lines at CR, NEL and separators too."""
    start = 0
    for _ in range(line):
        match = _LINE_END.search(text, start)
        if match is None:
            break
        start = match.end()
    return min(start + column, len(text))


_LINE_END: Final = re.compile("\r\n|[\r\n\x85\u2028\u2029]")


def _normalize(source: Source, document: Any, budget: list[int]) -> None:
    """Convert keys and quantities to strings; raise if it nests too deeply or is larger than its text (aliases)."""
    levels: list[tuple[Any, int, bool]] = [(document, 1, False)]
    while levels:
        value, depth, quantities = levels.pop()
        budget[0] -= 1
        if budget[0] < 0:
            raise PolicyError([Problem(
                "the aliases stand for more than the text itself", source.span(max(0, source.text.find("*"))),
                "write out what they stand for", code="alias-bomb",
            )])
        if depth > DEEPEST:
            _refuse_depth(source, _too_deep(source.text))
        if value.__class__ is dict:
            odd = [key for key in value if key.__class__ is not str]
            for key in odd:
                value[_text_key(key)] = value.pop(key)
            for key, each in value.items():
                kind = each.__class__
                if kind is dict or kind is list:
                    levels.append((each, depth + 1, key in _QUANTITIES))
                elif quantities and (kind is int or kind is float):
                    value[key] = str(each)
        elif value.__class__ is list:
            levels.extend((each, depth + 1, False) for each in value if each.__class__ in (dict, list))


def _text_key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    return "null" if key is None else str(key)


def _items(document: Any, place: str, path: _Path) -> Iterator[tuple[str, _Path, Any]]:
    """Return the objects of a document, each with the name of its place, and its path."""
    if isinstance(document, list):
        for number, item in enumerate(document):
            yield f"item {number} of {place}", (*path, number), item
        return
    kind = document.get("kind") if isinstance(document, dict) else None
    if not isinstance(kind, str) or not kind.endswith("List") or not isinstance(document.get("items"), list):
        yield place, path, document
        return
    for number, item in enumerate(document["items"]):
        if isinstance(item, dict) and "kind" not in item and kind != "List":
            # The items of a typed list (`PodList`) do not repeat their kind.
            whole: Any = {"apiVersion": document.get("apiVersion"), "kind": kind.removesuffix("List"), **item}
        else:
            whole = item
        yield from _items(whole, f"item {number} of {place}", (*path, "items", number))


def _spans(source: Source, paths: Sequence[_Path]) -> list[Span]:
    """Return the offsets of values; of one behind an alias or a merge key, that of its nearest parent."""
    prefixes = {path[:length] for path in paths for length in range(1, len(path) + 1)}
    offsets = dict(_json_offsets(source.text, prefixes) if _is_json(source) else _yaml_offsets(source.text, prefixes))
    return [source.span(next((offsets[path[:length]] for length in range(len(path), 0, -1)
                              if path[:length] in offsets), 0)) for path in paths]


def _json_offsets(text: str, prefixes: Collection[_Path]) -> Iterator[tuple[_Path, int]]:
    """Return the offsets of the values at these paths of a valid JSON text."""
    decoder = json.JSONDecoder()

    def after(pattern: re.Pattern[str], offset: int) -> int:
        found = pattern.match(text, offset)
        return found.end() if found is not None else offset

    def value(path: _Path, offset: int) -> Iterator[tuple[_Path, int]]:
        """Yield the offsets found, and at last the empty path with the end of the value."""
        if path not in prefixes or text[offset] not in "[{":
            if path in prefixes:
                yield path, offset
            yield (), decoder.raw_decode(text, offset)[1]
            return
        yield path, offset
        is_object, index = text[offset] == "{", 0
        offset = after(_BLANKS, offset + 1)
        while text[offset] not in "]}":
            step: int | str = index
            if is_object:
                step, offset = decoder.raw_decode(text, offset)
                offset = after(_COLON, offset)
            for found, place in value((*path, step), offset):
                if found:
                    yield found, place
                else:
                    offset = after(_COMMA, place)
            index += 1
        yield (), offset + 1

    yield from ((path, offset) for path, offset in value((0,), after(_BLANKS, 0)) if path)


def _yaml_offsets(text: str, prefixes: Collection[_Path]) -> Iterator[tuple[_Path, int]]:
    """Return the offsets of the values at these paths of a valid YAML text."""
    import yaml  # noqa: PLC0415 - not every cluster is read from YAML

    document = -1
    parents: list[_Parent] = []
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.DocumentStartEvent):
            document += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            parents.pop()
        elif isinstance(event, yaml.NodeEvent):
            key = event.value if isinstance(event, yaml.ScalarEvent) else None
            path = parents[-1].enter(key) if parents else (document,)
            if path in prefixes:
                mark: Any = event.start_mark
                yield path, mark.index
            if isinstance(event, yaml.CollectionStartEvent):
                parents.append(_Parent(path, isinstance(event, yaml.MappingStartEvent)))


@dataclass(slots=True)
class _Parent:
    """A collection of YAML whose nodes are being read."""

    path: _Path
    """The path of the collection; empty for a key, or below one."""
    is_mapping: bool
    entered: int = 0
    key: str | None = None

    def enter(self, text: str | None) -> _Path:
        """Return the path of the next node, whose text is `text` if it is a scalar; empty for a key."""
        step: int | str | None = self.entered
        self.entered += 1
        if self.is_mapping:
            if self.entered % 2:
                self.key = text
                return ()
            step = self.key
        return () if step is None or not self.path else (*self.path, step)


def _is_json(source: Source) -> bool:
    """Return whether a text that was read is JSON, not YAML in flow style."""
    return source.text.lstrip()[:1] in ("{", "[") and not _looks_like_flow(source.text)


def _too_deep(text: str) -> int:
    """Return the offset at which a JSON text nests too deeply; 0 if its brackets do not show it."""
    depth = 0
    for found in _TEXTS_AND_BRACKETS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        if depth > DEEPEST:
            return found.start()
    return 0


def _default_requests(pod: dict[str, Any]) -> None:
    """Set missing requests of a container to its limits, as the API server does (SetDefaults_Pod)."""
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        return
    for field in ("containers", "initContainers"):
        for container in spec.get(field) or () if isinstance(spec.get(field), list) else ():
            resources = container.get("resources") if isinstance(container, dict) else None
            limits = resources.get("limits") if isinstance(resources, dict) else None
            if isinstance(resources, dict) and isinstance(limits, dict):
                requests = resources.get("requests") or {}
                if isinstance(requests, dict):
                    resources["requests"] = {**limits, **requests}
