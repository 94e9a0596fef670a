"""The commands that talk to servers, against servers that run."""

from __future__ import annotations

import ssl

import pytest
import trustme
from aiohttp import web

from koordpolicy.engine.cli.status import describe
from koordpolicy.engine.serving.listeners import ListenerThread

from .serving import TOKEN, compared, decide, document, edit, question, serving, shadow_holds


@pytest.fixture
def server(policies, dump, token):
    with serving("--policies", policies, "--cluster", dump, "--admin-token-file", token) as client:
        yield client


@pytest.fixture
def nowhere(port):
    """The URL of a server that does not run."""
    return f"http://127.0.0.1:{port}"


def test_the_hash_of_a_directory_is_what_status_and_reload_know_it_by(run, server, policies, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "policy.yaml").write_bytes((policies / "policy.yaml").read_bytes())
    (copy / "README.md").write_text("is not a policy")
    done = run("hash", copy)
    assert (done.exit, done.err) == (0, "")
    digest = done.out.strip()
    assert server("GET", "/status")[1]["policies"]["sources"][0]["digest"] == digest
    assert run("hash", copy, "-o", "json").json == {"path": str(copy), "hash": digest, "files": {
        "policy.yaml": run("hash", copy, "-o", "json").json["files"]["policy.yaml"]}}
    for words, shown in ((("--wait", digest[:8]), digest[:8]), (("--wait-for", copy), digest[:12]),
                         (("--wait", digest, "--wait-for", policies), f"{digest[:12]}, {digest[:12]}")):
        done = run("reload", *words, "--endpoints", server.url, "--timeout", "0")
        assert (done.exit, done.out) == (0, f"1 of 1 run {shown}\n")


def test_hashes_of_nothing_are_refused(run, tmp_path):
    assert run("hash", tmp_path / "gone").err == f"koord-policy: there is no file or directory `{tmp_path / 'gone'}`\n"
    empty = run("hash", tmp_path)
    assert (empty.exit, empty.err) == (3, f"koord-policy: there is no policy file in `{tmp_path}`\n")
    (tmp_path / "p.yaml").write_bytes(b"\xff")
    assert run("hash", tmp_path).exit == 3


def test_reload_waits_until_the_change_is_in_force(run, server, policies):
    edit(policies / "policy.yaml", document(9000))
    done = run("reload", "--wait-for", policies, "--endpoints", server.url, "--timeout", "20s")
    assert done.exit == 0
    assert server("POST", "/filter", question("eight"))[1]["NodeNames"] == ["eight"]


def test_reload_names_the_servers_that_do_not_run_it_and_why(run, server, policies, nowhere):
    edit(policies / "policy.yaml", document(4000).replace("allocatable.cpu <=", "allocatable.cpuu <="))
    server.until(lambda status: not status["policies"]["healthy"])
    done = run("reload", "--wait-for", policies, "--endpoints", f"{server.url},{nowhere}", "--timeout", "0")
    digest = run("hash", policies).out.strip()
    assert done.exit == 6
    first, second, last = done.out.splitlines()
    assert first.startswith(
        f"{server.url}: `{policies}` holds {digest[:12]}, which is refused: {policies}/policy.yaml:6:",
    )
    assert (second, last) == (f"{nowhere}: cannot be reached: connection refused", f"0 of 2 run {digest[:12]}")
    found = run("reload", "--wait", "abcdef", "--endpoints", server.url, "--timeout", "0", "-o", "json").json
    assert (found["reached"], found["endpoints"][0]["generation"]) == (False, 1)
    assert "and abcdef is not in any" in found["endpoints"][0]["reason"]


def test_a_server_without_a_status_is_said_to_have_none(run):
    listener = ListenerThread(web.Application(), "127.0.0.1", 0)
    url = listener.start()
    try:
        done = run("status", "--endpoints", url, "-o", "json")
    finally:
        listener.close()
    assert (done.exit, [each["error"] for each in done.json]) == (6, [
        "it has no /status"])


def test_status_shows_what_runs_and_its_exit_code_whether_that_is_well(run, server, policies, nowhere):
    done = run("status", "--endpoints", server.url, "--expressions", "--history")
    assert done.exit == 0
    assert f"{server.url}\ngeneration 1, hash " in done.out
    assert f"{policies}: {run('hash', policies).out[:12]} since 20" in done.out
    assert "small-enough  filter  cores" in done.out
    edit(policies / "policy.yaml", "kind: [")
    server.until(lambda status: not status["policies"]["healthy"])
    done = run("status", "--endpoints", server.url)
    assert (
        done.exit, "NOT HEALTHY" in done.out, f"  {policies}/policy.yaml:1:7: error: " in done.out,
    ) == (6, True, True)
    found = run("status", "--endpoints", f"{server.url},{nowhere}", "-o", "json")
    assert (found.exit, [each["error"] for each in found.json]) == (6, [None, "cannot be reached: connection refused"])
    assert found.json[0]["status"]["policies"]["generation"] == 1


def test_a_promotion_names_the_server_that_does_not_answer(run, nowhere):
    done = run("promote", "--endpoint", nowhere)
    assert (done.exit, done.out) == (5, f"not promoted: {nowhere}: cannot be reached: connection refused\n")


def test_other_priorities_are_described_by_the_best_nodes():
    assert describe(
        {"verb": "prioritize", "pod": "shop/p", "nodes": 2, "lost": ["a"], "gained": ["b", "c"], "why": []},
    ) == (
        "shop/p: 2 nodes with another priority, best a, would be b, c")


def test_a_rollback_is_told_with_what_it_brought_back(run, server, policies, token):
    edit(policies / "policy.yaml", document(9000))
    server.until(lambda status: status["policies"]["generation"] == 2)
    done = run("rollback", "--dry-run", "--endpoint", server.url, "--token-file", token)
    first, file, *lines = done.out.splitlines()
    assert (done.exit, first.startswith(f"{server.url}: "), first.endswith(", generation 1"), file) == (
        0, True, True, "  policy.yaml: replaced")
    assert ([each[4] for each in lines if "9000" in each], [each[4] for each in lines if each[4] == "+"]) == (
        ["-", "-"], ["+", "+"])
    done = run("rollback", "--dry-run", "--to", "77", "--endpoint", server.url, "--token-file", token)
    expected = f"{server.url}: nothing would change: no generation `77` is in the history"
    assert (done.exit, done.out.startswith(expected)) == (5, True)
    done = run("rollback", "--dry-run", "--endpoint", server.url)
    wanted = "it wants a token: name the file with the one of `--admin-token-file` by `--token-file`"
    assert (done.exit, done.out) == (2, f"{server.url}: nothing would change: {wanted}\n")
    done = run("rollback", "--endpoint", server.url, "--token-file", token)
    assert (
        done.exit, done.out.startswith(f"{server.url}: generation 1 is active again, as generation 3 ("),
    ) == (0, True)
    assert "generation 1 was brought back, until the directory changes" in run("status", "--endpoints", server.url).out
    done = run("rollback", "--to", "77", "--endpoint", server.url, "--token-file", token)
    expected = f"{server.url}: no generation `77` is in the history (it has 1 ("
    assert (done.exit, done.out.startswith(expected)) == (5, True)
    done = run("rollback", "--endpoint", server.url)
    assert (done.exit, "it wants a token" in done.out) == (2, True)


def test_a_promotion_says_why_not_and_then_promotes(run, shadowed, shadow, policies, token):
    words = ("--endpoint", shadowed.url, "--token-file", token)
    assert run("promote", *words).exit == 0  # both are the same
    edit(shadow / "policy.yaml", document(1500))
    shadowed.until(lambda status: status["shadow"]["policies"]["generation"] == 2)
    done = run("promote", *words)
    assert (done.exit, done.out) == (
        6, "not promoted: 0 decisions were compared so far, 0 of them differ; 1000 are wanted\n")
    decide(shadowed)
    compared(shadowed, 2)
    done = run("promote", "--decisions", 2, *words)
    assert (done.exit, done.out.splitlines()) == (6, [
        "not promoted: 1 of 2 decisions differ, and at most 0.1 % may",
        "  shop/p: 1 node filtered otherwise, -two: would be refused by small-enough: 2000m is too much"])
    done = run("promote", "--decisions", 2, "--max-differences", "50%", "--hash", "abcdef", *words)
    assert (done.exit, "is in the shadow" in done.out) == (5, True)
    done = run("promote", "--dry-run", "--decisions", 2, *words)
    assert (done.exit, done.out.splitlines()[:3]) == (6, [
        f"{shadowed.url}: nothing would change: 1 of 2 decisions differ, and at most 0.1 % may",
        "  if the server took it, these files would change:",
        "  policy.yaml: replaced"])
    done = run("promote", "--dry-run", "--decisions", 2, "--max-differences", "50%", *words)
    assert (done.exit, done.out.splitlines()[0].endswith(f", written to `{policies}`")) == (0, True)
    digest = run("hash", shadow).out.strip()
    done = run("promote", "--decisions", 2, "--max-differences", "50%", "--hash", digest, *words)
    assert (done.exit, done.out.endswith(f" is active, as generation 2: written to `{policies}`\n")) == (0, True)
    assert run("hash", policies).out.strip() == digest


def test_promotions_and_rollbacks_are_told_to_programs(run, shadowed, shadow, policies, token):
    words = ("--endpoint", shadowed.url, "--token-file", token, "-o", "json")
    same = run("promote", *words).json
    assert (same["promoted"], same["inForce"], same["answer"]["code"]) == (False, True, "in-force")
    edit(shadow / "policy.yaml", document(1500))
    shadowed.until(lambda status: status["shadow"]["policies"]["generation"] == 2)
    decide(shadowed)
    compared(shadowed, 2)
    differs = run("promote", "--decisions", 2, *words).json
    assert (differs["answer"]["code"], len(differs["answer"]["comparison"]["examples"])) == ("differs", 1)
    plan = run("promote", "--dry-run", "--decisions", 2, "--max-differences", "50%", *words).json
    assert (plan["promoted"], plan["inForce"], plan["error"], plan["plan"]["state"]) == (False, False, None, "changes")
    done = run("promote", "--decisions", 2, "--max-differences", "50%", *words).json
    assert (done["promoted"], done["answer"]["generation"], done["error"]) == (True, 2, None)
    (planned,) = run("rollback", "--dry-run", *words).json
    assert (planned["result"], planned["plan"]["generation"], planned["plan"]["files"][0]["file"]) == (
        None, 1, "policy.yaml")
    (back,) = run("rollback", *words).json
    assert (back["result"]["restored"], back["result"]["generation"]) == (1, 3)
    (unknown,) = run("rollback", "--to", "77", *words).json
    assert (unknown["result"], unknown["error"].startswith("no generation `77` is in the history")) == (None, True)


def test_where_the_directory_cannot_be_written_the_commands_are_printed(run, shadowed, shadow, policies, token):
    (shadow / "deep").mkdir()
    (shadow / "deep" / "more.yaml").write_text(document(9000, name="more"))
    shadowed.until(shadow_holds(shadow))
    (policies / "deep").write_text("in the way")
    decide(shadowed)
    compared(shadowed, 2)
    done = run("promote", "--decisions", 2, "--max-differences", "100%", "--configmap", "shop/policies", "--endpoint",
               shadowed.url, "--token-file", token)
    assert done.exit == 5
    assert done.out.splitlines()[-2:] == [
        (
            "  kubectl create configmap policies --namespace shop --from-file=DIR --dry-run=client --output yaml | "
            "kubectl replace --namespace shop --filename -"
        ),
        f"  koord-policy reload --wait {run('hash', shadow).out.strip()} --timeout 3m"]


@pytest.mark.parametrize(("words", "message"), [
    (("status", "--endpoints", "localhost:1"), "`--endpoints`: `localhost:1` is not a URL such as http://127.0.0.1:8888"),
    (
        ("status", "--endpoints", "http://u:p@h"),
        "`--endpoints`: `http://u:p@h` is not a URL such as http://127.0.0.1:8888",
    ),
    (
        ("status", "--endpoints", "http://h:99999"),
        "`--endpoints`: `http://h:99999` is not a URL such as http://127.0.0.1:8888",
    ),
    (("reload",), "wait for what? name a hash with `--wait`, or a directory with `--wait-for`"),
    (
        ("promote", "--endpoints", "http://a,http://b"),
        "name one server: the others follow the directory that is written",
    ),
    (("status", "--key", "k"), "`--key` goes with `--cert`"),
])
def test_options_that_cannot_be_meant_are_refused(run, words, message):
    assert (done := run(*words)).exit == 2
    assert done.err == f"koord-policy: {message}\n"


@pytest.mark.parametrize("words", [
    ("reload", "--wait", "xyz"), ("reload", "--wait", "abc"), ("reload", "--wait", "abcdef", "--timeout", "1 year"),
    *(("rollback", "--to", text) for text in ("zzz", "-1", "", "0", "abc")),
    *(("promote", "--configmap", text) for text in ("a/b/c", "", "shop/", "Shop/policies")),
    ("promote", "--max-differences", "200%"), ("promote", "--max-differences", "some"), ("promote", "--decisions", "0"),
])
def test_values_that_mean_nothing_are_usage_errors(run, words):
    assert run(*words, "--endpoint", "http://127.0.0.1:1").exit == 2  # before a server is called


def test_a_generation_that_is_none_is_refused_with_what_to_write(run):
    assert run("rollback", "--to", "zzz").err.splitlines()[-1] == (
        "koord-policy rollback: error: argument --to: `zzz` is neither the number of a generation nor at least the "
        "first 6 digits of a hash: `koord-policy status --history` shows both; without the option it is the generation "
        "before")
    assert run("promote", "--configmap", "a/b/c").err.splitlines()[-1] == (
        "koord-policy promote: error: argument --configmap: `a/b/c` is not the name of a ConfigMap: write `NAME` or "
        "`NAMESPACE/NAME`")


def test_a_shadow_that_is_not_valid_is_told_with_the_reason(run, shadowed, shadow):
    edit(shadow / "policy.yaml", "kind: [")
    shadowed.until(lambda status: not status["shadow"]["policies"]["healthy"])
    lines = run("status", "--endpoint", shadowed.url).out.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("shadow "))
    assert "NOT VALID" not in lines[at]  # the version before goes on
    assert lines[at + 1].startswith(f"  {shadow}/policy.yaml:1:")


def test_a_shadow_that_never_was_valid_is_told_without_counts(run, policies, tmp_path, dump):
    nothing = tmp_path / "nothing"
    with serving("--policies", policies, "--shadow", nothing, "--cluster", dump) as client:
        lines = run("status", "--endpoint", client.url).out.splitlines()
    assert lines[-3:-1] == [
        "shadow: NOT VALID, nothing is compared", f"  error: `{nothing}` cannot be read: it does not exist"]


def test_a_wrong_token_is_a_usage_error(run, shadowed, tmp_path):
    wrong = tmp_path / "wrong"
    wrong.write_text("x" * 20)
    done = run("promote", "--endpoint", shadowed.url, "--token-file", wrong)
    assert (done.exit, done.err) == (
        2, "koord-policy: it has another token: name the file with the one of `--admin-token-file` by `--token-file`\n")
    done = run("promote", "--endpoint", shadowed.url)
    assert (done.exit, done.err) == (
        2, "koord-policy: it wants a token: name the file with the one of `--admin-token-file` by `--token-file`\n")
    assert run("rollback", "--endpoint", shadowed.url, "--token-file", wrong).exit == 2
    wrong.write_text("")
    assert run("promote", "--endpoint", shadowed.url, "--token-file", wrong).err == (
        f"koord-policy: `{wrong}` holds no token\n")
    assert TOKEN


def test_a_token_that_can_be_guessed_is_refused_at_start(run, policies, tmp_path):
    (tmp_path / "short").write_text("secret\n")
    done = run(
        "scheduler", "--extender", "--policies", policies, "--admin-token-file", tmp_path / "short", "--bind",
        "127.0.0.1:0",
    )
    assert done.exit == 2
    assert done.err == (f"koord-policy: `--admin-token-file`: `{tmp_path / 'short'}` must hold a token of 16 to 4096 "
                        "characters\n")


def test_a_name_stands_for_all_of_its_addresses(run, server):
    port = server.url.rpartition(":")[2]
    done = run("reload", "--wait", "abcdef", "--endpoints", f"dns+http://127.0.0.1:{port}", "--timeout", "0")
    assert done.out.startswith(f"{server.url}: runs ")


@pytest.mark.parametrize(("command", "code"), [
    (("status",), 6), (("reload", "--wait", "abcdef"), 6), (("top", "--once"), 6), (("promote",), 5),
    (("rollback",), 5),
])
def test_a_name_without_an_address_is_a_server_that_does_not_answer(run, command, code):
    done = run(*command, "--endpoints", "dns+http://nobody.invalid:1")
    assert (done.exit, done.err.partition(": ")[2].partition(" has no")[0]) == (code, "`nobody.invalid`")


def test_servers_are_asked_over_tls_with_a_certificate_of_ones_own(run, policies, dump, certificates, tmp_path):
    folder, context, clients, _ = certificates
    clients.issue_cert("someone@example.com").private_key_and_cert_chain_pem.write_to_path(tmp_path / "mine.pem")
    options = ("--tls-cert", folder / "tls.crt", "--tls-key", folder / "tls.key", "--client-ca", folder / "ca.crt")
    with serving("--policies", policies, "--cluster", dump, *options, context=context(clients)) as client:
        assert client.url.startswith("https://")
        authority = tmp_path / "server-ca.pem"
        authority.write_text(
            "\n".join(ssl.DER_cert_to_PEM_cert(each) for each in context(clients).get_ca_certs(binary_form=True)),
        )
        words = ("status", "--endpoint", client.url)
        done = run(*words, "--ca", authority, "--cert", tmp_path / "mine.pem")
        assert (done.exit, "generation 1, hash" in done.out) == (0, True)
        done = run(*words)
        assert (done.exit, "certificate is not trusted: " in done.out, "(`--ca` names" in done.out) == (6, True, True)
        done = run("status", "--endpoint", client.url.replace("127.0.0.1", "localhost"), "--ca", authority,
                   "--cert", tmp_path / "mine.pem")
        assert (done.exit, "its certificate is for other names: Hostname mismatch" in done.out) == (6, True)
        done = run(*words, "--ca", authority)
        assert (done.exit, "cannot be reached: " in done.out) == (6, True)
    assert run(*words, "--ca", policies / "policy.yaml").exit == 2


def test_the_certificate_of_a_server_that_is_called_by_address_is_for_its_name(run, policies, dump, tmp_path):
    authority, name = trustme.CA(), "koord-policy.koordinator-system.svc"
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    context.check_hostname = False
    options = ("--tls-cert", tmp_path / "server.pem", "--tls-key", tmp_path / "server.pem")
    with serving("--policies", policies, "--cluster", dump, *options, context=context) as client:
        words = ("status", "--endpoints", f"dns+{client.url}", "--ca", tmp_path / "ca.pem")
        found = [run(*words, *more) for more in ((), ("--server-name", name), ("--server-name", f"x{name}"))]
    assert [(done.exit, "generation 1, hash" in done.out) for done in found] == [(6, False), (0, True), (6, False)]
    assert "its certificate is for other names: IP address mismatch" in found[0].out
    assert "its certificate is for other names: Hostname mismatch" in found[2].out
