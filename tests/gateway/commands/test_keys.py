"""`hearth keys`: a key is shown once, alone on standard output; the rest is said beside."""

from hashlib import sha256
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.identity.key_folder import PREFIX
from gateway.identity.policy import load_policy_file


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A policy that the environment names, with a folder of keys."""
    path = tmp_path / "policy.yaml"
    (tmp_path / "keys").mkdir()
    path.write_text(f"auth: {{keys_dir: {tmp_path}/keys}}\ntenants: {{legal: {{}}}}\n")
    monkeypatch.setenv("HEARTH_POLICY", str(path))
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["keys", *words])
    out, err = capsys.readouterr()
    return status, out, err


def test_a_life_of_keys(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Made, listed, rotated, revoked."""
    status, key, stated = run(capsys, "new", "legal", "--id", "k1", "--user", "ann")
    assert (status, key.count("\n")) == (0, 1)
    assert key.startswith(PREFIX)
    assert "legal/k1" in stated
    assert key.strip() not in stated
    file = policy.parent / "keys" / "legal" / "k1"
    assert file.read_text() == f"{sha256(key.strip().encode()).hexdigest()} user=ann\n"

    status, rotated, stated = run(capsys, "rotate", "legal", "k1", "--grace-period", "7d")
    assert (status, rotated != key) == (0, True)
    assert "legal/k1 expires at 2" in stated

    status, listed, _ = run(capsys, "list")
    rows = [line.split() for line in listed.splitlines()]
    assert rows[0] == ["TENANT", "ID", "GROUP", "USER", "UNTIL"]
    assert sorted(row[3] for row in rows[1:]) == ["ann", "ann"]
    assert sorted(row[4][:1] for row in rows[1:]) == ["2", "n"]
    assert sorted(row[4] for row in rows[1:])[1] == "never"
    assert key.strip() not in listed

    assert run(capsys, "revoke", "legal", "k1")[0] == 0
    assert not file.exists()
    assert run(capsys, "list", "search")[1].count("\n") == 1


def test_an_old_key_stays_until_it_is_revoked(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless it is said for how long."""
    run(capsys, "new", "legal", "--id", "k1")
    assert "stays valid until you run: hearth keys revoke legal k1" in run(capsys, "rotate", "legal", "k1")[2]
    assert "expires_at=" not in (policy.parent / "keys" / "legal" / "k1").read_text()


def test_a_key_may_be_made_for_a_while(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It then ends by itself."""
    assert run(capsys, "new", "legal", "--id", "k1", "--expires-in", "90d")[0] == 0
    assert " expires_at=2" in (policy.parent / "keys" / "legal" / "k1").read_text()


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (("revoke", "legal", "k9"), "no key `legal/k9`"),
        (("rotate", "legal", "k9"), "no key `legal/k9`"),
        (("new", "../x"), "must be at most 128 printable characters without `/`"),
        (
            ("new", "legal", "--expires-in", "soon"),
            "--expires-in soon: must be a duration such as 30s, 5m, 12h, 1d or 2w",
        ),
        (("new", "legal", "--expires-in", "90"), "--expires-in 90: must be a duration such as 30s, 5m, 12h, 1d or 2w"),
        (("new", "legal", "--id", "a/b"), "--id a/b: must be at most 128 printable characters"),
        (("new", "legal", "--group", "nobody"), "--group nobody: unknown group `nobody` of tenant `legal` in"),
        (("new", "stranger"), "unknown tenant `stranger` in"),
        (("list", "--dir", "/nowhere"), "folder `/nowhere` does not exist"),
        (("list", "--policy", "/nowhere"), "No such file"),
    ],
)
def test_what_cannot_be_done_is_reported(
    policy: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], reported: str
) -> None:
    """With status 1, and no key shown."""
    status, out, err = run(capsys, *words)
    assert (status, out) == (1, "")
    assert reported in err


def test_a_group_must_be_one_of_its_tenant(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own groups, or those of `defaults`; a key of another would keep the gateway from starting."""
    policy.write_text(
        "auth: {keys_dir: keys}\n"
        "defaults: {groups: {interns: {rpm: 5}}}\n"
        "tenants: {legal: {groups: {partners: {rpm: 9}}}, search:}\n"
    )
    assert run(capsys, "new", "legal", "--group", "partners")[0] == 0
    assert run(capsys, "new", "search", "--group", "interns")[0] == 0
    status, out, err = run(capsys, "new", "legal", "--group", "interns")
    assert (status, out) == (1, "")
    assert "unknown group `interns` of tenant `legal` in" in err
    assert "(there are partners)" in err
    assert len(load_policy_file(policy, {}, None).keys) == 2


def test_a_key_whose_group_is_gone_cannot_be_rotated(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The new one would be as bad as the old one."""
    file = policy.parent / "keys" / "legal" / "k1"
    file.parent.mkdir()
    file.write_text("0" * 64 + " group=gone\n")
    status, out, err = run(capsys, "rotate", "legal", "k1")
    assert (status, out) == (1, "")
    assert "unknown group `gone`" in err


def test_a_folder_alone_cannot_check_a_group(
    policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The key is made, with a line that says what was not looked at; with a policy beside it is."""
    folder = ("--dir", str(policy.parent / "keys"))
    assert run(capsys, "new", "legal", "--group", "x", *folder)[0] == 1
    monkeypatch.delenv("HEARTH_POLICY")
    status, _, err = run(capsys, "new", "legal", "--group", "x", *folder)
    assert status == 0
    assert "no policy was named" in err


def test_the_folder_is_next_to_its_policy(
    policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever the command is typed."""
    policy.write_text("auth: {keys_dir: keys}\ntenants: {legal: {}}\n")
    monkeypatch.chdir("/")
    assert run(capsys, "new", "legal", "--id", "k1")[0] == 0
    assert (policy.parent / "keys" / "legal" / "k1").is_file()


def test_it_must_know_which_folder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Said by flag or by the policy of the environment."""
    monkeypatch.delenv("HEARTH_POLICY", raising=False)
    assert "no key folder" in run(capsys, "list")[2]


def test_a_list_cannot_steer_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A user's name is shown without control characters."""
    (tmp_path / "legal").mkdir()
    (tmp_path / "legal" / "ci").write_text(f"{sha256(b'x').hexdigest()} user=\x1b[2J\n")
    _, out, _ = run(capsys, "list", "--dir", str(tmp_path))
    assert "\\x1b[2J" in out
    assert "\x1b" not in out
