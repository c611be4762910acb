"""Profiles, the jobs that they describe, their console, and notebooks run strictly."""
