"""AdmissionReviews: the requests and answers of webhooks, and JSON patches.

Whatever a body holds, the answer is a clear status: a body that is no AdmissionReview is answered with 400.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.kubernetes.objects import json_kind

KIND: Final = "AdmissionReview"
VERSIONS: Final = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
_DEEPEST: Final = 100


class MalformedReview(ValueError):
    """A body that is no AdmissionReview; the message is for its sender."""


class AdmissionRefusal(Exception):
    """An object that is not admitted; the message is for its sender, `code` the HTTP status of the API server."""

    def __init__(self, message: str, code: int = 400) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Review:
    """The request of an AdmissionReview. `item` is empty for a deletion, `old` for a creation."""

    version: str
    uid: str
    operation: str
    namespace: str
    name: str
    item: Mapping[str, Any]
    old: Mapping[str, Any]


def read_review(body: bytes) -> Review:
    """Return the request of a body.

    Raises:
        MalformedReview: it is no AdmissionReview with a request.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise MalformedReview("the body is not JSON") from None
    if not isinstance(value, Mapping) or value.get("kind") != KIND:
        raise MalformedReview(f"the body must be an {KIND}")
    version = value.get("apiVersion")
    if version not in VERSIONS:
        raise MalformedReview(f"`apiVersion` must be one of {', '.join(VERSIONS)}")
    request = value.get("request")
    if not isinstance(request, Mapping):
        raise MalformedReview(f"`request` must be an object, not {json_kind(request)}")
    for name in ("uid", "operation"):
        if not isinstance(request.get(name), str) or not request[name]:
            raise MalformedReview(f"`request.{name}` must be a string that is not empty")
    objects = {}
    for name in ("object", "oldObject"):
        found = request.get(name) or {}
        if not isinstance(found, Mapping):
            raise MalformedReview(f"`request.{name}` must be an object, not {json_kind(found)}")
        if _is_deeper(found, _DEEPEST):
            raise MalformedReview(f"`request.{name}` is nested too deeply")
        objects[name] = found
    return Review(str(version), request["uid"], request["operation"], _text(request.get("namespace")),
                  _text(request.get("name")), objects["object"], objects["oldObject"])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _is_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [each for outer in level if isinstance(outer, dict | list)
                 for each in (outer.values() if isinstance(outer, dict) else outer)]
        if not level:
            return False
    return True


def answer(
    review: Review, *, refusal: AdmissionRefusal | None = None, patched: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the body of the answer: admitted, unless there is a refusal, with the patch to `patched`."""
    response: dict[str, Any] = {"uid": review.uid, "allowed": refusal is None}
    if refusal is not None:
        response["status"] = {"code": refusal.code, "message": str(refusal)}
    elif patched is not None:
        patch = json_patch(review.item, patched)
        if patch:
            response["patchType"] = "JSONPatch"
            response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
    return json.dumps({"apiVersion": review.version, "kind": KIND, "response": response}).encode()


def json_patch(before: Any, after: Any, path: str = "") -> list[dict[str, Any]]:
    """Return the JSON patch (RFC 6902) from one value to another; empty if they are equal."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        patch = [{"op": "remove", "path": f"{path}/{_escaped(key)}"} for key in before if key not in after]
        for key, value in after.items():
            place = f"{path}/{_escaped(key)}"
            if key in before:
                patch += json_patch(before[key], value, place)
            else:
                patch.append({"op": "add", "path": place, "value": value})
        return patch
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [each for number, (old, new) in enumerate(zip(before, after, strict=True))
                for each in json_patch(old, new, f"{path}/{number}")]
    if type(before) is type(after) and before == after and not isinstance(before, list):
        return []
    return [{"op": "replace", "path": path, "value": after}]


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
