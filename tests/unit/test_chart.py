"""The chart's files that need no helm to be checked; tests/contract/test_chart.py renders it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "gputraining"
CRD = REPOSITORY / "crds" / "gputraining.dev_gputrainings.yaml"


def test_crd_is_the_one_of_the_repository() -> None:
    copy = CHART / "files" / CRD.name
    assert copy.read_bytes() == CRD.read_bytes(), (
        f"run: cp {CRD.relative_to(REPOSITORY)} {copy.relative_to(REPOSITORY)}"
    )


def test_versions_agree() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    for distribution in ("operator", "trainer"):
        project = tomllib.loads((REPOSITORY / distribution / "pyproject.toml").read_text())["project"]
        assert chart["appVersion"] == project["version"], distribution


def _keys(values: dict[str, Any], schema: dict[str, Any], path: str = "") -> list[str]:
    """Values without a schema."""
    missing = []
    for key, value in values.items():
        known = schema.get("properties", {}).get(key)
        if known is None:
            missing.append(f"{path}{key}")
        elif isinstance(value, dict) and "properties" in known:
            missing += _keys(value, known, f"{path}{key}.")
    return missing


def test_values_have_a_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(values, schema, cls=jsonschema.Draft7Validator)
    assert not _keys(values, schema)
    assert set(schema["properties"]) - {"global"} == set(values), "a value without its default in values.yaml"
