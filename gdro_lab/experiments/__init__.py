"""One system for experiments: a profile names data, variants, seeds and a backend.

In the order in which `gdro run` enters them:

profile, blocks      what a profile says, and its runs; spelling: methods in one word
runner               the runs of a profile, each in a process of its own
play                 a run: base, tokenizer and data, training, evaluation
training             the backend "trl": `GDROTrainer` on real and tiny models; callbacks
loop_runs, oracles   the backend "loop": tiny models in `gdro_lab.loop`
evaluation           what is correct; scores: from counts by prompt
table, report        paired differences with intervals; figures, panels, style

run: the plain value that all of these pass on. records: files that a run leaves.
"""
