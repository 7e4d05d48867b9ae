"""What runs in the cluster besides Kubernetes: volumes, the training-operator, our own operator."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hack import dockerimages, gotools, images, pins
from hack.kindcluster import context_arguments, kubectl, kubectl_json, kubectl_run
from hack.paths import MANIFESTS, REPO, digest, digest_files, files_under
from hack.shell import CommandError, Context, UserError

CHART = REPO / "charts" / "gputraining"
TRAINING_OPERATOR = MANIFESTS / "training-operator"
STORAGE = MANIFESTS / "storage" / "local-path.yaml"
UPSTREAM = Path("manifests/overlays/standalone")
APPLY = ("apply", "--server-side", "--force-conflicts", "--field-manager=gputraining-hack")
STAMP = "gputraining.dev/applied"  # annotation on a deployment: hash of the manifests it came from

_PROBE_JOB = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: webhook-probe, namespace: default}
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template: {spec: {containers: [{name: pytorch, image: none}]}}
"""


def build_local_path_image(context: Context) -> str:
    """An image of the volume provisioner, from its Go module, under the name that its manifest uses."""
    return _program_image(
        context, gotools.bin_dir() / "local-path-provisioner", "/usr/bin/local-path-provisioner", pins.LOCAL_PATH_IMAGE
    )


def build_training_operator_image(context: Context) -> str:
    """An image of the training-operator, from its Go module, under the name that its manifests use."""
    program = gotools.bin_dir(gotools.TRAINING_OPERATOR) / "training-operator"
    return _program_image(context, program, "/manager", pins.TRAINING_OPERATOR_IMAGE)


def _program_image(context: Context, program: Path, target: str, reference: str) -> str:
    with dockerimages.scratch() as folder:
        dockerimages.link(program, folder / "program")
        dockerfile = f"FROM scratch\nCOPY program {target}\nENV PATH=/usr/bin\n"
        return dockerimages.build(context, reference, folder, dockerfile)


def _applied(namespace: str, deployment: str, stamp: str) -> bool:
    """Whether a deployment is available and came from manifests with this hash."""
    found = kubectl_json("-n", namespace, "get", "deployment", deployment)
    if not found or found["metadata"].get("annotations", {}).get(STAMP) != stamp:
        return False
    status, wanted = found.get("status", {}), found["spec"]["replicas"]
    current = status.get("observedGeneration") == found["metadata"]["generation"]
    return bool(current and status.get("updatedReplicas") == status.get("availableReplicas") == wanted)


def _roll_out(context: Context, namespace: str, deployment: str, stamp: str) -> None:
    # Its pods are replaced when the manifests changed: both programs read their configuration once.
    patch = f'{{"spec": {{"template": {{"metadata": {{"annotations": {{"{STAMP}": "{stamp}"}}}}}}}}}}'
    kubectl_run(context, "-n", namespace, "patch", "deployment", deployment, "-p", patch)
    with _pods_in_log(context, namespace):
        kubectl_run(context, "-n", namespace, "rollout", "status", f"deployment/{deployment}", "--timeout=180s")
    kubectl_run(context, "-n", namespace, "annotate", "--overwrite", f"deployment/{deployment}", f"{STAMP}={stamp}")


@contextmanager
def _pods_in_log(context: Context, namespace: str) -> Iterator[None]:
    """Adds to the log what the pods of a namespace say, when what is inside fails."""
    try:
        yield
    except CommandError:
        for question in (
            ("get", "pods", "-o", "wide"),
            ("get", "events", "--sort-by=.lastTimestamp", "--field-selector=type!=Normal"),
            ("logs", "--selector=app.kubernetes.io/name=gputraining", "--tail=12"),
        ):
            context.say(f"--- {' '.join(question)}\n{kubectl('-n', namespace, *question) or ''}")
        raise


def _storage_stamp() -> str:
    return digest(STORAGE.read_bytes())


def storage_done() -> str | None:
    """For a step: the provisioner runs as our manifest has it."""
    return _storage_detail() if _applied("local-path-storage", "local-path-provisioner", _storage_stamp()) else None


def install_storage(context: Context) -> str:
    """Installs the volume provisioner, in place of the storage class that came with the node image."""
    if kubectl("get", "storageclass", "standard", "-o", "jsonpath={.volumeBindingMode}") not in (None, "Immediate"):
        kubectl_run(context, "delete", "storageclass", "standard")  # its mode is immutable; volumes do not mind
    kubectl_run(context, *APPLY, "-f", STORAGE)
    _roll_out(context, "local-path-storage", "local-path-provisioner", _storage_stamp())
    return _storage_detail()


def _storage_detail() -> str:
    return "volumes of class standard, shared by all nodes"


def _training_operator_stamp() -> str:
    return digest_files(files_under(TRAINING_OPERATOR), TRAINING_OPERATOR, pins.TRAINING_OPERATOR_VERSION)


def training_operator_done() -> str | None:
    """For a step: it runs as our recipe has it, and its webhook answers."""
    if _applied("kubeflow", "training-operator", _training_operator_stamp()) and _webhook_answers():
        return _training_operator_detail()
    return None


def _training_operator_detail() -> str:
    return f"training-operator {pins.TRAINING_OPERATOR_VERSION.removeprefix('v')}"


def _webhook_answers() -> bool:
    with dockerimages.scratch() as folder:
        file = folder / "job.yaml"
        file.write_text(_PROBE_JOB)
        return kubectl("create", "--dry-run=server", "-f", file) is not None


def _recipe(context: Context, folder: Path) -> Path:
    """Our kustomization, with the upstream manifests of the Go module where Go is at hand."""
    recipe = folder / "recipe"
    shutil.copytree(TRAINING_OPERATOR, recipe)
    if gotools.find_go():
        module = gotools.module_dir(context, gotools.TRAINING_OPERATOR, "github.com/kubeflow/training-operator")
        shutil.copytree(module / "manifests", recipe / "upstream" / "manifests", copy_function=shutil.copyfile)
        for directory in [d for d in (recipe / "upstream").rglob("*") if d.is_dir()]:
            directory.chmod(0o755)  # so that the temporary folder can be removed
        file = recipe / "kustomization.yaml"
        file.write_text(file.read_text().replace(pins.TRAINING_OPERATOR_MANIFESTS, str(Path("upstream") / UPSTREAM)))
    return recipe


def install_training_operator(context: Context) -> str:
    """Installs the training-operator by our recipe and waits until its webhook takes jobs."""
    with dockerimages.scratch() as folder:
        kubectl_run(context, *APPLY, "-k", _recipe(context, folder))
    _roll_out(context, "kubeflow", "training-operator", _training_operator_stamp())
    context.wait_until(_webhook_answers, 90, "an answer of the training-operator's webhook")
    return _training_operator_detail()


def uninstall_training_operator(context: Context) -> str:
    """Removes the training-operator with its CRDs, and so every job of those kinds."""
    with dockerimages.scratch() as folder:
        kubectl_run(context, "delete", "--ignore-not-found", "--wait", "-k", _recipe(context, folder))
    return "removed"


def _helm_values(built: images.Images | None) -> list[str]:
    """helm arguments that name our images; none for the chart's own released ones."""
    if not built:
        return []
    values = {"image": built.operator, "trainerImage": built.trainer}
    arguments: list[str] = []
    for key, reference in values.items():
        repository, tag = reference.rsplit(":", 1)
        arguments += ["--set-string", f"{key}.repository={repository}", "--set-string", f"{key}.tag={tag}"]
    return arguments


def _helm_context() -> list[str]:
    return [word.replace("--context", "--kube-context") for word in context_arguments()]


def _operator_stamp(built: images.Images | None) -> str:
    return digest_files(files_under(CHART), CHART, *_helm_values(built))


def operator_done(built: images.Images | None) -> str | None:
    """For a step: the operator of these images and this chart runs."""
    if _applied(pins.SYSTEM_NAMESPACE, "gputraining-operator", _operator_stamp(built)):
        return _operator_detail(built)
    return None


def _operator_detail(built: images.Images | None) -> str:
    return f"gputraining {built.operator.rsplit(':', 1)[1] if built else 'of the chart'}"


def install_operator(context: Context, built: images.Images | None) -> str:
    """Installs or upgrades our operator with Helm."""
    if not CHART.exists():
        raise UserError(f"{CHART.relative_to(REPO)} is missing")
    with _pods_in_log(context, pins.SYSTEM_NAMESPACE):
        context.run(
            gotools.tool("helm"), *_helm_context(), "upgrade", "--install", pins.HELM_RELEASE, CHART,
            "-n", pins.SYSTEM_NAMESPACE, "--create-namespace", "--wait", "--timeout", "120s", *_helm_values(built),
        )  # fmt: skip
    kubectl_run(
        context, "-n", pins.SYSTEM_NAMESPACE, "annotate", "--overwrite", "deployment/gputraining-operator",
        f"{STAMP}={_operator_stamp(built)}",
    )  # fmt: skip
    return _operator_detail(built)


def uninstall_operator(context: Context) -> str:
    """Removes our operator; the CRD and the trainings stay, as is Helm's way with CRDs."""
    try:
        context.run(
            gotools.tool("helm"), *_helm_context(), "uninstall", pins.HELM_RELEASE, "-n", pins.SYSTEM_NAMESPACE,
            "--wait", "--ignore-not-found",
        )  # fmt: skip
    except CommandError as error:
        raise UserError(f"helm could not remove {pins.HELM_RELEASE}: {error.output}") from error
    return "removed"
