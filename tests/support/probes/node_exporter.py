"""A real node_exporter and a real Prometheus server, of Debian's packages, on loopback."""

from __future__ import annotations

import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from soak.lab.broker_setup import free_ports
from soak.service import children

NODE_EXPORTER = shutil.which("prometheus-node-exporter") or shutil.which("node_exporter")
PROMETHEUS = shutil.which("prometheus")
WITHOUT = "needs Debian's packages prometheus and prometheus-node-exporter"
PATIENCE_SECONDS = 30.0

_SCRAPED = """\
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: node
    static_configs: [{{targets: ['{target}']}}]
"""


@contextmanager
def node_exporter(folder: Path, options: Sequence[str] = ()) -> Iterator[tuple[str, int]]:
    """Yield the address of its page, and its process id."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    argv = [str(NODE_EXPORTER), f"--web.listen-address={address}", *options]
    with _running(argv, folder / "node_exporter.log") as process:
        url = f"http://{address}/metrics"
        await_page(url)
        yield url, process.pid


@contextmanager
def prometheus_server(folder: Path, scraped_url: str) -> Iterator[str]:
    """Yield the address of a server that scrapes a page once a second."""
    target = scraped_url.removeprefix("http://").removesuffix("/metrics")
    with prometheus_with(folder, _SCRAPED.format(target=target)) as url:
        yield url


@contextmanager
def prometheus_with(folder: Path, config_text: str) -> Iterator[str]:
    """Yield the address of a server with this configuration."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    config = folder / "prometheus.yml"
    config.write_text(config_text)
    argv = [
        str(PROMETHEUS),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address={address}",
    ]
    with _running(argv, folder / "prometheus.log"):
        await_page(f"http://{address}/-/ready")
        yield f"http://{address}"


@contextmanager
def _running(argv: Sequence[str], log_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = children.spawn(argv, log_path=log_path)
    try:
        yield process
    finally:
        children.stop(process, 5.0)


def await_page(url: str) -> None:
    """Return when a page is there."""
    limit = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5.0):
                return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > limit:
                raise
            time.sleep(0.05)
