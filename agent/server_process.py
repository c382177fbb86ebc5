"""Facts of a vLLM server from its process: command line, environment, and the model's files.

The process is found in /proc by the port it listens on. Nothing here fails: what is missing, unreadable or spelled by
another version is left out. Option names are those of vLLM 0.32 (`vllm serve --help`, `vllm/envs.py`). Only files that
the process itself sees are read; nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from routing.kv_bytes import kv_bytes_per_token
from routing.server_settings import (
    FLAG_OPTIONS,
    HASH_SEED_VARIABLE,
    NO_SEED,
    OPTION_FORMS,
    VARIABLE_FORMS,
    ServerSettings,
    permitted,
)

DEFAULT_NIXL_PORT, DEFAULT_MOONCAKE_PORT = "5600", "8998"
"""Defaults of vLLM."""

DEFAULT_COORDINATOR_PORT = "29550"
"""Of `--data-parallel-rpc-port`."""


_SHORT = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-dpa": "data-parallel-address",
    "-dpp": "data-parallel-rpc-port",
    "-ep": "enable-expert-parallel",
}


_FACTS = {
    "tensor-parallel-size": "tp",
    "pipeline-parallel-size": "pp",
    "data-parallel-size": "dp",
    "block-size": "block_size",
    "kv-cache-dtype": "kv_dtype",
    "revision": "revision",
}


_UNSAID = frozenset(("auto", "", "None"))


def is_vllm_command(words: Sequence[str]) -> bool:
    """Return whether this is the command line of a vLLM server."""
    runs_vllm = any("vllm" in word for word in words)
    return (runs_vllm and "serve" in words) or any("vllm.entrypoints" in word for word in words)


def model_of_command(words: Sequence[str]) -> str:
    """Return the model on the command line, a name or a folder; empty if there is none."""
    parsed_options = dict(_options(words))
    if named := parsed_options.get("model"):
        return named
    after = list(words)[words.index("serve") + 1 :] if "serve" in words else []
    return after[0] if after and not after[0].startswith("-") else ""


def facts_from_command(
    words: Sequence[str], variables: Mapping[str, str], reached_at: str
) -> tuple[dict[str, object], bool]:
    """Return flat facts, and whether the server schedules by priority.

    `reached_at`: the host by which gateways reach the server.
    """
    parsed_options = dict(_options(words))
    raw_facts: dict[str, object] = {_FACTS[name]: value for name, value in parsed_options.items() if name in _FACTS}
    if layout := variables.get("VLLM_KV_CACHE_LAYOUT"):
        raw_facts["kv_layout"] = layout
    raw_facts |= _step_group(parsed_options)
    raw_facts |= facts_from_kv_transfer(_transfer(parsed_options), variables, reached_at)
    kept = {word: value for word, value in raw_facts.items() if value not in _UNSAID}
    return kept, parsed_options.get("scheduling-policy") == "priority"


def _step_group(parsed_options: Mapping[str, str]) -> dict[str, object]:
    """Return whether ranks step together, and the coordinator by which those of several servers know each other."""
    if parsed_options.get("enable-expert-parallel", "false") == "false":
        return {}
    facts: dict[str, object] = {"ep": True}
    if address := parsed_options.get("data-parallel-address"):
        port = parsed_options.get("data-parallel-rpc-port") or DEFAULT_COORDINATOR_PORT
        facts["dp_group"] = f"{url_host(address)}:{port}"
    return facts


def settings_from_command(words: Sequence[str], variables: Mapping[str, str], root: Path) -> ServerSettings:
    """Return the settings of a server that may be published. Reads the model's files; `root`: as elsewhere here."""
    config = next(_model_configs(words, variables, root), None)
    environment = {name: value.lower() if name == "UCX_TLS" else value for name, value in variables.items()}
    return ServerSettings(
        options=permitted(_listed_options(words), OPTION_FORMS),
        environment=permitted(environment.items(), VARIABLE_FORMS),
        hash_seed=variables.get(HASH_SEED_VARIABLE, NO_SEED) if variables else None,
        model_digest=None if config is None else config.digest,
        model_revision=None if config is None else _revision(config.folder),
        tokenizer_digest=_tokenizer_digest(words, variables, root),
        template_digest=_template_digest(words, variables, root),
    )


def _listed_options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield options as `OPTION_FORMS` names them: flags as `true` or `false`, keys of JSON options one by one."""
    for name, value in _options(words):
        plain = name.removeprefix("no-")
        if plain in FLAG_OPTIONS:
            yield plain, str(plain == name and value != "false").lower()
        elif name == "config":
            # Options in that file are not read: what is not on the command line is not known to be off.
            yield "has-config-file", "true"
        elif name in _JSON_OPTIONS:
            yield from ((f"{name}.{key}", text) for key, text in _json_values(value))
        else:
            yield _LONG_NAMES.get(name, name), value


def _json_values(value: str) -> Iterator[tuple[str, str]]:
    try:
        held = json.loads(value)
    except (ValueError, RecursionError):
        return
    for key, item in held.items() if isinstance(held, dict) else ():
        if isinstance(item, bool):
            yield key, str(item).lower()
        elif isinstance(item, str | int | float):
            yield key, str(item)


_JSON_OPTIONS = frozenset(("speculative-config", "eplb-config", "kv-transfer-config", "kv-events-config"))


_LONG_NAMES = {
    "spec-method": "speculative-config.method",
    "spec-tokens": "speculative-config.num_speculative_tokens",
    "device-memory-utilization": "gpu-memory-utilization",
}
"""Options with two names."""


def hash_seed_digest(seed: str) -> str:
    """Return a digest by which equal seeds are found, slow enough that a seed cannot be searched for."""
    return hashlib.scrypt(seed.encode("utf-8", "replace"), salt=b"hearth hash seed", n=1 << 14, r=8, p=1, dklen=6).hex()


def facts_from_kv_transfer(
    config: Mapping[str, Any], variables: Mapping[str, str], reached_at: str
) -> dict[str, object]:
    """Return flat facts of a `--kv-transfer-config` and the environment variables of its connector."""
    connector = config.get("kv_connector")
    if not isinstance(connector, str):
        return {}
    raw_facts: dict[str, object] = {"kv_connector": connector}
    raw_facts |= {word: config[word] for word in ("kv_role", "engine_id") if isinstance(config.get(word), str)}
    if connector.startswith("Nixl"):
        host = _outside(variables.get("VLLM_NIXL_SIDE_CHANNEL_HOST", ""), reached_at)
        raw_facts["side_channel"] = f"{host}:{variables.get('VLLM_NIXL_SIDE_CHANNEL_PORT', DEFAULT_NIXL_PORT)}"
    if connector == "MooncakeConnector" and config.get("kv_role") != "kv_consumer":
        raw_facts["bootstrap"] = (
            f"{url_host(reached_at)}:{variables.get('VLLM_MOONCAKE_BOOTSTRAP_PORT', DEFAULT_MOONCAKE_PORT)}"
        )
    return raw_facts


def _outside(host: str, reached_at: str) -> str:
    """Return the host for a URL; a wildcard or local address is replaced by `reached_at`."""
    host = reached_at if host in ("", "localhost", "0.0.0.0", "::") else host  # noqa: S104 - compared, not listened on
    return url_host(host)


def url_host(host: str) -> str:
    """Return the host as it is written before a port: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for at, word in enumerate(words):
        following = words[at + 1] if at + 1 < len(words) else ""
        if word in _SHORT:
            yield _SHORT[word], following
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            yield name.replace("_", "-"), value if equals else "" if following.startswith("--") else following


def _transfer(parsed_options: Mapping[str, str]) -> dict[str, Any]:
    """Merge the JSON option with dotted options such as `--kv-transfer-config.kv_role kv_both`."""
    name = "kv-transfer-config"
    try:
        held = json.loads(parsed_options.get(name) or "{}")
    except (ValueError, RecursionError):
        held = {}
    config = held if isinstance(held, dict) else {}
    dotted = {
        key.removeprefix(f"{name}."): value for key, value in parsed_options.items() if key.startswith(f"{name}.")
    }
    return config | {key.replace("-", "_"): value for key, value in dotted.items()}


TCP_LISTEN = "0A"
"""TCP_LISTEN, as /proc/net/tcp writes it."""


MAX_ANCESTORS = 4
"""Levels searched: a server with several front ends listens in children without flags of their own."""


CACHE_VARIABLES = frozenset(("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "HOME"))
"""Variables that locate models. Of all others only those of vLLM and those that may be published are kept."""


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """The command line and environment of a process."""

    arguments: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    """The hash seed among them is a digest."""
    root: Path = Path("/")
    """Its root directory as the agent reaches it: a container has another one."""


def command_behind(port: int, proc: Path = Path("/proc")) -> ServerCommand:
    """Return the vLLM command that listens on a TCP port; empty if it is unknown."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port, proc)}
    for pid in _holders(sockets, proc) if sockets else ():
        for ancestor in _line_of(pid, proc):
            command = _command(ancestor, proc)
            if is_vllm_command(command.arguments):
                return command
    return ServerCommand()


def _inodes(port: int, proc: Path) -> Iterator[str]:
    for table in ("net/tcp", "net/tcp6"):
        for row in _text(proc / table).splitlines()[1:]:
            columns = row.split()
            if len(columns) > 9 and columns[3] == TCP_LISTEN and int(columns[1].rpartition(":")[2], 16) == port:
                yield columns[9]


def _holders(sockets: set[str], proc: Path) -> Iterator[str]:
    for folder in proc.glob("[0-9]*"):
        try:
            if any(str(link.readlink()) in sockets for link in (folder / "fd").iterdir()):
                yield folder.name
        except OSError:
            continue  # a process of another user, or one that has exited meanwhile


def _line_of(pid: str, proc: Path) -> Iterator[str]:
    """Yield the process, its parent, and so on."""
    for _ in range(MAX_ANCESTORS):
        if pid in ("", "0", "1"):
            return
        yield pid
        # The process name in brackets may contain anything, even brackets.
        pid = (_text(proc / pid / "stat").rpartition(")")[2].split() or ["", ""])[1:2][0]


def _command(pid: str, proc: Path) -> ServerCommand:
    words = tuple(_text(proc / pid / "cmdline").split("\0"))
    pairs = (line.partition("=") for line in _text(proc / pid / "environ").split("\0"))
    variables = {name: value for name, equals, value in pairs if equals and _is_kept(name)}
    if HASH_SEED_VARIABLE in variables:
        variables[HASH_SEED_VARIABLE] = hash_seed_digest(variables[HASH_SEED_VARIABLE])
    return ServerCommand(words, variables, proc / pid / "root")


def _is_kept(name: str) -> bool:
    return name.startswith("VLLM_") or name in CACHE_VARIABLES or name in VARIABLE_FORMS or name == HASH_SEED_VARIABLE


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


MAX_CONFIG_BYTES = 1 << 20
"""Usual files take a few thousand bytes."""


MAX_SNAPSHOTS = 16


def facts_from_model_config(
    words: Sequence[str], variables: Mapping[str, str], root: Path, kv_dtype: object
) -> dict[str, object]:
    """Return the flat fact `kv_bytes_per_token`, or none. `root`: the server's `/` as the agent reaches it."""
    config = next(_model_configs(words, variables, root), None)
    if config is None:
        return {}
    try:
        size = kv_bytes_per_token(config.content, kv_dtype if isinstance(kv_dtype, str) else None)
    except (ValueError, OverflowError):
        return {}
    return {"kv_bytes_per_token": round(size)} if size >= 1 else {}


@dataclass(frozen=True, slots=True)
class ModelConfigFile:
    """A model's `config.json`."""

    folder: Path
    content: dict[str, Any]
    digest: str


def _model_configs(words: Sequence[str], variables: Mapping[str, str], root: Path) -> Iterator[ModelConfigFile]:
    for folder in _folders(model_of_command(words), variables, root):
        if (text := _content(folder / "config.json", MAX_CONFIG_BYTES)) is None:
            continue
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(content, dict):
            yield ModelConfigFile(folder, content, _digest(text))


TOKENIZER_FILES = ("tokenizer.json", "tekken.json", "tokenizer.model", "vocab.json")
"""By preference: a folder may have several forms of one tokenizer."""

MAX_TOKENIZER_BYTES = 64 << 20
"""Usual files take 2 to 20 million bytes."""


def _tokenizer_digest(words: Sequence[str], variables: Mapping[str, str], root: Path) -> str | None:
    """Return a digest of the file of `--tokenizer`, or of the model's; None without one."""
    named = dict(_options(words)).get("tokenizer") or model_of_command(words)
    for folder in _folders(named, variables, root):
        for name in TOKENIZER_FILES:
            if (content := _content(folder / name, MAX_TOKENIZER_BYTES)) is not None:
                return _digest(content)
    return None


def _template_digest(words: Sequence[str], variables: Mapping[str, str], root: Path) -> str | None:
    """Return a digest of `--chat-template`, a file or the text itself, or of the model's template; None without one."""
    named = dict(_options(words)).get("chat-template", "")
    if named:
        if "{" in named:
            return _digest(named.encode("utf-8", "replace"))
        # A relative path begins where the server was started, which is not known.
        content = _content(root / named.lstrip("/"), MAX_CONFIG_BYTES) if named.startswith("/") else None
        return None if content is None else _digest(content)
    for folder in _folders(model_of_command(words), variables, root):
        if (content := _content(folder / "chat_template.jinja", MAX_CONFIG_BYTES)) is not None:
            return _digest(content)
        if (content := _content(folder / "tokenizer_config.json", MAX_CONFIG_BYTES)) is not None:
            return _template_of(content)
    return None


def _template_of(tokenizer_config: bytes) -> str | None:
    try:
        held = json.loads(tokenizer_config)
    except (ValueError, RecursionError):
        return None
    template = held.get("chat_template") if isinstance(held, dict) else None
    return None if template is None else _digest(json.dumps(template, sort_keys=True).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _revision(folder: Path) -> str | None:
    """Return the commit of a snapshot in the Hugging Face cache, by its folder's name."""
    is_commit = folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name)
    return folder.name[:12] if is_commit else None


_COMMIT = re.compile(r"[0-9a-f]{40}")


def _folders(model: str, variables: Mapping[str, str], root: Path) -> Iterator[Path]:
    """Yield folders that may hold the model: the named one, or snapshots in the Hugging Face cache, newest first."""
    if model.startswith("/"):
        yield root / model.lstrip("/")
    elif model and ".." not in model:
        default = variables.get("XDG_CACHE_HOME") or f"{variables.get('HOME', '')}/.cache"
        home = variables.get("HF_HOME") or f"{default}/huggingface"
        cache = variables.get("HF_HUB_CACHE") or f"{home}/hub"
        kept = root / cache.lstrip("/") / f"models--{model.replace('/', '--')}" / "snapshots"
        try:
            yield from sorted(kept.iterdir(), key=lambda folder: -folder.stat().st_mtime)[:MAX_SNAPSHOTS]
        except OSError:
            return


def _content(path: Path, max_bytes: int) -> bytes | None:
    try:
        if not path.is_file():  # Reading a pipe would block forever.
            return None
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError:
        return None
    return content if len(content) <= max_bytes else None
