"""A key is looked up by its digest; without a policy everybody is welcome, with one nobody is by default."""

from hashlib import sha256
from pathlib import Path

import pytest

from gateway.identity import Keyring, key_files
from routing.refusal import Reason, Refused
from tenancy.document import Wrong
from tenancy.policy import KeyFile, Policy
from tenancy.tenants import ANONYMOUS, Tenant

LEGAL = Tenant("legal")


def test_without_a_policy_everybody_is_anonymous() -> None:
    """Whatever key is shown."""
    assert Keyring().identify(None) is ANONYMOUS
    assert Keyring().identify("sk-anything") is ANONYMOUS


def test_a_known_key_leads_to_its_tenant() -> None:
    """By the sha256 of its bytes."""
    keyring = Keyring(Policy({sha256(b"sk-1").hexdigest(): LEGAL}, {"legal": LEGAL}))
    assert keyring.identify("sk-1") is LEGAL


@pytest.mark.parametrize("key", [None, "", "sk-2", "sk-1 ", "\udcff", sha256(b"sk-1").hexdigest()])
def test_any_other_key_is_refused(key: str | None) -> None:
    """None, empty, unknown, odd bytes, and the digest itself."""
    keyring = Keyring(Policy({sha256(b"sk-1").hexdigest(): LEGAL}, {"legal": LEGAL}))
    with pytest.raises(Refused) as refused:
        keyring.identify(key)
    assert refused.value.reason is Reason.INVALID_KEY
    assert not key or key not in refused.value.message


def test_key_files_are_found_as_kubernetes_mounts_them(tmp_path: Path) -> None:
    """Links are followed, hidden folders skipped, stray files too."""
    real = tmp_path / "..2026" / "legal"
    real.mkdir(parents=True)
    (real / "k1").write_text("abc\n")
    (tmp_path / "legal").symlink_to(real)
    (tmp_path / "README").write_text("x")
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / ".k").write_text("x")
    assert list(key_files(str(tmp_path))) == [KeyFile("legal", "k1", "abc\n")]
    with pytest.raises(Wrong, match="there is no folder"):
        list(key_files(str(tmp_path / "nowhere")))
