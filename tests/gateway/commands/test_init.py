"""`hearth init` writes a configuration that passes its check, asks only what no flag answers, overwrites nothing."""

from argparse import ArgumentParser
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.commands.check import find_config_errors
from gateway.commands.init import add_flags, default_listen, read_answers
from gateway.config.loading import check_file
from gateway.identity.policy import load_policy
from tenancy.document import InvalidValue


def test_flags_alone_write_a_configuration_that_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pods and address as given; the next command is named; nothing is on standard output without a key."""
    words = ["--pod", "http://10.0.0.1:8000/", "--pod", "http://10.0.0.2:8000", "--listen", "[::1]:8010", "--no-auth"]
    assert main(["init", *words, "--dir", str(tmp_path / "new")]) == 0
    config = tmp_path / "new" / "hearth.yaml"
    settings = check_file(config, {})
    assert [pod.url for pod in settings.configured_pods] == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    assert (str(settings.listen), settings.policy) == ("[::1]:8010", None)
    shown = capsys.readouterr()
    assert (shown.out, f"Next: hearth serve --config {config}" in shown.err) == ("", True)


def test_a_key_is_shown_once_and_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The policy passes its check with it, and only a digest is in the files."""
    assert main(["init", "--pod", "http://a:1", "--listen", "127.0.0.1:0", "--auth", "--dir", str(tmp_path)]) == 0
    key = capsys.readouterr().out.strip()
    assert find_config_errors(tmp_path / "hearth.yaml", {}) == ()
    policy = load_policy(check_file(tmp_path / "hearth.yaml", {}), {})
    assert policy is not None
    assert [held.caller.tenant.name for held in policy.keys.values()] == ["first"]
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert key
    assert not any(key in text for text in written)


def test_questions_cover_what_no_flag_answers() -> None:
    """Three at most, each with its default."""
    parser = ArgumentParser()
    add_flags(parser)
    questions: list[str] = []

    def answer(question: str) -> str:
        questions.append(question)
        return "http://127.0.0.1:8000, http://b:2\n" if "vLLM" in question else "\n"

    answers = read_answers(parser.parse_args([]), answer)
    assert answers.pods == ("http://127.0.0.1:8000", "http://b:2")
    assert (str(answers.listen), answers.tenant) == ("127.0.0.1:8080", None)
    assert len(questions) == 3
    read_answers(parser.parse_args(["--pod", "http://a:1", "--auth"]), answer)
    assert len(questions) == 4


def test_without_an_answer_the_flag_is_named() -> None:
    """Where nothing can be typed, as in a script."""
    parser = ArgumentParser()
    add_flags(parser)

    def closed(question: str) -> str:
        raise EOFError

    with pytest.raises(InvalidValue, match="pass --pod"):
        read_answers(parser.parse_args([]), closed)
    with pytest.raises(InvalidValue, match="--listen 8000: must be HOST:PORT"):
        read_answers(parser.parse_args(["--pod", "http://a:1", "--listen", "8000"]), closed)


def test_files_that_are_there_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless --force is given."""
    words = ["init", "--pod", "http://a:1", "--listen", "127.0.0.1:0", "--no-auth", "--dir", str(tmp_path)]
    (tmp_path / "hearth.yaml").write_text("mine")
    assert main(words) == 1
    assert "--force" in capsys.readouterr().err
    assert (tmp_path / "hearth.yaml").read_text() == "mine"
    assert main([*words, "--force"]) == 0


def test_the_default_port_is_not_the_pods_own() -> None:
    """Since the default port of vLLM is 8000 too."""
    assert default_listen(["http://127.0.0.1:8000"]) == "127.0.0.1:8080"
    assert default_listen(["http://10.0.0.1:8000", "http://127.0.0.1:8001"]) == "127.0.0.1:8000"
