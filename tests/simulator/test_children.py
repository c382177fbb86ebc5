"""Programs beside us: greeted, logged, and gone when their block ends, however it ends."""

import os
from pathlib import Path

import pytest

from simulator import children
from simulator.children import ChildFailed, running

TALKATIVE = """\
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("hello")
print("ready", sys.argv[1])
print("x" * 200_000, flush=True)
signal.sigwait([signal.SIGTERM])
"""
"""Does not let itself be ended before it has said everything: more than a pipe holds."""


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def write_program(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    (folder / "beside_us.py").write_text(body, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder))


def greeting(line: bytes) -> str | None:
    return line.decode().strip() if line.startswith(b"ready") else None


async def test_a_program_is_greeted_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines before the greeting are passed over, arguments reach it, what it says later is kept in its log."""
    write_program(tmp_path, monkeypatch, TALKATIVE)
    log = tmp_path / "log"
    async with running("beside_us", ["now"], name="it", log=log, greeting=greeting) as (child, found):
        assert found == "ready now"
        assert is_there(child.pid)
    assert not is_there(child.pid)
    assert log.stat().st_size >= 200_000


async def test_an_error_in_the_block_ends_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever we were doing with it."""
    write_program(tmp_path, monkeypatch, "import signal\nprint('ready', flush=True)\nsignal.pause()\n")
    with pytest.raises(LookupError):
        async with running("beside_us", [], name="it", log=tmp_path / "log", greeting=greeting) as (child, _):
            raise LookupError
    assert not is_there(child.pid)
    assert child.program.returncode == -15


async def test_one_that_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked first, then made to."""
    monkeypatch.setattr(children, "END_S", 0.2)
    write_program(
        tmp_path,
        monkeypatch,
        "import signal\nsignal.signal(15, signal.SIG_IGN)\nprint('ready', flush=True)\nwhile True: signal.pause()\n",
    )
    async with running("beside_us", [], name="it", log=tmp_path / "log", greeting=greeting) as (child, _):
        pass
    assert child.program.returncode == -9


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("print('hello')\n", "it ended before it was ready: without a word"),
        ("raise SystemExit('no such port')\n", "it ended before it was ready: no such port"),
        ("import signal\nsignal.pause()\n", "it was not ready within"),
    ],
)
async def test_one_that_never_greets_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, words: str
) -> None:
    """With the last words it said on its error stream, and nothing left running."""
    monkeypatch.setattr(children, "START_S", 5.0 if "ended" in words else 0.5)
    write_program(tmp_path, monkeypatch, body)
    with pytest.raises(ChildFailed, match=words):
        async with running("beside_us", [], name="it", log=tmp_path / "log", greeting=greeting):
            pass
