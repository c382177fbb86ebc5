"""Whose key this is: sha256 of what the client shows, looked up by digest. Holds the policy in force."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from routing.refusal import Reason, Refused
from tenancy.document import Wrong
from tenancy.policy import KeyFile, Policy
from tenancy.tenants import ANONYMOUS, Tenant


class Keyring:
    """Without a policy everybody is the anonymous tenant; with one, nobody is.

    A look-up by digest needs no constant time: who could learn a digest's first digits has learned nothing of a key.
    """

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy

    def identify(self, key: str | None) -> Tenant:
        """The tenant of a key. Raises `Refused` where it is nobody's."""
        if self.policy is None:
            return ANONYMOUS
        if key is None:
            raise Refused(Reason.INVALID_KEY, "No API key was given: send it as `Authorization: Bearer KEY`.")
        tenant = self.policy.by_digest.get(sha256(key.encode("utf-8", "surrogateescape")).hexdigest())
        if tenant is None:
            raise Refused(Reason.INVALID_KEY, "The API key is not known here.")
        return tenant


def key_files(folder: str) -> Iterator[KeyFile]:
    """The files `<tenant>/<key id>` of a folder. Names that begin with a dot are Kubernetes' own, and skipped."""
    root = Path(folder)
    if not root.is_dir():
        raise Wrong(f"there is no folder `{folder}`")
    for tenant in sorted(root.iterdir()):
        if tenant.name.startswith(".") or not tenant.is_dir():
            continue
        for path in sorted(tenant.iterdir()):
            if path.name.startswith(".") or not path.is_file():
                continue
            yield KeyFile(tenant.name, path.name, path.read_text(encoding="utf-8", errors="replace"))
