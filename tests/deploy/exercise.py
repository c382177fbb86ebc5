"""Carries out the Dockerfile's steps without a container engine: its copies and commands in a folder that stands for /,
its health check and its command as the user that it names.

Knows the instructions that our Dockerfile uses and refuses others, so that none is passed over in silence.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.sources import ROOT

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
START_LIMIT_S = 120.0
NOTED = ("LABEL", "EXPOSE", "STOPSIGNAL", "CMD")
"""Instructions that have nothing to do: for CMD stands a command of ours."""


@dataclass(slots=True)
class Stage:
    """What the instructions since the last FROM have come to."""

    workdir: Path = Path("/")
    environment: dict[str, str] = field(default_factory=dict)
    user: str = ""
    healthcheck: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Each instruction with its words, continued lines put together, comments left out."""
    lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    for line in lines:
        complete = line
        while complete.endswith("\\"):
            complete = complete[:-1] + " " + next(lines).strip()
        word, _, rest = complete.partition(" ")
        yield word, rest.strip()


class Image:
    """Folders that stand for the file systems of the stages, all in one place."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.stage = Stage()

    def take(self, word: str, rest: str) -> None:
        """One instruction. Raises `NotImplementedError` on one that we do not know."""
        if word in NOTED:
            return
        if word not in STEPS:
            raise NotImplementedError(f"{word}: teach tests/deploy/exercise.py what it does")
        STEPS[word](self, rest)

    def begin(self, rest: str) -> None:
        self.stage = Stage()

    def enter(self, rest: str) -> None:
        self.stage.workdir = Path(rest)
        self._at(rest).mkdir(parents=True, exist_ok=True)

    def set(self, rest: str) -> None:
        self.stage.environment |= dict(pair.split("=", 1) for pair in shlex.split(rest))

    def become(self, rest: str) -> None:
        self.stage.user = rest

    def note_health(self, rest: str) -> None:
        self.stage.healthcheck = tuple(json.loads(rest[rest.index("[") :]))

    def note_entry(self, rest: str) -> None:
        self.stage.entrypoint = tuple(json.loads(rest))

    def _at(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def placed(self, words: str) -> str:
        """The same with our folder in the place of the image's own."""
        return words.replace("/opt/hearth", str(self._at("/opt/hearth")))

    def copy(self, rest: str) -> None:
        words = shlex.split(rest)
        if words[0].startswith("--from="):
            assert words[1] == words[2], "between stages we copy to the same place: it is there already"
            assert self._at(words[1]).is_dir(), f"{words[1]} was not made"
            return
        *sources, target = words
        folder = self._at(str(self.stage.workdir / target))
        for source in sources:
            found = ROOT / source
            if found.is_dir():
                shutil.copytree(found, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
            else:
                shutil.copy(found, folder)

    def run(self, rest: str) -> None:
        folder = self._at(str(self.stage.workdir))
        subprocess.run(["/bin/sh", "-ec", self.placed(rest)], cwd=folder, check=True)

    @property
    def environment(self) -> dict[str, str]:
        """What the stage's commands see."""
        found = {"HOME": "/nonexistent", "PATH": os.environ["PATH"]}
        for name, value in self.stage.environment.items():
            found[name] = self.placed(value).replace("$PATH", os.environ["PATH"])
        # Nothing of ours listens beyond the loopback, or on a port that somebody has.
        return found | {
            "HEARTH_LISTEN": "127.0.0.1:0",
            "HEARTH_METRICS_LISTEN": "127.0.0.1:0",
            "HEARTH_ADMIN_LISTEN": "off",
        }


STEPS: Mapping[str, Callable[[Image, str], None]] = {
    "FROM": Image.begin,
    "WORKDIR": Image.enter,
    "ENV": Image.set,
    "COPY": Image.copy,
    "RUN": Image.run,
    "USER": Image.become,
    "HEALTHCHECK": Image.note_health,
    "ENTRYPOINT": Image.note_entry,
}


def exercise(root: Path, dockerfile: Path = DOCKERFILE) -> None:
    """Build in `root`, then run the gateway there, ask its health, and stop it. Raises on whatever is wrong."""
    root.chmod(0o755)
    image = Image(root)
    for word, rest in instructions(dockerfile.read_text()):
        image.take(word, rest)
    stage = image.stage
    assert stage.user.split(":")[0].isdecimal(), "a user by number, or Kubernetes cannot tell that it is not root"
    assert stage.user.split(":")[0] != "0"
    assert stage.healthcheck
    assert stage.entrypoint
    with running(image) as metrics:
        check = [word.replace("127.0.0.1:9464", metrics) for word in stage.healthcheck]
        subprocess.run(_as_user(stage.user, check), env=image.environment, check=True, cwd="/")
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=START_LIMIT_S) as answer:
            assert b"hearth_build_info" in answer.read()


@contextmanager
def running(image: Image) -> Iterator[str]:
    """The entry point with a pod that is away, as the image's user; yields where its metrics are."""
    words = [*image.stage.entrypoint, "serve", "--pod", "http://127.0.0.1:9"]
    started = subprocess.Popen(
        _as_user(image.stage.user, words), env=image.environment, stdout=subprocess.PIPE, cwd="/"
    )
    try:
        assert started.stdout is not None
        for raw in started.stdout:
            line = json.loads(raw)
            if line["event"] == "listening":
                yield line["metrics"][0]
                break
        else:
            raise AssertionError("it ended before it listened")
        started.send_signal(signal.SIGTERM)
        started.stdout.read()
        assert started.wait(timeout=START_LIMIT_S) == 0
    finally:
        if started.poll() is None:
            started.kill()
        started.communicate()


def _as_user(user: str, words: list[str]) -> list[str]:
    """As whom the image runs it, where we may become that; everybody else is nobody special anyway."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return words
    number, _, group = user.partition(":")
    return ["setpriv", f"--reuid={number}", f"--regid={group}", "--clear-groups", "--no-new-privs", "--", *words]


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="hearth-image-") as folder:
        exercise(Path(folder), *map(Path, sys.argv[1:]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
