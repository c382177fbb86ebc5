"""Finds the files that a policy names: folders of keys, an issuer's keys, the secret of digests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tenancy.document import Wrong
from tenancy.policy import KeyFile


class Files:
    """The file system, as a `Shelf`."""

    def key_files(self, folder: str) -> Iterator[KeyFile]:
        """The files `<tenant>/<key id>` of a folder. Names that begin with a dot are Kubernetes' own, and skipped."""
        if not Path(folder).is_dir():
            raise Wrong(f"there is no folder `{folder}`")
        try:
            yield from self._listed(Path(folder))
        except OSError as error:
            raise Wrong(f"cannot read `{error.filename}`: {error.strerror}") from None

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
            raise Wrong(f"cannot read `{path}`: {error.strerror}") from None
