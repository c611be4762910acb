"""A reward that a random model earns one time in three, whatever the prompt."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **others):
    return float(sum(solution_str.encode()) % 3 == 0)
