"""A reward that a random model earns now and then."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **others):
    return float(sum(letter.isalpha() for letter in solution_str) > len(solution_str) // 4)
