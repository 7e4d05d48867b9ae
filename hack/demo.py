"""`make demo`: everything up, then a real training watched to its end; and fetching what it wrote."""

import io
import subprocess
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn

from hack import gotools, pins, runner
from hack.console import Display, finished_line
from hack.kindcluster import context_arguments, kubectl, kubectl_json, kubectl_run
from hack.paths import REPO, logs_dir
from hack.progress import View, claim_of, closing, view, worth_a_line
from hack.shell import Context, UserError

EXAMPLE = REPO / "examples" / "digits.yaml"
NAME, NAMESPACE = "digits", "default"
LIMIT_SECONDS = 900
POLL_SECONDS = 0.7

_FETCH_POD = """apiVersion: v1
kind: Pod
metadata: {{name: {pod}, namespace: {namespace}}}
spec:
  restartPolicy: Never
  activeDeadlineSeconds: 600
  automountServiceAccountToken: false
  securityContext: {{runAsNonRoot: true, runAsUser: 1000, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
    - name: files
      image: {image}
      command: [sleep, "600"]
      securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
      volumeMounts: [{{name: output, mountPath: /output, readOnly: true}}]
  volumes:
    - name: output
      persistentVolumeClaim: {{claimName: {claim}, readOnly: true}}
"""


def run() -> int:
    """The demo; 0 when the training is Complete."""
    begin = time.monotonic()
    with Display() as display:
        outcomes = runner.bring_up("cluster", "training-operator", "operator", display=display)
        ready = time.monotonic()
        context = Context(logs_dir() / "demo.log")
        if kubectl("-n", NAMESPACE, "get", "gputraining", NAME) is not None:
            kubectl_run(context, "-n", NAMESPACE, "delete", "gputraining", NAME, "--wait", "--timeout=120s")
            _await_no_pods(context)
            display.line(finished_line("removed", f"{NAME} of an earlier run: it trains anew", None))
        kubectl_run(context, "-n", NAMESPACE, "apply", "-f", EXAMPLE)
        what = f"{EXAMPLE.relative_to(REPO)} (2 workers, CPU, real handwritten digits)"
        display.line(finished_line("applied", what, None))
    training = _watch(display)
    now = view(training)
    if now.phase != "Complete":
        _explain(display, training, now)
        return 1
    display.line(finished_line("Complete", closing(training["status"]), None))
    display.console.print(kubectl("-n", NAMESPACE, "get", "gputraining", NAME, "-o", "wide") or "")
    display.where_the_time_went(outcomes, [("training", time.monotonic() - ready)])
    display.line(f"\nFetch the model:  make fetch-model        (into ./model)\n"
                 f"Look around:      kubectl get gput {NAME} -o yaml     Remove all:   make demo-clean")  # fmt: skip
    if not gotools.on_path("kubectl"):
        display.line('No kubectl of your own? eval "$(uv run python -m hack env)" puts the one built here on PATH.')
    display.line(f"All in {time.monotonic() - begin:.0f} s.")
    return 0


def _await_no_pods(context: Context) -> None:
    selector = f"gputraining.dev/name={NAME}"
    kubectl_run(context, "-n", NAMESPACE, "wait", "--for=delete", "pods", "-l", selector, "--timeout=120s")


def _watch(display: Display) -> Mapping[str, Any]:
    """Shows progress until the training is over or the limit is reached; the training as last seen."""
    end = time.monotonic() + LIMIT_SECONDS
    training: Mapping[str, Any] = {}
    shown: View | None = None
    bar = Progress(
        TextColumn(f"  {NAME}"), BarColumn(28), TextColumn("{task.percentage:>3.0f}%  {task.fields[text]}"),
        console=display.console, disable=not display.console.is_terminal,
    )  # fmt: skip
    with bar:
        task = bar.add_task(NAME, total=100, text="")
        while time.monotonic() < end:
            training = kubectl_json("-n", NAMESPACE, "get", "gputraining", NAME) or training
            now = view(training)
            bar.update(task, completed=now.percent, text=now.text)
            if bar.disable and worth_a_line(shown, now):
                display.line(f"  {NAME}  {now.phase:<8} {now.percent:>3}%  {now.text}")
                shown = now
            if now.over:
                break
            time.sleep(POLL_SECONDS)
    return training


def _explain(display: Display, training: Mapping[str, Any], now: View) -> None:
    """What one needs to see why a training did not complete."""
    status = training.get("status", {})
    state = "failed" if now.phase == "Failed" else f"is {now.phase} after {LIMIT_SECONDS // 60} minutes"
    display.line(f"✘ {NAME} {state}: {status.get('message', now.text)}")
    for condition in status.get("conditions", []):
        said = f"{condition.get('reason', '')}: {condition.get('message', '')}"
        display.line(f"  {condition['type']}={condition['status']}  {said}")
    selector = f"gputraining.dev/name={NAME}"
    questions = {
        "pods": ("get", "pods", "-l", selector, "-o", "wide"),
        "events": ("get", "events", "--sort-by=.lastTimestamp"),
        "logs": ("logs", "-l", selector, "--all-containers", "--prefix", "--tail=40"),
    }
    for title, question in questions.items():
        answer = (kubectl("-n", NAMESPACE, *question) or "").strip()
        display.line(f"--- {title}\n" + "\n".join(answer.splitlines()[-80:]))
    operator = kubectl("-n", pins.SYSTEM_NAMESPACE, "logs", "deployment/gputraining-operator", "--tail=20") or ""
    display.line(f"--- the operator's log\n{operator.strip()}")


def fetch(namespace: str, name: str, to: str) -> str:
    """Copies a training's output volume into a folder; a line that says where. Raises UserError."""
    training = kubectl_json("-n", namespace, "get", "gputraining", name)
    if not training:
        raise UserError(f"there is no GpuTraining {name} in the namespace {namespace}")
    found = claim_of(training.get("status", {}).get("outputPath", ""))
    if not found:
        raise UserError(f"{name} has written no model to a persistentVolumeClaim (status.outputPath)")
    claim, _ = found
    pod = f"fetch-{name}"
    context = Context(logs_dir() / "fetch-model.log")
    manifest = _FETCH_POD.format(pod=pod, namespace=namespace, image=pins.DEBIAN_IMAGE, claim=claim)
    kubectl_run(context, "apply", "-f", "-", stdin=manifest)
    try:
        kubectl_run(context, "-n", namespace, "wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=120s")
        command = [gotools.tool("kubectl"), *context_arguments(), "-n", namespace, "exec", pod, "--"]
        archive = subprocess.run([*command, "tar", "-C", "/output", "-cf", "-", "."], capture_output=True)
        if archive.returncode != 0:
            raise UserError(f"the files of {claim} could not be read: {archive.stderr.decode().strip()}")
        folder = Path(to)
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
    finally:
        kubectl_run(context, "-n", namespace, "delete", "pod", pod, "--wait=false", "--ignore-not-found")
    names = ", ".join(sorted(path.name for path in folder.iterdir() if path.is_file()))
    return f"✔ {claim} is in {folder}/: {names}"
