"""The image has every package: one that is missing would show only where the image is built."""

from __future__ import annotations

import tomllib

from tests.sources import ROOT


def test_every_package_is_copied_into_the_image() -> None:
    """And let through to the build."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    copied = {
        line.split()[1]
        for line in (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8").splitlines()
        if line.startswith("COPY ")
    }
    allowed = {
        line[1:]
        for line in (ROOT / "deploy/Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    assert packages <= copied
    assert packages <= allowed
