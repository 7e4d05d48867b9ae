"""docs/api.md is generated from the CRD: it must be current, and the generator must say what the CRD says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gputraining_operator.api import Condition, Phase, Reason
from gputraining_operator.retry import INFRASTRUCTURE, PERMANENT
from hack import gen_api_docs

CRD = yaml.safe_load(gen_api_docs.CRD_FILE.read_text())
PAGE = gen_api_docs.render(CRD)


def test_docs_are_current() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "hack.gen_api_docs", "--check"],
        cwd=gen_api_docs.REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_check_finds_old_docs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gen_api_docs, "REPOSITORY", tmp_path)
    monkeypatch.setattr(gen_api_docs, "DOCS_FILE", tmp_path / "api.md")
    assert gen_api_docs.main(["--check"]) == 1
    assert "api.md is out of date; run: python -m hack.gen_api_docs" in capsys.readouterr().err
    assert gen_api_docs.main([]) == 0
    assert gen_api_docs.main(["--check"]) == 0


def _row(section: str, field: str) -> list[str]:
    """Cells of one field's line in the section with this heading."""
    body = re.split(rf"^#+ {re.escape(section)}$", PAGE, flags=re.MULTILINE)[1]
    line = next(line for line in body.splitlines() if line.startswith(f"| `{field}` |"))
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_rows() -> None:
    assert _row("spec", "workers")[1:5] == ["integer", "`1`", "1 to 512", "immutable"]
    assert _row("spec", "runPolicy")[4] == "mutable"
    assert _row("spec.monitoring", "intervalSeconds")[1:5] == ["integer", "`10`", "1 to 3600", "mutable"]
    assert _row("spec.training", "precision")[1:4] == ["string", '`"Auto"`', "`Auto`, `FP32`, `FP16`, `BF16`"]
    assert _row("spec.volumes[]", "mountPath")[2] == "*required*"
    assert _row("spec.resources", "limits")[1] == "map of quantities"
    assert _row("status", "startTime")[1] == "time"
    assert "spec.scheduling.affinity.podAffinity" in _row("spec.scheduling.affinity", "podAntiAffinity")[-1]


def test_rules_are_quoted() -> None:
    assert "- `name`: is set by the operator; remove it" in PAGE
    assert "- set either spec.training (built-in trainer) or spec.command (your own), not both" in PAGE
    assert "is immutable (only" not in PAGE, "immutability has a column"


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("'\"' + self + '\" is wrong'", '"…" is wrong'),
        ("self.name + ' needs ' + self.map(v, 'x' + v)[0]", "… needs …"),
        ("'all fixed'", "all fixed"),
    ],
)
def test_message_expressions_become_sentences(expression: str, words: str) -> None:
    assert gen_api_docs.rule_in_words({"messageExpression": expression}) == words


# --- the style that the CRD promises in its head ------------------------------------------------------------------

SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def _nodes(path: str, schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    found = [(path, schema)]
    for name, field in schema.get("properties", {}).items():
        found += _nodes(f"{path}.{name}", field)
    for key in ("items", "additionalProperties"):
        if key in schema:
            found += _nodes(f"{path}[]", schema[key])
    return found


SPEC = _nodes("spec", SCHEMA["properties"]["spec"])
STATUS = _nodes("status", SCHEMA["properties"]["status"])


def test_every_field_is_described() -> None:
    assert not [path for path, node in SPEC + STATUS if not node.get("description", "").rstrip().endswith(".")]


def test_defaults_are_described() -> None:
    """`kubectl explain` shows descriptions, not defaults."""
    silent = [
        path for path, node in SPEC if node.get("default") not in (None, {}) and "efault" not in node["description"]
    ]
    assert not silent


def test_optional_fields_say_what_their_absence_means() -> None:
    silent = []
    for path, node in SPEC:
        for name, field in node.get("properties", {}).items():
            optional = name not in node.get("required", [])
            if path.count(".") <= 1 and optional and "properties" not in field and "efault" not in field["description"]:
                silent.append(f"{path}.{name}")
    # Exactly one of these is set; there is no default.
    assert set(silent) <= {"spec.command", "spec.env[].value", "spec.env[].valueFrom"} | {
        f"spec.volumes[].{source}" for source in ("persistentVolumeClaim", "configMap", "secret", "emptyDir")
    }


def test_everything_is_bounded() -> None:
    bound = {"string": "maxLength", "array": "maxItems"}
    unbounded = [
        path
        for path, node in SPEC + STATUS
        if (kind := node.get("type")) in bound
        and not ({bound[kind], "enum"} & set(node) or node.get("format") == "date-time")
    ]
    unbounded += [
        path for path, node in SPEC + STATUS if "additionalProperties" in node and "maxProperties" not in node
    ]
    assert not unbounded


def test_no_floats() -> None:
    assert not [path for path, node in SPEC + STATUS if node.get("type") == "number"]


def test_lists_say_how_they_merge() -> None:
    assert not [
        path for path, node in SPEC + STATUS if node.get("type") == "array" and "x-kubernetes-list-type" not in node
    ]


def test_reasons_of_failures_are_listed() -> None:
    """Every reason that decides what follows a failure, and none that does not exist."""
    attempt = SCHEMA["properties"]["status"]["properties"]["attempts"]["items"]["properties"]
    words = set(re.findall(r"\b\w+\b", attempt["reason"]["description"]))
    known = {value for name, value in vars(Reason).items() if name.isupper()}
    assert {word for word in words if re.search(r"[a-z][A-Z]", word)} <= known
    progress = json.loads((gen_api_docs.REPOSITORY / "crds" / "progress.schema.json").read_text())
    assert PERMANENT | INFRASTRUCTURE | set(progress["properties"]["error"]["properties"]["type"]["enum"]) <= words


def test_condition_types_are_listed() -> None:
    description = SCHEMA["properties"]["status"]["properties"]["conditions"]["description"]
    types = {value for name, value in vars(Condition).items() if name.isupper()}
    assert not [kind for kind in types if not re.search(rf"\b{kind}\b", description)]


def test_phases_are_listed() -> None:
    phases = {value for name, value in vars(Phase).items() if name.isupper()}
    assert set(SCHEMA["properties"]["status"]["properties"]["phase"]["enum"]) == phases


def test_rules_have_a_message() -> None:
    rules = [rule for _, node in [("", SCHEMA), *SPEC, *STATUS] for rule in node.get("x-kubernetes-validations", [])]
    assert len(rules) >= 80
    assert all("message" in rule or "messageExpression" in rule for rule in rules)
