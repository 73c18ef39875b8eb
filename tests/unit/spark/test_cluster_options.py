"""The options that name a cluster, its security, and where a run folder may lie."""

from __future__ import annotations

import shutil
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from soak.cli import main
from soak.cli.cluster import run_folder
from soak.core.errors import NotAvailableError, PlanError
from soak.core.plan.plan import Ship
from spark.cluster.executors import (
    PATIENCE_NS,
    Look,
    await_executor,
    await_looks,
    fault_of_folder,
    shared_file,
)
from spark.cluster.master import Cluster, parse_cluster
from spark.cluster.package import PYTHON
from spark.cluster.session import with_settings_of_user
from spark.sources.samples_topic import fault_of_reading
from tests.support.fakes import FakeClock

REMOTE = "spark://192.0.2.7:7077"
KUBERNETES = "k8s://https://192.0.2.7:6443"
IMAGE = "spark.kubernetes.container.image=registry.example.org/soakd:1"
SECRET = "known-to-the-cluster"
ENCRYPTED = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.saslFallback": "false",
    "spark.io.encryption.enabled": "true",
}


def cluster(master: str, *conf: str, secret: str = "") -> Cluster:
    found = parse_cluster(master, conf, secret)
    assert found is not None
    return found


def test_without_a_master_spark_runs_here() -> None:
    assert parse_cluster("") is None


@pytest.mark.parametrize(
    ("master", "kind", "is_loopback"),
    [
        ("spark://127.0.0.1:7077", "standalone", True),
        ("spark://localhost:7077", "standalone", True),
        ("spark://127.0.0.1:7077,192.0.2.7:7077", "standalone", False),
        (REMOTE, "standalone", False),
        (KUBERNETES, "kubernetes", False),
        ("k8s://https://127.0.0.1:6443", "kubernetes", False),  # its pods are not on loopback
    ],
)
def test_a_cluster_is_known_by_its_url(master: str, kind: str, is_loopback: bool) -> None:  # noqa: FBT001
    found = cluster(master, IMAGE)

    assert (found.kind, found.is_loopback) == (kind, is_loopback)


@pytest.mark.parametrize(
    "master",
    [
        "local[4]",
        "mesos://h:5050",
        "192.0.2.7:7077",
        "spark://",
        "spark://u:p@h:7077",
        "spark://h",
        "spark://h:abc",
        "spark://h:99999",
        "spark://[::1]:7077",  # the driver listens on IPv4
        "k8s://",
        "Yarn",
    ],
)
def test_another_url_is_refused_with_those_that_are_supported(master: str) -> None:
    with pytest.raises(PlanError, match=r"expected spark://HOST:PORT, yarn or k8s://"):
        parse_cluster(master)


def test_a_cluster_is_authenticated_and_encrypted_by_default() -> None:
    assert cluster(REMOTE).security() == ENCRYPTED
    assert cluster(KUBERNETES, IMAGE).security() == ENCRYPTED
    assert cluster("spark://127.0.0.1:7077").security() == ENCRYPTED


def test_security_is_switched_by_sparks_own_setting() -> None:
    """Off for a network that the user trusts; TLS takes the place of Spark's cipher."""
    assert cluster("spark://127.0.0.1:7077", "spark.authenticate=false").security() == {}
    assert cluster(REMOTE, "spark.authenticate=false").security() == {}
    assert cluster(REMOTE, "spark.ssl.rpc.enabled=true").security() == {
        "spark.authenticate": "true",
        "spark.io.encryption.enabled": "true",
    }


def test_the_secret_comes_from_a_variable_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOAK_SPARK_SECRET", SECRET)
    file = tmp_path / "secret"
    file.write_text("from-a-file\n")

    assert cluster(REMOTE).read_secret() == SECRET
    assert cluster(REMOTE, secret=f"${{file:{file}}}").read_secret() == "from-a-file"
    assert cluster("spark://127.0.0.1:7077").read_secret() == SECRET
    assert cluster(KUBERNETES, IMAGE).read_secret() == ""  # Spark makes one for each application


@pytest.mark.parametrize("text", [None, "", " \n"])
def test_a_missing_secret_is_an_error_that_says_how_to_give_it(
    text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOAK_SPARK_SECRET", raising=False)
    if text is not None:
        monkeypatch.setenv("SOAK_SPARK_SECRET", text)
    with pytest.raises(PlanError, match=r"set SOAK_SPARK_SECRET, or --secret '\$\{file:PATH\}'"):
        cluster(REMOTE).read_secret()


@pytest.mark.parametrize(
    ("conf", "secret"),
    [
        ((), SECRET),
        ((f"spark.authenticate.secret={SECRET}",), ""),
        ((f"spark.hadoop.fs.s3a.secret.key={SECRET}",), ""),
        ((f"spark.ssl.rpc.keyPassword={SECRET}",), ""),
        ((f"spark.kubernetes.authenticate.oauthToken={SECRET}",), ""),
        ((f"spark.hadoop.fs.azure.account.key.x.dfs.core.windows.net={SECRET}",), ""),
        ((f"spark.ssl.ui.privateKeyPassphrase={SECRET}",), ""),
    ],
)
def test_a_secret_on_the_command_line_is_refused_and_not_repeated(
    conf: tuple[str, ...], secret: str
) -> None:
    with pytest.raises(PlanError, match="must not stand on a command line") as caught:
        parse_cluster(REMOTE, conf, secret)

    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "spark.authenticate.secret.file",
        "spark.kubernetes.authenticate.submission.oauthTokenFile",
        "spark.kubernetes.executor.secretKeyRef.SOAK_SHIP_KEY",
        "spark.kubernetes.executor.secrets.soak-kafka",
    ],
)
def test_the_place_of_a_secret_may_stand_there(name: str) -> None:
    assert cluster(KUBERNETES, IMAGE, f"{name}=soak:key").settings[name] == "soak:key"


def test_the_users_settings_hold_and_options_of_java_are_added_to_ours() -> None:
    """Without ours the log would have no limit, and no start would find the JVM of a killed driver."""
    options = "spark.driver.extraJavaOptions"
    own = {
        options: "-Djava.io.tmpdir=/t",
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
    }

    found = with_settings_of_user(own, {options: "-Dx=1", "spark.executor.memory": "1g"})

    assert found == {
        options: "-Djava.io.tmpdir=/t -Dx=1",
        "spark.executor.memory": "1g",
        "spark.ui.enabled": "false",
    }


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ("executor.memory=1g", "expected a setting of Spark"),
        ("spark.executor.memory", "expected a setting of Spark"),
        ("spark.master=yarn", "--master names it"),
        ("spark.sql.shuffle.partitions=4", "--partitions"),
    ],
)
def test_a_setting_that_is_none_is_refused(conf: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        parse_cluster(REMOTE, (conf,))


def test_settings_without_a_master_are_refused() -> None:
    with pytest.raises(PlanError, match="they need --master"):
        parse_cluster("", ("spark.executor.memory=1g",))
    with pytest.raises(PlanError, match="they need --master"):
        parse_cluster("", (), "${env:X}")


def test_python_is_shipped_unless_executors_have_it() -> None:
    loopback = "spark://127.0.0.1:7077"

    assert cluster(REMOTE).ships_python
    assert not cluster(REMOTE, f"spark.pyspark.python={sys.executable}").ships_python
    assert not cluster(loopback).ships_python
    assert cluster(loopback, f"spark.pyspark.python={PYTHON}").ships_python


def test_the_python_of_executors_is_at_the_same_path_here(tmp_path: Path) -> None:
    """The driver starts it too, to plan what a stream reads."""
    with pytest.raises(PlanError, match="the same path on all hosts"):
        parse_cluster(REMOTE, (f"spark.pyspark.python={tmp_path}/bin/python",))


@pytest.mark.parametrize("master", ["k8s://https://127.0.0.1:6443", "yarn"])
def test_a_driver_whose_address_is_unknown_listens_on_all(
    master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manager on this machine says nothing of the network on which its executors are."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    (tmp_path / "yarn-site.xml").write_text("<configuration/>")

    assert cluster(master, IMAGE).local_address() == ""
    assert cluster("spark://localhost:7077").local_address() == "127.0.0.1"


def test_yarn_asks_for_the_folder_of_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(PlanError, match=r"HADOOP_CONF_DIR must name the folder .* yarn-site\.xml"):
        parse_cluster("yarn")
    (tmp_path / "yarn-site.xml").write_text("<configuration/>")

    assert cluster("yarn").kind == "yarn"


def test_kubernetes_asks_for_an_image() -> None:
    with pytest.raises(PlanError, match=r"--conf spark\.kubernetes\.container\.image=IMAGE"):
        parse_cluster(KUBERNETES)


@pytest.mark.parametrize(
    "text",
    ["/shared/run", "file:///shared/run", "file:/shared/run", "file://localhost/shared/run"],
)
def test_a_run_folder_is_a_path_or_a_uri_of_one(text: str) -> None:
    assert run_folder(text) == Path("/shared/run")
    assert run_folder("file:///shared/a%20run%23") == Path("/shared/a run#")
    assert run_folder("a:b") == Path("a:b")


@pytest.mark.parametrize("text", ["file:///shared/a#b", "file:///shared/a?b"])
def test_a_uri_with_a_part_that_names_no_folder_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="in a URI"):
        run_folder(text)


@pytest.mark.parametrize(
    "text", ["s3a://b/run", "hdfs://n/run", "file://other-host/run", "file:run"]
)
def test_a_folder_that_is_no_file_is_refused_with_what_to_do(text: str) -> None:
    for words in (
        ["report", text],
        ["detect-stream", "--run-dir", text],
        ["detect-fleet", "fleet.yaml", "--state", text],
    ):
        done = CliRunner().invoke(main.build(words), words)

        assert isinstance(done.exception, PlanError)
        assert "that this host and all executors mount" in str(done.exception)


def test_a_cluster_without_room_is_an_error_after_two_minutes() -> None:
    """Spark would wait for ever; the message says what to look at."""
    clock = FakeClock()
    begin_ns = clock.mono_ns()
    with pytest.raises(NotAvailableError, match=r"no free cores .* spark\.driver\.host"):
        await_executor(lambda: 0, REMOTE, clock)

    assert clock.mono_ns() - begin_ns == PATIENCE_NS


def test_the_first_executor_ends_the_wait() -> None:
    clock = FakeClock()
    counts = iter([0, 0, 1])
    await_executor(lambda: next(counts), REMOTE, clock)

    assert list(counts) == []


def test_a_stop_ends_the_wait_for_executors() -> None:
    stop = threading.Event()
    stop.set()

    assert not await_executor(lambda: 0, REMOTE, FakeClock(), stop)


def test_executors_that_do_not_answer_are_given_up_after_two_minutes() -> None:
    """As with storage that hangs on their host; the job that waits for them is cancelled."""
    cancelled = threading.Event()

    def collect() -> list[Look]:
        cancelled.wait(30)
        return []

    clock = FakeClock()
    begin_ns = clock.mono_ns()
    with pytest.raises(NotAvailableError, match="an executor does not answer"):
        await_looks(collect, cancelled.set, REMOTE, clock)

    assert clock.mono_ns() - begin_ns == PATIENCE_NS


def test_a_stop_ends_the_wait_for_what_executors_see() -> None:
    stop, cancelled = threading.Event(), threading.Event()
    stop.set()

    def collect() -> list[Look]:
        cancelled.wait(30)
        return []

    assert await_looks(collect, cancelled.set, REMOTE, FakeClock(), stop=stop) is None


def test_a_folder_that_cannot_be_looked_at_is_a_fault_of_its_host(tmp_path: Path) -> None:
    """As one of another user, or of a mount that is gone: here a file stands in its way."""
    (tmp_path / "spark").touch()

    assert fault_of_folder(tmp_path / "spark" / "x") == f"{tmp_path}/spark: Not a directory"


def test_executors_see_the_folder_by_a_file_that_no_copy_of_it_has(tmp_path: Path) -> None:
    shutil.copytree(tmp_path, tmp_path / "copy")
    with shared_file(tmp_path) as shared:
        found = fault_of_folder(shared), fault_of_folder(tmp_path / "copy" / shared.name)
    (tmp_path / shared.name).touch()  # by a process that was killed
    with shared_file(tmp_path) as again, shared_file(tmp_path) as of_another_command:
        assert set(tmp_path.glob(".*")) == {again, of_another_command}

    assert found == ("", f"{tmp_path / 'copy'} there is another folder, or missing")
    assert not again.exists()


@pytest.mark.parametrize("is_of_the_account", [False, True])
def test_an_executor_without_the_secrets_of_the_plan_says_so(
    tmp_path: Path, *, is_of_the_account: bool
) -> None:
    """Be it the one that signs lines, or that of its account on the brokers."""
    missing = f"${{file:{tmp_path / 'secret'}}}"
    ship = Ship(bootstrap_servers="127.0.0.1:1", key=missing)
    if is_of_the_account:
        ship = replace(ship, key="", client={"sasl.password": missing})

    assert str(tmp_path / "secret") in fault_of_reading(ship)
