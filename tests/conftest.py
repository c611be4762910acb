"""What all tests share: hypothesis tries the same examples everywhere, and keeps nothing on disk."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "stable",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("stable")
