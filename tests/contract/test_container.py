"""The container file: what it copies is there and enough, and where a builder runs it is built and called."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from functools import cache

import pytest

from tests.support.paths import ROOT

FILE = ROOT / "configs" / "container" / "Containerfile"
TEXT = FILE.read_text()


def instructions(name: str) -> list[str]:
    """Return the arguments of each instruction of a kind, continued lines joined."""
    joined = re.sub(r"\\\n\s*", " ", TEXT)
    return re.findall(rf"^{name} (.*)$", joined, re.MULTILINE)


@cache
def builder() -> str:
    """Return a program here that builds images, or ""; docker needs its daemon for that."""
    for name in ("buildah", "podman", "docker"):
        program = shutil.which(name)
        if program is None:
            continue
        asked = subprocess.run([program, "info"], capture_output=True, timeout=60, check=False)
        if asked.returncode == 0:
            return program
    return ""


def test_what_it_copies_is_all_that_a_wheel_is_made_of() -> None:
    copied = {
        word
        for line in instructions("COPY")
        if not line.startswith("--from")
        for word in line.split()[:-1]
    }
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "packages"
    ]
    needed = {name.rstrip("*") for name in packages["find"]["include"]}

    assert all((ROOT / name).exists() for name in copied)
    assert copied == needed | {
        "configs",
        "systemd",
        "requirements-build.lock",
        "requirements-runtime.lock",
        "pyproject.toml",
        "README.md",
        "LICENSE",
    }


def test_what_it_copies_is_sent_to_the_builder_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}

    assert "*" in lines
    assert kept == {
        word
        for line in instructions("COPY")
        if not line.startswith("--from")
        for word in line.split()[:-1]
    }


def test_packages_are_pinned_by_hash_and_it_runs_as_a_plain_user() -> None:
    assert "--require-hashes --no-build-isolation -r /src/requirements-runtime.lock" in TEXT
    assert instructions("USER") == ["10001"]
    assert instructions("ENTRYPOINT") == ['["soak"]']


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_is_built_and_called() -> None:
    """Needs a builder whose daemon runs, and an image registry that it reaches."""
    program = builder()
    if not program:
        pytest.skip("no program here builds images")
    build = ["build", "-f", str(FILE), "-t", "soakd:tested", str(ROOT)]
    made = subprocess.run([program, *build], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[-2000:]
    if program.endswith("buildah"):
        return  # it runs no images
    done = subprocess.run(
        [program, "run", "--rm", "soakd:tested", "--version"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.startswith("soakd 0.1.0\n"), done.stderr
