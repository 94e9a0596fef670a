"""`push` and `pull`, and bundles wherever commands take policies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from koordpolicy import __version__
from koordpolicy.engine.bundles.reference import BundleReference
from koordpolicy.engine.bundles.registry import RegistryAccess
from koordpolicy.engine.bundles.transfer import push
from koordpolicy.engine.reload import Mount
from tests.oci_registry import OciRegistry, Reply, digest_of

from .conftest import SPREAD, Run

BROKEN = SPREAD.replace("variables.cpu < 65", "variables.cp < 65")


SHIPPED = Path(__file__).parents[3] / "policies" / "scheduler"


@pytest.fixture
def registry(registry: OciRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OciRegistry:
    """A registry, without the logins of whoever runs the tests."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    return registry


@pytest.fixture
def name(registry: OciRegistry) -> str:
    return f"{registry.host}/team/policies:v1"


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    key = ed25519.Ed25519PrivateKey.generate()
    private, public = tmp_path / "sign.pem", tmp_path / "sign.pub"
    private.write_bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private, public


@pytest.fixture
def pushed(run: Run, name: str, policies: Path, keys: tuple[Path, Path]) -> str:
    """The digest of the bundle of `policies`, which is signed."""
    outcome = run("push", name, policies, "--sign-key", keys[0], "-o", "json")
    assert outcome.exit == 0, outcome.err
    return str(outcome.json["digest"])


def hash_of(path: Path) -> str:
    version = Mount(path).read().version
    assert version is not None
    return version.digest


def test_push_says_what_it_stored(run: Run, name: str, policies: Path, keys: tuple[Path, Path], registry: OciRegistry):
    outcome = run("push", name, policies, "--sign-key", keys[0], "--revision", "abc", "--bundle-version", "1.4.0",
                  "--annotation", "org.example.team=shop", "-o", "json")
    data = outcome.json
    assert data == {
        "reference": name, "digest": digest_of(registry.manifests["team/policies:v1"]), "layer": data["layer"],
        "hash": hash_of(policies), "before": None, "files": data["files"], "warnings": 0, "notes": 0,
        "signedBy": data["signedBy"],
        "annotations": {
            "org.example.team": "shop", "org.opencontainers.image.revision": "abc",
            "org.opencontainers.image.version": "1.4.0", "sh.koordinator.policy.hash": hash_of(policies),
            "sh.koordinator.policy.lint": "errors=0 warnings=0 notes=0",
            "sh.koordinator.policy.made-by": f"koord-policy {__version__}"}}
    assert (list(data["files"]), data["layer"] in registry.blobs, len(data["signedBy"])) == (["hot.yaml"], True, 16)
    again = run("push", name, policies)
    assert again.exit == 0
    assert again.out.splitlines()[1:] == [
        f"  the tag `v1` was {data['digest']}", f"  hash {hash_of(policies)}, 1 file, 0 warnings", "  not signed"]


def test_pull_writes_what_push_read(
    run: Run, name: str, policies: Path, keys: tuple[Path, Path], pushed: str, tmp_path: Path,
):
    out = tmp_path / "new" / "out"
    outcome = run("pull", f"oci:{name}", "--out", out, "--verify-key", keys[1], "-o", "json")
    data = outcome.json
    assert data == {
        "reference": name, "digest": pushed, "hash": hash_of(policies), "out": str(out), "files": data["files"],
        "signer": str(keys[1]), "annotations": data["annotations"]}
    assert {path.name: path.read_text() for path in out.iterdir()} == {"hot.yaml": SPREAD}
    assert hash_of(out) == hash_of(policies)


def test_pull_writes_into_no_used_directory_unless_it_may_replace(
    run: Run, name: str, keys: tuple[Path, Path], pushed: str, tmp_path: Path,
):
    out = tmp_path / "out"
    out.mkdir()
    for file in ("old.yaml", "README.md"):
        (out / file).write_text("x: 1\n")
    refused = run("pull", name, "--out", out, "--verify-key", keys[1])
    assert (refused.exit, "is not empty" in refused.err, sorted(each.name for each in out.iterdir())) == (
        2, True, ["README.md", "old.yaml"])
    replaced = run("pull", name, "--out", out, "--verify-key", keys[1], "--replace")
    assert (replaced.exit, sorted(each.name for each in out.iterdir())) == (0, ["README.md", "hot.yaml"])
    assert pushed in replaced.out
    assert run("pull", name, "--out", out / "README.md", "--insecure-unsigned").exit == 2


def test_nothing_is_written_of_a_bundle_that_is_not_trusted(
    run: Run, name: str, policies: Path, keys: tuple[Path, Path], tmp_path: Path,
):
    run("push", name, policies)
    refused = run("pull", name, "--out", tmp_path / "out", "--verify-key", keys[1], "-o", "json")
    assert (refused.exit, refused.json["errors"][0]["code"], (tmp_path / "out").exists()) == (3, "unsigned", False)
    usage = run("pull", name, "--out", tmp_path / "out")
    assert (usage.exit, usage.err) == (2, (
        f"koord-policy: who may sign `oci:{name}`? Name the public key with `--verify-key FILE`, or use it whoever "
        "made it with `--insecure-unsigned`\n"))
    both = run("pull", name, "--out", tmp_path / "out", "--verify-key", keys[1], "--insecure-unsigned")
    assert (both.exit, both.err) == (2, "koord-policy: `--insecure-unsigned` and `--verify-key` exclude each other\n")
    assert run("pull", name, "--out", tmp_path / "out", "--insecure-unsigned").exit == 0


def test_invalid_policies_are_not_pushed(run: Run, name: str, policies: Path, registry: OciRegistry):
    (policies / "broken.yaml").write_text(BROKEN.replace("keep-off-hot-nodes", "broken"))
    outcome = run("push", name, policies)
    assert (outcome.exit, registry.requests) == (3, [])
    assert f"{policies}/broken.yaml:" in outcome.err
    assert "cp" in outcome.err


@pytest.mark.parametrize(("files", "code", "why"), [
    ({}, 3, "there is no policy file in"),
    ({"koord-policy.yaml": "rules: {}\n"}, 3, "there is no policy file but the linter's settings"),
    ({"empty.yaml": "# nothing\n"}, 3, "there is no document in"),
])
def test_what_holds_no_policy_is_not_pushed(
    run: Run, name: str, tmp_path: Path, registry: OciRegistry, files: dict[str, str], code: int, why: str,
):
    directory = tmp_path / "p"
    directory.mkdir()
    for file, text in files.items():
        (directory / file).write_text(text)
    outcome = run("push", name, directory)
    assert (outcome.exit, why in outcome.err, registry.requests) == (code, True, [])


def test_several_paths_are_one_bundle(run: Run, name: str, policies: Path, tmp_path: Path):
    other = tmp_path / "other.yaml"
    other.write_text(SPREAD.replace("keep-off-hot-nodes", "other"))
    assert list(run("push", name, policies, other, "-o", "json").json["files"]) == ["hot.yaml", "other.yaml"]
    twice = run("push", name, policies, policies / "hot.yaml")
    assert (twice.exit, "would both be `hot.yaml` in the bundle" in twice.err) == (2, True)


@pytest.mark.parametrize(("arguments", "why"), [
    (["team/policies:v1", "."], "`team` is no registry"),
    (["r.io/p@sha256:" + "a" * 64, "."], "a bundle is pushed to a tag"),
    (["r.io/p:v1", "/nowhere"], "there is no file or directory `/nowhere`"),
    (["r.io/p:v1", ".", "--annotation", "x"], "`x` is no annotation"),
    (["r.io/p:v1", ".", "--annotation", "sh.koordinator.policy.hash=1"], "are written by `push`"),
])
def test_command_lines_that_push_cannot_follow_are_refused(run: Run, arguments: list[str], why: str):
    outcome = run("push", *arguments)
    assert (outcome.exit, why in outcome.err) == (2, True)


def test_a_key_that_cannot_be_used_is_refused_before_anything_is_read(run: Run, name: str, keys: tuple[Path, Path]):
    outcome = run("push", name, "/nowhere", "--sign-key", keys[1])
    assert (outcome.exit, "it is no private key in PEM" in outcome.err) == (3, True)
    assert run("push", name, "/nowhere", "--sign-key", "/nowhere.pem").exit == 2


def test_an_encrypted_key_is_decrypted_by_the_environment(
    run: Run, name: str, policies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
):
    path = tmp_path / "encrypted.pem"
    path.write_bytes(ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret")))
    assert "set its password in the variable KOORD_POLICY_SIGN_PASSWORD" in run(
        "push", name, policies, "--sign-key", path).err
    monkeypatch.setenv("KOORD_POLICY_SIGN_PASSWORD", "secret")
    assert run("push", name, policies, "--sign-key", path).exit == 0


def test_a_busy_registry_is_tried_again(
    run: Run, name: str, keys: tuple[Path, Path], pushed: str, registry: OciRegistry, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    replies = [Reply(429), Reply(503)]
    registry.fault = lambda _: replies.pop(0) if replies else None
    monkeypatch.setattr("koordpolicy.engine.bundles.registry.time.sleep", lambda _: None)
    outcome = run("pull", name, "--out", tmp_path / "out", "--verify-key", keys[1])
    assert (outcome.exit, pushed in outcome.out) == (0, True)


def test_hostile_annotations_reach_no_terminal(
    run: Run, name: str, policies: Path, tmp_path: Path, registry: OciRegistry,
):
    run("push", name, policies)
    manifest = json.loads(registry.manifests["team/policies:v1"])
    manifest["annotations"]["\x1b[2J"] = "\x1b]0;owned\x07\u202e\n  signed by `me`"
    registry.manifests["team/policies:v1"] = content = json.dumps(manifest).encode()
    registry.manifests[f"team/policies@{digest_of(content)}"] = content
    out = run("pull", name, "--out", tmp_path / "out", "--insecure-unsigned").out
    assert not {"\x1b", "\x07", "\u202e"} & set(out)
    assert "\n  signed by" not in out


# Bundles as policies.


def test_commands_that_decide_once_take_bundles(
    run: Run, name: str, policies: Path, keys: tuple[Path, Path], pushed: str, dump: Path,
):
    bundle, verified = f"oci:{name}", ("--verify-key", keys[1])
    assert pushed
    for arguments in (
        ("lint", "PATH"), ("hash", "PATH"), ("audit", "PATH", "--cluster", dump),
        ("explain", "shop/web-2", "--cluster", dump, "--policies", "PATH"),
        ("scheduler", "--cluster", dump, "--policies", "PATH"),
    ):
        local = run(*(policies if each == "PATH" else each for each in arguments))
        remote = run(*(bundle if each == "PATH" else each for each in arguments), *verified)
        assert (remote.exit, remote.out.replace(f"{bundle}/", f"{policies}/")) == (local.exit, local.out), arguments
    differs = run("diff", bundle, policies, "--cluster", dump, *verified, "-o", "json")
    assert (differs.exit, differs.json["old"]) == (0, bundle)


def test_the_tests_in_a_bundle_run(run: Run, name: str, policies: Path, keys: tuple[Path, Path]):
    files = [SHIPPED / f"keep-off-hot-nodes{each}.yaml" for each in ("", ".test")]
    assert run("push", name, *files, "--sign-key", keys[0]).exit == 0
    outcome = run("test", f"oci:{name}", "--verify-key", keys[1], "-o", "json")
    local = run("test", *files, "-o", "json").json
    assert (outcome.exit, outcome.json["cases"], outcome.json["failed"]) == (0, local["cases"], 0)
    assert local["cases"]
    assert "`--watch` watches files" in run("test", f"oci:{name}", "--verify-key", keys[1], "--watch").err
    assert run("test", policies, "--verify-key", keys[1]).exit == 2


def test_problems_of_a_bundle_have_its_name_file_line_and_column(run: Run, name: str, policies: Path):
    """Another release may have other rules than the one that pushed it."""
    push(BundleReference.parse(name), {"hot.yaml": BROKEN.encode()}, {}, RegistryAccess())
    outcome = run("lint", f"oci:{name}", "--insecure-unsigned")
    assert outcome.exit == 3
    assert outcome.out.startswith(f"oci:{name}/hot.yaml:11:")


@pytest.mark.parametrize("arguments", [
    ("lint", "POLICIES", "--verify-key", "k"), ("hash", "POLICIES", "--insecure-unsigned"),
    ("explain", "shop/web-2", "--cluster", "DUMP", "--policies", "POLICIES", "--registry-ca", "ca"),
    ("diff", "POLICIES", "POLICIES", "--cluster", "DUMP", "--verify-key", "k"),
    ("scheduler", "--extender", "--bind", "127.0.0.1:0", "--policies", "POLICIES", "--verify-key", "k"),
])
def test_nobody_believes_that_a_directory_was_verified(
    run: Run, policies: Path, dump: Path, arguments: tuple[str, ...],
):
    named = {"POLICIES": policies, "DUMP": dump}
    outcome = run(*(named.get(each, each) for each in arguments))
    assert (outcome.exit, "goes with a bundle, and none is named" in outcome.err) == (2, True)


def test_bundles_that_no_command_can_use_are_usage_errors(run: Run, dump: Path, keys: tuple[Path, Path]):
    once = ("scheduler", "--cluster", dump, "--verify-key", keys[1], "--policies", "oci:r.io/p:v1")
    assert "named twice" in run(*once, "--policies", "oci:r.io/p:v1").err
    assert run("lint", "oci:r.io/p", "--insecure-unsigned").err.startswith(
        "koord-policy: `oci:r.io/p` names no bundle: it has neither a tag nor a digest: write ")
    assert "`--shadow oci:r.io/p:v1`: policies in the shadow come from a directory" in run(
        "scheduler", "--extender", "--policies", "oci:r.io/p:v1", "--shadow", "oci:r.io/p:v1").err
    assert "a sweep reads files" in run(
        "sweep", "params.x=1..2:1", "--cluster", dump, "--policies", "oci:r.io/p:v1").err


def test_nothing_of_bundles_is_imported_without_one(policies: Path):
    code = ("import sys\nfrom koordpolicy.engine import cli\nfrom koordpolicy.engine.reload import Reloader\n"
            f"for command in ('lint', 'hash', 'test'):\n    cli.main([command, {str(policies)!r}])\n"
            "print([name for name in sys.modules if 'bundle' in name or name.split('.')[0] == 'cryptography'])")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"
