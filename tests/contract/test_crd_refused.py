"""What the API server refuses: each rule of the CRD, with the field it names and the text it gives."""

from __future__ import annotations

from typing import Any

import pytest

from hack.gen_api_docs import IMMUTABLE, rule_in_words
from tests.contract.kube import Json, Refused, Trainings, load_crd, training
from tests.contract.refused_pods import CHECKPOINT, NAMES, RESOURCES, SCHEDULING, VOLUMES, limits, volume
from tests.contract.refused_programs import ENVIRONMENT, NEITHER, PROGRAM, SIZES, TRAINING

pytestmark = pytest.mark.cluster

CASES = [
    *(*PROGRAM, *SIZES, *TRAINING, *ENVIRONMENT),
    *(*RESOURCES, *VOLUMES, *NAMES, *CHECKPOINT, *SCHEDULING),
]


def _label(value: Any) -> str:
    return str(value)[:60] if isinstance(value, str) else ""


@pytest.mark.parametrize(
    ("spec", "field", "text"),
    CASES,
    ids=_label,
)
def test_refused(dry_trainings: Trainings, spec: Json, field: str, text: str) -> None:
    if spec is NEITHER:
        spec = {}
    elif "training" not in spec and "command" not in spec:
        spec = {"training": {}} | spec
    causes = dry_trainings.refused(training(spec))
    matching = [cause for cause in causes if cause.field == field and text in cause.message]
    assert matching, "\n".join(f"{cause.field}: {cause.message}" for cause in causes)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "x" * 51,
            "must have at most 50 characters: names of pods and services are made from it; choose a shorter one",
        ),
        ("1st", 'must be a DNS label: lower-case letters, digits and "-", first a letter'),
        ("a.b", "must be a DNS label"),
        ("Digits", "a lowercase RFC 1123 subdomain"),
    ],
)
def test_names(dry_trainings: Trainings, name: str, text: str) -> None:
    causes = dry_trainings.refused(training({"training": {}}, name))
    assert any(cause.field == "metadata.name" and text in cause.message for cause in causes), causes


@pytest.mark.parametrize(
    ("spec", "unknown"),
    [
        ({"replicas": 2}, "spec.replicas"),
        ({"training": {"lr": "0.1"}}, "spec.training.lr"),
        ({"runPolicy": {"restarts": 3}}, "spec.runPolicy.restarts"),
        ({"onOutOfMemory": "Fail"}, "spec.onOutOfMemory"),
        (volume(hostPath={"path": "/"}), "spec.volumes[0].hostPath"),
        ({"scheduling": {"hostNetwork": True}}, "spec.scheduling.hostNetwork"),
    ],
)
def test_unknown_fields(dry_trainings: Trainings, spec: Json, unknown: str) -> None:
    with pytest.raises(Refused, match="unknown field") as refused:
        dry_trainings.create(training({"training": {}} | spec))
    assert f'unknown field "{unknown}"' in refused.value.message


def test_all_errors_come_at_once(dry_trainings: Trainings) -> None:
    """As a user sees it: several mistakes of different kinds are one answer."""
    causes = dry_trainings.refused(
        training(
            {
                "training": {"dataset": {"name": "mnist"}},
                "command": ["python"],
                "env": [{"name": "WORLD_SIZE", "value": "2"}],
                "volumes": [{"name": "v", "mountPath": "data", "emptyDir": {}}],
            }
        )
    )
    assert {cause.field for cause in causes} == {
        "spec",
        "spec.training.dataset.path",
        "spec.env[0].name",
        "spec.volumes[0].mountPath",
    }


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "amd.com/gpu", "example.com/npu"])
def test_a_gpu_in_the_limits_is_refused_once(dry_trainings: Trainings, name: str) -> None:
    spec = {"training": {}, "gpuResourceName": name} | limits(**{name: 1})
    assert len(dry_trainings.refused(training(spec))) == 1


def _rules(schema: Json) -> list[Json]:
    """The CEL rules of a schema and of everything below it."""
    below = [*schema.get("properties", {}).values(), *(schema[key] for key in ("items",) if key in schema)]
    return [*schema.get("x-kubernetes-validations", []), *(rule for node in below for rule in _rules(node))]


def test_every_rule_has_a_case() -> None:
    spec = load_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    messages = {rule_in_words(rule | {"fieldPath": ""}) for rule in _rules(spec)}
    for message in messages:
        # What of the message does not depend on the object, and is long enough to be this rule's own.
        constant = [part[:20] for part in message.split("…") if len(part) >= 20] or [message]
        tested = any(text in message or any(part in text for part in constant) for _, _, text in CASES)
        assert tested or IMMUTABLE in message, message
