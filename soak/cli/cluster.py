"""Options of the commands that Spark executes, here or on a cluster: `report` and the detectors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer


def run_folder(text: str | Path) -> Path:
    """Return the path of a folder that is given as a path or as a `file:` URI."""
    if isinstance(text, Path) or "://" not in text:
        return Path(text)
    from spark.cluster.executors import run_folder_path

    return run_folder_path(text)


Master: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="URL",
        help="Execute on this cluster: spark://HOST:PORT, yarn or k8s://https://HOST:PORT. "
        "Default: on this machine.",
    ),
]
Conf: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="With --master: a setting of Spark."),
]
Secret: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="REFERENCE",
        help="With --master: the secret of the cluster, as plans name secrets: ${file:PATH}, "
        "${credential:NAME} or ${env:NAME}. Default: ${env:SOAK_SPARK_SECRET}.",
        show_default=False,
    ),
]
