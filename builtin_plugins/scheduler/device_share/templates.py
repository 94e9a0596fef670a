"""The templates of shared GPUs: the possible parts of a GPU model, from a ConfigMap."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from koordpolicy.engine.cluster.objects.pods import ResourceList, canonical_amount

_KEY = "data.yaml"


def templates_of(config: Mapping[str, Any] | None, requested: Mapping[str, int]) -> dict[str, dict[str, ResourceList]]:
    """Return the templates with exactly these resources, by `<vendor>-<model>` and name; none without a ConfigMap.

    A malformed ConfigMap holds none.
    """
    text = ((config or {}).get("data") or {}).get(_KEY)
    if not isinstance(text, str):
        return {}
    amounts = {name: amount for name, amount in requested.items() if amount}
    found = {}
    for key, templates in _parse(text).items():
        matching = {
            name: resources for name, resources in templates.items()
            if {each: amount for each, amount in resources.items() if amount} == amounts
        }
        if matching:
            found[key] = matching
    return found


@lru_cache(maxsize=16)
def _parse(text: str) -> Mapping[str, Mapping[str, ResourceList]]:
    import yaml  # noqa: PLC0415 - few clusters have such templates

    try:
        content = yaml.safe_load(text) or {}
        return {
            str(key): {
                str(name): ResourceList({
                    resource: canonical_amount(resource, amount, resource) for resource, amount in amounts.items()
                })
                for name, amounts in templates.items()
            }
            for key, templates in content.items()
        }
    except (yaml.YAMLError, ValueError, AttributeError, TypeError):
        return {}
