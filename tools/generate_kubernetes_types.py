"""Write schemas/kubernetes/core.json: the fields of the Kubernetes objects that expressions are checked against.

The source is the models of the official `kubernetes` package, so what it says about a field is what the API's OpenAPI
document says. Run it after an update of that package (`make types`); a test compares the committed file with a fresh
one.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kubernetes.client import models

TARGET = Path(__file__).parents[1] / "schemas" / "kubernetes" / "core.json"

ROOTS = (
    "V1Pod", "V1Node", "V1Namespace", "V1PersistentVolume", "V1PersistentVolumeClaim", "V1PriorityClass",
    "V1PodDisruptionBudget",
    # What Koordinator's own kinds embed.
    "V1PodTemplateSpec", "V1ObjectReference", "V1DeleteOptions", "V1Condition",
    # What no expression reads, but plugins do: objects are checked against these when they enter the cluster.
    "V1ReplicaSet", "V1ReplicationController", "V1StatefulSet", "V1Service", "V1StorageClass", "V1CSINode",
    "V1CSIDriver", "V1CSIStorageCapacity",
)

# Quantities are texts in the models as they are in JSON. `object` is what the models call IntOrString and free JSON.
SCALARS = {
    "str": "string", "int": "int", "float": "double", "bool": "bool", "object": "dyn", "bytearray": "bytes",
    "datetime": "google.protobuf.Timestamp", "date": "google.protobuf.Timestamp",
}


def main() -> int:
    """Write the file."""
    TARGET.write_text(generate(), encoding="utf-8")
    print(f"{TARGET.relative_to(Path.cwd())}: written from kubernetes {version('kubernetes')}")
    return 0


def generate() -> str:
    """Return the text of the file.

    Raises:
        ValueError: two models would get one name, or a field has a type that this script does not know.
    """
    types: dict[str, dict[str, Any]] = {}
    waiting, models_by_name = list(ROOTS), {}
    while waiting:
        model = waiting.pop()
        name = name_type(model)
        if models_by_name.setdefault(name, model) != model:
            raise ValueError(f"`{model}` and `{models_by_name[name]}` would both be `{name}`")
        if name not in types:
            types[name], reached = describe(model)
            waiting += reached
    source = f"models of the Python package kubernetes {version('kubernetes')}, by tools/generate_kubernetes_types.py"
    return render(source, types)


def render(source: str, types: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the types as JSON with one field per line, so that a change of one field is a change of one line."""

    def text(value: object) -> str:
        return json.dumps(value, ensure_ascii=False)

    blocks = []
    for name in sorted(types):
        fields = [f"   {text(field)}: {text(entry)}" for field, entry in sorted(types[name]["fields"].items())]
        joined = ",\n".join(fields)
        blocks.append(f'  {text(name)}: {{"doc": {text(types[name]["doc"])}, "fields": {{\n{joined}\n  }}}}')
    return f'{{\n "source": {text(source)},\n "types": {{\n' + ",\n".join(blocks) + "\n }\n}\n"


def describe(model_name: str) -> tuple[dict[str, Any], list[str]]:
    """Return the description of one model, and the names of the models that it mentions."""
    model = getattr(models, model_name)
    by_json_name = {field.serialization_alias or name: field for name, field in model.model_fields.items()}
    fields, reached = {}, []
    for name, spelling in model.openapi_types.items():
        json_name = model.attribute_map[name]
        field = by_json_name[json_name]
        entry: dict[str, Any] = {"type": spell(spelling, reached), "doc": first_sentence(field.description or "")}
        if field.is_required():
            entry["required"] = True
        fields[json_name] = entry
    doc = (model.__doc__ or "").split("Attributes:")[0]
    return {"doc": first_sentence(doc), "fields": fields}, reached


def spell(spelling: str, reached: list[str]) -> str:
    """Return a model's type in the language's spelling; models that it mentions are added to `reached`."""
    if of := re.fullmatch(r"[Ll]ist\[(.+)\]", spelling):
        return f"list({spell(of[1], reached)})"
    if of := re.fullmatch(r"[Dd]ict[\[(]str, (.+)[\])]", spelling):
        return f"map(string, {spell(of[1], reached)})"
    if spelling in SCALARS:
        return SCALARS[spelling]
    if not hasattr(models, spelling):
        raise ValueError(f"no model and no scalar is called `{spelling}`")
    reached.append(spelling)
    return name_type(spelling)


def name_type(model: str) -> str:
    """Return the name of a model in the language: `V1PodSpec` is `kubernetes.PodSpec`."""
    return "kubernetes." + re.sub(r"^(Core)?V\d+((alpha|beta)\d+)?(?=[A-Z])", "", model)


def first_sentence(text: str) -> str:
    """Return the first sentence of a description in one line, without the full stop."""
    line = " ".join(text.split())
    # A sentence ends before a capital letter; `e.g. 5`, `i.e. all`, versions and file names do not end one.
    return re.split(r"(?<!e\.g)(?<!i\.e)\.\s+(?=[A-Z\"'(])", line, maxsplit=1)[0].rstrip(".")


if __name__ == "__main__":
    sys.exit(main())
