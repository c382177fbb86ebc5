"""Folders of key digests: `<tenant>/<key id>`, one file each; a key itself is never written.

Gateways read them, and operators change them by `hearth keys`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any

from tenancy.document import InvalidValue
from tenancy.policy import KeyFile
from tenancy.reading.auth import read_key_file
from tenancy.reading.fields import KEY, KEY_LIMITS, name


class PolicyFileSystem:
    """Reads the files that a policy names from the file system; implements `PolicyFiles`."""

    def key_files(self, folder: str) -> Iterator[KeyFile]:
        """Yield the files `<tenant>/<key id>` of a folder, without names that begin with a dot (Kubernetes' own)."""
        if not Path(folder).is_dir():
            raise InvalidValue(f"folder `{folder}` does not exist")
        try:
            yield from self._listed(Path(folder))
        except OSError as error:
            raise InvalidValue(f"cannot read `{error.filename}`: {error.strerror}") from None

    def _listed(self, root: Path) -> Iterator[KeyFile]:
        for tenant in sorted(root.iterdir()):
            if tenant.name.startswith(".") or not tenant.is_dir():
                continue
            for path in sorted(tenant.iterdir()):
                if path.name.startswith(".") or not path.is_file():
                    continue
                yield KeyFile(tenant.name, path.name, self.text(str(path)))

    def text(self, path: str) -> str:
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise InvalidValue(f"cannot read `{path}`: {error.strerror}") from None


PREFIX = "sk-hearth-"
"""Prefix by which secret scanners recognise a key."""


RANDOM_BYTES = 32


@dataclass(frozen=True, slots=True)
class KeyFileEntry:
    """One key of a folder. `fault` is what is wrong with its file, empty if it is valid."""

    tenant: str
    key_id: str
    user: str | None = None
    group: str | None = None
    until_s: float = inf
    fault: str = ""
    limits: Mapping[str, str] = field(default_factory=dict)
    """Its own limits as its file has them, by key of the policy."""


class KeyFolder:
    """One folder. Only the owner can read the files and folders that it creates."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def entries(self) -> Iterator[KeyFileEntry]:
        """Yield all keys. Raises `InvalidValue` if the folder does not exist."""
        for file in PolicyFileSystem().key_files(str(self._root)):
            yield key_entry(file)

    def find(self, tenant: str, key_id: str) -> KeyFileEntry:
        """Return one key. Raises `InvalidValue` if it does not exist."""
        path = self._place(tenant, key_id)
        if not path.is_file():
            raise InvalidValue(f"no key `{tenant}/{key_id}` in `{self._root}`")
        return key_entry(KeyFile(tenant, key_id, PolicyFileSystem().text(str(path))))

    def content(self, tenant: str, key_id: str) -> str:
        """Return the content of a key's file. Raises `InvalidValue`."""
        return PolicyFileSystem().text(str(self._place(tenant, key_id)))

    def add(self, tenant: str, key_id: str | None = None, **key_fields: Any) -> tuple[str, str]:
        """Create a key. Returns its id and the key. Raises `InvalidValue`.

        `key_fields`: user, group, until_s, limits.
        """
        key_id = key_id or f"k{secrets.token_hex(4)}"
        path = self._place(tenant, key_id)
        key = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
        content = key_content(sha256(key.encode()).hexdigest(), **key_fields)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = _draft(path, content)
        try:
            os.link(draft, path)  # appears whole, and never over another key
        except FileExistsError:
            raise InvalidValue(f"key `{tenant}/{key_id}` already exists") from None
        finally:
            draft.unlink()
        return key_id, key

    def expire(self, tenant: str, key_id: str, until_s: float) -> float:
        """Bring the expiry of a key forward to `until_s`. Returns the new expiry. Raises `InvalidValue`."""
        ends_s = min(until_s, self.find(tenant, key_id).until_s)
        self._rewrite(tenant, key_id, until_s=ends_s)
        return ends_s

    def limit(self, tenant: str, key_id: str, limits: Mapping[str, str]) -> None:
        """Replace the limits of a key. Raises `InvalidValue`."""
        self._rewrite(tenant, key_id, limits=limits)

    def _rewrite(self, tenant: str, key_id: str, **changes: Any) -> None:
        entry = self.find(tenant, key_id)
        if entry.fault:
            raise InvalidValue(entry.fault)
        path = self._place(tenant, key_id)
        digest, _ = read_key_file(PolicyFileSystem().text(str(path)))
        kept = {"user": entry.user, "group": entry.group, "until_s": entry.until_s, "limits": entry.limits}
        _draft(path, key_content(digest, **kept | changes)).replace(path)

    def remove(self, tenant: str, key_id: str) -> None:
        """Delete a key. Raises `InvalidValue` if it does not exist."""
        self.find(tenant, key_id)
        self._place(tenant, key_id).unlink()

    def _place(self, tenant: str, key_id: str) -> Path:
        for given in (tenant, key_id):
            if name(given).startswith("."):
                raise InvalidValue(f"`{given}` must not begin with a dot")
        return self._root / tenant / key_id


def key_entry(file: KeyFile) -> KeyFileEntry:
    """Return the content of a key file."""
    try:
        _, key_fields = read_key_file(file.content)
    except InvalidValue as wrong:
        return KeyFileEntry(file.tenant, file.key_id, fault=str(wrong))
    given = (part.partition("=") for part in file.content.split()[1:])
    return KeyFileEntry(
        file.tenant,
        file.key_id,
        key_fields.get("user"),
        key_fields.get("group"),
        key_fields.get("expires_at", inf),
        limits={key: value for key, _, value in given if key in KEY_LIMITS},
    )


def key_content(
    digest: str,
    *,
    user: str | None = None,
    group: str | None = None,
    until_s: float = inf,
    limits: Mapping[str, str] | None = None,
) -> str:
    """Return the content of a key file. Raises `InvalidValue`."""
    words = [digest]
    for word, value in (("group", group), ("user", user)):
        if value is not None:
            if value.split() != [KEY[word].kind.parse(value)]:
                raise InvalidValue(f"{word} `{value}` must not contain spaces")
            words.append(f"{word}={value}")
    if until_s < inf:
        words.append(f"expires_at={datetime.fromtimestamp(int(until_s), UTC):%Y-%m-%dT%H:%M:%SZ}")
    words += (f"{key}={value}" for key, value in (limits or {}).items())
    content = " ".join(words) + "\n"
    read_key_file(content)
    return content


def write_key_file(path: Path, content: str) -> None:
    """Write a file that only its owner can read, and its folders; it appears complete."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _draft(path, content).replace(path)


def _draft(path: Path, content: str) -> Path:
    """Write the content to a hidden temporary file in the same folder."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(content)
    return draft
