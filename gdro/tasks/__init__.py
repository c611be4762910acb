"""Where prompts and rewards come from: the embedded task and, on a GPU box, the math data sets."""
