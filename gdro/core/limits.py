"""Bounds on options and data, beyond which sums overflow or tables do not fit into memory."""

LARGEST = 1e100  # of a reward, loss, weight or advantage: squares and products of two of them stay finite
LARGEST_ETA = 1e6  # of a step size: larger ones would choose the same bin or arm, until they overflow
MOST_ROLLOUTS = 4096  # of one prompt: tables grow with the number of possible rollout counts
MOST_BINS = 1000
MOST_K = 1000  # of pass@k, computed as a product of k factors
LONGEST_HISTORY = 10_000  # visits: the estimator "any_of_k" keeps one byte for each
