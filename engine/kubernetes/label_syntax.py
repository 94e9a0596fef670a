"""The syntax of label selectors: operators, keys and values, as the API server checks them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .library.format import FORMATS
from .selectors import check_selector


def selector_faults(selector: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the faults of a LabelSelector; None has none."""
    if selector is None:
        return
    try:
        check_selector(selector)
    except ValueError as error:
        yield str(error)
        return
    pairs = [(key, [value]) for key, value in (selector.get("matchLabels") or {}).items()]
    pairs += [(each["key"], each.get("values") or []) for each in selector.get("matchExpressions") or ()]
    for key, values in pairs:
        for fault in FORMATS["qualifiedName"].check(key):
            yield f'key: Invalid value: "{key}": {fault}'
        for value in values:
            for fault in FORMATS["labelValue"].check(value):
                yield f'values[0][{key}]: Invalid value: "{value}": {fault}'
