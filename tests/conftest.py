"""What holds for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How fast the machine is at the moment decides no test.
settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")
