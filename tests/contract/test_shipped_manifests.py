"""The Kubernetes manifests in configs/ call soak as it can be called, with paths that are mounted."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import yaml

from spark.cluster.master import parse_cluster
from tests.support.paths import ROOT

FOLDER = ROOT / "configs" / "kubernetes"
MANIFESTS = sorted(FOLDER.glob("*.yaml"))


def documents() -> list[dict[str, Any]]:
    return [one for path in MANIFESTS for one in yaml.safe_load_all(path.read_text())]


def names(kind: str) -> set[str]:
    return {one["metadata"]["name"] for one in documents() if one["kind"] == kind}


def pod_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize("name", ["report.yaml", "detect-stream.yaml"])
def test_a_driver_names_what_the_other_manifests_make(name: str) -> None:
    pod = pod_of(name)
    claims = {
        one["persistentVolumeClaim"]["claimName"]
        for one in pod["volumes"]
        if "persistentVolumeClaim" in one
    }
    maps = {one["configMap"]["name"] for one in pod["volumes"] if "configMap" in one}
    mounts = {one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}

    assert claims == names("PersistentVolumeClaim")
    assert maps == names("ConfigMap")
    assert pod["serviceAccountName"] in names("ServiceAccount")
    assert mounts == {"/runs", "/etc/soak"}


@pytest.mark.parametrize("name", ["report.yaml", "detect-stream.yaml"])
def test_a_driver_is_called_with_settings_that_soak_takes(name: str) -> None:
    """Its executors mount the runs where it does and have the same image."""
    container = pod_of(name)["containers"][0]
    words = container["command"]
    conf = [word.removeprefix("--conf=") for word in words if word.startswith("--conf=")]
    here = [text.replace("/opt/soakd/bin/python", sys.executable) for text in conf]
    (master,) = (word.removeprefix("--master=") for word in words if word.startswith("--master="))
    cluster = parse_cluster(master, here)
    assert cluster is not None
    settings = cluster.settings
    volume = "spark.kubernetes.executor.volumes.persistentVolumeClaim.runs"
    executor = "spark.kubernetes.authenticate.executor.serviceAccountName"

    assert words[:2] in (
        ["/opt/soakd/bin/soak", "report"],
        ["/opt/soakd/bin/soak", "detect-stream"],
    )
    assert settings["spark.kubernetes.container.image"] == container["image"]
    assert settings[f"{volume}.mount.path"] == "/runs"
    assert settings[f"{volume}.options.claimName"] in names("PersistentVolumeClaim")
    assert settings[executor] in names("ServiceAccount")
    assert cluster.security()["spark.authenticate"] == "true"


def test_no_manifest_holds_a_secret() -> None:
    assert "Secret" not in {one["kind"] for one in documents()}
    assert {one["kind"] for one in documents()} >= {"Job", "Role", "RoleBinding"}


def test_the_template_of_executors_is_a_pod() -> None:
    (template,) = (
        one["data"]["executor.yaml"] for one in documents() if one["kind"] == "ConfigMap"
    )
    pod = yaml.safe_load(template)

    assert (pod["kind"], pod["spec"]["securityContext"]["runAsUser"]) == ("Pod", 10001)
