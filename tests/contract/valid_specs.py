"""A strategy for any valid spec of a GpuTraining."""

from __future__ import annotations

from hypothesis import strategies as st

_dns_label = st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
_text = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=200)
_word = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,20}[A-Za-z0-9])?", fullmatch=True)
_path = st.lists(st.from_regex(r"[a-z][a-z0-9_-]{0,10}", fullmatch=True), min_size=1, max_size=4).map(
    lambda parts: "/" + "/".join(parts)
)
_decimal = st.one_of(
    st.decimals(min_value="0.000001", max_value=100, places=6).map(lambda number: f"{number:f}"),
    st.tuples(st.integers(1, 9), st.integers(0, 20)).map(lambda pair: f"{pair[0]}e-{pair[1]}"),
)
_quantity = st.one_of(st.integers(1, 1000), st.from_regex(r"[1-9][0-9]{0,2}(Mi|Gi|k|M|G)", fullmatch=True))
_dataset = st.one_of(
    st.fixed_dictionaries({"name": st.sampled_from(["digits", "synthetic"])}),
    st.fixed_dictionaries({"name": st.just("imagefolder"), "path": _path}),
    st.fixed_dictionaries(
        {"name": st.sampled_from(["mnist", "cifar10"]), "path": _path}, optional={"download": st.booleans()}
    ),
)
_trainer = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["smallcnn", "resnet18", "resnet34", "resnet50"]),
        "dataset": _dataset,
        "epochs": st.integers(1, 1000000),
        "batchSize": st.integers(1, 1000000),
        "learningRate": _decimal,
        "weightDecay": _decimal,
        "precision": st.sampled_from(["Auto", "FP32", "FP16", "BF16"]),
        "gradientAccumulationSteps": st.integers(1, 65536),
        "seed": st.integers(0, 2**32 - 1),
        "dataLoaderWorkers": st.integers(0, 64),
        "outputPath": _path,
    },
)
_program = st.one_of(
    _trainer.map(lambda trainer: {"training": trainer}),
    st.fixed_dictionaries(
        {"command": st.lists(_text, min_size=1, max_size=8)},
        optional={"args": st.lists(_text, max_size=8), "workingDir": _path},
    ),
)
_env = st.lists(
    st.one_of(
        st.fixed_dictionaries({"name": _word.map(lambda word: f"MY_{word}"), "value": _text}),
        st.fixed_dictionaries(
            {
                "name": _word.map(lambda word: f"FROM.{word}"),
                "valueFrom": st.fixed_dictionaries(
                    {"secretKeyRef": st.fixed_dictionaries({"name": _dns_label, "key": _word})}
                ),
            }
        ),
    ),
    max_size=12,
    unique_by=lambda variable: str(variable["name"]),
)
_volumes = st.lists(
    st.builds(
        lambda name, path, source, read_only: {"name": name, "mountPath": path, "readOnly": read_only} | source,
        _dns_label.filter(lambda name: not name.startswith("gputraining-")),
        _path.filter(lambda path: not path.startswith("/dev")),
        st.one_of(
            _dns_label.map(lambda claim: {"persistentVolumeClaim": claim}),
            _dns_label.map(lambda name: {"configMap": name}),
            _quantity.map(lambda size: {"emptyDir": {"sizeLimit": size}}),
        ),
        st.booleans(),
    ),
    max_size=8,
    unique_by=(lambda volume: volume["name"], lambda volume: volume["mountPath"]),
)
_common = st.fixed_dictionaries(
    {},
    optional={
        "workers": st.integers(1, 512),
        "gpusPerWorker": st.integers(0, 16),
        "image": st.from_regex(r"[a-z0-9./:@-]{1,60}", fullmatch=True),
        "imagePullPolicy": st.sampled_from(["Always", "IfNotPresent", "Never"]),
        "env": _env,
        "volumes": _volumes,
        "resources": st.fixed_dictionaries(
            {},
            optional={
                "requests": st.dictionaries(st.sampled_from(["cpu", "ephemeral-storage"]), st.integers(1, 100)),
                "limits": st.dictionaries(st.sampled_from(["cpu", "rdma/hca", "hugepages-2Mi"]), st.integers(100, 200)),
            },
        ),
        "sharedMemory": st.fixed_dictionaries({"sizeLimit": _quantity}),
        "terminationGracePeriodSeconds": st.integers(1, 3600),
        "monitoring": st.fixed_dictionaries(
            {"intervalSeconds": st.integers(1, 3600)},
            optional={
                "stalledAfterSeconds": st.integers(10, 604800),
                "onStall": st.sampled_from(["Report", "Restart"]),
                "idleGpuPercent": st.integers(0, 100),
                "idleGpuAfterSeconds": st.integers(10, 86400),
            },
        ),
        "runPolicy": st.fixed_dictionaries(
            {},
            optional={
                "suspend": st.booleans(),
                "backoffLimit": st.integers(0, 1000),
                "pendingDeadlineSeconds": st.integers(1, 315360000),
                "activeDeadlineSeconds": st.integers(1, 315360000),
                "ttlSecondsAfterFinished": st.integers(0, 315360000),
            },
        ),
        "scheduling": st.fixed_dictionaries(
            {},
            optional={
                "nodeSelector": st.dictionaries(_dns_label, _word),
                "priorityClassName": _dns_label,
                "queueName": _dns_label,
            },
        ),
    },
)
SPECS = st.tuples(_common, _program).map(lambda pair: pair[0] | pair[1])
