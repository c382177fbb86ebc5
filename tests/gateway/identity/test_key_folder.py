"""A folder of keys: what is written can be looked up, and only by its owner."""

from hashlib import sha256
from math import inf
from pathlib import Path

import pytest

from gateway.identity.key_folder import PREFIX, KeyFileEntry, KeyFolder, PolicyFileSystem
from tenancy.document import InvalidValue
from tenancy.reading.policy import read_policy


def test_a_new_key_is_known_by_its_digest_alone(tmp_path: Path) -> None:
    """256 random bits; what stands in the file is no key."""
    folder = KeyFolder(tmp_path / "keys")
    key_id, key = folder.add("legal", user="ann", group="interns")
    assert key.startswith(PREFIX)
    assert len(key) == len(PREFIX) + 43
    path = tmp_path / "keys" / "legal" / key_id
    assert path.read_text() == f"{sha256(key.encode()).hexdigest()} group=interns user=ann\n"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert list(folder.entries()) == [KeyFileEntry("legal", key_id, "ann", "interns", inf)]
    policy = read_policy(
        f"auth: {{keys_dir: {tmp_path}/keys}}\ntenants: {{legal: {{groups: {{interns: {{}}}}}}}}",
        {},
        PolicyFileSystem(),
    )
    assert policy.keys[sha256(key.encode()).hexdigest()].caller.key_id == key_id
    assert folder.add("legal")[1] != key


def test_no_key_is_written_over_another(tmp_path: Path) -> None:
    """Nor is a draft left behind."""
    folder = KeyFolder(tmp_path)
    folder.add("legal", "k1")
    before = (tmp_path / "legal" / "k1").read_text()
    with pytest.raises(InvalidValue, match="key `legal/k1` already exists"):
        folder.add("legal", "k1")
    assert (tmp_path / "legal" / "k1").read_text() == before
    assert [path.name for path in (tmp_path / "legal").iterdir()] == ["k1"]


def test_a_key_ends_when_it_is_set_to_and_no_later(tmp_path: Path) -> None:
    """Whoever shows it stays who he was."""
    folder = KeyFolder(tmp_path)
    folder.add("legal", "k1", user="ann")
    assert folder.expire("legal", "k1", 1_796_083_200.0) == 1_796_083_200.0
    assert folder.find("legal", "k1") == KeyFileEntry("legal", "k1", "ann", None, 1_796_083_200.0)
    assert folder.expire("legal", "k1", inf) == 1_796_083_200.0
    assert (tmp_path / "legal" / "k1").stat().st_mode & 0o777 == 0o600


def test_a_removed_key_is_gone(tmp_path: Path) -> None:
    """And cannot be removed twice."""
    folder = KeyFolder(tmp_path)
    folder.add("legal", "k1")
    folder.remove("legal", "k1")
    assert list(folder.entries()) == []
    with pytest.raises(InvalidValue, match="no key `legal/k1`"):
        folder.remove("legal", "k1")


@pytest.mark.parametrize("name", ["..", ".hidden", "a/b", "", " a"])
def test_names_stay_within_the_folder(tmp_path: Path, name: str) -> None:
    """No path leads out of it."""
    folder = KeyFolder(tmp_path / "keys")
    for tenant, key_id in ((name, "k1"), ("legal", name)):
        with pytest.raises(InvalidValue):
            folder.find(tenant, key_id)
        if tenant and key_id:
            with pytest.raises(InvalidValue):
                folder.add(tenant, key_id)


def test_a_bad_file_says_what_is_wrong(tmp_path: Path) -> None:
    """Beside the good ones; a user with spaces could not be read again."""
    (tmp_path / "legal").mkdir()
    (tmp_path / "legal" / "k1").write_text("sk-oops")
    entry = KeyFolder(tmp_path).find("legal", "k1")
    assert "must be the sha256" in entry.fault
    assert "sk-oops" not in entry.fault
    with pytest.raises(InvalidValue, match="must not contain spaces"):
        KeyFolder(tmp_path).add("legal", user="ann lee")
