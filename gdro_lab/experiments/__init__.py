"""One system for experiments: a profile names data, variants, seeds and a backend.

profile, blocks                  what a profile says; profile_checks: what is refused of it;
                                 spelling: methods in one word
run                              a run, of either backend
runner, jobs, processes          the runs of a profile, each in a process of its own
training, parts, arguments       the backend "trl": `GDROTrainer` on real and tiny models;
                                 callbacks: progress and seconds; on_the_way: evaluations while
                                 it trains; rehearsal: one step with a stand-in of the model,
                                 before anything is written
loop_runs, oracles               the backend "loop": tiny models in `gdro_lab.loop`
evaluation, scores               what is correct, and scores from counts by prompt
memorization                     what was memorized
table, report                    paired differences with intervals; figures, panels, style
texts                            what models say, before and after training
word_study                       figures of the study on word problems
records                          files that a run leaves
"""
