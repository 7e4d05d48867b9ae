"""Times as Kubernetes writes them (RFC 3339, UTC, whole seconds) and durations as people read them."""

from datetime import UTC, datetime


def parse_time(text: str) -> datetime:
    """Parse an RFC 3339 time; one without an offset is read as UTC.

    Raises:
        ValueError: the text is no such time.
    """
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def format_time(moment: datetime) -> str:
    """Write a time as ``metav1.Time`` does: UTC, whole seconds."""
    return moment.astimezone(UTC).replace(microsecond=0, tzinfo=None).isoformat() + "Z"


def format_duration(seconds: float) -> str:
    """Write a duration in its two largest units: ``47s``, ``6m10s``, ``2h4m``, ``3d7h``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"
