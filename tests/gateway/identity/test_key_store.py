"""Files that a policy names are found as they are mounted."""

from pathlib import Path

import pytest

from gateway.identity.key_folder import PolicyFileSystem
from tenancy.document import InvalidValue
from tenancy.policy import KeyFile


def test_key_files_are_found_as_kubernetes_mounts_them(tmp_path: Path) -> None:
    """Links are followed, hidden folders skipped, stray files too."""
    real = tmp_path / "..2026" / "legal"
    real.mkdir(parents=True)
    (real / "k1").write_text("abc\n")
    (tmp_path / "legal").symlink_to(real)
    (tmp_path / "README").write_text("x")
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / ".k").write_text("x")
    assert list(PolicyFileSystem().key_files(str(tmp_path))) == [KeyFile("legal", "k1", "abc\n")]
    with pytest.raises(InvalidValue, match="does not exist"):
        list(PolicyFileSystem().key_files(str(tmp_path / "nowhere")))


def test_a_file_that_cannot_be_read_is_wrong(tmp_path: Path) -> None:
    """With its name and why."""
    with pytest.raises(InvalidValue, match=r"cannot read .*nowhere.*: No such file"):
        PolicyFileSystem().text(str(tmp_path / "nowhere"))
