"""What is shipped for who runs a cluster: manifests and configurations that name only what there is."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from prometheus_client import CollectorRegistry

from streamer.cli import make_parser
from streamer.plugins.cluster.local import find_nats_server
from streamer.plugins.cluster.metrics import register_cluster
from streamer.plugins.cluster.settings import ClusterSettings
from streamer.plugins.cluster.worker import DRAIN_S
from streamer.settings.load import load_settings
from tests.daemon import REPOSITORY
from tests.plugins.cluster.test_metrics import FakeView
from tests.waiting import WAIT_S

CONTRIB = REPOSITORY / "contrib"
COMPOSE = CONTRIB / "compose-cluster.yaml"
KUBERNETES = CONTRIB / "kubernetes"
CLIENT_PORT, ROUTE_PORT = 4222, 6222


def composed() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    return loaded


def objects(kind: str = "") -> list[dict[str, Any]]:
    """All objects of the manifests that the kustomization names, or those of a kind."""
    names = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    assert sorted([*names, "kustomization.yaml"]) == sorted(path.name for path in KUBERNETES.glob("*.yaml"))
    found = [one for name in names for one in yaml.safe_load_all((KUBERNETES / name).read_text(encoding="utf-8"))]
    return [one for one in found if kind in ("", one["kind"])]


def pods() -> dict[str, dict[str, Any]]:
    """The pods' templates by the name of what makes them."""
    made = [*objects("Deployment"), *objects("StatefulSet")]
    return {one["metadata"]["name"]: one["spec"]["template"] for one in made}


def containers() -> Iterator[tuple[str, list[str], dict[str, str], str]]:
    """Where it stands, the command line, the environment and the image of each container."""
    for name, service in composed()["services"].items():
        environment = {key: str(value) for key, value in service.get("environment", {}).items()}
        yield f"compose {name}", service.get("command", []), environment, service["image"]
    for name, pod in pods().items():
        for one in pod["spec"]["containers"]:
            environment = {entry["name"]: str(entry.get("value", name)) for entry in one.get("env", [])}
            yield f"kubernetes {name}", one.get("command", one.get("args", [])), environment, one["image"]


def ours() -> list[Any]:
    return [pytest.param(*found[1:3], id=found[0]) for found in containers() if found[3].startswith("streamer")]


@pytest.mark.parametrize(("command", "environment"), ours())
def test_commands_and_settings_are_those_that_there_are(command: list[str], environment: dict[str, str]) -> None:
    assert command[0] == "streamer"
    assert make_parser().parse_args(command[1:])
    settings = load_settings(None, environment, {})
    hosts = {urlsplit(url).hostname for url in settings.of(ClusterSettings).nats}
    assert hosts == {"nats-1", "nats-2", "nats-3"}
    assert {urlsplit(url).port for url in settings.of(ClusterSettings).nats} == {CLIENT_PORT}


def test_kubernetes_sets_no_variables_that_are_no_settings() -> None:
    """Beside a service named `streamer` it would set STREAMER_PORT and others."""
    links = {name: pod["spec"].get("enableServiceLinks") for name, pod in pods().items() if name.startswith("streamer")}
    assert links == {"streamer-gateway": False, "streamer-worker": False}


def test_gateways_and_workers_are_in_both() -> None:
    assert {command[1] for _, command, _, image in containers() if image.startswith("streamer")} == {
        "gateway",
        "worker",
    }


def test_nats_is_not_older_than_what_can_fence() -> None:
    images = [image for _, _, _, image in containers() if image.startswith("nats:")]
    assert len(images) == 4
    for image in images:
        major, minor = re.findall(r"\d+", image)[:2]
        assert (int(major), int(minor)) >= (2, 12)


# --- NATS -------------------------------------------------------------------------------------------------------------


def test_nats_takes_the_configuration() -> None:
    config = CONTRIB / "compose-cluster" / "nats.conf"
    checked = subprocess.run([find_nats_server(), "-t", "-c", config], capture_output=True, text=True, timeout=WAIT_S)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("name", ["compose-cluster/nats.conf", "nats/nats.conf"])
def test_servers_listen_and_find_each_other_where_the_manifests_say(name: str) -> None:
    text = (CONTRIB / name).read_text(encoding="utf-8")
    assert [int(port) for port in re.findall(r'listen: "0\.0\.0\.0:(\d+)"', text)] == [CLIENT_PORT, ROUTE_PORT]
    routes = re.findall(r"nats-route://([\w-]+):(\d+)", text)
    assert routes == [(f"nats-{number}", str(ROUTE_PORT)) for number in (1, 2, 3)]


def test_each_server_has_its_name_and_its_store_in_compose() -> None:
    services = composed()["services"]
    (store,) = re.findall(r'store_dir: "(.*)"', (CONTRIB / "compose-cluster/nats.conf").read_text(encoding="utf-8"))
    for name in ("nats-1", "nats-2", "nats-3"):
        command = services[name]["command"]
        assert command[command.index("--name") + 1] == name
        assert services[name]["volumes"] == [f"{name}:{store}"]
        assert command[command.index("-c") + 1] == f"/{services[name]['configs'][0]}"


def test_each_server_has_its_name_its_files_and_its_store_in_kubernetes() -> None:
    (server,) = objects("StatefulSet")
    spec, (container,) = server["spec"], server["spec"]["template"]["spec"]["containers"]
    pods_of_it = [f"nats-{number}" for number in range(spec["ordinals"]["start"], 1 + spec["replicas"])]
    services = {one["metadata"]["name"]: one["spec"] for one in objects("Service")}
    assert pods_of_it == ["nats-1", "nats-2", "nats-3"]
    for name in pods_of_it:
        assert services[name]["selector"] == {"statefulset.kubernetes.io/pod-name": name}
        assert {port["port"] for port in services[name]["ports"]} == {CLIENT_PORT, ROUTE_PORT}
    assert spec["serviceName"] in services
    text = (CONTRIB / "nats" / "nats.conf").read_text(encoding="utf-8")
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    assert f'store_dir: "{mounts["store"]}"' in code
    files = set(re.findall(r'_file: "(.*?)"', code))
    assert {Path(file).parent.as_posix() for file in files} == {mounts["nats"]}
    how = (KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8")
    assert all(f"--from-file={Path(file).name}" in how for file in files)


def test_the_server_has_the_flags_that_it_is_given() -> None:
    known = subprocess.run([find_nats_server(), "--help"], capture_output=True, text=True, timeout=WAIT_S)
    for where, command, _, image in containers():
        flags = [word for word in command if word.startswith("-")] if image.startswith("nats:") else []
        assert all(re.search(rf"{flag}\b", known.stdout) for flag in flags), where


# --- the balancer -----------------------------------------------------------------------------------------------------


def test_the_balancer_knows_all_gateways() -> None:
    text = (CONTRIB / "compose-cluster" / "haproxy.cfg").read_text(encoding="utf-8")
    services = composed()["services"]
    (port,) = re.findall(r"^EXPOSE (\d+)", (REPOSITORY / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    gateways = [name for name, service in services.items() if "gateway" in service.get("command", [])]
    assert re.findall(r"^ +server (\S+) (\S+)", text, re.MULTILINE) == [(name, f"{name}:{port}") for name in gateways]
    assert re.findall(r"bind :(\d+)", text) == [port]
    assert services["balancer"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert all(set(services[name]["networks"]) & set(services["balancer"]["networks"]) for name in gateways)


# --- compose ----------------------------------------------------------------------------------------------------------


def test_what_services_use_is_declared_and_files_are_there() -> None:
    project = composed()
    for name, service in project["services"].items():
        assert set(service.get("depends_on", [])) <= set(project["services"]), name
        assert set(service["networks"]) <= set(project["networks"]), name
        assert set(service.get("secrets", [])) <= set(project["secrets"]), name
        assert {volume.partition(":")[0] for volume in service.get("volumes", [])} <= set(project["volumes"]), name
        configs = [config if isinstance(config, str) else config["source"] for config in service.get("configs", [])]
        assert set(configs) <= set(project["configs"]), name
    for config in project["configs"].values():
        assert (CONTRIB / config["file"]).is_file()


def test_the_image_has_the_extra() -> None:
    builds = [service["build"] for service in composed()["services"].values() if "build" in service]
    assert builds == [{"context": "..", "args": {"EXTRAS": "[cluster]"}}]
    image = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
    assert 'ARG EXTRAS=""' in image
    assert '".$EXTRAS"' in image


# --- Kubernetes -------------------------------------------------------------------------------------------------------


def test_everything_selects_pods_that_there_are() -> None:
    labels = [pod["metadata"]["labels"] for pod in pods().values()]
    for one in objects():
        selector = one["spec"].get("selector", {})
        selector = selector.get("matchLabels", selector)
        if selector and "statefulset.kubernetes.io/pod-name" not in selector:
            assert any(selector.items() <= own.items() for own in labels), (one["kind"], one["metadata"]["name"])
    assert len(objects("PodDisruptionBudget")) == len(labels)


def test_pods_mount_what_they_have_and_name_what_is_made() -> None:
    how = (KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8")
    for name, pod in pods().items():
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]} | ({"store"} if name == "nats" else set())
        for container in pod["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes, name
        text = yaml.safe_dump(pod["spec"]["volumes"])
        for made in re.findall(r"(?:configMap|secret):\n(?: .*\n)*?\s+(?:name|secretName): (\S+)", text):
            assert re.search(rf"create (configmap|secret generic) {made} ", how), made
        for key in re.findall(r"key: (\S+)", text):
            assert f"--from-file={key}" in how, key


def test_files_that_settings_name_are_mounted() -> None:
    for name, pod in pods().items():
        for container in pod["spec"]["containers"]:
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            text = yaml.safe_dump(pod["spec"]["volumes"])
            for entry in container.get("env", []):
                if str(entry.get("value", "")).startswith("/"):
                    folder, _, file = entry["value"].rpartition("/")
                    assert folder in mounts.values(), name
                    assert f"path: {file}" in text or file in mounts, (name, entry)


def test_workers_have_the_time_that_a_drain_takes() -> None:
    assert pods()["streamer-worker"]["spec"]["terminationGracePeriodSeconds"] > 2 * DRAIN_S
    assert int(composed()["services"]["worker"]["stop_grace_period"].removesuffix("s")) > 2 * DRAIN_S


def test_the_autoscaler_looks_at_a_metric_that_there_is() -> None:
    (scaler,) = objects("HorizontalPodAutoscaler")
    (metric,) = scaler["spec"]["metrics"]
    registry = CollectorRegistry()
    register_cluster(registry, FakeView())
    assert registry.get_sample_value(metric["external"]["metric"]["name"]) == 1.0
    target = scaler["spec"]["scaleTargetRef"]
    assert target["name"] in [one["metadata"]["name"] for one in objects(target["kind"])]
