from __future__ import annotations

from dataclasses import replace

import pytest

from koordpolicy.engine.client.resources import BY_KIND, ApiResource, declare, declared_kinds

WIDGET = ApiResource("DeclaredWidget", "example.com", "v1", "declaredwidgets")
pytestmark = pytest.mark.usefixtures("own_declared_kinds")


def test_a_declared_kind_is_known_from_then_on_and_may_be_declared_again():
    assert WIDGET.kind not in BY_KIND
    for _ in range(2):
        declare(WIDGET)
    assert (BY_KIND[WIDGET.kind], declared_kinds().count(WIDGET.kind)) == (WIDGET, 1)
    with pytest.raises(ValueError, match=r"is declaredwidgets of `example\.com/v1`, and cannot be"):
        declare(replace(WIDGET, version="v2"))
    assert BY_KIND[WIDGET.kind] is WIDGET


def test_a_kind_that_is_known_stays_what_it_is():
    pods = BY_KIND["Pod"]
    declare(ApiResource("Pod", "", "v1", "pods"))
    assert BY_KIND["Pod"] is pods
    with pytest.raises(ValueError, match="the kind `Pod` is pods of `v1`"):
        declare(ApiResource("Pod", "example.com", "v1", "pods"))
