"""What a training costs: GPU-seconds held, GPU-seconds whose work was lost, and energy. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from gputraining_operator.api import Json
from gputraining_operator.observed import PodView
from gputraining_operator.progress import ProgressRecord, fold_gpus
from gputraining_operator.spec import Spec


def attempt_gpu_seconds(spec: Spec, pods: Sequence[PodView], now: datetime) -> int:
    """GPU-seconds that the pods of one attempt have held: from being placed on a node until the container ended.

    A pod that vanished without a known end is counted until ``now``: rather too much than too little.
    """
    held = 0.0
    for pod in pods:
        if pod.scheduled is not None:
            end = (pod.termination.finished if pod.termination else None) or now
            held += max(0.0, (end - pod.scheduled).total_seconds())
    return round(held * spec.gpus_per_worker)


def attempt_energy_joules(records: Mapping[int, ProgressRecord]) -> int | None:
    """Energy that the GPUs of one attempt have drawn, by their pods' newest words; None where no device tells."""
    gpus = fold_gpus(records.values())
    return None if gpus is None or gpus.energy_joules is None else round(gpus.energy_joules)


def lost_gpu_seconds(spec: Spec, start: datetime, end: datetime, saved: datetime | None) -> int:
    """GPU-seconds of an attempt whose work is lost: all since its last checkpoint, or since its start."""
    since = max(start, saved) if saved is not None else start
    return round(max(0.0, (end - since).total_seconds()) * spec.workers * spec.gpus_per_worker)


def account(totals: Json | None, attempt: Json | None, gpu_seconds: int, energy_joules: int | None) -> Json:
    """The totals with the current attempt's share brought up to date.

    Args:
        totals: ``status.accounting`` so far, which holds the share that ``attempt`` tells.
        attempt: the attempt's entry as it stands in the status; None when it is new.
        gpu_seconds: what the attempt has held by now.
        energy_joules: what it has drawn by now, if known.

    A share never shrinks: an operator that starts anew may no longer see pods that are gone.
    """
    new = dict(totals or {})
    for key, value in (("gpuSeconds", gpu_seconds), ("energyJoules", energy_joules)):
        if value is not None:
            counted = (attempt or {}).get(key, 0)
            new[key] = new.get(key, 0) + max(0, value - counted)
    return new
