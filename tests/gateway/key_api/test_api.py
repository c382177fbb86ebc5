"""The key API: what each role may do, and what hostile callers do not get."""

from __future__ import annotations

import asyncio
import fcntl
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from jsonschema import Draft202012Validator
from yarl import URL

from gateway.config.key_api import ActorRole
from gateway.key_api import key_store
from gateway.key_api.actors import Actor, UnknownActor
from gateway.key_api.api import MAX_BODY_BYTES, KeyApi
from gateway.key_api.audit import AuditLog, DenialBudget
from gateway.key_api.key_store import FolderKeyStore
from tenancy.policy import Policy
from tenancy.tenants import Quota, Tenant

NOW_S = 1_800_000_000.0
LEGAL_QUOTA = Quota(requests_per_min=100, budget=50.0)
POLICY = Policy(
    {}, {"legal": Tenant("legal", groups={"interns": Quota()}, quota=LEGAL_QUOTA), "search": Tenant("search")}
)
ACTORS = {
    "viewer": Actor("vera", ActorRole.VIEWER),
    "operator": Actor("otto", ActorRole.OPERATOR),
    "legal-admin": Actor("lena", ActorRole.TENANT_ADMIN, "legal"),
    "none-admin": Actor("nils", ActorRole.TENANT_ADMIN, "unknown"),
}
LEGAL, SEARCH = "/v1/tenants/legal/keys", "/v1/tenants/search/keys"


@dataclass
class Rig:
    """A running API; actors identify themselves by name."""

    folder: Path
    audit: Path
    client: TestClient[web.Request, web.Application]
    events: list[tuple[str, dict[str, Any]]]

    async def ask(
        self, actor: str, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[int, Any, aiohttp.ClientResponse]:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        data: dict[str, Any] = {} if body is None else {"json": body}
        answer = await self.client.request(method, path, headers={"x-actor": actor, **given}, **data)
        text = await answer.text()
        return answer.status, json.loads(text) if text else None, answer

    async def create(self, tenant: str = "legal", **fields: Any) -> dict[str, Any]:
        status, made, _ = await self.ask("operator", "POST", f"/v1/tenants/{tenant}/keys", fields)
        assert status == 201
        return dict(made)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.audit.read_text().splitlines()] if self.audit.exists() else []

    def files(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()} - {
            ".key-api.lock"
        }


@asynccontextmanager
async def a_rig(folder: Path) -> AsyncIterator[Rig]:
    keys, audit = folder / "keys", folder / "audit.jsonl"
    keys.mkdir()

    def identify(request: web.Request) -> Actor:
        actor = ACTORS.get(request.headers.get("x-actor", ""))
        if actor is None:
            raise UnknownActor("unknown")
        return actor

    def now() -> float:
        return NOW_S

    events = list[tuple[str, dict[str, Any]]]()

    def log_event(_: str, event: str, **fields: Any) -> None:
        events.append((event, fields))

    api = KeyApi(
        FolderKeyStore(keys),
        AuditLog(audit, now),
        identify=identify,
        policy=lambda: POLICY,
        wall_clock=now,
        log_event=log_event,
    )
    async with TestClient(TestServer(api.app())) as client:
        yield Rig(keys, audit, client, events)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with a_rig(tmp_path) as made:
        yield made


async def test_a_key_is_shown_once_and_stored_as_digest(rig: Rig) -> None:
    """Listing and reading give its facts, its file the digest, the audit log neither."""
    made = await rig.create(id="ci", user="ann", group="interns", expires_in_s=60)
    secret = made.pop("key")
    assert made == {
        "tenant": "legal",
        "id": "ci",
        "user": "ann",
        "group": "interns",
        "expires_at": "2027-01-15T08:01:00Z",
        "limits": {},
        "fault": None,
        "etag": made["etag"],
    }
    assert (rig.folder / "legal/ci").read_text().startswith(sha256(secret.encode()).hexdigest())
    assert (await rig.ask("viewer", "GET", f"{LEGAL}/ci"))[:2] == (200, made)
    assert (await rig.ask("viewer", "GET", "/v1/keys"))[:2] == (200, {"keys": [made], "next": None})
    assert secret not in rig.audit.read_text() + "".join(path.read_text() for path in rig.folder.rglob("*/*"))


async def test_a_rotation_ends_the_old_key_and_prolongs_nothing(rig: Rig) -> None:
    """The new key has the old one's user, group and end; the old one ends after the grace period."""
    made = await rig.create(id="ci", user="ann", group="interns", expires_in_s=600)
    status, fresh, _ = await rig.ask(
        "legal-admin", "POST", f"{LEGAL}/ci/rotate", {"grace_period_s": 60}, if_match=made["etag"]
    )
    assert (status, fresh["user"], fresh["group"], fresh["expires_at"]) == (201, "ann", "interns", made["expires_at"])
    assert fresh["key"] != made["key"]
    _, old, _ = await rig.ask("viewer", "GET", f"{LEGAL}/ci")
    assert old["expires_at"] == "2027-01-15T08:01:00Z"


async def test_a_revoked_key_is_gone(rig: Rig) -> None:
    """Its file with it; the second revocation finds nothing."""
    made = await rig.create(id="ci")
    assert (await rig.ask("legal-admin", "DELETE", f"{LEGAL}/ci", if_match=made["etag"]))[0] == 204
    assert rig.files() == set()
    assert (await rig.ask("legal-admin", "DELETE", f"{LEGAL}/ci", if_match=made["etag"]))[0] == 404


async def test_a_change_names_the_version_it_was_decided_on(rig: Rig) -> None:
    """Without one 428, with an old one 412, and nothing is changed."""
    made = await rig.create(id="ci")
    for given, expected in (({}, 428), ({"if_match": "*"}, 428), ({"if_match": '"' + "0" * 32 + '"'}, 412)):
        assert (await rig.ask("operator", "DELETE", f"{LEGAL}/ci", **given))[0] == expected
        assert (await rig.ask("operator", "POST", f"{LEGAL}/ci/rotate", {}, **given))[0] == expected
    assert rig.files() == {"legal/ci"}
    assert (await rig.ask("operator", "GET", f"{LEGAL}/ci"))[2].headers["etag"] == made["etag"]


async def test_of_concurrent_changes_of_one_version_one_is_made(rig: Rig) -> None:
    """No update is lost: the others are told that the key was changed."""
    made = await rig.create(id="ci")
    answers = await asyncio.gather(
        *(
            rig.ask("operator", "POST", f"{LEGAL}/ci/rotate", {"grace_period_s": 60}, if_match=made["etag"])
            for _ in range(8)
        )
    )
    assert sorted(status for status, *_ in answers) == [201] + [412] * 7
    assert len(rig.files()) == 2


async def test_an_id_is_taken_once(rig: Rig) -> None:
    """The second creation changes nothing."""
    made = await rig.create(id="ci")
    assert (await rig.ask("operator", "POST", LEGAL, {"id": "ci"}))[0] == 409
    assert (await rig.ask("operator", "GET", f"{LEGAL}/ci"))[1]["etag"] == made["etag"]


async def test_a_viewer_changes_nothing(rig: Rig) -> None:
    """It reads keys of all tenants."""
    made = await rig.create(id="ci")
    assert (await rig.ask("viewer", "POST", LEGAL, {}))[0] == 403
    assert (await rig.ask("viewer", "POST", f"{LEGAL}/ci/rotate", {}, if_match=made["etag"]))[0] == 403
    assert (await rig.ask("viewer", "DELETE", f"{LEGAL}/ci", if_match=made["etag"]))[0] == 403
    assert rig.files() == {"legal/ci"}


async def test_another_tenant_answers_as_one_that_does_not_exist(rig: Rig) -> None:
    """Byte for byte, for each operation, with ids that exist and that do not: nothing can be enumerated."""
    made = await rig.create("search", id="theirs")

    async def answers(tenant: str) -> list[tuple[int, Any]]:
        keys = f"/v1/tenants/{tenant}/keys"
        requests: list[tuple[str, str, Any, dict[str, str]]] = [
            ("GET", keys, None, {}),
            ("POST", keys, {"id": "mine"}, {}),
            ("POST", keys, {"group": "interns"}, {}),
            ("GET", f"{keys}/theirs", None, {}),
            ("GET", f"{keys}/other", None, {}),
            ("DELETE", f"{keys}/theirs", None, {"if_match": made["etag"]}),
            ("DELETE", f"{keys}/theirs", None, {}),
            ("POST", f"{keys}/theirs/rotate", {}, {"if_match": made["etag"]}),
            ("PATCH", f"{keys}/theirs", {"limits": {}}, {"if_match": made["etag"]}),
        ]
        return [
            (await rig.ask("legal-admin", method, path, body, **headers))[:2]
            for method, path, body, headers in requests
        ]

    theirs = await answers("search")
    assert theirs == await answers("unknown")
    assert {status for status, _ in theirs} == {404}
    assert rig.files() == {"search/theirs"}
    assert (await rig.ask("legal-admin", "GET", "/v1/keys"))[1]["keys"] == []
    assert (await rig.ask("none-admin", "GET", "/v1/keys"))[0] == 404


@pytest.mark.parametrize(
    "path",
    [
        "/v1/tenants/legal/keys/..%2F..%2Faudit.jsonl",
        "/v1/tenants/..%2Fsearch/keys/theirs",
        "/v1/tenants/legal/keys/..%2Fsearch%2Ftheirs",
        "/v1/tenants/legal/keys/%2e%2e",
        "/v1/tenants/legal/keys/.key-api.lock",
        "/v1/tenants/%2e/keys/.key-api.lock",
        "/v1/tenants/legal%00/keys/ci",
        "/v1/tenants/legal/keys/ci%00",
        "/v1/tenants//keys/ci",
    ],
)
async def test_a_path_leads_nowhere_else(rig: Rig, path: str) -> None:
    """Neither out of the folder nor to another tenant, whatever is encoded in it."""
    await rig.create("search", id="theirs")
    before = rig.files()
    for method in ("GET", "DELETE"):
        url = URL(f"http://{rig.client.host}:{rig.client.port}{path}", encoded=True)
        headers = {"x-actor": "legal-admin", "if-match": '"' + "0" * 32 + '"'}
        async with rig.client.session.request(method, url, headers=headers) as answer:
            assert answer.status == 404
    assert rig.files() == before


@pytest.mark.parametrize(
    "body",
    [
        {"id": "../x"},
        {"id": ".hidden"},
        {"id": "a/b"},
        {"id": ""},
        {"id": "x" * 65},
        {"user": "a b"},
        {"user": "a\nexpires_at=2099-01-01"},
        {"user": "ann group=interns"},
        {"group": "nobody"},
        {"expires_in_s": 0},
        {"expires_in_s": 1e30},
        {"expires_in_s": "9"},
        {"tenant": "search"},
        {"role": "operator"},
        {"key": "sk-chosen"},
        [],
        "legal",
    ],
)
async def test_a_body_says_nothing_but_what_it_may(rig: Rig, body: object) -> None:
    """No other tenant, no role, no chosen key, no field smuggled into a file."""
    assert (await rig.ask("legal-admin", "POST", LEGAL, body))[0] == 422
    assert rig.files() == set()


async def test_large_bodies_and_other_types_are_rejected(rig: Rig) -> None:
    """By size before they are parsed, by type before they are read."""
    assert (await rig.ask("operator", "POST", LEGAL, {"user": "x" * MAX_BODY_BYTES}))[0] == 413
    headers = {"x-actor": "operator", "content-type": "text/plain"}
    async with rig.client.post(LEGAL, data=b"{}", headers=headers) as answer:
        assert answer.status == 415
    assert rig.files() == set()


async def test_an_unknown_actor_gets_nothing(rig: Rig) -> None:
    """Not even the document."""
    for path in ("/openapi.json", "/v1/keys", LEGAL, f"{LEGAL}/ci"):
        assert (await rig.ask("", "GET", path))[0] == 401
    assert (await rig.ask("", "POST", LEGAL, {}))[0] == 401
    denied = [(line["actor"], line["action"], line["result"], line["status"]) for line in rig.lines()]
    assert denied[1] == (None, "GET /v1/keys", "denied", 401)
    assert denied[-1] == (None, "POST /v1/tenants/{tenant}/keys", "denied", 401)
    assert len(denied) == 5


@pytest.mark.parametrize("header", [{"origin": "https://evil.example"}, {"sec_fetch_site": "cross-site"}])
async def test_no_web_page_is_answered(rig: Rig, header: dict[str, str]) -> None:
    """A browser would send a certificate on its behalf."""
    assert (await rig.ask("operator", "POST", LEGAL, {}, **header))[0] == 403
    assert rig.files() == set()


async def test_each_change_is_audited_with_its_actor(rig: Rig) -> None:
    """Before and after it, also where it failed."""
    made = await rig.create(id="ci")
    await rig.ask("legal-admin", "DELETE", f"{LEGAL}/ci", if_match='"' + "0" * 32 + '"')
    await rig.ask("legal-admin", "DELETE", f"{LEGAL}/ci", if_match=made["etag"])
    shown = [
        tuple(line[name] for name in ("actor", "role", "action", "tenant", "key_id", "result")) for line in rig.lines()
    ]
    assert shown == [
        ("otto", "operator", "create", "legal", "ci", "begun"),
        ("otto", "operator", "create", "legal", "ci", "done"),
        ("lena", "tenant-admin", "revoke", "legal", "ci", "begun"),
        ("lena", "tenant-admin", "revoke", "legal", "ci", "failed"),
        ("lena", "tenant-admin", "revoke", "legal", "ci", "begun"),
        ("lena", "tenant-admin", "revoke", "legal", "ci", "done"),
    ]
    assert len({line["change"] for line in rig.lines()}) == 3


async def test_without_an_audit_log_nothing_is_changed(rig: Rig) -> None:
    """The log is a folder here: no line can be written."""
    rig.audit.mkdir()
    assert (await rig.ask("operator", "POST", LEGAL, {}))[0] == 503
    assert rig.files() == set()


async def test_a_key_has_limits_of_its_own(rig: Rig) -> None:
    """They are in its file, can be replaced, and stay with its replacement and its end."""
    made = await rig.create(id="ci", limits={"rpm": 60, "tpm": 9000, "max_budget": 2.5, "budget_duration": "1d"})
    assert made["limits"] == {"rpm": 60, "tpm": 9000, "max_budget": 2.5, "budget_duration": "1d"}
    assert (rig.folder / "legal/ci").read_text().endswith(" rpm=60 tpm=9000 max_budget=2.5 budget_duration=1d\n")
    status, changed, answer = await rig.ask(
        "legal-admin", "PATCH", f"{LEGAL}/ci", {"limits": {"rpm": 100}}, if_match=made["etag"]
    )
    assert (status, changed["limits"], answer.headers["etag"]) == (200, {"rpm": 100}, changed["etag"])
    assert (await rig.ask("legal-admin", "PATCH", f"{LEGAL}/ci", {"limits": {}}, if_match=made["etag"]))[0] == 412
    _, fresh, _ = await rig.ask(
        "legal-admin", "POST", f"{LEGAL}/ci/rotate", {"grace_period_s": 60}, if_match=changed["etag"]
    )
    _, old, _ = await rig.ask("viewer", "GET", f"{LEGAL}/ci")
    assert fresh["limits"] == old["limits"] == {"rpm": 100}
    assert (await rig.ask("viewer", "PATCH", f"{LEGAL}/ci", {"limits": {}}, if_match=old["etag"]))[0] == 403
    assert [line["action"] for line in rig.lines() if line["result"] == "done"] == ["create", "limit", "rotate"]


@pytest.mark.parametrize(
    "limits",
    [
        {"rpm": 101},
        {"max_budget": 50.5},
        {"max_budget": -1},
        {"budget_duration": "1d"},
        {"max_budget": 1, "budget_duration": "1d user=root"},
        {"rpm": 0},
        {"rpm": "5 group=interns"},
        {"tier": "gold"},
    ],
)
async def test_no_limit_is_above_the_tenants(rig: Rig, limits: dict[str, Any]) -> None:
    """Neither for a tenant-admin nor for an operator, at creation or later; nor does anything else get in with it."""
    made = await rig.create(id="ci")
    for actor in ("legal-admin", "operator"):
        assert (await rig.ask(actor, "POST", LEGAL, {"limits": limits}))[0] == 422
        assert (await rig.ask(actor, "PATCH", f"{LEGAL}/ci", {"limits": limits}, if_match=made["etag"]))[0] == 422
    assert rig.files() == {"legal/ci"}
    assert (await rig.ask("operator", "POST", SEARCH, {"limits": {"max_budget": 1}}))[0] == 422


async def test_a_key_that_was_made_reaches_its_owner(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the second line of the audit log cannot be written: that is an event."""
    write = AuditLog.write

    def fail_second(log: AuditLog, actor: Actor | None, action: str, result: str, **fields: Any) -> None:
        if result == "done":
            raise OSError(28, "No space left on device")
        write(log, actor, action, result, **fields)

    monkeypatch.setattr(AuditLog, "write", fail_second)
    made = await rig.create(id="ci")
    assert (rig.folder / "legal/ci").read_text().startswith(sha256(made["key"].encode()).hexdigest())
    ((event, fields),) = rig.events
    assert (event, fields["error"], fields["result"]) == ("key_audit_failed", "No space left on device", "done")
    assert fields["change"] == rig.lines()[0]["change"]


async def test_denials_are_audited(rig: Rig) -> None:
    """With who, what and why, for a role without the right as for a tenant that is not shown; a missing key is none."""
    await rig.ask("viewer", "POST", LEGAL, {})
    await rig.ask("legal-admin", "DELETE", f"{SEARCH}/ci")
    await rig.ask("legal-admin", "GET", f"{LEGAL}/missing")
    await rig.ask("operator", "GET", LEGAL, origin="https://evil.example")
    shown = [
        tuple(line[name] for name in ("actor", "role", "action", "tenant", "key_id", "result", "status", "left_out"))
        for line in rig.lines()
    ]
    assert shown == [
        ("vera", "viewer", "POST /v1/tenants/{tenant}/keys", "legal", None, "denied", 403, 0),
        ("lena", "tenant-admin", "DELETE /v1/tenants/{tenant}/keys/{id}", "search", "ci", "denied", 404, 0),
        (None, None, "GET /v1/tenants/{tenant}/keys", "legal", None, "denied", 403, 0),
    ]


def test_lines_of_denials_are_bounded() -> None:
    """A hundred at once, then one a second, which says how many were left out."""
    now_s = 0.0
    budget = DenialBudget(lambda: now_s)
    assert [budget.take() for _ in range(100)] == [0] * 100
    assert [budget.take() for _ in range(7)] == [None] * 7
    now_s = 1.5
    assert [budget.take(), budget.take()] == [7, None]
    now_s = 3.0
    assert budget.take() == 1


async def test_a_denial_without_an_audit_log_is_a_denial(rig: Rig) -> None:
    """The log is a folder here: no line can be written."""
    rig.audit.mkdir()
    assert (await rig.ask("viewer", "POST", LEGAL, {}))[0] == 403
    assert rig.events[0][0] == "key_audit_failed"


async def test_lists_come_in_pages(rig: Rig) -> None:
    """Each page names where the next begins; keys with a fault are shown with it."""
    for number in range(5):
        await rig.create("legal" if number < 3 else "search", id=f"k{number}")
    (rig.folder / "search/bad").write_text("nonsense")
    found: list[tuple[str, str, bool]] = []
    after: str | None = ""
    while after is not None:
        query = f"?limit=2&after={after}"
        status, page, _ = await rig.ask("viewer", "GET", f"/v1/keys{query}")
        assert status == 200
        found += [(each["tenant"], each["id"], each["fault"] is not None) for each in page["keys"]]
        after = page["next"]
    assert found == [
        *(("legal", f"k{number}", False) for number in range(3)),
        ("search", "bad", True),
        *(("search", f"k{number}", False) for number in (3, 4)),
    ]
    for query in ("limit=0", "limit=1001", "limit=x", "tenant=search"):
        assert (await rig.ask("viewer", "GET", f"/v1/keys?{query}"))[0] == 400


async def test_the_document_describes_the_answers(rig: Rig) -> None:
    """Each path and method is served, and what is answered is valid."""
    status, document, _ = await rig.ask("viewer", "GET", "/openapi.json")
    assert status == 200
    schemas = document["components"]["schemas"]

    def check(value: object, name: str) -> None:
        Draft202012Validator({**schemas[name], "components": document["components"]}).validate(value)

    made = await rig.create(id="ci")
    check(made, "CreatedKey")
    check((await rig.ask("viewer", "GET", f"{LEGAL}/ci"))[1], "Key")
    check((await rig.ask("viewer", "GET", "/v1/keys"))[1], "KeyList")
    check((await rig.ask("viewer", "GET", f"{LEGAL}/other"))[1], "Error")
    served = set()
    app = rig.client.app
    assert app is not None
    for resource in app.router.resources():
        served |= {(resource.canonical, route.method.lower()) for route in resource if route.method != "HEAD"}
    described = {
        (path, method) for path, item in document["paths"].items() for method in item if method != "parameters"
    }
    assert served == described


async def test_a_body_that_is_not_utf_8_is_rejected(rig: Rig) -> None:
    """By an answer of the API, not by an error of the server."""
    headers = {"x-actor": "operator", "content-type": "application/json"}
    answer = await rig.client.post(LEGAL, data=b'{"user":"a\xff"}', headers=headers)
    assert (answer.status, await answer.json()) == (422, {"error": "the body is not UTF-8"})


@pytest.mark.parametrize("user", ["a\x00b", "a\x1b[2Jb", "a\u202eb"])
async def test_a_user_has_no_control_characters(rig: Rig, user: str) -> None:
    """Its name is printed for operators, on terminals too."""
    assert (await rig.ask("operator", "POST", LEGAL, {"user": user}))[0] == 422
    assert rig.files() == set()


async def test_a_folder_that_cannot_be_used_answers_so(rig: Rig) -> None:
    """As JSON, and the audit log has the failure."""
    (rig.folder / "search").write_text("no folder")
    assert (await rig.ask("operator", "POST", SEARCH, {}))[0] == 503
    assert rig.lines()[-1]["result"] == "failed"


async def test_a_lock_that_stays_held_fails_the_change(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written, and keys can still be read."""
    monkeypatch.setattr(key_store, "LOCK_TIMEOUT_S", 0.0)
    made = await rig.create(id="ci")
    with (rig.folder / key_store.LOCK_FILE).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert (await rig.ask("operator", "POST", LEGAL, {}))[0] == 503
        assert (await rig.ask("operator", "DELETE", f"{LEGAL}/ci", If_Match=made["etag"]))[0] == 503
        assert (await rig.ask("viewer", "GET", f"{LEGAL}/ci"))[0] == 200
    assert rig.files() == {"legal/ci"}
    assert (await rig.ask("operator", "POST", LEGAL, {}))[0] == 201


async def test_a_tenant_cannot_fill_the_folder(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by creating nor by rotating; another tenant is not concerned."""
    monkeypatch.setattr(key_store, "MAX_KEYS_PER_TENANT", 2)
    await rig.create(id="a")
    last = await rig.create(id="b")
    assert (await rig.ask("legal-admin", "POST", LEGAL, {}))[0] == 409
    assert (await rig.ask("legal-admin", "POST", f"{LEGAL}/b/rotate", {}, If_Match=last["etag"]))[0] == 409
    assert rig.files() == {"legal/a", "legal/b"}
    await rig.create("search")
