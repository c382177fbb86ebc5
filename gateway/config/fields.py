"""Single values of the configuration: how each is parsed, and the JSON Schema of those that several sections use.

Every parser takes a value of the YAML document, a flag or a variable, and raises `InvalidValue` if it is invalid.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any

from gateway.runtime.addresses import Address, MutualTlsFiles
from gateway.runtime.redis_location import parse_redis_url
from routing.pod_record import parse_pod_url
from tenancy.document import DocumentTable, InvalidValue, Parse, flag, integer, not_negative, one_of, text
from tenancy.json_schema import Schema, described, table
from tenancy.reading.fields import ABOVE_ZERO, COUNT, FLAG, TEXT


@dataclass(frozen=True, slots=True)
class Secret:
    """A text that must not appear in output: its str and repr hide it."""

    value: str = field(repr=False)

    def __str__(self) -> str:
        return "***"


NOT_SUPPORTED = "not supported by this version"

TOKENIZER_REMOVED = "removed: token IDs come from the pods' own /tokenize; delete this key"


LOG_LEVELS = ("debug", "info", "warning", "error")


MAX_PROGRAMS = 256
"""Worker processes of a gateway, and gateways."""


def parse_address(value: object) -> Address:
    """Parse `HOST:PORT`, with brackets around an IPv6 host."""
    words = text(value)
    host, colon, port = words.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not colon or not host:
        raise InvalidValue(f"must be HOST:PORT, not `{words}`")
    if ":" in host and not words.startswith("["):
        raise InvalidValue(f"write an IPv6 host in brackets: [{host}]:{port}")
    if not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise InvalidValue(f"`{port}` is not a port (0 to 65535; 0 lets the system choose)")
    return Address(host, int(port))


def parse_address_or_off(value: object) -> Address | None:
    """Parse `HOST:PORT`, or `off` (which YAML 1.1 reads as false) into None."""
    return None if value is False or value == "off" else parse_address(value)


def parse_program_count(value: object) -> int:
    """Parse a number of worker processes or of gateways."""
    found = integer(value)
    if not 1 <= found <= MAX_PROGRAMS:
        raise InvalidValue(f"must be from 1 to {MAX_PROGRAMS}, not {found}")
    return found


def parse_pod_base_url(value: object) -> str:
    """Parse the URL of a pod into the one form that identifies it."""
    words = text(value)
    try:
        return parse_pod_url(words)
    except ValueError as error:
        raise InvalidValue(str(error)) from None


def parse_scheduling_policy(value: object) -> bool:
    """Parse the value of vLLM's `--scheduling-policy`. Returns whether it is `priority`."""
    return one_of(("fcfs", "priority"))(value) == "priority"


def parse_redis_secret(value: object) -> Secret:
    """Check a Redis URL (forms: `gateway/runtime/redis_location.py`). A secret, as it may hold a password."""
    words = text(value)
    try:
        parse_redis_url(words)
    except ValueError as error:
        raise InvalidValue(str(error)) from None
    return Secret(words)


def parse_network(value: object) -> IPv4Network | IPv6Network:
    """Parse `10.0.0.0/8`, or one address."""
    try:
        return ip_network(text(value))
    except ValueError as error:
        if isinstance(error, InvalidValue):
            raise
        raise InvalidValue(f"is not a network: {error}") from None


def parse_secret(value: object) -> Secret:
    """Parse a secret: one line of printable ASCII, as it is sent in a header."""
    words = text(value).strip()
    if not words or not words.isascii() or not words.isprintable():
        raise InvalidValue("must be one line of printable ASCII")
    return Secret(words)


def parse_secret_file(value: object) -> Secret:
    """Read a secret from the file that the value names."""
    path = parse_file(value)
    try:
        return parse_secret(path.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue(f"cannot be read: {_why(error)}") from None


def parse_file(value: object) -> Path:
    """Parse the path of an existing file."""
    path = Path(text(value))
    if not path.is_file():
        raise InvalidValue(f"there is no file `{path}`")
    return path


def parse_writable_path(value: object) -> Path:
    """Parse the path of a file that may be created; its folder exists."""
    path = Path(text(value))
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidValue(f"`{path}` is a folder, or its folder does not exist")
    return path


def parse_share(value: object) -> float:
    """Parse a share from 0 to 1."""
    found = not_negative(value)
    if found > 1:
        raise InvalidValue(f"must be from 0 to 1, not {found:g}")
    return found


def read_mutual_tls(found: DocumentTable | None) -> MutualTlsFiles | None:
    """Read the certificate of a listener and the authorities of its clients; None without a section."""
    if found is None:
        return None
    cert, private = found.get_required("cert", parse_file, None), found.get_required("key", parse_file, None)
    client_ca = found.get("client_ca", parse_file, None)
    found.close()
    return MutualTlsFiles(cert, private, client_ca) if cert and private else None


def mutual_tls_schema(client_ca: str) -> Schema:
    """Return the JSON Schema of it; `client_ca` describes that key."""
    return table(
        certificate_schemas() | {"client_ca": described(TEXT.schema, client_ca)},
        required=("cert", "key"),
    )


def certificate_schemas() -> dict[str, Schema]:
    """Return the schemas of the two files of a listener's certificate."""
    return {
        "cert": described(TEXT.schema, "File with the certificate and its chain, PEM."),
        "key": described(TEXT.schema, "File with the private key, PEM."),
    }


def check_extra(section: DocumentTable, extra: str, *modules: str) -> None:
    """Add a fault to a section whose library is not installed. Loads nothing of it."""
    try:
        is_there = all(find_spec(module) is not None for module in modules)
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        section.add_error(f"needs a library: pip install 'hearth-gateway[{extra}]'")


def _why(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "not UTF-8 text"


def seconds(max_s: float, old_unit: str) -> Parse[float]:
    """Return a parser of a duration in seconds, zero or above.

    Beyond `max_s` its fault says that the value looks like one in `old_unit`, the unit of the key's former name.
    """

    def parsed(value: object) -> float:
        found = not_negative(value)
        if found > max_s:
            raise InvalidValue(f"is in seconds and at most {max_s:g}: {found:g} looks like {old_unit}")
        return found

    return parsed


def read_secret(section: DocumentTable, key: str) -> Secret | None:
    """Read `key`, or `key_file` with the path of the file that holds it; both at once are a fault."""
    given, filed = section.get(key, parse_secret, None), section.get(f"{key}_file", parse_secret_file, None)
    if given and filed:
        section.error(f"{key}_file", f"conflicts with {key}; set only one")
    return given or filed


def read_switch(section: DocumentTable, key: str) -> DocumentTable | bool:
    """Read a key that is a flag or a table of details. Returns False if it is absent, off or invalid."""
    if not section.get(key, lambda value: isinstance(value, dict) or flag(value), default=False):
        return False
    if section.get(key, lambda value: value is True, default=False):
        return True
    return section.table(key) or False


ADDRESS_SCHEMA: Schema = {"type": "string", "description": "HOST:PORT, with brackets around an IPv6 host."}


OFF_SCHEMA: Schema = {"enum": [False, "off"]}


NUMBER_SCHEMA: Schema = {
    "anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(-?[0-9.]+(e[+-]?[0-9]+)?|\$\{.*\})$"}]
}


def schema_of_fields(defaults: Any, *, above_zero: bool = True) -> Schema:
    """Return the schema of a table whose keys are the fields of a dataclass instance; types come from its values."""
    kinds: dict[type, Schema] = {
        bool: FLAG.schema,
        str: TEXT.schema,
        int: COUNT.schema if above_zero else NUMBER_SCHEMA,
        float: ABOVE_ZERO.schema if above_zero else NUMBER_SCHEMA,
    }
    return table({field.name: kinds[type(getattr(defaults, field.name))] for field in fields(defaults)})
