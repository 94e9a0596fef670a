"""The example works as its README says: manifests, files, the command, and the answers that are shown."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import yaml

from koordpolicy.__main__ import builtins
from koordpolicy.engine import cli
from koordpolicy.engine.client.resources import RESOURCES

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
README = (HERE / "README.md").read_text()
BASE = HERE / "base"
DEPLOY = ROOT / "deploy" / "extender"


def documents(path):
    return [each for each in yaml.safe_load_all(path.read_text()) if each is not None]


def deployed(kind, name="koord-policy"):
    (found,) = (each for each in documents(DEPLOY / "extender.yaml")
                if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def container():
    deployment = deployed("Deployment")
    spec = deployment["spec"]["template"]["spec"]
    return spec, spec["containers"][0]


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@contextmanager
def serving():
    """Run the command of the README, on a free port."""
    command = [
        sys.executable, "-m", *shlex.split(blocks("sh")[0].replace("koord-policy", "koordpolicy")), "--bind",
        "127.0.0.1:0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=dict(os.environ)) as process:
        try:
            url = process.stdout.readline().removeprefix("listening on ").strip()
            assert process.stdout.readline().startswith(
                "ready: generation 1, plugins keep-off-hot-nodes, prefer-zone; 32 nodes",
            )
            yield url
        finally:
            process.terminate()
    assert process.returncode == 0


def test_the_answers_are_those_that_the_readme_shows():
    commands = [shlex.split(block) for block in blocks("sh")[1:]]
    assert [command[0] for command in commands] == ["curl"] * 3
    with serving() as url:
        answers = []
        for command in commands:
            file = next((ROOT / word[1:] for word in command if word.startswith("@")), None)
            address = command[-1].replace("http://127.0.0.1:8888", url)
            with urllib.request.urlopen(address, file.read_bytes() if file else None, timeout=60) as response:
                answers.append(json.load(response))
    assert answers[:2] == [json.loads(block) for block in blocks("json")]
    prioritized, filtered = answers[2]["decisions"]
    assert (prioritized["pinned"], prioritized["totals"]) == (
        True, {"general-01": 284, "general-02": 86, "general-03": 11, "memory-01": 284})
    assert filtered["refusals"][0]["plugin"] == "keep-off-hot-nodes"


def test_the_kustomization_names_files_that_exist_and_policies_that_are_shipped():
    (kustomization,) = documents(BASE / "kustomization.yaml")
    assert [(BASE / name).resolve() for name in kustomization["resources"]] == [DEPLOY]
    (deployment,) = documents(DEPLOY / "kustomization.yaml")
    assert all((DEPLOY / name).is_file() for name in deployment["resources"])
    (made,) = kustomization["configMapGenerator"]
    assert made["files"]
    for name in made["files"]:
        shipped = ROOT / "policies" / "scheduler" / Path(name).name
        assert (BASE / name).read_text() == shipped.read_text()
    spec, _ = container()
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["policies"]["configMap"]["name"] == made["name"]
    assert kustomization["generatorOptions"] == {"disableNameSuffixHash": True}


def test_the_policies_are_mounted_as_a_directory_and_served_from_there():
    _, main = container()
    mounts = {mount["mountPath"]: mount for mount in main["volumeMounts"]}
    options = dict(word.removeprefix("--").split("=") for word in main["args"] if "=" in word)
    assert mounts[options["policies"]]["name"] == "policies"
    assert all("subPath" not in mount for mount in main["volumeMounts"])
    for file in ("tls-cert", "tls-key", "client-ca"):
        assert str(Path(options[file]).parent) in mounts
    assert options["state-dir"] in mounts
    ports = {port["name"]: port["containerPort"] for port in main["ports"]}
    assert (options["bind"], options["health-bind"]) == (f"0.0.0.0:{ports['https']}", f"0.0.0.0:{ports['health']}")
    service = deployed("Service")
    assert [port["targetPort"] for port in service["spec"]["ports"]] == ["https", "health"]
    assert service["spec"]["selector"].items() <= deployed("Deployment")["spec"]["template"][
        "metadata"
    ]["labels"].items()


def test_the_arguments_of_the_deployment_are_options_of_the_command(capsys):
    _, main = container()
    assert main["args"][:2] == ["scheduler", "--extender"]
    # Without the files that only the pod has, the first of them is what is missed: the options themselves are known.
    words = [word.replace("/etc/koord-policy/policies", str(BASE / "policies")) for word in main["args"]]
    assert cli.main(words, builtins) == 2
    assert capsys.readouterr().err == (
        "koord-policy: there is no file `/etc/koord-policy/tls/tls.crt`: `--tls-cert` takes a certificate (PEM)\n")


def test_everything_that_is_watched_may_be_watched():
    rules = next(each for each in documents(DEPLOY / "rbac.yaml") if each["kind"] == "ClusterRole")["rules"]
    granted = {(group, resource): rule["verbs"] for rule in rules for group in rule["apiGroups"]
               for resource in rule["resources"]}
    reviews = {("authentication.k8s.io", "tokenreviews"): ["create"],
               ("authorization.k8s.io", "subjectaccessreviews"): ["create"]}
    assert granted == {(resource.group, resource.plural): ["list", "watch"] for resource in RESOURCES} | reviews


def test_kube_scheduler_is_told_where_the_service_is():
    (configuration,) = documents(HERE / "kube-scheduler-config.yaml")
    (extender,) = configuration["extenders"]
    service = deployed("Service")
    (kustomization,) = documents(BASE / "kustomization.yaml")
    assert extender["urlPrefix"] == (
        f"https://{service['metadata']['name']}.{kustomization['namespace']}.svc:{service['spec']['ports'][0]['port']}")
    assert {
        name: extender[name]
        for name in ("filterVerb", "prioritizeVerb", "enableHTTPS", "nodeCacheCapable", "ignorable")
    } == {
        "filterVerb": "filter", "prioritizeVerb": "prioritize", "enableHTTPS": True, "nodeCacheCapable": True,
        "ignorable": False,
    }


def test_the_image_runs_the_command_and_not_as_root():
    lines = (ROOT / "Containerfile").read_text().splitlines()
    assert 'ENTRYPOINT ["/opt/koord-policy/bin/koord-policy"]' in lines
    command = json.loads(next(line for line in lines if line.startswith("CMD ")).removeprefix("CMD "))
    assert command[:2] == ["scheduler", "--extender"]
    assert any(re.fullmatch(r"USER \d+:\d+", line) for line in lines)


def test_the_generated_configmap_is_checked_as_the_readme_says(tmp_path, capsys):
    (kustomization,) = documents(BASE / "kustomization.yaml")
    files = {Path(name).name: (BASE / name).read_text() for name in kustomization["configMapGenerator"][0]["files"]}
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(
        yaml.safe_dump(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "koord-policies"}, "data": files},
        ),
    )
    assert cli.main(["lint", "--configmap", str(manifest)], builtins) == 0
    assert "0 errors" in capsys.readouterr().out
