"""The glossary names modules that exist, and the words that it rules out are gone."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")

NAMES = frozenset({
    "Standing", "Question", "Repeats", "lasts", "asked_anew", "asked_again", "standing_from", "renewed", "_Lent",
    "_Unkept", "_NOT_KEPT", "Asking", "Parked", "WaitingRoom", "no_room", "_with_room", "_make_room", "_Force",
    "_prepared", "_Watched", "restless", "untold", "unheard", "unsaved", "_Gently", "_GENTLY", "Settled", "_ByRow",
    "_Distinct", "_HangsOn", "_Say", "_said_by_filter", "_Decision", "KeptRows", "KeptColumns", "KeptOutcomes",
    "DistinctAnswers", "ShapeColumns", "Remedies", "remedies", "remedy", "Inquiry", "look_into", "Offers",
    "python_offers", "offers_beside", "_question", "_asking", "_offers",
})
"""Former names of the glossary's concepts: no class, function, attribute or variable has one."""

VAGUE_NAMES = frozenset({"kept", "told", "wanted", "asked", "said", "gone"})
"""Participles that named forty concepts: no variable, attribute or function of the code has one; tests may."""

VAGUE_NAMES_IN_USE = frozenset({("engine/testing/kit.py", "kept"), ("engine/testing/kit.py", "asked")})
"""Of interfaces that plugins' tests rely on: `FakeEvictor.kept`, and a parameter of `schedule`."""

PARTS = frozenset({
    "asked_anew", "beneath", "gently", "hangs_on", "inquiry", "kept_columns", "kept_outcomes", "kept_rows", "look_into",
    "remedies", "remedy", "restless", "standing", "unheard", "unsaved", "untold",
})
"""Former words: no identifier has one of them as a part, either: `_MOST_REMEDIES`, `KeptRowsOfNodes`."""

PHRASES = (
    r"hangs? on", r"\bin force\b", r"\basked anew\b", r"\bpromised (?:node|pod)", r"\bstanding answers?\b",
    r"\bopinions? (?:of|about)\b", r"\bbeneath\b",
    r"\b(?:[Pp]lugin|[Rr]ule|[Cc]heck|[Ss]corer|[Ff]ilter|[Ee]xtender)s? (?:is|are|was|were) (?:not )?asked",
    r"spec/\w+\.md", r"\b(?:what|which) \w+ (?:comes|came) to\b",
)


def files(*suffixes: str) -> list[Path]:
    folders = ("engine", "builtin_plugins", "src/koordpolicy/testing", "tests", "docs", "examples", "tools")
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "src" / "koordpolicy" / "plugin.py"]
    found = [*pages, *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    left_out = {ROOT / "docs" / "glossary.md", Path(__file__)}
    sources = [path for path in found if path.suffix in suffixes and path not in left_out]
    return [path for path in sources if "decisions" not in path.parts]


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def tokens(path: Path) -> list[tokenize.TokenInfo]:
    return list(tokenize.generate_tokens(io.StringIO(text_of(path)).readline))


def test_every_module_of_the_glossary_exists():
    modules = re.findall(r"\| `([\w/]+\.py)` \|", GLOSSARY)
    assert len(modules) > 40
    assert [module for module in modules if not (ROOT / "engine" / module).exists()] == []


def test_every_word_of_the_glossary_has_one_meaning():
    words = re.findall(r"(?m)^\| ([a-z][\w ]*) \| .* \| `", GLOSSARY)
    assert [word for word in words if words.count(word) > 1] == []


def test_former_names_are_gone():
    # A token is at least a word of the text, which is found much faster.
    word = re.compile(rf"\b(?:{'|'.join(map(re.escape, NAMES))})\b")
    assert [
        (str(path.relative_to(ROOT)), token.string, token.start[0])
        for path in files(".py") if word.search(text_of(path)) for token in tokens(path)
        if token.type == tokenize.NAME and token.string in NAMES
    ] == []


def test_vague_names_are_only_those_in_use():
    word = re.compile(rf"\b(?:{'|'.join(VAGUE_NAMES)})\b")
    found = {
        (name, token.string) for path in files(".py") for name in [str(path.relative_to(ROOT))]
        if not name.startswith("tests/") and word.search(text_of(path)) for token in tokens(path)
        if token.type == tokenize.NAME and token.string in VAGUE_NAMES
    }
    assert found == VAGUE_NAMES_IN_USE


def words_of(identifier: str) -> str:
    """Return the words of an identifier in lower case, each between underscores."""
    return f"_{'_'.join(re.findall(r'[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+', identifier)).lower()}_"


def test_former_words_are_no_parts_of_names():
    part = re.compile(rf"_(?:{'|'.join(PARTS)})_")
    loose = re.compile("|".join(word.replace("_", "_?") for word in PARTS), re.IGNORECASE)
    assert [
        (str(path.relative_to(ROOT)), token.string, token.start[0])
        for path in files(".py") if loose.search(text_of(path)) for token in tokens(path)
        if token.type == tokenize.NAME and part.search(words_of(token.string))
    ] == []
    assert [words_of(name) for name in ("_MOST_REMEDIES", "KeptRowsOf2", "HTTPServer")] == [
        "_most_remedies_", "_kept_rows_of_2_", "_http_server_"]


@pytest.mark.parametrize("phrase", PHRASES)
def test_former_phrases_are_gone(phrase: str):
    pattern = re.compile(phrase)
    found = [
        (name, match.group()) for path in files(".py", ".md", ".tmpl") for name in [str(path.relative_to(ROOT))]
        if pattern.search(text_of(path))
        for text in ([text_of(path)] if path.suffix != ".py" else [
            token.string for token in tokens(path) if token.type in (tokenize.STRING, tokenize.COMMENT)
        ])
        for match in pattern.finditer(text)
    ]
    assert found == []


def test_no_docstring_begins_with_a_relative_clause():
    clause = re.compile(r"(?:What|Which|Who|Whose|Whether|Where|How)\b")
    literal = re.compile(rf"""["']\s*{clause.pattern}""")  # the text of a file is searched much faster than its tree
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}" for path in files(".py") if literal.search(text_of(path))
        for node in ast.walk(ast.parse(text_of(path)))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        and clause.match(node.value.value.lstrip())
    ]
    assert found == []


SHARED_CLASSES: dict[str, tuple[tuple[str, ...], str]] = {
    "Bind": (("engine/cel/syntax/ast.py", "engine/framework/scheduler.py"),
        "CEL's macro, and kube-scheduler's extension point"),
    "Busy": (("engine/experiments/journal.py", "engine/flight_recorder/segments.py"),
        "the errors of a sweep's journal and of a recorder's directory that another process writes"),
    "Call": (("engine/cel/scalar/codegen/python_nodes.py", "engine/cel/syntax/ast.py"),
        "a node of Python's tree, as in `ast`, and one of CEL's"),
    "Change": (("engine/client/informer.py", "engine/console/changes.py"),
        "an object that an informer delivers, and one that a listing shows"),
    "Changed": (("engine/flight_recorder/records.py", "engine/framework/scheduler.py"),
        "a record of a flight recorder, and the result of a transformer"),
    "Difference": (("engine/cluster/sources/comparer.py", "engine/comparison/difference.py"),
        "of a cluster from its informers, and of two outcomes"),
    "Meter": (("engine/cel/scalar/budget.py", "engine/flight_recorder/figures.py"),
        "of evaluation, and of a cluster's requests"),
    "Projection": (("engine/client/projection.py", "engine/flight_recorder/fields.py"),
        "the fields that an informer decodes, and those that a recorder writes"),
    "Sources": ((
        "engine/agent/metrics_advisor/collector.py",
        "engine/reload/source_state.py",
        "engine/scheduler/observe/scheduler_metrics.py",
    ),
        "of collectors, of policies, and of a scheduler's metrics"),
    "Span": (("engine/flight_recorder/figures.py", "engine/source.py"),
        "seconds of a recording, and characters of a text"),
}
"""Names of public classes that modules of the engine and the built-in plugins share: the modules, and the reason."""


def test_no_docstring_returns_a_relative_clause():
    clause = re.compile(r"(?:Return|Yield)s? (?:what|who)\b")
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}" for path in files(".py") if clause.search(text_of(path))
        for node in ast.walk(ast.parse(text_of(path)))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        and clause.match(node.value.value.lstrip())
    ]
    assert found == []


def test_no_module_is_named_by_a_bare_participle():
    # `derived` and `recorded` are in the plan of the rooms; a feed is a noun.
    allowed = {"derived", "recorded", "feed"}
    found = [str(path.relative_to(ROOT)) for folder in ("engine", "builtin_plugins")
             for path in (ROOT / folder).rglob("*") if re.fullmatch(r"[a-z]+ed(?:\.py)?", path.name)
             and path.name.removesuffix(".py") not in allowed]
    assert found == []


def test_no_two_public_classes_share_a_name_without_a_reason():
    definition = re.compile(r"(?m)^[ \t]*class[ \t]+([^\W_]\w*)")
    owners: dict[str, set[str]] = {}
    for path in files(".py"):
        name = str(path.relative_to(ROOT))
        if name.startswith(("engine/", "builtin_plugins/")):
            for found in definition.finditer(text_of(path)):
                owners.setdefault(found[1], set()).add(name)
    shared = {name: tuple(sorted(of)) for name, of in owners.items() if len(of) > 1}
    assert shared == {name: of for name, (of, _) in SHARED_CLASSES.items()}


def test_no_schema_asks_plugins_and_rules():
    asked = re.compile(r'"description": "(?:Plugins asked|Asked|[^"]*(?:check|rule) was asked)\b[^"]*')
    found = [(path.name, match.group()) for path in (ROOT / "schemas").rglob("*.json")
             for match in asked.finditer(text_of(path))]
    assert found == []


def test_no_description_of_a_schema_begins_with_a_relative_clause():
    clause = re.compile(r'"description": "(?:What|Which|Who|Whose|Whether|Where|Why|How)\b[^"]*')
    found = [(path.name, match.group()) for path in (ROOT / "schemas").rglob("*.json")
             for match in clause.finditer(text_of(path))]
    assert found == []
