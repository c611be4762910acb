"""Runs described, made, evaluated, compared and drawn: profiles, experiment, arena, report, notebooks."""
