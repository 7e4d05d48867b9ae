"""Names that are part of the API: group, labels, condition types and reasons. One place, so that they never drift."""

from typing import Any, Final

Json = dict[str, Any]
"""A Kubernetes object, or a part of one, as decoded JSON."""

GROUP: Final = "gputraining.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "GpuTraining"
PLURAL: Final = "gputrainings"

JOB_GROUP: Final = "kubeflow.org"
JOB_VERSION: Final = "v1"
JOB_API_VERSION: Final = f"{JOB_GROUP}/{JOB_VERSION}"
JOB_KIND: Final = "PyTorchJob"
JOB_PLURAL: Final = "pytorchjobs"

LABEL_NAME: Final = f"{GROUP}/name"
LABEL_ATTEMPT: Final = f"{GROUP}/attempt"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "gputraining-operator"
"""Field manager of every write, value of the managed-by label and source of events."""

# Set by the training-operator on each pod.
LABEL_REPLICA_TYPE: Final = "training.kubeflow.org/replica-type"
LABEL_REPLICA_INDEX: Final = "training.kubeflow.org/replica-index"

CONTAINER: Final = "pytorch"
"""The training-operator finds its container by this name."""

PROGRESS_PORT: Final = 9400
RENDEZVOUS_PORT: Final = 23456


class Phase:
    """Summary of the conditions, for people."""

    PENDING: Final = "Pending"
    RUNNING: Final = "Running"
    RESTARTING: Final = "Restarting"
    SUSPENDED: Final = "Suspended"
    COMPLETE: Final = "Complete"
    FAILED: Final = "Failed"


TERMINAL_PHASES: Final = frozenset({Phase.COMPLETE, Phase.FAILED})


class Condition:
    """Condition types of a GpuTraining."""

    ACCEPTED: Final = "Accepted"
    RUNNING: Final = "Running"
    SUSPENDED: Final = "Suspended"
    PROGRESS_STALLED: Final = "ProgressStalled"
    GPU_UNDERUTILIZED: Final = "GpuUnderutilized"
    GPU_UNHEALTHY: Final = "GpuUnhealthy"
    STRAGGLER_DETECTED: Final = "StragglerDetected"
    COMPLETE: Final = "Complete"
    FAILED: Final = "Failed"


class Reason:
    """Reasons of conditions and events."""

    # Accepted
    RENDERED: Final = "Rendered"
    TRAINING_OPERATOR_MISSING: Final = "TrainingOperatorMissing"
    WEBHOOK_UNAVAILABLE: Final = "WebhookUnavailable"
    API_UNAVAILABLE: Final = "ApiUnavailable"
    REJECTED: Final = "Rejected"
    NAME_TAKEN: Final = "NameTaken"

    # Running = False
    CREATING_PODS: Final = "CreatingPods"
    POD_CREATION_FAILED: Final = "PodCreationFailed"
    SCHEDULING: Final = "Scheduling"
    UNSCHEDULABLE: Final = "Unschedulable"
    INSUFFICIENT_GPUS: Final = "InsufficientGpus"
    IMAGE_PULL_FAILED: Final = "ImagePullFailed"
    CONTAINER_CONFIG_ERROR: Final = "ContainerConfigError"
    VOLUME_FAILED: Final = "VolumeFailed"
    STARTING_CONTAINERS: Final = "StartingContainers"
    WAITING_FOR_MASTER: Final = "WaitingForMaster"
    QUEUED: Final = "Queued"
    SUSPENDED: Final = "Suspended"
    SUSPENDING: Final = "Suspending"
    RESUMED: Final = "Resumed"
    WORKER_ENDING: Final = "WorkerEnding"
    FORMER_ATTEMPT_LEAVING: Final = "FormerAttemptLeaving"
    FINISHED: Final = "Finished"

    # Running = True
    ALL_WORKERS_READY: Final = "AllWorkersReady"

    # Complete
    TRAINING_SUCCEEDED: Final = "TrainingSucceeded"

    # ProgressStalled, GpuUnderutilized, GpuUnhealthy, StragglerDetected
    NO_STEP_ADVANCES: Final = "NoStepAdvances"
    STEPS_ADVANCE: Final = "StepsAdvance"
    GPU_IDLE: Final = "GpuIdle"
    GPU_BUSY: Final = "GpuBusy"
    GPU_FAULT: Final = "GpuFault"
    WORKER_SLOW: Final = "WorkerSlow"
    WORKERS_IN_STEP: Final = "WorkersInStep"

    # Failed, and the end of an attempt; the first eight are the error types of the progress contract
    INVALID_CONFIG: Final = "InvalidConfig"
    DATASET_NOT_FOUND: Final = "DatasetNotFound"
    OUT_OF_MEMORY: Final = "OutOfMemory"
    NON_FINITE_LOSS: Final = "NonFiniteLoss"
    PEER_LOST: Final = "PeerLost"
    USER_CODE_ERROR: Final = "UserCodeError"
    CHECKPOINT_NOT_FOUND: Final = "CheckpointNotFound"
    NCCL_ERROR: Final = "NcclError"
    KILLED: Final = "Killed"
    PREEMPTED: Final = "Preempted"
    EVICTED: Final = "Evicted"
    STORAGE_LIMIT_EXCEEDED: Final = "StorageLimitExceeded"
    NODE_LOST: Final = "NodeLost"
    POD_DELETED: Final = "PodDeleted"
    JOB_DELETED: Final = "JobDeleted"
    JOB_FAILED: Final = "JobFailed"
    STALLED: Final = "Stalled"
    DEADLINE_EXCEEDED: Final = "DeadlineExceeded"
    PENDING_DEADLINE_EXCEEDED: Final = "PendingDeadlineExceeded"

    # Events that are not condition reasons
    ATTEMPT_STARTED: Final = "AttemptStarted"
    RUNNING: Final = "Running"
    COMPLETE: Final = "Complete"
    NO_OUTPUT_VOLUME: Final = "NoOutputVolume"
    CHECKPOINT_FAILED: Final = "CheckpointFailed"
    RESTORED: Final = "Restored"
