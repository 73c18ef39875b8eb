"""One JVM a test session, for tests marked `spark`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session as reports and the detector use it."""
    from spark.cluster.session import build_session  # noqa: PLC0415  # most tests need no Spark

    session = build_session("tests", temporary=tmp_path_factory.mktemp("spark"), cores=2)
    yield session
    session.stop()
