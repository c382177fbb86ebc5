"""`hearth config migrate --write` replaces a file without a moment in which it is neither old nor new."""

from argparse import Namespace
from pathlib import Path

import pytest

from gateway.commands import check

OLD, NEW = "stalls: {times: 4}  # ours\n", "stall_detection: {factor: 4}  # ours\n"


def migrate(file: Path, *, writes: bool = True) -> int:
    return check.run(Namespace(action="migrate", file=str(file), write=writes), {})


def test_the_old_file_is_kept_beside_the_new_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A reader that has the old file open goes on with it; mode and name stay."""
    file = tmp_path / "hearth.yaml"
    file.write_text(OLD)
    file.chmod(0o640)
    with file.open() as reader:
        assert migrate(file) == 0
        assert reader.read() == OLD
    assert file.read_text() == NEW
    assert (tmp_path / "hearth.yaml.bak").read_text() == OLD
    assert file.stat().st_mode & 0o777 == 0o640
    assert str(tmp_path / "hearth.yaml.bak") in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hearth.yaml", "hearth.yaml.bak"]


def test_an_earlier_copy_is_not_overwritten(tmp_path: Path) -> None:
    """The next one has a number; a file without old names is left as it is, without a copy."""
    file = tmp_path / "hearth.yaml"
    for _ in range(2):
        file.write_text(OLD)
        assert migrate(file) == 0
    assert (tmp_path / "hearth.yaml.bak1").exists()
    assert migrate(file) == 0
    assert len(list(tmp_path.iterdir())) == 3


def test_a_link_is_followed(tmp_path: Path) -> None:
    """The file that it leads to is replaced, and stays what the link leads to."""
    real, link = tmp_path / "real.yaml", tmp_path / "hearth.yaml"
    real.write_text(OLD)
    link.symlink_to(real)
    assert migrate(link) == 0
    assert link.is_symlink()
    assert real.read_text() == NEW


def test_a_failed_rename_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the draft is left either."""
    file = tmp_path / "hearth.yaml"
    file.write_text(OLD)

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", fail)
    assert migrate(file) == 1
    assert file.read_text() == OLD
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_without_write_nothing_is_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The new text is printed."""
    file = tmp_path / "hearth.yaml"
    file.write_text(OLD)
    assert migrate(file, writes=False) == 0
    assert capsys.readouterr().out == NEW
    assert [path.name for path in tmp_path.iterdir()] == ["hearth.yaml"]
