"""The Helm chart: lint, five sets of values against golden files and Kubernetes' schemas, and what it promises."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from penstock.cli import _app
from penstock.cli.serve_cluster import load_cluster_settings
from penstock.server.settings import StandaloneSettings
from support.helm_chart import CHART, GOLDEN, ROOT, VALUES, documents, find_helm, golden, run_helm

HELM = find_helm()
needs_helm = pytest.mark.skipif(HELM is None, reason="there is no Helm: tests/support/helm.sh fetches it")
by_values = pytest.mark.parametrize("values", VALUES, ids=lambda values: values.stem)
#: The oldest Kubernetes of Chart.yaml, and a recent one.
KUBERNETES = ("1.27", "1.34")


def template(*more: str | Path) -> str:
    """Return the rendered chart. Fails the test with Helm's error."""
    assert HELM is not None
    done = run_helm(HELM, "template", *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rendered(values: Path) -> dict[str, dict[str, Any]]:
    """Return the golden manifests of a set of values, by kind and name. Helm is not needed for that."""
    found = documents((GOLDEN / values.name).read_text(encoding="utf-8"))
    return {f"{each['kind']} {each['metadata']['name']}": each for each in found}


def workloads(values: Path) -> dict[str, dict[str, Any]]:
    """Return the pod templates by name of their container."""
    manifests = [each.get("spec", {}) for each in rendered(values).values()]
    templates = [each["template"]["spec"] for each in manifests if "template" in each]
    return {each["containers"][0]["name"]: each for each in templates}


def test_there_are_five_sets_of_values() -> None:
    assert [path.stem for path in VALUES] == ["bookkeeper", "external", "minimal", "placed", "secured"]
    assert sorted(path.name for path in GOLDEN.iterdir()) == [path.name for path in VALUES]


def test_the_chart_has_the_version_of_the_project() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)


@needs_helm
@by_values
def test_helm_accepts_the_chart_and_renders_the_golden_file(values: Path) -> None:
    """After a change of the chart, ``python tests/support/helm_chart.py`` writes the golden files."""
    assert HELM is not None
    linted = run_helm(HELM, "lint", "--values", values)
    assert linted.returncode == 0, linted.stdout
    assert golden(template("--values", values)) == (GOLDEN / values.name).read_text(encoding="utf-8")


@needs_helm
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--set", "zookeeper.server=zk:2181"], "server"),
        (["--set", "stores.replicas=none"], "replicas"),
        (["--set", "stores.terminationGracePeriodSeconds=30"], "terminationGracePeriodSeconds"),
        (["--set", "cluster.log=/var/log"], "log"),
        (["--set", "security.insecure=false"], "security.secret is empty"),
        (["--set", "stores.external.enabled=true"], "stores.external.domain is empty"),
        (["--set", "controllers.external.enabled=true"], "controllers.external.host is empty"),
        (["--set", "zookeeper.user=penstock"], "zookeeper.passwordSecret is empty"),
    ],
)
def test_wrong_values_are_refused(wrong: list[str], message: str) -> None:
    assert HELM is not None
    done = run_helm(HELM, "template", "--values", CHART / "ci" / "minimal.yaml", *wrong)
    assert done.returncode != 0
    assert message in done.stderr


@by_values
@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_accepts_each_manifest_and_no_misspelt_field(values: Path, version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="the extra 'release' is not installed")
    for manifest in rendered(values).values():
        kubernetes_validate.validate(manifest, version, strict=True)
    wrong = rendered(values)["StatefulSet events-penstock-store"]
    wrong["spec"]["podManagmentPolicy"] = wrong["spec"].pop("podManagementPolicy")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


@by_values
def test_no_probe_ends_a_server_that_recovers(values: Path) -> None:
    """Liveness asks for the event loop alone, and there is no startup probe."""
    for name in ("store", "controller"):
        container = workloads(values)[name]["containers"][0]
        assert "startupProbe" not in container
        assert container["livenessProbe"]["httpGet"] == {"path": "/live", "port": "metrics"}
        assert container["livenessProbe"]["failureThreshold"] * container["livenessProbe"]["periodSeconds"] >= 60
        assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "metrics"}


@by_values
def test_a_store_has_time_to_hand_its_containers_over(values: Path) -> None:
    settings = StandaloneSettings()
    member = settings.cluster.member
    longest_s = member.drain_timeout_s + member.stop_timeout_s + settings.stop_timeout_s
    assert workloads(values)["store"]["terminationGracePeriodSeconds"] > longest_s
    assert workloads(values)["controller"]["terminationGracePeriodSeconds"] > settings.stop_timeout_s + 5
    for component in ("store", "controller"):
        budget = rendered(values)[f"PodDisruptionBudget events-penstock-{component}"]
        assert budget["spec"]["maxUnavailable"] == 1
        labels = budget["spec"]["selector"]["matchLabels"]
        kind = "StatefulSet" if component == "store" else "Deployment"
        pod = rendered(values)[f"{kind} events-penstock-{component}"]["spec"]["template"]["metadata"]["labels"]
        assert labels.items() <= pod.items()


@by_values
def test_pods_have_no_rights(values: Path) -> None:
    for name, pod in workloads(values).items():
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["securityContext"]["runAsUser"] == 10001
        for container in (*pod["containers"], *pod.get("initContainers", [])):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name


@by_values
def test_the_commands_and_variables_of_the_pods_are_those_of_the_program(
    values: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command line is parsed, and each variable is read as a setting: an unknown one would be an error."""
    for name, pod in workloads(values).items():
        container = pod["containers"][0]
        words = [str(word) for word in container["args"]]
        command: Any = get_command(_app([words[0]], is_overview=False))
        rest = words
        while getattr(command, "commands", None):
            command, rest = command.commands[rest[0]], rest[1:]
        with command.make_context(words[0], list(rest)) as context:
            assert context.params, name
        with monkeypatch.context() as patch:
            for variable in container["env"]:
                if variable["name"].startswith("PENSTOCK_") and variable["name"] != "PENSTOCK_CONFIG":
                    patch.setenv(variable["name"], variable["value"].replace("$(POD_NAME)", "pod-0"))
            settings = load_cluster_settings(None, {})
        assert settings.cluster.zookeeper.endswith(("/penstock", "/streams")), name
        if name in ("store", "controller"):
            assert settings.cluster.name == "pod-0"
            assert settings.operations.is_enabled
            listeners = {each.partition("=")[0] for each in settings.cluster.listeners.split(",")}
            assert settings.cluster.internal_listener in listeners
            ports = {each["name"]: each["containerPort"] for each in container["ports"]}
            assert ports["metrics"] == settings.operations.port
            assert (settings.security.tls == "on") == bool(pod.get("initContainers"))


def test_keys_are_copied_for_the_account_of_the_server_alone() -> None:
    pod = workloads(CHART / "ci" / "secured.yaml")["store"]
    script = pod["initContainers"][0]["command"]
    assert script[:2] == ["sh", "-c"]
    assert "umask" in shlex.split(script[2])
    assert "/data/security/" in script[2]


def test_clients_outside_reach_each_store_by_its_own_name() -> None:
    manifests = rendered(CHART / "ci" / "external.yaml")
    for index in range(4):
        service = manifests[f"Service events-penstock-store-{index}-outside"]["spec"]
        assert service["type"] == "LoadBalancer"
        assert service["selector"]["statefulset.kubernetes.io/pod-name"] == f"events-penstock-store-{index}"
    environment = {
        each["name"]: each.get("value", "")
        for each in workloads(CHART / "ci" / "external.yaml")["store"]["containers"][0]["env"]
    }
    assert environment["PENSTOCK_CLUSTER__LISTENERS"] == (
        "inside=0.0.0.0:6000@$(POD_NAME).events-penstock-store.streams.svc:6000,"
        "outside=0.0.0.0:6100@$(POD_NAME).streams.example.org:6100"
    )
