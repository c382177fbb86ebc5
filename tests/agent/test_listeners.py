"""Who listens on a port, read from a real /proc and from one that was made up."""

import asyncio
import sys
from pathlib import Path

from agent.server_process import ServerCommand, command_behind

TALKS = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"


async def test_a_real_listener_is_found_with_its_arguments_and_variables() -> None:
    """A program of ours that calls itself what vLLM does; only VLLM_ variables are taken."""
    words = (sys.executable, "-c", TALKS, "vllm", "serve", "model", "--port", "1")
    child = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"VLLM_NIXL_SIDE_CHANNEL_PORT": "5601", "SECRET": "x"},
    )
    try:
        assert child.stdout is not None
        port = int(await child.stdout.readline())
        found = await asyncio.to_thread(command_behind, port)
    finally:
        child.kill()
        await child.wait()
    assert found.arguments[3:7] == ("vllm", "serve", "model", "--port")
    assert found.variables == {"VLLM_NIXL_SIDE_CHANNEL_PORT": "5601"}


def test_an_unreadable_process_is_not_a_command(tmp_path: Path) -> None:
    """No such port, and a machine without /proc."""
    assert command_behind(1, tmp_path) == ServerCommand()
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text("  sl  local_address\n   0: 0100007F:0001 00000000:0000 0A 0 0 0 0 0 77 1\n")
    assert command_behind(1, tmp_path) == ServerCommand()


def test_a_child_is_known_by_its_parent(tmp_path: Path) -> None:
    """Front ends of a server are children that renamed themselves."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text("  sl  local_address\n   0: 0100007F:1F40 00000000:0000 0A 0 0 0 0 0 77 1\n")
    for pid, parent, words in (("20", "10", "VLLM::ApiServer_0"), ("10", "1", "python\0vllm\0serve\0m")):
        folder = tmp_path / pid
        (folder / "fd").mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (odd) name)) S {parent} 1 1")
        (folder / "cmdline").write_text(words)
        (folder / "environ").write_text("VLLM_A=1\0B=2\0HF_HOME=/models")
    (tmp_path / "20" / "fd" / "3").symlink_to("socket:[77]")
    known = ServerCommand(
        ("python", "vllm", "serve", "m"), {"VLLM_A": "1", "HF_HOME": "/models"}, tmp_path / "10" / "root"
    )
    assert command_behind(8000, tmp_path) == known
