"""Descriptions of what is at an offset: fields of documents, and parts of expressions with their types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from koordpolicy.engine.cel.check.checked_ast import CallReference, Checked, DefinitionReference, path_of
from koordpolicy.engine.cel.check.environment import Environment, Function
from koordpolicy.engine.cel.syntax.ast import Call, Expr, Ident, Select, children
from koordpolicy.engine.cel.syntax.lexer import Token, tokenize
from koordpolicy.engine.documents import YamlNode
from koordpolicy.engine.framework.slots import unit_of

from .policy_text import PolicyText, schemas_at
from .proposals import GLOBAL_MACROS, MACROS, OPTIONAL_MACROS, signature, type_text
from .scopes import checked_in, scope_of, with_locals


def described(
    text: PolicyText, offset: int, shared: Mapping[str, YamlNode], extensions: tuple[Function, ...] = (),
) -> str:
    """Return a description as Markdown; empty if there is nothing to say."""
    at = text.expression_at(offset)
    if at is not None:
        seen = scope_of(at.document, at.path, shared, extensions)
        checked = checked_in(seen, at.node.part)
        found = _of_part(checked, at.offset) if checked is not None else ""
        return found or _of_word(with_locals(seen, at.node.text[:at.offset]), at.node.text, at.offset)
    key = text.key_at(offset)
    if key is None:
        return ""
    document, path = key
    return "\n\n".join(dict.fromkeys(
        f"`{path[-1]}`: {type_text(each)}\n\n{each.get('description', '')}".strip()
        for each in schemas_at(document, path)
    ))


def _parts(node: Expr) -> Iterator[Expr]:
    waiting = [node]
    while waiting:
        part = waiting.pop()
        yield part
        waiting.extend(children(part))


def _of_part(checked: Checked, offset: int) -> str:
    """Describe the innermost part of an expression whose own name is at an offset."""
    best: tuple[int, str] | None = None
    for part in _parts(checked.root):
        if not part.start <= offset <= part.end or part.id not in checked.types:
            continue
        found = _of_node(checked, part, offset)
        if found and (best is None or part.end - part.start <= best[0]):
            best = part.end - part.start, found
    return best[1] if best is not None else ""


def _of_node(checked: Checked, part: Expr, offset: int) -> str:
    type_ = checked.types[part.id]
    reference = checked.references.get(part.id)
    match part:
        case Ident(name=name):
            variable = checked.environment.variables.get(name)
            return _text(f"{name}: {type_}", variable.doc if variable is not None else "")
        case Select(field=field) if offset >= part.end - len(field):
            shown = checked.source.text[part.start:part.end]
            if isinstance(reference, DefinitionReference):
                return _text(f"{shown}: {type_}", f"`{checked.definition(reference.name).source.text.strip()}`")
            holder = checked.types.get(part.operand.id)
            declared = checked.environment.types.get(holder.name) if holder is not None else None
            known = declared.fields.get(field) if declared is not None else None
            path = path_of(checked, part)
            unit = (known.unit if known is not None else "") or (unit_of(path) if path else "")
            doc = known.doc if known is not None else ""
            return _text(f"{shown}: {type_}", doc if unit in doc else f"{doc} ({unit})".strip())
        case Call(function=name) if isinstance(reference, CallReference) and _is_named(part, name, offset):
            function = checked.environment.functions.get(reference.function)
            lines = "\n".join(signature(reference.function, each) for each in reference.overloads)
            return _text(lines, function.doc if function is not None else "")
    return ""


def _is_named(part: Call, name: str, offset: int) -> bool:
    last = name.rpartition(".")[2]
    return last.isidentifier() and part.position - len(last) <= offset <= part.position


def _of_word(seen: Environment, text: str, offset: int) -> str:
    """Describe the macro whose name is at an offset, or in an expression with a fault the variable or function."""
    tokens = list(tokenize(text))
    for place, token in enumerate(tokens):
        if token.kind == "ident" and token.start <= offset <= token.end:
            if (macro := _macro(tokens, place)) is not None:
                return _text(*macro)
            variable, function = seen.variables.get(token.text), seen.functions.get(token.text)
            if variable is not None:
                return _text(f"{token.text}: {variable.type}", variable.doc)
            if function is not None:
                return _text("\n".join(signature(function.name, each) for each in function.overloads), function.doc)
    return ""


def _macro(tokens: Sequence[Token], place: int) -> tuple[str, str] | None:
    """Return how the macro is called of whose name a token is a part, with a sentence; None if there is none."""
    for start in (place, place - 2):
        name = "".join(each.text for each in tokens[max(start, 0):start + 3])
        if name in GLOBAL_MACROS:
            return GLOBAL_MACROS[name]
    if tokens[place + 1].kind != "(":
        return None
    member = place > 0 and tokens[place - 1].kind == "."
    return ({**MACROS, **OPTIONAL_MACROS} if member else GLOBAL_MACROS).get(tokens[place].text)


def _text(code: str, doc: str) -> str:
    return f"```\n{code}\n```" + (f"\n\n{doc}" if doc else "")
