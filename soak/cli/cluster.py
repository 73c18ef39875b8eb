"""Options of the commands that Spark executes, here or on a cluster: `report` and the detectors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias
from urllib.parse import unquote, urlsplit

import typer

from soak.core.errors import PlanError


def run_folder(text: str | Path) -> Path:
    """Return the path of a folder that is given as a path or as a `file:` URI.

    Raises:
        PlanError: it is a URI of something that is not mounted as files.
    """
    if isinstance(text, Path) or not (text.startswith("file:") or "://" in text):
        return Path(text)
    try:
        found = urlsplit(text)
    except ValueError as error:
        raise PlanError(f"{text}: {error}") from error
    is_file = found.scheme == "file"
    if is_file and (found.query or found.fragment):
        raise PlanError(f"{text}: in a URI ? is written %3F, and # is %23")
    if is_file and found.netloc in {"", "localhost"} and found.path.startswith("/"):
        return Path(unquote(found.path))
    raise PlanError(
        f"{text}: this folder is read and written as files, so {found.scheme}:// is not supported. Give a "
        "path or file:///PATH that this host and all executors mount (NFS, CephFS, or the store's own mount)"
    )


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
