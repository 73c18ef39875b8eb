"""A Spark session that is small, quiet and bounded: it shares two cores with what it watches."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from soak.core.errors import NotAvailableError
from soak.service.class_archive import ClassArchive
from soak.service.files import cached_script, user_cache
from soak.service.java import java_home, spark_java_home
from spark.cluster import fork_client
from spark.cluster.master import EXECUTOR_PYTHON, SECRET_SETTING, SECURITY, Cluster
from spark.cluster.package import PYTHON, archives
from spark.cluster.worker_daemon import SHARED

DRIVER_MEMORY = "640m"  # Spark wants 450 MiB at least; the live heap is 60 MiB
_JVM_OPTIONS = (
    "-XX:+UseSerialGC",  # one small heap, no collector threads of their own; that of the class archive
    "-XX:TieredStopAtLevel=1",  # halves the CPU of the start, and a batch is small
    "-XX:+ExitOnOutOfMemoryError",
    "-Xss2m",
    "-Xms192m",  # by default old objects are collected once they fill a 64th of the machine's memory
    "-Xmn64m",  # and new ones once they fill 128 MiB
    # by default the addresses in the class archive are made random, which writes to all of its 170 MiB
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:ArchiveRelocationMode=0",
    "-XX:ReservedCodeCacheSize=96m",
    "-Djava.net.preferIPv4Stack=true",
)
_EXECUTOR_MEMORY = "512m"  # of the JVM, whose live heap is small; Python workers are not in it
_EXECUTOR_OVERHEAD = "1g"  # of a container: the JVM beside its heap, and 300 MB of Python a core
_EXECUTOR_JVM_OPTIONS = _JVM_OPTIONS  # its work is done by Python too
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
# Spark's default starts programs (`readlink`, `chmod`) for each file that it renames, some forty in a batch.
_FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Of the process that workers are forks of, see `worker_daemon`."""
DETECTOR_MODULES = (
    "pandas",
    "pyarrow",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.streaming.transform_with_state_driver_worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "spark.sources.journals",
    "spark.streaming.panel_state",
)
"""What the planners and workers of the detector of one run use."""
_LOG = """status = warn
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 8MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""


def build_session(
    name: str,
    *,
    temporary: Path,
    cores: int | None = None,
    log: Path | None = None,
    cluster: Cluster | None = None,
    modules: Sequence[str] = DETECTOR_MODULES,
) -> SparkSession:
    """Return a session of `build_context`, for a detector; stop it with `session.stop()`."""
    context = build_context(
        name, temporary=temporary, cores=cores, log=log, cluster=cluster, modules=modules
    )
    return SparkSession(context)


def build_context(
    name: str,
    *,
    temporary: Path,
    cores: int | None = None,
    log: Path | None = None,
    cluster: Cluster | None = None,
    modules: Sequence[str] = (),
) -> SparkContext:
    """Start a JVM and return its context, which needs no SQL; stop it with `context.stop()`.

    `temporary` takes shuffle files and local state and may be deleted afterwards. `log` (default
    `temporary`/spark.log) grows to 24 MB at most. With a `cluster` its executors do the work. Without `cores`
    Spark takes all of the machine, or of the standalone cluster. Workers have imported `modules` when they
    start. The JVM, its folder and `modules` are those of the first call in this process; without that folder
    Pythons start by themselves.

    Raises:
        NotAvailableError: there is no usable Java, Spark did not start on it, or the cluster did not
            accept us.
        PlanError: the secret of the cluster is missing.
    """
    temporary = temporary.resolve()
    log = (log or temporary / "spark.log").resolve()
    for folder in (temporary, log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    settings = temporary / "log4j2.properties"
    # read as Latin-1, with escapes
    settings.write_text(_LOG.format(log=json.dumps(str(log))[1:-1]))
    secret = cluster.read_secret() if cluster is not None else ""
    address = cluster.local_address() if cluster is not None else "127.0.0.1"
    classes = class_archive().options()  # of the user's Java, for which ours will stand
    workers = {**ONE_THREAD, SHARED: " ".join(modules)}
    os.environ.update({**_environment(temporary, address, cluster), **workers})
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs each callback
    conf = SparkConf(loadDefaults=False).setAppName(name)
    conf.setMaster(cluster.master if cluster is not None else f"local[{cores or '*'}]")
    own = _settings(temporary, settings, cores or os.cpu_count() or 1, classes)
    if cluster is None:
        own |= SECURITY  # a local session makes a secret of its own
    else:
        own |= _cluster_settings(cluster, temporary, address, workers, cores)
        own = with_settings_of_user(own, cluster.settings)
    conf.setAll(list(own.items()))
    # one JVM a process, which outlives sessions
    gateway = SparkContext._gateway or _jvm(conf, log.with_suffix(".out"), temporary)  # noqa: SLF001
    if secret:  # not before the JVM runs: it would be among the arguments of its process
        conf.set(SECRET_SETTING, secret)
    try:
        return SparkContext(gateway=gateway, conf=conf)
    except Py4JError as error:
        if cluster is None:
            raise
        raise NotAvailableError(
            f"{cluster.master} does not answer, is of another version of Spark, or has another secret; "
            f"see {log}"
        ) from error


def class_archive() -> ClassArchive:
    """Return the classes of Spark as this installation keeps them: half of a start's processor time.

    Raises:
        NotAvailableError: there is no usable Java.
    """
    return ClassArchive(Path(sys.prefix) / "share" / "soakd" / "spark-classes", java_home())


def _jvm(conf: SparkConf, printed: Path, folder: Path) -> Any:  # noqa: ANN401  # py4j has no types
    """Start a JVM in `folder` that prints into a file: else it would print on our terminal."""
    with printed.open("wb") as output:
        surroundings = {"stdout": output, "stderr": output, "cwd": str(folder)}
        try:
            gateway = launch_gateway(conf, surroundings)  # type: ignore[no-untyped-call]  # py4j's
        except PySparkRuntimeError as error:
            raise NotAvailableError(f"Spark did not start, see {printed}") from error
        gateway.fork_server = _fork_server(folder, output)  # lives as long as the JVM
        return gateway


def _fork_server(folder: Path, output: BinaryIO) -> subprocess.Popen[bytes]:
    """Start the process that Spark's Pythons are forks of; it ends with this one, as its input does."""
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "spark.cluster.fork_server"],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        cwd=folder,
        # Spark has the same hashes in all of its workers
        env={**os.environ, "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")},
    )


def _environment(temporary: Path, address: str, cluster: Cluster | None) -> dict[str, str]:
    """Return the environment that the JVM and the Python workers inherit: there is no other way to set it."""
    program = own = str(_worker_python(user_cache()))
    if cluster is not None and cluster.ships_python:
        # Spark has executors run the program of the driver, so the same path leads to ours here.
        program = own = _same_place(temporary, own)
    elif cluster is not None:
        program = cluster.settings.get(EXECUTOR_PYTHON, own)
    address_of = {"SPARK_LOCAL_IP": address} if address else {}
    return {
        "JAVA_HOME": str(spark_java_home(user_cache())),
        "PYSPARK_PYTHON": program,
        "PYSPARK_DRIVER_PYTHON": own,  # also of the workers that plan a read
        "SPARK_LOCAL_DIRS": str(temporary),
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "LC_ALL": "C.UTF-8",  # by which Java encodes names of files
        **address_of,
    }


def _same_place(temporary: Path, program: str) -> str:
    """Return the path of Python on an executor, which leads to `program` from the JVM's working folder."""
    link = temporary / PYTHON
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(program)
    return PYTHON


def _worker_python(cache: Path) -> Path:
    """Return the program that starts Spark's Pythons, as forks; it is created in `cache` if needed.

    Spark puts its own archive of pyspark before the installed one. A module in an archive is compiled again
    by each process that is no fork: this program takes the archive out.
    """
    python, client = (
        path.replace("'", "'\\''")
        for path in (sys.executable, str(Path(fork_client.__file__).resolve()))
    )
    script = (
        "#!/bin/sh\n"
        "set -f\n"
        "IFS=:\n"
        "for folder in $PYTHONPATH; do\n"
        '  case "$folder" in\n'
        "    */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;\n"
        '    *) kept="${kept:+$kept:}$folder" ;;\n'
        "  esac\n"
        "done\n"
        "unset IFS\n"
        'PYTHONPATH="${kept:-}"\n'
        "export PYTHONPATH\n"
        f"exec '{python}' -I -S '{client}' \"$@\"\n"
    )
    return cached_script(cache, "spark-python", script)


def _settings(
    temporary: Path, log: Path, cores: int, more_options: Sequence[str]
) -> dict[str, str]:
    options = [
        *_JVM_OPTIONS,
        *more_options,
        f"-Dlog4j2.configurationFile={log.as_uri()}",
    ]
    options += [f"-Djava.io.tmpdir={temporary}", f"-Dderby.system.home={temporary}"]
    return {
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": " ".join(map(_quoted, options)),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.ui.retainedTasks": "100",
        "spark.sql.ui.retainedExecutions": "5",
        "spark.sql.streaming.ui.retainedQueries": "1",
        "spark.sql.streaming.ui.retainedProgressUpdates": "5",
        "spark.sql.streaming.numRecentProgressUpdates": "20",
        "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.sql.streaming.checkpointFileManagerClass": _FILES,
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
        "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "64",
        "spark.sql.warehouse.dir": str(temporary / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",  # compiling costs more than our few rows
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "spark.cluster.worker_daemon",
    }


def _quoted(option: str) -> str:
    """Return an option of Java as one word for Spark, which splits at spaces and reads quotes."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _cluster_settings(
    cluster: Cluster,
    temporary: Path,
    address: str,
    workers: Mapping[str, str],
    cores: int | None,
) -> Mapping[str, str]:
    """Return the settings that a cluster needs in addition to or instead of those of a local session."""
    limit = {"spark.cores.max": str(cores)} if cores and cluster.kind == "standalone" else {}
    found = {
        **limit,
        # executors have a log of their own, which has no limit
        "spark.log.level": "WARN",
        "spark.executor.syncLogLevel.enabled": "true",
        "spark.submit.deployMode": "client",
        "spark.executor.memory": _EXECUTOR_MEMORY,
        "spark.executor.memoryOverhead": _EXECUTOR_OVERHEAD,
        "spark.executor.extraJavaOptions": " ".join(_EXECUTOR_JVM_OPTIONS),
        **{f"spark.executorEnv.{name}": value for name, value in workers.items()},
        "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",
        **cluster.security(),
    }
    if address:
        found |= {"spark.driver.host": address, "spark.driver.bindAddress": address}
    else:
        found["spark.driver.bindAddress"] = "0.0.0.0"  # noqa: S104  # pods and containers are elsewhere
        found["spark.driver.host"] = socket.getfqdn()
    if cluster.ships_python:
        setting = "spark.yarn.dist.archives" if cluster.kind == "yarn" else "spark.archives"
        found[setting] = archives(user_cache(), temporary / "shipped").for_spark()
    elif EXECUTOR_PYTHON not in cluster.settings:
        found["spark.executorEnv.PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    return found


def with_settings_of_user(own: Mapping[str, str], users: Mapping[str, str]) -> dict[str, str]:
    """Return our settings and the user's, which come last and so hold; options of Java come after ours."""
    options = {
        name: f"{own[name]} {text}"
        for name, text in users.items()
        if name.endswith(".extraJavaOptions") and name in own
    }
    return {**own, **users, **options}
