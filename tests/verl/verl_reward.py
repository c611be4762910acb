"""A reward that half of the prompts never earn, and a random model earns of the others at times.

So a method that moves rollouts has something to tell the prompts apart by, whatever is sampled.
"""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **others):
    is_earned = int(ground_truth) % 2 == 1 and sum(solution_str.encode()) % 3 > 0
    return float(is_earned)
