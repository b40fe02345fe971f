"""What is shipped for who runs a cluster: manifests and configurations that name only what there is."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from streamer.commands.parser import make_parser
from streamer.plugins.cluster.local import find_nats_server
from streamer.plugins.cluster.settings import ClusterSettings
from streamer.plugins.cluster.worker import DRAIN_S
from streamer.settings.load import load_settings
from tests.daemon import REPOSITORY
from tests.plugins.cluster.test_metrics import Page
from tests.waiting import WAIT_S

CONTRIB = REPOSITORY / "contrib"
CLIENT_PORT, ROUTE_PORT = 4222, 6222
NAMES = ("nats-1", "nats-2", "nats-3")


def text_of(name: str) -> str:
    return (CONTRIB / name).read_text(encoding="utf-8")


COMPOSED: dict[str, Any] = yaml.safe_load(text_of("compose-cluster.yaml"))
KUSTOMIZATION = text_of("kubernetes/kustomization.yaml")
OBJECTS: list[dict[str, Any]] = [
    each
    for name in yaml.safe_load(KUSTOMIZATION)["resources"]
    for each in yaml.safe_load_all(text_of(f"kubernetes/{name}"))
]
PODS = {each["metadata"]["name"]: each["spec"]["template"] for each in OBJECTS if "template" in each["spec"]}


def objects(kind: str) -> list[dict[str, Any]]:
    return [each for each in OBJECTS if each["kind"] == kind]


def containers() -> Iterator[tuple[str, list[str], dict[str, str], str]]:
    """Yield where it stands, the command line, the environment and the image of each container."""
    for name, service in COMPOSED["services"].items():
        environment = {key: str(value) for key, value in service.get("environment", {}).items()}
        yield f"compose {name}", service.get("command", []), environment, service["image"]
    for name, pod in PODS.items():
        for each in pod["spec"]["containers"]:
            environment = {entry["name"]: str(entry.get("value", name)) for entry in each.get("env", [])}
            yield f"kubernetes {name}", each.get("command", each.get("args", [])), environment, each["image"]


OURS = [pytest.param(*found[1:3], id=found[0]) for found in containers() if found[3].startswith("streamer")]


@pytest.mark.parametrize(("command", "environment"), OURS)
def test_commands_and_settings_are_those_that_there_are(command: list[str], environment: dict[str, str]) -> None:
    assert command[0] == "streamer"
    assert make_parser().parse_args(command[1:])
    servers = [urlsplit(url) for url in load_settings(None, environment, {}).of(ClusterSettings).nats]
    assert {(server.hostname, server.port) for server in servers} == {(name, CLIENT_PORT) for name in NAMES}


def test_nats_knows_its_flags_and_configuration_and_can_fence() -> None:
    config = CONTRIB / "compose-cluster" / "nats.conf"
    checks = [
        subprocess.run([find_nats_server(), *arguments], capture_output=True, text=True, timeout=WAIT_S)
        for arguments in (["--help"], ["-t", "-c", config])
    ]
    assert [check.returncode for check in checks] == [0, 0], checks
    ours = [(command, image) for _, command, _, image in containers() if image.startswith("nats:")]
    assert len(ours) == 4
    for command, image in ours:
        assert tuple(map(int, re.findall(r"\d+", image)[:2])) >= (2, 12)
        assert all(re.search(rf"{flag}\b", checks[0].stdout) for flag in command if flag.startswith("-"))


@pytest.mark.parametrize("name", ["compose-cluster/nats.conf", "nats/nats.conf"])
def test_servers_listen_and_find_each_other_where_the_manifests_say(name: str) -> None:
    text = text_of(name)
    assert [int(port) for port in re.findall(r'listen: "0\.0\.0\.0:(\d+)"', text)] == [CLIENT_PORT, ROUTE_PORT]
    assert re.findall(r"nats-route://([\w-]+):(\d+)", text) == [(server, str(ROUTE_PORT)) for server in NAMES]


def test_each_server_has_its_name_and_its_store_in_compose() -> None:
    (store,) = re.findall(r'store_dir: "(.*)"', text_of("compose-cluster/nats.conf"))
    for name in NAMES:
        service = COMPOSED["services"][name]
        command = service["command"]
        assert command[command.index("--name") + 1] == name
        assert service["volumes"] == [f"{name}:{store}"]
        assert command[command.index("-c") + 1] == f"/{service['configs'][0]}"


def test_each_server_has_its_name_its_files_and_its_store_in_kubernetes() -> None:
    (server,) = objects("StatefulSet")
    spec, (container,) = server["spec"], server["spec"]["template"]["spec"]["containers"]
    services = {each["metadata"]["name"]: each["spec"] for each in objects("Service")}
    first = spec["ordinals"]["start"]
    assert tuple(f"nats-{number}" for number in range(first, first + spec["replicas"])) == NAMES
    for name in NAMES:
        assert services[name]["selector"] == {"statefulset.kubernetes.io/pod-name": name}
        assert {port["port"] for port in services[name]["ports"]} == {CLIENT_PORT, ROUTE_PORT}
    assert spec["serviceName"] in services
    code = re.sub(r"(?m)^\s*#.*$", "", text_of("nats/nats.conf"))
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert f'store_dir: "{mounts["store"]}"' in code
    files = {Path(file) for file in re.findall(r'_file: "(.*?)"', code)}
    assert {file.parent.as_posix() for file in files} == {mounts["nats"]}
    assert all(f"--from-file={file.name}" in KUSTOMIZATION for file in files)


def test_the_balancer_knows_all_gateways() -> None:
    text, services = text_of("compose-cluster/haproxy.cfg"), COMPOSED["services"]
    (port,) = re.findall(r"(?m)^EXPOSE (\d+)", (REPOSITORY / "Dockerfile").read_text(encoding="utf-8"))
    gateways = [name for name, service in services.items() if "gateway" in service.get("command", [])]
    assert re.findall(r"(?m)^ +server (\S+) (\S+)", text) == [(name, f"{name}:{port}") for name in gateways]
    assert re.findall(r"bind :(\d+)", text) == [port]
    assert services["balancer"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert all(set(services[name]["networks"]) & set(services["balancer"]["networks"]) for name in gateways)


def test_what_services_use_is_declared_and_files_are_there() -> None:
    for name, service in COMPOSED["services"].items():
        configs = [config if isinstance(config, str) else config["source"] for config in service.get("configs", [])]
        used = {key: list(service.get(key, [])) for key in ("networks", "secrets")} | {"configs": configs}
        used |= {"services": list(service.get("depends_on", []))}
        used |= {"volumes": [volume.partition(":")[0] for volume in service.get("volumes", [])]}
        for kind, names in used.items():
            assert set(names) <= set(COMPOSED[kind]), name
    assert all((CONTRIB / config["file"]).is_file() for config in COMPOSED["configs"].values())
    builds = [service["build"] for service in COMPOSED["services"].values() if "build" in service]
    assert builds == [{"context": "..", "args": {"EXTRAS": "[cluster]"}}]


def test_objects_select_pods_that_there_are() -> None:
    labels = [pod["metadata"]["labels"] for pod in PODS.values()]
    for each in OBJECTS:
        selector = each["spec"].get("selector", {})
        selector = selector.get("matchLabels", selector)
        if "statefulset.kubernetes.io/pod-name" not in selector:
            assert any(selector.items() <= own.items() for own in labels), each["metadata"]["name"]
    assert len(objects("PodDisruptionBudget")) == len(labels)


def test_pods_mount_what_they_have_and_name_what_is_made() -> None:
    for name, pod in PODS.items():
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]} | ({"store"} if name == "nats" else set())
        text = yaml.safe_dump(pod["spec"]["volumes"])
        for container in pod["spec"]["containers"]:
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            assert mounts.keys() == volumes, name
            for entry in container.get("env", []):
                if str(entry.get("value", "")).startswith("/"):
                    folder, _, file = entry["value"].rpartition("/")
                    assert folder in mounts.values(), name
                    assert f"path: {file}" in text or file in mounts, (name, entry)
        for made in re.findall(r"(?:configMap|secret):\n(?: .*\n)*?\s+(?:name|secretName): (\S+)", text):
            assert re.search(rf"create (configmap|secret generic) {made} ", KUSTOMIZATION), made
        for key in re.findall(r"key: (\S+)", text):
            assert f"--from-file={key}" in KUSTOMIZATION, key
    # Beside a service named `streamer`, Kubernetes would set STREAMER_PORT and others, which are no settings.
    assert not any(pod["spec"].get("enableServiceLinks", True) for name, pod in PODS.items() if name != "nats")


def test_workers_have_the_time_that_a_drain_takes_and_the_autoscaler_a_metric() -> None:
    assert PODS["streamer-worker"]["spec"]["terminationGracePeriodSeconds"] > 2 * DRAIN_S
    assert int(COMPOSED["services"]["worker"]["stop_grace_period"].removesuffix("s")) > 2 * DRAIN_S
    (scaler,) = objects("HorizontalPodAutoscaler")
    (metric,) = scaler["spec"]["metrics"]
    assert Page().registry.get_sample_value(metric["external"]["metric"]["name"]) == 1.0
    target = scaler["spec"]["scaleTargetRef"]
    assert target["name"] in [each["metadata"]["name"] for each in objects(target["kind"])]
