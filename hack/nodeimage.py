"""A kind node image made without a registry: Debian packages, the kind module's node files, Kubernetes built here."""

import shutil
from functools import cache
from pathlib import Path

from hack import dockerimages, gotools, pins
from hack.paths import HACK, digest, digest_files, files_under
from hack.shell import Context

NODE = HACK / "node"
DEBIAN = f"debian:{pins.DEBIAN_NODE_SUITE}-slim"
KIND_MODULE = "sigs.k8s.io/kind"

_PROXY_BASE = f"""FROM {DEBIAN}
RUN apt-get update && apt-get install -y --no-install-recommends iptables kmod conntrack ipset \
 && rm -rf /var/lib/apt/lists/*
"""
# A pause container that reaps nothing but ends at once when asked to.
_PAUSE = """FROM scratch
COPY busybox /bin/busybox
ENTRYPOINT ["/bin/busybox", "sh", "-c", "trap 'exit 0' TERM INT; while :; do busybox sleep 3600 & wait $!; done"]
"""
_PROGRAM = 'FROM scratch\nCOPY {program} /usr/local/bin/{program}\nENV PATH=/usr/local/bin\nENTRYPOINT ["{program}"]\n'
_COREDNS = 'FROM scratch\nCOPY coredns /coredns\nENTRYPOINT ["/coredns"]\n'


@cache
def base_reference() -> str:
    """Tag of the base: changes with its Dockerfile and with the version of kind."""
    kind = gotools.module_version((gotools.CLUSTER / "go.mod").read_text(), KIND_MODULE)
    return dockerimages.name_of("node-base", digest((NODE / "base.Dockerfile").read_bytes(), kind, _PROXY_BASE))


@cache
def proxy_base_reference() -> str:
    """Tag of what kube-proxy runs on."""
    return dockerimages.name_of("kube-proxy-base", digest(_PROXY_BASE))


@cache
def reference() -> str:
    """Tag of the node image: changes with everything that goes into it."""
    key = digest_files(files_under(NODE), NODE, base_reference(), gotools.bin_dir().name, _PAUSE, _PROGRAM, _COREDNS)
    return dockerimages.name_of("node", f"{pins.KUBERNETES_VERSION}-{key}")


def build_base(context: Context) -> str:
    """Builds the parts of the node image that need no compiled program, while those are being compiled."""
    files = gotools.module_dir(context, gotools.CLUSTER, KIND_MODULE) / "images" / "base" / "files"
    with dockerimages.scratch() as folder:
        shutil.copytree(files, folder / "files", copy_function=shutil.copyfile)
        for directory in [folder / "files", *(p for p in (folder / "files").rglob("*") if p.is_dir())]:
            directory.chmod(0o755)  # the module cache is read-only
        arguments = {"BASE_IMAGE": DEBIAN}
        dockerimages.build(context, base_reference(), folder, NODE / "base.Dockerfile", arguments, network=True)
    with dockerimages.scratch() as folder:
        dockerimages.build(context, proxy_base_reference(), folder, _PROXY_BASE, network=True)
    return base_reference()


def base_done() -> str | None:
    """For a step: both bases are there."""
    return base_reference() if all(map(dockerimages.exists, (base_reference(), proxy_base_reference()))) else None


def build(context: Context) -> str:
    """Builds the node image, with the images of the control plane inside."""
    programs = gotools.bin_dir()
    listed = context.run(
        programs / "kubeadm", "config", "images", "list", "--kubernetes-version", pins.KUBERNETES_VERSION
    )
    names = listed.split()
    named = {Path(name.rsplit(":", 1)[0]).name: name for name in names}
    for part, image in named.items():
        with dockerimages.scratch() as folder:
            if part == "pause":
                shutil.copy2("/bin/busybox", folder / "busybox")
                dockerfile = _PAUSE
            else:
                dockerimages.link(programs / part, folder / part)
                dockerfile = _PROGRAM.format(program=part)
            if part == "coredns":
                dockerfile = _COREDNS
            elif part == "kube-proxy":
                dockerfile = f"FROM {proxy_base_reference()}\nCOPY kube-proxy /usr/local/bin/\n"
            dockerimages.build(context, image, folder, dockerfile)
    with dockerimages.scratch() as folder:
        for program in ("kubeadm", "kubelet", "kubectl"):
            dockerimages.link(programs / program, folder / "bin" / program)
        shutil.copy2(NODE / "10-bridge.conflist", folder)
        shutil.copytree(NODE / "manifests", folder / "manifests")
        context.run("docker", "save", *names, "-o", folder / "images.tar")
        arguments = {
            "BASE_IMAGE": base_reference(),
            "KUBERNETES_VERSION": pins.KUBERNETES_VERSION,
            "PAUSE_IMAGE": named["pause"],
        }
        dockerimages.build(context, reference(), folder, NODE / "node.Dockerfile", arguments)
    return reference()
