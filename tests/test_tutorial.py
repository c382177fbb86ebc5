"""The tutorial's commands, run in order in one shell, as a reader would; only its ports and the demo's trace differ."""

import asyncio
import json
import os
import re
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT

TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")

PORTS = ("8000", "8101", "8102", "9091", "9464")

LIMIT_S = 200.0


def blocks() -> list[str]:
    """What the reader types, but for the installation."""
    return re.findall(r"```sh\n(.*?)```", TUTORIAL, re.DOTALL)


def free_ports(count: int) -> list[str]:
    """Different ports that nothing listens on."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [str(each.getsockname()[1]) for each in held]
    for each in held:
        each.close()
    return found


def script(folder: Path) -> str:
    """All blocks as one script; whatever still runs at its end is ended with it."""
    rows = [{"timestamp": 500 * n, "input_length": 2048, "output_length": 4, "hash_ids": [1, 2, n]} for n in range(6)]
    (folder / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    # Job numbers are those of a shell in which nothing else runs.
    text = "set -e; trap 'kill $(jobs -p) 2>/dev/null' EXIT\n" + "\n".join(blocks()).replace(
        "hearth demo\n", "hearth demo --trace trace.jsonl\n"
    )
    for job, number in (("%3", "$gateway"), ("%2", "$second"), ("%1", "$first")):
        text = text.replace(job, number)
    for line, name in (("pod-1.log &", "first"), ("pod-2.log &", "second"), ("gateway.log &", "gateway")):
        assert line in text
        text = text.replace(line, f"{line} {name}=$!")
    for port, free in zip(PORTS, free_ports(len(PORTS)), strict=True):
        text = text.replace(f":{port}", f":{free}")
    return text


@pytest.mark.timeout(400)
async def test_every_command_of_the_tutorial_works(tmp_path: Path) -> None:
    """The same prompt is cached, the limit binds, a lost pod costs no request, and the gateway ends in order."""
    text = script(tmp_path)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEARTH_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    metrics, admin = (
        re.search(pattern, text) for pattern in (r"127\.0\.0\.1:(\d+)/ready", r"127\.0\.0\.1:(\d+)/fleet")
    )
    assert metrics
    assert admin
    environment |= {
        "HEARTH_METRICS_LISTEN": f"127.0.0.1:{metrics[1]}",
        "HEARTH_ADMIN_LISTEN": f"127.0.0.1:{admin[1]}",
    }
    shell = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        text,
        cwd=tmp_path,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            stated = (await shell.communicate())[0].decode()
    finally:
        if shell.returncode is None:
            os.killpg(shell.pid, signal.SIGKILL)
            await shell.wait()
    assert shell.returncode == 0, stated
    cached = re.search(r"'cached_tokens': (\d+)", stated)
    assert cached, stated
    assert int(cached[1]) > 1000
    assert "\n429\n" in stated
    assert re.search(r"^hearth_requests_total", stated, re.MULTILINE)
