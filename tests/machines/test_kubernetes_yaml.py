"""What the YAML for the provider kubernetes may say, and how it is told to be wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from runner.errors import UserError
from runner.machines.spec import read_spec

from .cluster import DOCS, documents

SMALLEST = """\
provider: kubernetes
namespace: gpu-ci
image: registry.example.com/gpu-runner@sha256:0123
limits:
  max-hours: 1
"""


def test_the_smallest_yaml_is_enough_and_asks_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    assert read_spec(SMALLEST)[0].provider == "kubernetes"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("gpus: 0", "machine, line 6: gpus: must be at least 1, and is 0"),
        ("gpu: 2", "machine, line 6: unknown key 'gpu'; did you mean \"gpus\"? Allowed: "),
        ("gpu-resource: gpu", "machine, line 6: gpu-resource: must be a resource such as nvidia.com/gpu, and is 'gpu'"),
        (
            "node-selector:\n  gpu: true",
            "line 7: node-selector.gpu: must be the value of a label, and is true or false",
        ),
        ("node-selector:\n  a b: c", "line 7: node-selector.a b: is no key of a label"),
        ("tolerations:\n  - key: gpu\n    seconds: 3", "line 8: tolerations[0]: unknown key 'seconds'"),
        ("tolerations:\n  - operator: Exits", "line 7: tolerations[0].operator: unknown value 'Exits'"),
        ("tolerations:\n  - operator: Exists\n    value: x", "line 8: tolerations[0].value: says nothing beside"),
        ("tolerations:\n  - value: x", 'line 7: tolerations[0]: the key "key" is missing'),
        ("tolerations: x", "line 6: tolerations: must be a list"),
        ("user: 0", "line 6: user: must be at least 1"),
        ("seccomp: off", "line 6: seccomp: must be one of RuntimeDefault, Unconfined, and is true or false ('off')"),
        ("shm-gb: 0.5", "line 6: shm-gb: must be a whole number"),
        ("cpu: 1.5", "line 6: cpu: must be text or a whole number"),
        ("cpu: many", "line 6: cpu: must be a number of cores, such as 8 or 500m, and is 'many'"),
        ("memory: 64", "line 6: memory: must be a size such as 64Gi, and is '64'"),
        ("price: -1", "line 6: price: must be a number of US dollars an hour above 0"),
        ("runtime-class: A", "line 6: runtime-class: must be the name of a RuntimeClass"),
        ("context: ''", "line 6: context: must be a context of the kubeconfig"),
    ],
)
def test_a_mistake_is_told_with_line_and_key(more: str, told: str) -> None:
    with pytest.raises(UserError) as caught:
        read_spec(SMALLEST + more + "\n")
    assert told in str(caught.value)


@pytest.mark.parametrize("key", ["namespace", "image"])
def test_what_is_required_is_told(key: str) -> None:
    text = "".join(line for line in SMALLEST.splitlines(keepends=True) if not line.startswith(key))
    with pytest.raises(UserError, match=f'machine, line 1: provider: kubernetes needs the key "{key}"'):
        read_spec(text)


@pytest.mark.parametrize(
    ("price", "told"),
    [("", "give price"), ("price: 12.5\n", "price is 12.5 US dollars an hour, above limits.max-price")],
)
def test_what_costs_too_much_is_refused_before_a_cluster_is_asked(
    price: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    _, provider = read_spec(SMALLEST + "  max-price: 10\n" + price)
    with pytest.raises(UserError, match=told):
        provider.check()


@pytest.mark.parametrize("content", [None, "", "[]", "clusters: {", "apiVersion: v1\nkind: Config\n"])
def test_a_kubeconfig_that_is_none_is_told(
    content: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "config"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(UserError, match=r"there is no cluster to be told from .*; set KUBECONFIG to a kubeconfig"):
        read_spec(SMALLEST)[1].check()


@pytest.mark.parametrize("text", ["clusters: {secretThatNoLogMayShow", "secretThatNoLogMayShow", "users: [{token: x}]"])
def test_a_secret_that_is_no_kubeconfig_is_told_without_showing_it(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMMEM_CHECK_KUBECONFIG", text)
    with pytest.raises(UserError, match="there is no cluster to be told from SYMMEM_CHECK_KUBECONFIG: ") as raised:
        read_spec(SMALLEST)[1].check()
    assert "secretThatNoLogMayShow" not in str(raised.value)


def test_without_the_client_it_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(UserError, match=r"pip install 'symmem-check\[kubernetes\]'"):
        read_spec(SMALLEST)[1].list("github.com", "octo/train")


def test_the_documented_yaml_is_read() -> None:
    text = DOCS.read_text(encoding="utf-8").split("```yaml\nmachine: |\n")[1].split("```")[0]
    spec, _ = read_spec("\n".join(line.removeprefix("  ") for line in text.splitlines()))
    assert spec.limits.max_price == 20
    assert documents("RoleBinding")[0]["roleRef"]["name"] == documents("Role")[0]["metadata"]["name"]
