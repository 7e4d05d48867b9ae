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

    A pod that is gone without a known end counts until its grace was over, and where that is not known, until ``now``.
    """
    held = 0.0
    for pod in pods:
        if pod.scheduled is not None:
            end = (pod.termination and pod.termination.finished) or (pod.deletion_time if pod.gone else None) or now
            held += max(0.0, (min(end, now) - pod.scheduled).total_seconds())
    return round(held * spec.gpus_per_worker)


def attempt_energy_joules(records: Mapping[int, ProgressRecord]) -> int | None:
    """Energy that the GPUs of one attempt have drawn, by their pods' newest words; None where no device tells."""
    gpus = fold_gpus(records.values())
    return None if gpus is None or gpus.energy_joules is None else round(gpus.energy_joules)


def lost_gpu_seconds(spec: Spec, start: datetime, end: datetime, saved: datetime | None) -> int:
    """GPU-seconds of an attempt whose work is lost: all since its last checkpoint, or since its start."""
    since = max(start, saved) if saved is not None else start
    return round(max(0.0, (end - since).total_seconds()) * spec.workers * spec.gpus_per_worker)


def attempt_share(attempt: Json | None, gpu_seconds: int, energy_joules: int | None) -> Json:
    """What an attempt has cost by now: ``gpuSeconds``, and ``energyJoules`` where it is known.

    A share never shrinks: an operator that starts anew does not see the pods that are gone, and a long last word can
    lack the GPUs.
    """
    new: Json = {"gpuSeconds": gpu_seconds} | ({"energyJoules": energy_joules} if energy_joules is not None else {})
    old: Json = {key: attempt[key] for key in ("gpuSeconds", "energyJoules") if attempt and key in attempt}
    return old | {key: max(value, old.get(key, 0)) for key, value in new.items()}


def account(totals: Json | None, attempt: Json | None, gpu_seconds: int, energy_joules: int | None) -> Json:
    """The totals with the share of the current attempt replaced by its new one; other totals stay.

    Args:
        totals: ``status.accounting`` so far, which holds the share that ``attempt`` tells.
        attempt: the attempt's entry as it stands in the status; None when it is new.
        gpu_seconds: what the attempt has held by now.
        energy_joules: what it has drawn by now, if known.
    """
    new = dict(totals or {})
    for key, value in attempt_share(attempt, gpu_seconds, energy_joules).items():
        new[key] = new.get(key, 0) + value - (attempt or {}).get(key, 0)
    return new
