from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.cel.syntax.lexer import tokenize
from koordpolicy.engine.cel.syntax.parser import parse
from koordpolicy.engine.cel.syntax.unparse import unparse
from koordpolicy.engine.documents import read
from koordpolicy.engine.documents.nodes import to_plain
from koordpolicy.engine.formatting import format_source
from koordpolicy.engine.formatting.expressions import gaps_of
from koordpolicy.engine.source import PolicyError, Source

ROOT = Path(__file__).parents[3]
HEAD = "apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\nmetadata: {name: a}\nspec:\n"


def formatted(text: str) -> str:
    return format_source(Source("a.yaml", text))


@pytest.mark.parametrize(("before", "after"), [
    ("a:\n    - b\n    -   - c\n        - d:   1\n", "a:\n- b\n- - c\n  - d: 1\n"),
    ("a:\n     b :   {c : 1 ,d:   [ 1,2 , x ] }   \n", "a:\n  b: {c: 1, d: [1, 2, x]}\n"),
    ("\n\na: 1\n\n\n\nb: 2\n\n\n", "a: 1\n\nb: 2\n"),
    ("a: 1\r\nb: |\r\n    x\r\n    y\r\n", "a: 1\nb: |\n  x\n  y\n"),
    ("a: 1", "a: 1\n"),
    ("a: |\n  the last line has no end", "a: |\n  the last line has no end"),
    ("a:\n    {b: 1,\n      c: 2}\n", "a:\n  {b: 1,\n    c: 2}\n"),
    ("a:\n    b\n", "a:\n  b\n"),
    ("? a\n: b\n", "? a\n: b\n"),
    ("---  \na: 1\n---\nb: 2\n...\n", "---\na: 1\n---\nb: 2\n...\n"),
    ("{}", "{}\n"),
    ("a: {b: , c: 1}\n", "a: {b: , c: 1}\n"),
    ("a: &x   1\nb: [ *x ,*x ]\n", "a: &x 1\nb: [*x, *x]\n"),
    ("# only a comment   \n\n\n# and another\n\n", "# only a comment\n\n# and another\n"),
    ("", ""),
])
def test_a_layout_is_replaced_by_the_standard_one(before: str, after: str):
    assert formatted(before) == after
    assert formatted(after) == after


@pytest.mark.parametrize(("before", "after"), [
    ("a:\n  - |2+\n     x\n\n  - y\n", "a:\n- |2+\n   x\n\n- y\n"),
    ("a:\n      - |   # why\n         x\n           y   \n", "a:\n- |   # why\n  x\n    y   \n"),
    ("a: >-\n     x\n\n\n\n     y\n\n\n\nb: 1\n", "a: >-\n  x\n\n\n\n  y\n\nb: 1\n"),
    ("a: |+\n   x\n\n\n", "a: |+\n  x\n\n\n"),
    ("a:\n    b: 'x\n\n        y'\n    c: one\n       two   \n", "a:\n  b: 'x\n\n      y'\n  c: one\n     two\n"),
])
def test_the_text_of_scalars_stays(before: str, after: str):
    assert formatted(before) == after
    assert [*map(to_plain, read(Source("", before)))] == [*map(to_plain, read(Source("", after)))]
    assert formatted(after) == after


def test_comments_stay_with_what_they_stand_with():
    before = """\
        # the file
        a:    # of a
            # before the list
            - b: 1

              # of c
              c: 2
              # at the end of the item
            # at the end of the list
        # between
        d:
          # first below d
            e: 1   #   aligned
        """
    after = """\
        # the file
        a:    # of a
        # before the list
        - b: 1

          # of c
          c: 2
          # at the end of the item
        # at the end of the list
        # between
        d:
          # first below d
          e: 1   #   aligned
        """
    assert formatted(dedent(before)) == dedent(after)
    assert formatted(dedent(after)) == dedent(after)


@pytest.mark.parametrize(("before", "after"), [
    ("a+b*-c", "a + b * -c"),
    ("!( x in  y )", "!(x in y)"),
    ("a  ? b:c", "a ? b : c"),
    ("{'a' :1,?'b':c ? 1:2}", "{'a': 1, ?'b': c ? 1 : 2}"),
    ("[ ?a ,b ] [ 0 ]", "[?a, b][0]"),
    ("a . ?b .c( d )[?e]", "a.?b.c(d)[?e]"),
    ("a in[1]", "a in [1]"),
    ("pod.spec.containers.all( c ,c.name!='x  y' )", "pod.spec.containers.all(c, c.name != 'x  y')"),
    ("- 1 - -1", "-1 - -1"),
    ("a>0&&b ||!c", "a > 0 && b || !c"),
])
def test_an_expression_gets_the_standard_blanks(before: str, after: str):
    text = f"{HEAD}  filter:\n  - {{name: a, expression: {{}}}}\n"
    assert formatted(text.replace("{}", json.dumps(before))) == text.replace("{}", json.dumps(after))


def test_blanks_in_expressions_of_several_lines_are_removed_but_lines_and_comments_stay():
    before = f"""{HEAD}  filter:
  - name: a
    expression: |
      a&&   // all  of
          b ?1:2  // them

      +   3
  - {{name: b, expression: a?b:c, message: a?b:c}}
  - {{name: c, expression: "  a+b "}}
  - {{name: d, expression: "a\\tb"}}
""".replace("a\\tb", "a\\t+b")
    after = before.replace("a&&   // all  of", "a &&   // all  of").replace("b ?1:2  //", "b ? 1 : 2  //").replace(
        "+   3", "+ 3").replace("expression: a?b:c", "expression: a ? b :c").replace("  a+b ", "a + b").replace(
        "\\t+b", "\\t+ b")
    assert formatted(before) == after
    assert formatted(after) == after


@pytest.mark.parametrize(("text", "problem"), [
    ("a: [1\n", "a.yaml:1:5: error: did not find expected"),
    ("a: 1\na: 2\n", "a.yaml:2:1: error: the key `a` is here twice, first at 1:1"),
    ("a: *b\n", "a.yaml:1:4: error: no anchor `&b` before this"),
    ("a: 1 \x85b: 2\n", "a.yaml:1:6: error: U+0085 is a line break for some readers of YAML"),
    ("[" * 100, "a.yaml:1:65: error: nested deeper than 64 levels"),
    (f"{HEAD}  filter:\n  - {{name: a, expression: a +}}\n", "a.yaml:6:30: error: expected a value, found the end"),
])
def test_what_cannot_be_read_is_refused_with_its_place(text: str, problem: str):
    with pytest.raises(PolicyError) as refused:
        formatted(text)
    assert problem in str(refused.value)


def test_the_shipped_documents_have_the_standard_layout():
    files = (ROOT / "policies" / "descheduler").rglob("*.yaml")  # `make check` looks at all
    assert [str(path) for path in files if formatted(text := path.read_text(encoding="utf-8")) != text] == []


words = st.text("ab c:#é'\"\\,-{\t", max_size=8)
plain_data = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | words | st.lists(words, min_size=2, max_size=4).map("\n".join),
    lambda below: st.lists(below, min_size=1, max_size=3) | st.dictionaries(
        st.sampled_from("abcdef"), below, min_size=1, max_size=3),
    max_leaves=9,
)


class _Writer:
    """Writes data as YAML with blanks, empty lines, comments and styles that `choose` picks."""

    def __init__(self, choose: Any) -> None:
        self.choose = choose
        self.comments: list[str] = []

    def blanks(self, least: int) -> str:
        return " " * (least + self.choose(3))

    def end(self, column: int) -> str:
        lines = [f" {self.comment()}\n" if self.choose(5) == 0 else f"{self.blanks(0)}\n"]
        for _ in range(self.choose(3)):
            if self.choose(2):
                lines.append(self.blanks(0) + "\n")
            else:
                lines.append(f"{' ' * self.choose(column + 4)}{self.comment()}\n")
        return "".join(lines)

    def comment(self) -> str:
        self.comments.append(f"# {len(self.comments)}")
        return self.comments[-1]

    def flow(self, data: Any) -> str:
        if isinstance(data, dict):
            parts = [f"{self.blanks(0)}{key}{self.blanks(0)}:{self.blanks(1)}{self.flow(each)}"
                     for key, each in data.items()]
            return "{" + f"{self.blanks(0)},".join(parts) + self.blanks(0) + "}"
        if isinstance(data, list):
            parts = [f"{self.blanks(0)}{self.flow(each)}" for each in data]
            return "[" + f"{self.blanks(0)},".join(parts) + self.blanks(0) + "]"
        return json.dumps(data, ensure_ascii=False)

    def block(self, data: Any, column: int) -> str:
        """Return a value in its own lines, whose first line has no indentation."""
        step = column + 1 + self.choose(4)
        parts = []
        if isinstance(data, dict):
            for key, each in data.items():
                if not isinstance(each, dict | list):
                    parts.append(f"{key}{self.blanks(0)}:{self.blanks(1)}{self.scalar(each, column)}")
                elif self.choose(2):
                    parts.append(f"{key}:{self.blanks(1)}{self.flow(each)}{self.end(column)}")
                else:
                    below = column if isinstance(each, list) and self.choose(2) else step
                    parts.append(f"{key}:{self.end(column)}{' ' * below}{self.block(each, below)}")
        elif isinstance(data, list):
            for each in data:
                gap = self.blanks(1)
                below = column + 1 + len(gap)
                if isinstance(each, dict | list) and self.choose(2):
                    parts.append(f"-{gap}{self.block(each, below)}")
                elif isinstance(each, dict | list):
                    parts.append(f"-{gap}{self.flow(each)}{self.end(column)}")
                else:
                    parts.append(f"-{gap}{self.scalar(each, column)}")
        return f"{' ' * column}".join(parts)

    def scalar(self, data: Any, column: int) -> str:
        literal = isinstance(data, str) and data.strip() and not data.startswith(("\n", " ", "\t")) and "\n" in data
        if not literal or self.choose(2):
            return f"{self.flow(data)}{self.end(column)}"
        chomping = "-" if not data.endswith("\n") else "+"
        indent = " " * (column + 1 + self.choose(4))
        lines = data.removesuffix("\n").split("\n")
        return f"|{chomping}\n" + "".join(f"{indent if each.strip(' ') else ''}{each}\n" for each in lines)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.sampled_from("abcdef"), plain_data, min_size=1, max_size=4), st.randoms())
def test_whatever_the_layout_the_document_and_its_comments_stay_and_the_result_is_final(data: Any, random: Any):
    writer = _Writer(lambda most: random.randrange(max(most, 1)))
    text = writer.block(data, 0)
    before = [*map(to_plain, read(Source("", text)))]
    result = formatted(text)
    assert [*map(to_plain, read(Source("", result)))] == before
    assert re.findall(r"(?<=[ \n])# \d+$", f"\n{result}", re.MULTILINE) == writer.comments
    assert formatted(result) == result


names = st.sampled_from(["a", "pod.b", "1", "2u", "1.5", "'x  y'", "b'z'", "null", "[]", "c[0]", "has(a.b)"])
trees = st.recursive(names, lambda below: st.one_of(
    st.tuples(below, st.sampled_from(["+", "-", "*", "&&", "||", "in", "<="]), below).map(" ".join),
    below.map("!({})".format), below.map("-({})".format), below.map("[{}, a]".format), below.map("{{a: {}}}".format),
    st.tuples(below, below).map(lambda each: f"({each[0]}) ? ({each[1]}) : {each[0]}"),
    below.map("a.all(x, {})".format), below.map("a.?b[?{}]".format),
), max_leaves=6)


@settings(max_examples=60, deadline=None)
@given(trees, st.randoms())
def test_standard_blanks_change_no_tree_whatever_the_blanks_were(text: str, random: Any):
    tokens = tokenize(text)
    noisy = "".join(" " * random.randrange(0 if gap == "" else 1, 3) + token.text
                    for token, gap in zip(tokens, gaps_of(tokens), strict=True))
    standard = "".join(gap + token.text for token, gap in zip(tokens, gaps_of(tokenize(noisy)), strict=True))
    assert unparse(parse(Source("", standard))) == unparse(parse(Source("", text)))
    assert [*gaps_of(tokenize(standard))] == [*gaps_of(tokens)]
