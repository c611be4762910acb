"""One way to solve the exercises of notebook 06; `tests/teaching` holds each against `check`."""

import numpy as np


def effective_number(probabilities):
    p = probabilities[probabilities > 0]
    return np.exp(-(p * np.log(p)).sum())


def lead_lag(weights, shares):
    places = np.arange(len(shares))
    return places @ (weights / weights.sum()) - places @ shares


def weighted_standard_error(deviations, shares, rollouts):
    return (shares * deviations / np.sqrt(rollouts)).sum()
