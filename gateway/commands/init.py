"""`hearth init`: writes a first configuration from three answers or from flags, and checks it as a start would.

A new API key is shown once, alone on standard output; everything else goes to standard error.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from gateway.commands.check import find_config_errors
from gateway.config.fields import parse_address, parse_pod_base_url
from gateway.identity.key_folder import KeyFolder
from gateway.runtime.addresses import Address
from tenancy.document import InvalidValue
from tenancy.reading.fields import name

T = TypeVar("T")

TENANT = "first"

LOOPBACK = ("127.0.0.1", "localhost", "::1")

CONFIG = """\
# Written by `hearth init`. Every key: docs/configuration.md; check changes with `hearth config check {path}`.
listen: {listen}
discovery:
  static:
    pods:
{pods}"""

POLICY = """\
# Written by `hearth init`. Every key: docs/policy.md; check changes with `hearth policy check`.
auth: {{keys_dir: keys}}
tiers:
  standard: {{priority: 0, max_queue_s: 30}}
defaults: {{tier: standard}}
tenants:
  {tenant}: {{}}
"""

Ask = Callable[[str], str]
"""Shows a question and returns the line typed, without its end. Raises `EOFError` where nothing can be typed."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What the configuration is written from."""

    pods: tuple[str, ...]
    listen: Address
    tenant: str | None
    """None: requests are not authenticated."""


def add_flags(parser: ArgumentParser) -> None:
    """Add the flags to the parser."""
    add = parser.add_argument
    add("--pod", action="append", metavar="URL", help="URL of a vLLM server; repeatable")
    add("--listen", metavar="HOST:PORT", help="listen address for clients")
    add("--auth", action=BooleanOptionalAction, help="write a policy and a first API key")
    add("--tenant", default=TENANT, metavar="NAME", help="with --auth: the key's tenant (default %(default)s)")
    add("--dir", type=Path, default=Path(), metavar="FOLDER", help="folder of the files (default: this one)")
    add("--force", action="store_true", help="replace files that are there")


def run(arguments: Namespace, variables: Mapping[str, str]) -> int:
    """Return the exit status: 0 if the files were written and pass their check, else 1."""
    try:
        answers = read_answers(arguments, _ask)
        config = write_files(answers, arguments.dir, replaces=arguments.force)
    except (InvalidValue, OSError) as trouble:
        sys.stderr.write(f"hearth: {trouble}\n")
        return 1
    faults = find_config_errors(config, variables)
    sys.stderr.write("".join(f"hearth: {fault}\n" for fault in faults))
    if not faults:
        sys.stderr.write(f"{config}: ok\nNext: hearth serve --config {config}\n")
    return 1 if faults else 0


def read_answers(arguments: Namespace, ask: Ask) -> Answers:
    """Return the answers: each from its flag, else from the question. Raises `InvalidValue` with the flag's name."""
    given = arguments.pod
    if given is None:
        given = _question(ask, "URLs of your vLLM servers, separated by commas", "--pod", None).split(",")
    pods = tuple(_parsed("--pod", parse_pod_base_url, url.strip()) for url in given)
    default = default_listen(pods)
    listen = arguments.listen or _question(ask, "Address for clients", "--listen", default)
    auth = arguments.auth
    if auth is None:
        auth = _question(ask, "Must clients send an API key? yes or no", "--auth", "no").lower() in ("y", "yes")
    tenant = _parsed("--tenant", name, arguments.tenant) if auth else None
    return Answers(pods, _parsed("--listen", parse_address, listen), tenant)


def default_listen(pods: Sequence[str]) -> str:
    """Return port 8000 of the loopback address, or 8080 where a server of this machine has 8000."""
    places = [urlsplit(url) for url in pods]
    is_taken = any(place.hostname in LOOPBACK and place.port == 8000 for place in places)
    return "127.0.0.1:8080" if is_taken else "127.0.0.1:8000"


def write_files(answers: Answers, folder: Path, *, replaces: bool) -> Path:
    """Write hearth.yaml and, with a tenant, policy.yaml and a key. Returns the path of hearth.yaml.

    Raises `InvalidValue` if a file is there and may not be replaced.
    """
    config, policy = folder / "hearth.yaml", folder / "policy.yaml"
    for path in (config, policy) if answers.tenant else (config,):
        if path.exists() and not replaces:
            raise InvalidValue(f"{path} is there already: pass --force to replace it, or another --dir")
    folder.mkdir(parents=True, exist_ok=True)
    pods = "".join(f"      - {url}\n" for url in answers.pods)
    text = CONFIG.format(path=config, listen=_quoted(answers.listen), pods=pods)
    if answers.tenant:
        text += "policy: policy.yaml\n"
        policy.write_text(POLICY.format(tenant=answers.tenant), encoding="utf-8")
        _, key = KeyFolder(folder / "keys").add(answers.tenant)
        sys.stdout.write(f"{key}\n")
        sys.stderr.write(f"API key of tenant `{answers.tenant}`: shown only once; another: hearth keys new\n")
    elif answers.listen.host not in LOOPBACK:
        sys.stderr.write("hearth: no API key: every machine that reaches the address may send requests\n")
    config.write_text(text, encoding="utf-8")
    return config


def _quoted(where: Address) -> str:
    return f'"{where}"' if ":" in where.host else str(where)


def _question(ask: Ask, words: str, flag: str, default: str | None) -> str:
    shown = words if default is None else f"{words} [{default}]"
    try:
        typed = ask(f"{shown}: ").strip()
    except EOFError:
        typed = ""
    if not typed and default is None:
        raise InvalidValue(f"no answer to `{words}`: pass {flag}")
    return typed or default or ""


def _parsed(flag: str, parse: Callable[[object], T], given: str) -> T:
    try:
        return parse(given)
    except InvalidValue as wrong:
        raise InvalidValue(f"{flag} {given}: {wrong}") from None


def _ask(words: str) -> str:
    sys.stderr.write(words)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line
