"""A standalone Spark cluster of one master and some workers, as processes of this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from soak.service import children
from soak.service.files import user_cache
from soak.service.java import spark_java_home

PATIENCE_SECONDS = 60.0
WORKER_MEMORY = "600m"
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Successfully registered with master"
_RUNS = re.compile(r"Running task \S+ in stage")
_DONE = re.compile(r"Finished task \S+ in stage")


@dataclass(slots=True)
class Standalone:
    """Start with `start_cluster`; `secret` switches authentication and encryption on."""

    folder: Path
    options: str = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    environment: dict[str, str] = field(default_factory=dict)
    master: str = ""
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start_master(self) -> None:
        words = [_MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        self._start("master", words)
        self._wait(lambda: _URL.search(self._log("master")) is not None, "the master")
        found = _URL.search(self._log("master"))
        assert found is not None
        self.master = found[1]

    def start_worker(self, name: str) -> None:
        words = [_WORKER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        words += ["--cores", "1", "--memory", WORKER_MEMORY, "--work-dir", str(self.work(name))]
        self._start(name, [*words, self.master])

    def wait_for_workers(self, *names: str) -> None:
        for name in names:
            self._wait(lambda name=name: _REGISTERED in self._log(name), name)  # type: ignore[misc]  # bound here

    def work(self, name: str) -> Path:
        """Return the folder in which the executors of a worker run."""
        return self.folder / f"{name}-work"

    def running(self, name: str) -> int:
        """Return how many tasks the executors of a worker have begun."""
        return len(_RUNS.findall(self._executors(name)))

    def finished(self, name: str) -> int:
        """Return how many tasks the executors of a worker have finished."""
        return len(_DONE.findall(self._executors(name)))

    def kill_worker(self, name: str) -> None:
        """Kill a worker and its executors, as a machine that loses its power."""
        self._kill(self._processes.pop(name))

    def kill_worker_in_a_task(self, name: str) -> None:
        """Kill a worker and its executors at a moment at which they have a task."""
        group = self._processes[name].pid
        while True:
            os.killpg(group, signal.SIGSTOP)  # what is seen in its log stays true
            if self.running(name) > self.finished(name):
                break
            os.killpg(group, signal.SIGCONT)
            time.sleep(0.02)  # between looks
        self.kill_worker(name)

    def stop(self) -> None:
        for process in self._processes.values():
            self._kill(process)
        self._processes.clear()

    def _executors(self, name: str) -> str:
        logs = sorted(self.work(name).glob("app-*/*/stderr"))
        return "".join(path.read_text(errors="replace") for path in logs)

    def _start(self, name: str, words: list[str]) -> None:
        home = Path(pyspark.__file__).parent
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                children.with_death_signal([str(home / "bin" / "spark-class"), *words]),
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={
                    **os.environ,
                    "JAVA_HOME": str(spark_java_home(user_cache())),
                    "SPARK_HOME": str(home),
                    "SPARK_DAEMON_JAVA_OPTS": self.options,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_LOCAL_DIRS": str(self.folder / f"{name}-local"),
                    "SPARK_DAEMON_MEMORY": "128m",
                    "SPARK_NO_DAEMONIZE": "1",
                    **self.environment,
                },
                start_new_session=True,
            )

    def _log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        limit = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > limit:
                raise TimeoutError(f"waited in vain for {what}")
            time.sleep(0.05)

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        process.wait(10)


def start_cluster(folder: Path, workers: int = 2, secret: str = "") -> Standalone:
    """Return a cluster whose workers, `worker-0` and so on, have one core each and are registered."""
    cluster = Standalone(folder)
    if secret:
        safe = {
            "spark.authenticate": "true",
            "spark.network.crypto.enabled": "true",
            "spark.network.crypto.authEngineVersion": "2",
            "spark.network.crypto.cipher": "AES/GCM/NoPadding",
            "spark.network.crypto.saslFallback": "false",
        }
        defaults = folder / "conf" / "spark-defaults.conf"
        defaults.parent.mkdir(parents=True)
        lines = [f"{name} {text}" for name, text in safe.items()]
        defaults.write_text("\n".join([*lines, f"spark.authenticate.secret {secret}"]) + "\n")
        defaults.chmod(0o600)
        cluster.environment["SPARK_CONF_DIR"] = str(defaults.parent)
    try:
        cluster.start_master()
        names = [f"worker-{number}" for number in range(workers)]
        for name in names:
            cluster.start_worker(name)
        cluster.wait_for_workers(*names)
    except BaseException:
        cluster.stop()
        raise
    return cluster
