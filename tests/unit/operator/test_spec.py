"""Parsing: the defaults of the dataclasses are those of the CRD."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gputraining_operator.api import Json
from gputraining_operator.spec import parse_spec
from tests.unit.operator.builders import at, training

CRD = yaml.safe_load((Path(__file__).parents[3] / "crds" / "gputraining.dev_gputrainings.yaml").read_text())
SPEC_SCHEMA: Json = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


def defaulted(schema: Json, value: Json) -> Json:
    """What the API server makes of an object: defaults filled in, level by level."""
    filled = dict(value)
    for name, field in schema.get("properties", {}).items():
        if name not in filled and "default" in field:
            filled[name] = field["default"]
        if isinstance(filled.get(name), dict):
            filled[name] = defaulted(field, filled[name])
    return filled


def test_an_empty_spec_means_the_same_with_and_without_the_api_servers_defaults() -> None:
    specs: list[Json] = [
        {"training": {}},
        {"command": ["true"]},
        {"training": {}, "checkpoint": {"volume": "out"}},
    ]
    for spec in specs:
        assert parse_spec(spec) == parse_spec(defaulted(SPEC_SCHEMA, spec))


def test_every_field_of_the_trainer_is_parsed() -> None:
    fields = SPEC_SCHEMA["properties"]["training"]["properties"]
    values = {name: field.get("default", "x") for name, field in fields.items() if name != "dataset"}
    parsed = parse_spec({"training": values | {"dataset": {"name": "mnist", "path": "/data", "download": True}}})
    assert parsed.training is not None
    assert len(vars(parsed.training)) == len(fields)


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("monitoring", {"stalledAfterSeconds": 60, "onStall": "Restart", "idleGpuPercent": 0}),
        ("runPolicy", {"suspend": True, "backoffLimit": 0, "pendingDeadlineSeconds": 9}),
        ("checkpoint", {"volume": "out", "path": "run", "intervalSteps": 7, "resume": "Never"}),
    ],
)
def test_every_field_of_a_section_is_parsed(section: str, values: Json) -> None:
    parsed = parse_spec({"training": {}, section: values})
    part = {"monitoring": parsed.monitoring, "runPolicy": parsed.run_policy, "checkpoint": parsed.checkpoint}[section]
    found = {camel(name): value for name, value in vars(part).items()}
    assert set(found) == set(SPEC_SCHEMA["properties"][section]["properties"])
    assert found | values == found


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def test_fields_of_a_newer_crd_are_ignored() -> None:
    newer: Json = {"training": {"newKnob": 1, "dataset": {"name": "mnist", "path": "/data", "shards": 3}}}
    assert parse_spec(newer) == parse_spec({"training": {"dataset": {"name": "mnist", "path": "/data"}}})


def test_metadata() -> None:
    parsed = training(generation=3)
    assert (parsed.generation, parsed.resource_version, parsed.created, parsed.deleting) == (3, 10, at(0), False)
