"""The client of Kubernetes that Spark brings along knows every field of the manifests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from py4j.java_collections import JavaMap

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANIFESTS = sorted((ROOT / "configs" / "kubernetes").glob("*.yaml"))


def unknown(typed: Any, plain: Any, place: str) -> Iterator[str]:
    """Give the places of fields that the typed object does not know."""
    if isinstance(plain, list):
        for at, one in enumerate(plain):
            yield from unknown(typed.get(at), one, f"{place}[{at}]")
    elif isinstance(plain, dict) and not isinstance(typed, JavaMap):
        yield from (f"{place}.{name}" for name in typed.getAdditionalProperties())
        for name, one in plain.items():
            if isinstance(one, dict | list):
                child = getattr(typed, f"get{name[0].upper()}{name[1:]}")()
                yield from unknown(child, one, f"{place}.{name}")


def templates(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give a document, and those that are texts in it."""
    yield document
    for text in document.get("data", {}).values():
        yield yaml.safe_load(text)


@pytest.mark.spark
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_every_field_is_known(spark_session: SparkSession, path: Path) -> None:
    jvm: Any = spark_session.sparkContext._jvm
    reader = jvm.io.fabric8.kubernetes.client.utils.KubernetesSerialization()
    for document in yaml.safe_load_all(path.read_text()):
        for one in templates(document):
            typed = reader.unmarshal(yaml.safe_dump(one))

            assert list(unknown(typed, one, one["kind"])) == []
            assert yaml.safe_load(reader.asYaml(typed)) == one


@pytest.mark.spark
def test_a_misspelt_field_is_seen(spark_session: SparkSession) -> None:
    jvm: Any = spark_session.sparkContext._jvm
    reader = jvm.io.fabric8.kubernetes.client.utils.KubernetesSerialization()
    job = {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {"containers": [{"name": "a", "imagee": "b"}]},
    }
    typed = reader.unmarshal(yaml.safe_dump(job))

    assert list(unknown(typed, job, "Pod")) == ["Pod.spec.containers[0].imagee"]
