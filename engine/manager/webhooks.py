"""The webhook server: AdmissionReviews over TLS."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from aiohttp import web

from koordpolicy.engine.kubernetes.objects import check_object
from koordpolicy.engine.kubernetes.vocabulary import NAMESPACE_NAME_LABEL
from koordpolicy.engine.serving.instruments import Counter

from .admission import AdmissionRefusal, MalformedReview, Review, answer, read_review
from .objects import PROFILES, ManagedObjects
from .pod_mutation import mutated_pod
from .validation import check_pod, check_quota, check_quota_deletion

_LOG: Final = logging.getLogger(__name__)

LONGEST_BODY: Final = 8 << 20
"""Bytes: two objects of the size that the API server accepts, and more."""
MUTATE_POD: Final = "/mutate-pod"
VALIDATE_POD: Final = "/validate-pod"
VALIDATE_QUOTA: Final = "/validate-elasticquota"


class Webhooks:
    """Answers AdmissionReviews from the followed objects. Reads them from another thread, and changes none."""

    def __init__(self, objects: ManagedObjects, *, synced: Callable[[], bool], requests: Counter | None = None) -> None:
        """Until `synced`, reviews are answered with 503: the failure policy decides then.

        `requests` counts by path and result: allowed, refused, malformed, failed.
        """
        self._objects = objects
        self._synced = synced
        self._requests = requests

    def app(self) -> web.Application:
        """Return the application of the webhooks."""
        app = web.Application(client_max_size=LONGEST_BODY)
        for path, handle in ((MUTATE_POD, self._mutate_pod), (VALIDATE_POD, self._validate_pod),
                             (VALIDATE_QUOTA, self._validate_quota)):
            app.router.add_post(path, self._handler(path, handle))
        return app

    def _handler(self, path: str, handle: Callable[[Review], Mapping[str, Any] | None]) -> Any:
        async def respond(request: web.Request) -> web.Response:
            try:
                review = read_review(await request.read())
            except web.HTTPRequestEntityTooLarge:
                self._count(path, "malformed")
                return web.json_response({"error": f"the body is longer than {LONGEST_BODY >> 20} MiB"}, status=413)
            except ConnectionError:
                self._count(path, "malformed")
                return web.json_response({"error": "the connection ended within the body"}, status=400)
            except MalformedReview as error:
                self._count(path, "malformed")
                return web.json_response({"error": str(error)}, status=400)
            if not self._synced():
                return web.json_response({"error": "the state of the cluster is not known yet"}, status=503)
            refusal = patched = None
            result = "allowed"
            try:
                patched = handle(review)
            except AdmissionRefusal as error:
                refusal, result = error, "refused"
            except (ValueError, TypeError, AttributeError, KeyError) as error:
                refusal, result = AdmissionRefusal(f"the object cannot be read: {error}"), "refused"
            except Exception:
                _LOG.exception("%s of %s/%s failed", path, review.namespace, review.name)
                refusal, result = AdmissionRefusal("the webhook failed, see its log", 500), "failed"
            self._count(path, result)
            return web.Response(body=answer(review, refusal=refusal, patched=patched), content_type="application/json")

        return respond

    def _count(self, path: str, result: str) -> None:
        if self._requests is not None:
            self._requests.add(path, result)

    def _mutate_pod(self, review: Review) -> Mapping[str, Any] | None:
        if review.operation != "CREATE":
            return None
        check_object(review.item, "Pod")
        namespace = self._objects.object("Namespace", review.namespace) or {}
        labels = (namespace.get("metadata") or {}).get("labels") or {NAMESPACE_NAME_LABEL: review.namespace}
        return mutated_pod(review.item, self._objects.all(PROFILES.kind), labels,
                           lambda name: self._objects.object("PriorityClass", name))

    def _validate_pod(self, review: Review) -> None:
        if review.operation in ("CREATE", "UPDATE"):
            check_object(review.item, "Pod")
            check_pod(review.item, review.old, self._quota)

    def _validate_quota(self, review: Review) -> None:
        if review.operation == "DELETE":
            name = review.name or str((review.old.get("metadata") or {}).get("name") or "")
            check_quota_deletion(name, self._objects.all("ElasticQuota"), self._objects.pods_of_quota(name))
        else:
            check_object(review.item, "ElasticQuota")
            check_quota(review.item)

    def _quota(self, name: str) -> Mapping[str, Any] | None:
        return next((each for each in self._objects.all("ElasticQuota")
                     if (each.get("metadata") or {}).get("name") == name), None)
