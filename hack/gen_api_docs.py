"""Writes docs/api.md from the CRD: `python -m hack.gen_api_docs`, or `--check` to only compare.

Every object of the schema becomes a table of its fields; the CEL rules follow as the sentences that a user would get to
read. A part that occurs twice (podAffinity and podAntiAffinity) is written once.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]

REPOSITORY = Path(__file__).resolve().parents[1]
CRD_FILE = REPOSITORY / "crds" / "gputraining.dev_gputrainings.yaml"
DOCS_FILE = REPOSITORY / "docs" / "api.md"

IMMUTABLE = "is immutable"
HEADER = """\
# API reference: GpuTraining

<!-- Generated from the CRD by `python -m hack.gen_api_docs`: edit crds/, not this file. -->

`{group}/{version}`, kind `{kind}`, namespaced. `kubectl get {plural}`, short `kubectl get {short}`;
`kubectl explain {short}.spec` says the same as this page.

{description}

- **Default** *required* means that the API server refuses an object without the field; *–* that it may be left out.
- **Change** tells what an update of a stored object may do. Immutable fields need a new object.
- Quantities are those of Kubernetes: `4`, `500m`, `16Gi`. Decimals are strings, so that no tool rounds them: `"0.001"`.
- Rules are quoted as the API server words them when it refuses an object; `…` stands for the value.
"""


def render(crd: Json) -> str:
    """The whole page as Markdown."""
    spec = crd["spec"]
    version = spec["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    header = HEADER.format(
        group=spec["group"],
        version=version["name"],
        kind=spec["names"]["kind"],
        plural=spec["names"]["plural"],
        short=spec["names"]["shortNames"][0],
        description=_sentence(schema["description"]),
    )
    parts = [header]
    name_rules = [
        f"- `{rule['fieldPath'].lstrip('.')}`: {rule_in_words(rule)}" for rule in schema["x-kubernetes-validations"]
    ]
    parts.append(
        "## metadata\n\nThe usual metadata of Kubernetes objects.\n\nRules:\n\n" + "\n".join(name_rules) + "\n"
    )
    seen: dict[str, str] = {}
    for name in ("spec", "status"):
        parts += _object_tables(name, schema["properties"][name], seen, level=2, mutable=name == "status")
    parts.append(_columns(version["additionalPrinterColumns"]))
    return "\n".join(parts)


def _object_tables(path: str, schema: Json, seen: dict[str, str], level: int, mutable: bool) -> list[str]:
    """Table of the object at `path`, then those of the objects below it. `seen`: schema -> path already written."""
    required = set(schema.get("required", []))
    immutable_below = {
        rule["fieldPath"].lstrip(".")
        for rule in schema.get("x-kubernetes-validations", [])
        if "fieldPath" in rule and IMMUTABLE in rule.get("message", "")
    }
    with_change = path.startswith("spec")
    columns = ["Field", "Type", "Default", "Allowed", *(["Change"] if with_change else []), "Description"]
    lines = [f"{'#' * level} {path}", "", _sentence(schema["description"]), ""]
    lines += ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    below: list[tuple[str, Json, bool]] = []
    rules = [f"- {rule_in_words(rule)}" for rule in _own_rules(schema)]
    for name, field in schema["properties"].items():
        child_path, child = _descend(f"{path}.{name}", field)
        changeable = mutable or (
            name not in immutable_below
            and not _is_immutable(field)
            and path == "spec"
            and "Mutable." in _all_text(field)
        )
        note = ""
        if "properties" in child:
            known = seen.setdefault(_fingerprint(child), child_path)
            if known == child_path:
                below.append((child_path, child, changeable))
            else:
                note = f" Fields as in [{known}](#{_anchor(known)})."
        cells = [f"`{name}`", _type(field), _default(field, name in required), _allowed(field)]
        if with_change:
            cells.append("mutable" if changeable else "immutable")
        cells.append(_sentence(field["description"]) + note)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        if "properties" not in child:
            nodes = [field] if child is field else [field, child]
            rules += [f"- `{name}`: {rule_in_words(rule)}" for node in nodes for rule in _own_rules(node)]
    if rules:
        lines += ["", "Rules:", "", *rules]
    tables = ["\n".join(lines) + "\n"]
    for child_path, child, changeable in below:
        tables += _object_tables(child_path, child, seen, min(level + 1, 4), changeable)
    return tables


def _descend(path: str, field: Json) -> tuple[str, Json]:
    """Path and schema of what a list holds, or the field itself."""
    return (f"{path}[]", field["items"]) if field.get("type") == "array" else (path, field)


def _own_rules(schema: Json) -> list[Json]:
    """The schema's CEL rules, without the immutability ones, which have a column."""
    return [rule for rule in schema.get("x-kubernetes-validations", []) if IMMUTABLE not in rule.get("message", "")]


def _is_immutable(schema: Json) -> bool:
    return any(IMMUTABLE in rule.get("message", "") for rule in schema.get("x-kubernetes-validations", []))


def rule_in_words(rule: Json) -> str:
    """The refusal as a user reads it: field (if the rule names one) and message, values replaced by an ellipsis."""
    message = _message_of(rule["messageExpression"]) if "messageExpression" in rule else rule["message"]
    field = rule.get("fieldPath", "").lstrip(".")
    prefix = f"`{field}`: " if field and not field.startswith("metadata") else ""
    return prefix + " ".join(message.split())


def _message_of(expression: str) -> str:
    """The string literals of a CEL concatenation, what stands between them replaced by an ellipsis.

    Literals inside of brackets belong to a value that is computed, not to the message.
    """
    depth, position, parts = 0, 0, []
    for token in re.finditer(r"'([^']*)'|[(\[{]|[)\]}]", expression):
        if token[0][0] == "'":
            if depth == 0:
                between = expression[position : token.start()].strip().strip("+").strip()
                parts += (["…"] if between else []) + [token[1]]
                position = token.end()
        else:
            depth += 1 if token[0] in "([{" else -1
    if expression[position:].strip().strip("+").strip():
        parts.append("…")
    return "".join(parts)


def _type(schema: Json) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    if schema["type"] == "array":
        return f"list of {_type(schema['items'])}s"
    if "additionalProperties" in schema:
        return f"map of {_type(schema['additionalProperties'])}s".replace("quantitys", "quantities")
    return {"date-time": "time"}.get(schema.get("format", ""), str(schema["type"]))


def _default(schema: Json, required: bool) -> str:
    if required:
        return "*required*"
    if schema.get("default") in (None, {}):
        return "–"
    return f"`{json.dumps(schema['default'])}`"


def _allowed(schema: Json) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "minimum" in schema or "maximum" in schema:
        low, high = schema.get("minimum"), schema.get("maximum")
        return f"{low} to {high}" if high is not None else f"{low} or more"
    for key, what in (("maxItems", "entries"), ("maxProperties", "keys"), ("maxLength", "characters")):
        if key in schema and not schema.get("x-kubernetes-int-or-string"):
            return f"at most {schema[key]} {what}"
    return "–"


def _columns(columns: list[Json]) -> str:
    lines = [
        "## Columns of kubectl get",
        "",
        "Columns marked *wide* come with `-o wide`.",
        "",
        "| Column | Shows | |",
        "| --- | --- | --- |",
    ]
    for column in columns:
        wide = "*wide*" if column.get("priority") else ""
        lines.append(f"| {column['name']} | `{column['jsonPath'].lstrip('.')}` | {wide} |")
    return "\n".join(lines) + "\n"


def _all_text(schema: Json) -> str:
    return " ".join(re.findall(r'"description": "((?:[^"\\]|\\.)*)"', json.dumps(schema)))


def _fingerprint(schema: Json) -> str:
    return json.dumps({**schema, "description": ""}, sort_keys=True)


def _sentence(text: str) -> str:
    return " ".join(text.split()).replace("*", "\\*").replace("_", "\\_")


def _anchor(heading: str) -> str:
    """The anchor that GitHub and mkdocs make of a heading."""
    return re.sub(r"[^a-z0-9-]", "", heading.lower())


def main(arguments: list[str] | None = None) -> int:
    """Writes or checks the page; 1 if the check finds it out of date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if docs/api.md is out of date")
    check: bool = parser.parse_args(arguments).check
    page = render(yaml.safe_load(CRD_FILE.read_text()))
    if not check:
        DOCS_FILE.write_text(page)
        return 0
    if DOCS_FILE.is_file() and DOCS_FILE.read_text() == page:
        return 0
    print(f"{DOCS_FILE.relative_to(REPOSITORY)} is out of date; run: python -m hack.gen_api_docs", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
