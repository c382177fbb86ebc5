"""The command line: what it says of itself, of what is wrong, and which status it ends with."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.commands import entry_point
from tests.sources import ROOT

POD = ("--pod", "http://127.0.0.1:9")


def hearth(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command, run to its end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HEARTH_", "KUBERNETES_"))}
    return subprocess.run(
        [sys.executable, "-m", "gateway", *map(str, words)],
        cwd=ROOT,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )


def test_it_names_its_version() -> None:
    """Without loading what serves."""
    reported = hearth("--version")
    assert (reported.returncode, reported.stdout.split()[0]) == (0, "hearth")


def test_it_explains_itself() -> None:
    """Alone and by --help; every flag of serve stands there."""
    alone = hearth().stdout
    assert "serve" in alone
    assert "hearth demo" in alone
    assert "hearth init" in alone
    shown = hearth("serve", "--help").stdout
    for flag in (
        "--listen",
        "--pod",
        "--config",
        "--policy",
        "--redis",
        "--metrics-listen",
        "--admin-listen",
        "--routing",
    ):
        assert flag in shown


@pytest.mark.parametrize(
    "words", [["serv"], ["serve", "--lisen", "x"], ["serve", "--pod"], ["config"], ["config", "check"], ["--verbose"]]
)
def test_a_wrong_command_line_is_status_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With the usage and what is wrong."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "usage: hearth" in capsys.readouterr().err


def test_loading_the_command_loads_no_server() -> None:
    """`hearth --version` is quick."""
    probe = "import sys, gateway.cli; print(sorted({'aiohttp', 'uvloop', 'yaml', 'msgspec'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_right_configuration_is_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 0, and says so."""
    config = tmp_path / "hearth.yaml"
    config.write_text("discovery: {static: {pods: [http://a:1]}}\n")
    assert main(["config", "check", str(config)]) == 0
    assert capsys.readouterr().out == f"{config}: ok\n"


def test_every_fault_of_a_configuration_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own, and those of the policy that it names; status 1."""
    policy, config = tmp_path / "policy.yaml", tmp_path / "hearth.yaml"
    policy.write_text("tires: {}\n")
    config.write_text(f"policy: {policy}\n")
    assert main(["config", "check", str(config)]) == 1
    assert capsys.readouterr().out == (
        f"{policy}: auth: is required: set at least one of keys, keys_dir, jwt, default_tenant\n"
        f"{policy}: tires: unknown key (did you mean `tiers`?)\n"
    )
    config.write_text("model_list: [{model_name: a}, {model_name: b, litellm_params: {}}]\nlisten: 1\n")
    assert main(["config", "check", str(config)]) == 1
    assert capsys.readouterr().out == (
        f"{config}: listen: must be a text, not a number (quote it)\n"
        f"{config}: model_list[1].litellm_params: not supported by this version\n"
    )
    assert main(["config", "check", str(tmp_path / "nowhere")]) == 1
    assert "No such file" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n"])
def test_an_empty_configuration_is_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    """A file that is being written looks like that; what is to say nothing is written {}."""
    config = tmp_path / "hearth.yaml"
    config.write_text(text)
    assert main(["config", "check", str(config)]) == 1
    assert "is empty" in capsys.readouterr().out
    config.write_text("{}")
    assert main(["config", "check", str(config)]) == 0


def test_the_list_of_pods_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its place; a gateway would start without those pods."""
    config, pods = tmp_path / "hearth.yaml", tmp_path / "pods.yaml"
    config.write_text("discovery: {file: {path: pods.yaml}}\n")
    for text, fault in (("[http://a:1, b]", "pods[1]: must be a URL"), ("", "lists nothing"), ("{", "not YAML")):
        pods.write_text(text)
        assert main(["config", "check", str(config)]) == 1
        assert capsys.readouterr().out.startswith(f"{pods}: {fault}")
    pods.write_text("[http://a:1]")
    assert main(["config", "check", str(config)]) == 0


@pytest.mark.parametrize(
    ("words", "variables", "reported"),
    [
        ((), {}, "hearth: --pod: no pod is named"),
        (("--pod", "here"), {}, "hearth: --pod: must be a URL"),
        ((*POD, "--listen", "8000"), {}, "hearth: --listen: must be HOST:PORT"),
        ((*POD, "--routing", "warn"), {}, "hearth: --routing: `warn` is none of warm, round-robin, least-loaded"),
        (
            (*POD, "--admin-listen", "0.0.0.0:9091"),
            {},
            "hearth: admin_listen: 0.0.0.0:9091 can be reached from outside",
        ),
        ((*POD, "--policy", "/nowhere"), {}, "hearth: --policy: there is no file `/nowhere`"),
        ((*POD, "--redis", "http://user:hunter2@h"), {}, "hearth: --redis: must be a URL beginning with redis://"),
        (POD, {"HEARTH_METRICS_LISTEN": "x"}, "hearth: HEARTH_METRICS_LISTEN: must be HOST:PORT"),
        (("--config", "/nowhere"), {}, "hearth: /nowhere: No such file or directory"),
    ],
)
def test_what_keeps_it_from_starting_is_reported(
    words: tuple[str, ...], variables: dict[str, str], reported: str
) -> None:
    """In one line each, with status 2, without a traceback and without secrets."""
    done = hearth("serve", "--admin-listen", "off", *words, **variables)
    assert done.returncode == 2
    assert done.stderr.startswith(reported)
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize(
    ("lines", "reported"),
    [
        ("listen: [1\n", "line 2, column 1: expected"),
        ("- 1\n", "must be a mapping, not a list"),
        ("admin_token: ${NOPE}\n", "admin_token: the variable NOPE is not set"),
        ("limits: {max_body_bytes: big}\n", "limits.max_body_bytes: must be a number, not 'big'"),
        (
            "model_list: [{model_name: x, cascade: {models: [a, b], calibration: FILE}}]\n",
            "model_list[0].cascade.calibration: `FILE` is no",
        ),
    ],
)
def test_a_configuration_is_rejected_by_its_name(tmp_path: Path, lines: str, reported: str) -> None:
    """File, field, and what is wrong with it, in one line."""
    config = tmp_path / "hearth.yaml"
    config.write_text(lines.replace("FILE", str(config)))
    done = hearth("serve", *POD, "--config", str(config))
    assert done.returncode == 2
    assert done.stderr.startswith(f"hearth: {config}: {reported.replace('FILE', str(config))}")
    assert done.stderr.count("\n") == 1


def test_no_session_is_left_where_nothing_is_started(tmp_path: Path) -> None:
    """A source of pods that cannot be had is found out before anything is opened."""
    config = tmp_path / "hearth.yaml"
    config.write_text("discovery: {kubernetes: {namespace: a, selector: b=c}}\n")
    done = hearth(
        "serve", "--listen", "127.0.0.1:0", "--metrics-listen", "off", "--admin-listen", "off", "--config", str(config)
    )
    assert done.returncode == 2
    assert done.stderr.startswith("hearth: discovery.kubernetes: we run in no cluster")
    assert done.stderr.count("\n") == 1


def test_an_address_that_is_not_ours_is_reported() -> None:
    """That could not be done, though nothing is wrong with how it was said: status 1."""
    done = hearth("serve", *POD, "--admin-listen", "off", "--metrics-listen", "off", "--listen", "192.0.2.1:0")
    assert done.returncode == 1
    assert done.stderr.startswith("hearth: listen: cannot listen on 192.0.2.1:0")


@pytest.mark.parametrize("port", ["listen", "metrics", "admin"])
def test_a_port_in_use_is_reported(port: str) -> None:
    """Which one, and where."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        flag = "--listen" if port == "listen" else f"--{port}-listen"
        flags = {"--listen": "127.0.0.1:0", "--metrics-listen": "off", "--admin-listen": "off"} | {flag: where}
        done = hearth("serve", *POD, *(word for pair in flags.items() for word in pair))
    assert done.returncode == 1
    assert done.stderr.startswith(f"hearth: {port}: cannot listen on {where}: ")
    assert "in use" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["agent", "demo", "pod", "shadow", "simulate", "profile"])
def test_commands_outside_the_gateway_get_all_arguments(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Flags and exit status are the command's own."""

    class Found:
        @staticmethod
        def load() -> object:
            return len

    monkeypatch.setattr(entry_point, "entry_points", lambda **_: [Found])
    assert main([name, "--trace", "x", "--help"]) == 3


def test_without_a_simulator_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1."""
    monkeypatch.setattr(entry_point, "entry_points", lambda **_: [])
    assert main(["simulate"]) == 1
    assert "no simulator is installed" in capsys.readouterr().err
