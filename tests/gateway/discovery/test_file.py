"""A watched file's pods are told when they change; a bad file costs nothing but a line in the log."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.config.discovery import DiscoveredPod
from gateway.discovery import file
from gateway.discovery.file import PodFileSource, parse_pods
from routing.facts import PodFacts, Role
from tenancy.document import InvalidValue
from tests.gateway.fake_pod import Pulse


class Follower:
    """Hears what a watched file tells and says."""

    def __init__(self, path: Path, poll_s: float = 0.005) -> None:
        self.reported: list[list[str]] = []
        self.stated: list[str] = []
        self.pulse = Pulse()
        self.file = PodFileSource(path, self.log_event, poll_s=poll_s)

    def log_event(self, level: str, message: str, *, error: str, **_: object) -> None:
        self.stated.append(error)
        self.pulse.beat()

    def tell(self, found: tuple[DiscoveredPod, ...]) -> None:
        self.reported.append([pod.url for pod in found])
        self.pulse.beat()

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.file.follow(self.tell))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def hears(self, *urls: str) -> None:
        await self.pulse.until(lambda: bool(self.reported) and self.reported[-1] == list(urls))


@pytest.mark.parametrize(
    "text",
    [
        "pods: [http://a:1, http://b:2]",
        "[http://a:1, http://b:2, http://a:1/]",
        "- http://a:1\n- url: http://b:2\n",
        "http://a:1\nhttp://b:2\n",
        "# ours\nhttp://a:1\n\nhttp://b:2\n",
    ],
)
def test_pods_may_be_listed_as_people_like(text: str) -> None:
    """A mapping, a list, or one a line; each pod once."""
    assert parse_pods(text) == (DiscoveredPod("http://a:1"), DiscoveredPod("http://b:2"))


def test_a_pod_may_report_where_it_stands_and_how_it_schedules() -> None:
    """Words that no engine tells: they come with the pod."""
    text = "[{url: http://a:1, region: on-prem, pool: big, role: prefill,"
    text += " tp: 2, scheduling_policy: priority}, http://b:2]"
    facts = PodFacts(role=Role.PREFILL, region="on-prem", tp=2)
    assert parse_pods(text) == (
        DiscoveredPod("http://a:1", "big", facts, takes_priority=True),
        DiscoveredPod("http://b:2"),
    )


def test_an_empty_list_is_written() -> None:
    """An empty text is what a half-written file looks like."""
    assert parse_pods("[]") == parse_pods("pods: []") == ()
    for text in ("", "# nothing\n", "pods:"):
        with pytest.raises(InvalidValue, match="lists nothing"):
            parse_pods(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pods: [http://a:1", "not YAML"),
        ("pods: [http://a:1]\npods: [http://b:1]", "duplicate key `pods`"),
        ("pods: &a [*a]", "within what it names"),
        ("pods: 2026-02-30", "not YAML"),
        ("pods: " + "[" * 5000, "nested too deeply"),
        ("pod: [http://a:1]", "pod: unknown key"),
        ("[{uri: http://a:1}]", r"pods\[0\]: uri: is not a fact of a pod"),
        ("[http://a:1, a]", r"pods\[1\]: must be a URL"),
        ("[5]", r"pods\[0\]: must be a text"),
        ("5", "must be a list of pods"),
        ("[{url: http://a:1, region: [5, x]}]", r"pods\[0\]: region: must be a text"),
        ("[{url: http://a:1, scheduling_policy: prior}]", r"pods\[0\]: `prior` is none of fcfs, priority"),
        ("[{region: x}]", r"pods\[0\]: must be a text"),
        ("[http://a:1, {url: http://a:1, region: x}]", "http://a:1: duplicate entry"),
    ],
)
def test_a_bad_list_is_rejected_with_its_place(text: str, words: str) -> None:
    """So that the line in the log helps."""
    with pytest.raises(InvalidValue, match=words):
        parse_pods(text)


async def test_changes_are_reported(tmp_path: Path) -> None:
    """Edited in place, or replaced by another file."""
    path = tmp_path / "pods.yaml"
    path.write_text("[http://a:1]")
    follower = Follower(path)
    async with follower.following():
        await follower.hears("http://a:1")
        path.write_text("[http://a:1, http://b:1]")
        await follower.hears("http://a:1", "http://b:1")
        (tmp_path / "new").write_text("[http://c:1]")
        (tmp_path / "new").rename(path)
        await follower.hears("http://c:1")
    assert len(follower.reported) == 3


async def test_what_does_not_change_is_not_reported_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is looked at."""
    path = tmp_path / "pods.yaml"
    path.write_text("[http://a:1]")
    follower, looks = Follower(path), list[Path]()
    real = file._version_of

    def counted(at: Path) -> tuple[int, int, int, int] | None:
        looks.append(at)
        follower.pulse.beat()
        return real(at)

    monkeypatch.setattr(file, "_version_of", counted)
    async with follower.following():
        await follower.pulse.until(lambda: len(looks) > 5)
    assert follower.reported == [["http://a:1"]]


async def test_a_bad_file_keeps_the_last_good_list(tmp_path: Path) -> None:
    """It is told in the log once per change, and mended it counts again."""
    path = tmp_path / "pods.yaml"
    path.write_text("[http://a:1]")
    follower = Follower(path)
    async with follower.following():
        await follower.hears("http://a:1")
        path.write_text("")
        await follower.pulse.until(lambda: len(follower.stated) == 1)
        path.unlink()
        await follower.pulse.until(lambda: len(follower.stated) == 2)
        path.write_bytes(b"\xff")
        await follower.pulse.until(lambda: len(follower.stated) == 3)
        assert follower.reported == [["http://a:1"]]
        path.write_text("[http://b:1]")
        await follower.hears("http://b:1")
    assert "No such file" in follower.stated[1]


async def test_a_config_map_is_followed_through_its_links(tmp_path: Path) -> None:
    """Kubernetes swaps a link two levels up; the path we were given never changes."""
    for number, url in ((1, "http://a:1"), (2, "http://b:1")):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "pods.yaml").write_text(f"[{url}]")
    (tmp_path / "..current").symlink_to("..1")
    (tmp_path / "pods.yaml").symlink_to("..current/pods.yaml")
    follower = Follower(tmp_path / "pods.yaml")
    async with follower.following():
        await follower.hears("http://a:1")
        (tmp_path / "..next").symlink_to("..2")
        (tmp_path / "..next").rename(tmp_path / "..current")
        await follower.hears("http://b:1")


async def test_it_can_be_made_to_look_at_once(tmp_path: Path) -> None:
    """A reload does not wait for the next poll, and hears the list again though it is the same."""
    path = tmp_path / "pods.yaml"
    path.write_text("[http://a:1]")
    follower = Follower(path, poll_s=3600)
    async with follower.following():
        await follower.hears("http://a:1")
        follower.file.reload_now()
        await follower.pulse.until(lambda: len(follower.reported) == 2)
