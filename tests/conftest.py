"""What holds for every test: no property is judged by how long an example took, because machines are shared."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("cardinal", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cardinal")
