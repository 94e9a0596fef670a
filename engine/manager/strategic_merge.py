"""Strategic merge patches of pods, as a ClusterColocationProfile holds one (Kubernetes' strategicpatch).

Lists of a pod with a merge key are merged by it, others are replaced; `$patch: delete` and `$patch: replace` and
`$deleteFromPrimitiveList/...` are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_DIRECTIVE: Final = "$patch"
_DELETE_PRIMITIVES: Final = "$deleteFromPrimitiveList/"
_ORDER: Final = "$setElementOrder/"
_RETAIN: Final = "$retainKeys"
_MERGE_KEYS: Final[Mapping[str, str]] = {
    "containers": "name", "initContainers": "name", "ephemeralContainers": "name", "volumes": "name", "env": "name",
    "imagePullSecrets": "name", "resourceClaims": "name", "schedulingGates": "name", "claims": "name",
    "volumeMounts": "mountPath", "volumeDevices": "devicePath", "ports": "containerPort", "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey", "ownerReferences": "uid", "conditions": "type",
}
_PRIMITIVES: Final = frozenset({"finalizers"})
"""Lists of strings that are merged."""


def strategic_merge(original: Any, patch: Any) -> Any:
    """Return the object with the patch applied; both stay as they are."""
    if not isinstance(original, Mapping) or not isinstance(patch, Mapping):
        return patch
    if patch.get(_DIRECTIVE) == "replace":
        return {key: value for key, value in patch.items() if key != _DIRECTIVE}
    merged = dict(original)
    for key, value in patch.items():
        if key.startswith(_DELETE_PRIMITIVES):
            name = key.removeprefix(_DELETE_PRIMITIVES)
            merged[name] = [each for each in merged.get(name) or () if each not in (value or ())]
        elif key in (_DIRECTIVE, _RETAIN) or key.startswith(_ORDER):
            continue
        elif value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            if value.get(_DIRECTIVE) == "delete":
                merged.pop(key, None)
            else:
                held = merged.get(key)
                merged[key] = strategic_merge(held if isinstance(held, Mapping) else {}, value)
        elif isinstance(value, list):
            merged[key] = _merged_list(key, merged.get(key), value)
        else:
            merged[key] = value
    return merged


def _merged_list(name: str, held: Any, patch: list[Any]) -> list[Any]:
    before = list(held) if isinstance(held, list) else []
    if name in _PRIMITIVES:
        return before + [each for each in patch if each not in before]
    key = _MERGE_KEYS.get(name)
    if key is None:
        return patch
    if any(isinstance(each, Mapping) and each.get(_DIRECTIVE) == "replace" for each in patch):
        return [each for each in patch if not (isinstance(each, Mapping) and _DIRECTIVE in each)]
    found = before
    for each in patch:
        if not isinstance(each, Mapping):
            continue
        place = next((number for number, old in enumerate(found)
                      if isinstance(old, Mapping) and old.get(key) == each.get(key)), None)
        if each.get(_DIRECTIVE) == "delete":
            if place is not None:
                del found[place]
        elif place is None:
            found.append(strategic_merge({}, each))
        else:
            found[place] = strategic_merge(found[place], each)
    return found
