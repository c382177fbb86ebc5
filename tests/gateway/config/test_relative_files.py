"""Relative file names in a document are beside the document, not in the working directory."""

from pathlib import Path

import pytest

from gateway.config.loading import CONFIG_FILE_KEYS, POLICY_FILE_KEYS, check_file, relative_to
from gateway.identity.policy import load_policy_file
from tenancy.document import InvalidDocument

CONFIG = """
policy: policy.yaml
admin_token_file: secrets/admin
pod_api_key_file: ./secrets/pod
tls: {cert: tls.crt, key: tls.key}
usage_log: logs/usage.jsonl
route_log: logs/routes.jsonl
discovery:
  file: {path: pods.yaml}
  kubernetes: {namespace: n, selector: {app_file: vllm}, api: "https://a:1", token_file: token, ca_file: ca.crt}
model_list:
  - {model_name: a}
extproc: {listen: "127.0.0.1:0", tls: {cert: tls.crt, key: tls.key}}
"""

POLICY = """
auth:
  keys_dir: keys
  hmac_secret_file: secrets/hmac
  jwt: {issuer: "https://sso.example", audiences: [h], tenant_claim: t, jwks_file: jwks.json}
tenants: {legal: {}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all the files; the process works in another."""
    made, elsewhere = tmp_path / "etc", tmp_path / "elsewhere"
    for name in ("secrets", "logs", "keys/legal"):
        (made / name).mkdir(parents=True)
    for name in ("token", "ca.crt", "secrets/admin", "secrets/pod"):
        (made / name).write_text("secret")
    (made / "secrets/hmac").write_text("a secret of thirty-two characters")
    (made / "pods.yaml").write_text("[]")
    (made / "keys/legal/k1").write_text("0" * 64)
    (made / "hearth.yaml").write_text(CONFIG)
    (made / "policy.yaml").write_text(POLICY)
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    return made


def test_a_configuration_finds_its_files_from_anywhere(folder: Path) -> None:
    """Each key that names a file; a label names none."""
    (folder / "tls.crt").write_text("")
    (folder / "tls.key").write_text("")
    settings = check_file(folder / "hearth.yaml", {})
    assert settings.policy == folder / "policy.yaml"
    assert settings.pod_file == folder / "pods.yaml"
    assert settings.usage_log == folder / "logs/usage.jsonl"
    (kubernetes,) = settings.sources.kubernetes
    assert (kubernetes.selector, kubernetes.ca_file) == ("app_file=vllm", folder / "ca.crt")
    assert settings.extproc
    assert settings.extproc.tls
    assert settings.extproc.tls.key == folder / "tls.key"


def test_a_policy_finds_its_files_from_anywhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder of keys, its secret and the issuer's keys; those are also the files that are watched."""
    monkeypatch.setattr("gateway.identity.policy._bad_keys", lambda _: iter(()))
    (folder / "jwks.json").write_text("keys")
    policy = load_policy_file(folder / "policy.yaml", {}, None)
    assert set(policy.keys) == {"0" * 64}
    assert policy.jwt
    assert policy.jwt.jwks == "keys"
    assert policy.files == tuple(str(folder / name) for name in ("keys", "secrets/hmac", "jwks.json"))


def test_a_file_named_by_its_folder_alone_is_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`hearth.yaml` in the working directory goes on finding `policy.yaml` there, and faults name it so."""
    monkeypatch.chdir(tmp_path)
    Path("hearth.yaml").write_text("policy: policy.yaml\n")
    with pytest.raises(InvalidDocument, match=r"there is no file `policy\.yaml`"):
        check_file(Path("hearth.yaml"), {})


@pytest.mark.parametrize(
    ("path", "stated", "found"),
    [
        ("policy", "p.yaml", "/etc/hearth/p.yaml"),
        ("policy", "/srv/p.yaml", "/srv/p.yaml"),
        ("policy", "", ""),
        ("listen", "a:1", "a:1"),
        ("tls.client_ca", "ca.crt", "/etc/hearth/ca.crt"),
        ("key_api.tls.key", "a.key", "/etc/hearth/a.key"),
        ("key_api.keys_dir", "keys", "/etc/hearth/keys"),
        ("tracing.headers_file", "otlp", "/etc/hearth/otlp"),
        ("redis", "rediss://h?ssl_ca_certs=ca.crt&prefix=x", "rediss://h?ssl_ca_certs=/etc/hearth/ca.crt&prefix=x"),
        ("redis", "rediss://h?ssl_ca_certs=%2Fca.crt", "rediss://h?ssl_ca_certs=/ca.crt"),
    ],
)
def test_what_is_located(path: str, stated: str, found: str) -> None:
    """Relative names of files, also inside a URL; nothing else."""
    assert relative_to(Path("/etc/hearth/hearth.yaml"), CONFIG_FILE_KEYS)(path, stated) == found


def test_tenants_are_no_files() -> None:
    """Only what stands under `auth` names files in a policy."""
    locate = relative_to(Path("/etc/hearth/policy.yaml"), POLICY_FILE_KEYS)
    assert locate("tenants.a.tier", "gold") == "gold"
    assert locate("auth.keys_dir", "keys") == "/etc/hearth/keys"
