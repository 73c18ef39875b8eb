"""A Spark session that is small, quiet and bounded: it shares two cores with what it watches."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from soak.core.errors import NotAvailableError
from soak.service.files import cached_script, user_cache
from soak.service.java import spark_java_home
from spark.cluster import class_archive

DRIVER_MEMORY = "640m"  # Spark wants 450 MiB at least; the live heap is 60 MiB
_JVM_OPTIONS = (
    class_archive.COLLECTOR,  # one small heap: no collector threads of their own
    "-XX:TieredStopAtLevel=1",  # halves the CPU of the start, and a batch is small
    "-XX:+ExitOnOutOfMemoryError",
    "-Xss2m",
    "-XX:ReservedCodeCacheSize=96m",
    "-Djava.net.preferIPv4Stack=true",
)
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
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
    name: str, *, temporary: Path, cores: int | None = None, log: Path | None = None
) -> SparkSession:
    """Start a JVM and return its session; stop it with `session.stop()`.

    `temporary` takes shuffle files and local state and may be deleted afterwards. `log` (default
    `temporary`/spark.log) grows to 24 MB at most. Without `cores` Spark takes all of the machine.

    Raises:
        NotAvailableError: there is no usable Java, or Spark did not start on it.
    """
    temporary = temporary.resolve()
    log = (log or temporary / "spark.log").resolve()
    for folder in (temporary, log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    settings = temporary / "log4j2.properties"
    settings.write_text(_LOG.format(log=log))
    os.environ.update(_environment(temporary))
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells each callback
    conf = SparkConf(loadDefaults=False).setMaster(f"local[{cores or '*'}]").setAppName(name)
    conf.setAll(list(_settings(temporary, settings, cores or os.cpu_count() or 1).items()))
    # one JVM a process, which outlives sessions
    gateway = SparkContext._gateway or _jvm(conf, log.with_suffix(".out"))  # noqa: SLF001
    return SparkSession(SparkContext(gateway=gateway, conf=conf))


def _jvm(conf: SparkConf, printed: Path) -> Any:  # noqa: ANN401  # py4j has no types
    """Start a JVM that prints into a file: else it would print on our terminal."""
    with printed.open("wb") as output:
        try:
            return launch_gateway(conf, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]  # py4j's
        except PySparkRuntimeError as error:
            raise NotAvailableError(f"Spark did not start, see {printed}") from error


def _environment(temporary: Path) -> dict[str, str]:
    """Return what the JVM and the Python workers inherit from us: there is no other way to tell."""
    program = str(_worker_python(user_cache()))
    return {
        "JAVA_HOME": str(spark_java_home(user_cache())),
        "PYSPARK_PYTHON": program,
        "PYSPARK_DRIVER_PYTHON": program,  # also of the workers that plan a read
        "SPARK_LOCAL_DIRS": str(temporary),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "OPENBLAS_NUM_THREADS": "1",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
    }


def _worker_python(cache: Path) -> Path:
    """Return the program that starts Spark's Python workers; it is created in `cache` if needed.

    Spark puts its own archive of pyspark before the installed one. A module in an archive is compiled again
    by each worker, of which a query starts a dozen: this program takes the archive out.
    """
    python = sys.executable.replace("'", "'\\''")
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
        f"exec '{python}' \"$@\"\n"
    )
    return cached_script(cache, "spark-python", script)


def _settings(temporary: Path, log: Path, cores: int) -> dict[str, str]:
    options = [
        *_JVM_OPTIONS,
        *class_archive.options(),
        f"-Dlog4j2.configurationFile={log.as_uri()}",
    ]
    options += [f"-Djava.io.tmpdir={temporary}", f"-Dderby.system.home={temporary}"]
    return {
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": " ".join(options),
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
    }
