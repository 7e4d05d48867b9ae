"""A thin client for contract tests: raw JSON in, raw JSON or the API server's own refusal out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kubernetes import config

from hack import kindcluster, pins

Json = dict[str, Any]

REPOSITORY = Path(__file__).resolve().parents[2]
CRD_FILE = REPOSITORY / "crds" / "gputraining.dev_gputrainings.yaml"
EXAMPLES = REPOSITORY / "examples"
API_VERSION = "gputraining.dev/v1alpha1"
KIND = "GpuTraining"
# No scheduler of this name exists: pods of objects that tests have to store stay Pending, whatever runs in the cluster.
NOBODY = "contract-tests-schedule-nothing"


@dataclass(frozen=True)
class Cause:
    """One error of a refused object: the field, the reason (FieldValueInvalid, ...) and the text for people."""

    field: str
    reason: str
    message: str


class Refused(Exception):  # noqa: N818 - the answer of a server that does its work, no error of the test
    """The API server's answer with a status of 400 or more."""

    def __init__(self, status: int, answer: Json) -> None:
        super().__init__(f"{status}: {answer.get('message', answer)}")
        self.status = status
        self.message = str(answer.get("message", ""))
        details = answer.get("details") or {}
        self.causes = [
            Cause(cause.get("field", ""), cause.get("reason", ""), cause.get("message", ""))
            for cause in details.get("causes") or []
        ]


class KubeApi:
    """Requests to one API server by path, with the credentials of the kubeconfig."""

    def __init__(self) -> None:
        # Never touch a cluster that was not made for tests, unless told to.
        self.context = context = None if kindcluster.existing() else pins.KUBE_CONTEXT
        try:
            self._client = config.new_client_from_config(context=context)
            self.request("GET", "/readyz", accept="text/plain")
        except (config.ConfigException, OSError) as error:
            raise RuntimeError(
                f"no cluster to test against (kube context {context or 'current'}): {error}. Run `make cluster`, or "
                "set E2E_USE_EXISTING_CLUSTER=1 to use the current context"
            ) from error

    def request(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        seconds: float = 60,
    ) -> Json:
        """Sends one request; raises Refused for a status of 400 or more. `seconds` is how long an answer may take."""
        parameters = self._client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params={"Accept": accept, "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        response = self._client.call_api(*parameters, _request_timeout=seconds)
        response.read()
        if accept == "text/plain" and response.status < 400:
            return {}
        try:
            answer: Json = json.loads(response.data)
        except ValueError:  # an API group that is not served answers in plain text
            answer = {"message": response.data.decode(errors="replace").strip()}
        if response.status >= 400:
            raise Refused(response.status, answer)
        return answer

    def apply(self, path: str, body: Json, *, dry_run: bool = False) -> Json:
        """Server-side apply, as `kubectl apply --server-side --force-conflicts` does."""
        query = {"fieldManager": "kubectl", "force": "true", "fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        return self.request("PATCH", path, body, query=query, content_type="application/apply-patch+yaml")

    def wait(self, what: str, ready: Callable[[], bool], seconds: float = 60) -> None:
        """Polls until `ready` holds; AssertionError after the given seconds."""
        deadline = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
            time.sleep(0.1)


class Trainings:
    """GpuTrainings of one namespace."""

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self.api = api
        self.namespace = namespace
        self.path = f"/apis/{API_VERSION}/namespaces/{namespace}/gputrainings"

    def create(self, body: Json, *, store: bool = False) -> Json:
        """The object as the API server would store it: admitted, pruned, defaulted. Unknown fields are refused."""
        query = {"fieldValidation": "Strict"} | ({} if store else {"dryRun": "All"})
        return self.api.request("POST", self.path, body, query=query)

    def refused(self, body: Json) -> list[Cause]:
        """Why the API server does not take the object; AssertionError if it does."""
        try:
            stored = self.create(body)
        except Refused as answer:
            if answer.status != 422:
                raise
            return answer.causes
        raise AssertionError(f"accepted, but must be refused:\n{yaml.safe_dump(stored['spec'])}")

    def merge(self, name: str, patch: Json, *, store: bool = False) -> Json:
        """A JSON merge patch of the object, without storing it unless told to."""
        query = {"fieldValidation": "Strict"} | ({} if store else {"dryRun": "All"})
        return self.api.request(
            "PATCH", f"{self.path}/{name}", patch, query=query, content_type="application/merge-patch+json"
        )

    def merge_status(self, name: str, status: Json, *, accept: str = "application/json") -> Json:
        """A JSON merge patch of the status subresource, not stored: a running operator is not disturbed."""
        return self.api.request(
            "PATCH",
            f"{self.path}/{name}/status",
            {"status": status},
            query={"fieldValidation": "Strict", "dryRun": "All"},
            content_type="application/merge-patch+json",
            accept=accept,
        )


def training(spec: Json, name: str = "t") -> Json:
    """A GpuTraining with this spec."""
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}


def load_crd() -> Json:
    """The CRD as in crds/."""
    crd: Json = yaml.safe_load(CRD_FILE.read_text())
    return crd


def is_gone(kube: KubeApi, path: str) -> bool:
    """Whether an object does not exist any more."""
    try:
        kube.request("GET", path)
    except Refused as answer:
        if answer.status == 404:
            return True
        raise
    return False
