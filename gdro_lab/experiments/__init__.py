"""Profiles, the jobs that they describe, evaluation and records."""
