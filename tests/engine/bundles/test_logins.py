"""Logins are found where `docker login` stores them, and never shown."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from koordpolicy.engine.bundles.faults import BundleFault
from koordpolicy.engine.bundles.logins import NOBODY, Login, Logins, run_helper

AUTH = base64.b64encode(b"ann:pass:word").decode()
ANN = Login("ann", "pass:word")


def logins(directory: Path, config: Any, helpers: dict[tuple[str, str], str | None] | None = None) -> Logins:
    (directory / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return Logins({"DOCKER_CONFIG": str(directory)}, run=lambda name, registry: (helpers or {})[name, registry])


@pytest.mark.parametrize("key", ["r.io:5000", "https://r.io:5000", "http://r.io:5000/v1/"])
def test_a_stored_password_is_that_of_its_registry(tmp_path: Path, key: str):
    found = logins(tmp_path, {"auths": {"other.io": {"auth": "x"}, key: {"auth": AUTH}}})
    assert (found.of("r.io:5000"), found.of("r.io"), found.of("none.io")) == (ANN, NOBODY, NOBODY)


@pytest.mark.parametrize("registry", ["docker.io", "index.docker.io", "registry-1.docker.io"])
def test_docker_hub_has_its_own_key(tmp_path: Path, registry: str):
    assert logins(tmp_path, {"auths": {"https://index.docker.io/v1/": {"auth": AUTH}}}).of(registry) == ANN


def test_the_helper_of_a_registry_goes_before_the_store_and_the_file(tmp_path: Path):
    found = logins(
        tmp_path, {"auths": {"a.io": {"auth": AUTH}, "b.io": {}, "c.io": {"auth": AUTH}},
                   "credHelpers": {"a.io": "own"}, "credsStore": "all"},
        {("own", "a.io"): '{"Username": "bob", "Secret": "s"}', ("all", "b.io"): '{"Username": "eve", "Secret": "t"}',
         ("all", "c.io"): None})
    assert [found.of(each) for each in ("a.io", "b.io", "c.io")] == [Login("bob", "s"), Login("eve", "t"), ANN]


def test_an_identity_token_is_no_password(tmp_path: Path):
    found = logins(tmp_path, {"auths": {"a.io": {"auth": AUTH, "identitytoken": "tok"}}, "credHelpers": {"b.io": "h"}},
                   {("h", "b.io"): '{"Username": "<token>", "Secret": "tik"}'})
    assert (found.of("a.io"), found.of("b.io")) == (Login(identity_token="tok"), Login(identity_token="tik"))


def test_without_a_file_nobody_is_logged_in(tmp_path: Path):
    assert Logins({"DOCKER_CONFIG": str(tmp_path)}).of("a.io") == NOBODY
    assert Logins({"HOME": str(tmp_path)}).path == tmp_path / ".docker" / "config.json"


@pytest.mark.parametrize(("config", "why"), [
    ("{", "it is not JSON"),
    ("[" * 100_000, "it is not JSON"),
    ("[]", "it is not a JSON object"),
    ({"auths": {"a.io": {"auth": "!"}}}, "`auth` of `a.io` is not user and password in base64"),
    ({"auths": {"a.io": {"auth": 7}}}, "`auth` of `a.io` is not user and password in base64"),
    ({"auths": {"a.io": {"auth": "YQ=="}}}, "`auth` of `a.io` is not user and password in base64"),
    ({"credsStore": "../../bin/sh"}, "it names a credential helper that has no usable name"),
])
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, config: Any, why: str):
    with pytest.raises(BundleFault) as refused:
        logins(tmp_path, config).of("a.io")
    assert refused.value.problem.message == f"logins cannot be read from `{tmp_path / 'config.json'}`: {why}"


@pytest.mark.parametrize("config", [
    {"auths": []}, {"auths": {"a.io": []}}, {"auths": {"a.io": {}}}, {"credHelpers": 7},
])
def test_entries_without_a_login_are_passed_over(tmp_path: Path, config: Any):
    assert logins(tmp_path, config).of("a.io") == NOBODY


@pytest.mark.parametrize("printed", ["", "[]", "{}", '{"Username": 1, "Secret": "x"}'])
def test_a_helper_that_prints_no_login_is_named(tmp_path: Path, printed: str):
    with pytest.raises(BundleFault, match="the credential helper `docker-credential-h` prints no login"):
        logins(tmp_path, {"credsStore": "h"}, {("h", "a.io"): printed}).of("a.io")


def helper(directory: Path, script: str) -> None:
    path = directory / "docker-credential-test"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_helpers_are_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    helper(tmp_path, 'read -r name; echo "$1 $name"')
    assert run_helper("test", "a.io") == "get a.io\n"
    helper(tmp_path, "echo 'credentials not found in native keychain'; exit 1")
    assert run_helper("test", "a.io") is None
    helper(tmp_path, "echo 'the keychain is locked' >&2; exit 1")
    with pytest.raises(BundleFault, match="helper `docker-credential-test` fails: the keychain is locked"):
        run_helper("test", "a.io")
    with pytest.raises(BundleFault, match="`docker-credential-none` cannot be run: no such file or directory"):
        run_helper("none", "a.io")


def test_a_login_is_not_shown():
    assert repr(Login("ann", "secret", "token")) == "Login(user='ann')"
