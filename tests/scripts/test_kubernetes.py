"""The manifest keeps to Kubernetes' schemas, and its command to ours; a cluster is not here."""

import kubernetes_validate
import pytest
import yaml

from tests.harness import REPOSITORY
from zoo.cli.recipes import read_files
from zoo.training.errors import ConnectionLostError


@pytest.fixture(scope="module")
def manifest():
    return list(yaml.safe_load_all((REPOSITORY / "scripts" / "kubernetes.yaml").read_text()))


def test_schema(manifest):
    for each in manifest:
        kubernetes_validate.validate(each, "1.33", strict=True)


def test_pods_find_each_other_and_the_run(manifest):
    service, job = manifest
    spec = job["spec"]
    pod = spec["template"]["spec"]
    container = pod["containers"][0]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    options = dict(each.lstrip("-").split("=", 1) for each in container["args"] if "=" in each)
    assert service["metadata"]["name"] == pod["subdomain"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert environment["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{pod['subdomain']}"
    assert spec["completions"] == spec["parallelism"] == int(options["trainer.num_nodes"])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == int(options["trainer.devices"])
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert {"RANK", "WORLD_SIZE", "LOCAL_RANK"}.isdisjoint(environment)  # else Lightning starts no process by GPU
    ended = spec["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"]
    assert ConnectionLostError.exit_code not in ended and 143 not in ended
    read_files(container["args"][1:])
