"""The microscope: the gradient of a batch itself, its mean, bias and variance, for any method.

Everyone, the paper included, measures a proxy of the gradient's variance. Here a *pool* of K
rollouts of each of P prompts is taken as the population: the gradient of each distinct text's
log-probability is computed once and kept as a sketch, and the moments of the batch gradient follow
exactly for any division of rollouts, weights and advantages. `sketch` and `making` make pools
(PyTorch), `pool` keeps them, `moments` has the mathematics, `judge` plays a method. See
`python -m gdro_lab.microscope --help`.
"""
