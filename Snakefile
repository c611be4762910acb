"""Notebooks × methods × seeds as a graph: what is missing is run, what was stopped is resumed.

    snakemake --cores 2 --config profile=tiny
    snakemake --cores 16 --resources gpu=1 --config profile=gpu-1.7b    # one run at a time on one GPU

On a cluster the same graph goes through snakemake's own executors (--executor slurm, kubernetes);
`gpu` is what its slurm executor reserves.
"""

import yaml

PROFILE = config.get("profile", "tiny")
with open(f"profiles/{PROFILE}.yaml") as stream:
    profile = yaml.safe_load(stream)
BEFORE_TRAINING = {key: profile.get(key) for key in ("task", "base", "model", "evaluation")}
VARIANTS, SEEDS = list(profile["variants"]), profile["seeds"]
RUNS = config.get("runs", f"runs/{PROFILE}")
FIGURES = "figures" if RUNS == "runs/tiny" else f"{RUNS}/figures"
BASE = f"{RUNS}/base/seed{SEEDS[0]}/manifest.json"
GPUS = profile.get("gpus", 0)
# the base is only evaluated
GPUS_OF_BASE = min(GPUS, (profile.get("evaluation") or {}).get("tensor_parallel_size", 1))
RUN_NOTEBOOK = "python -m gdro.notebooks --log-output"


wildcard_constraints:
    variant="[^/]+",
    seed=r"\d+",


rule results:
    input:
        "notebooks/06_results.ipynb",
        f"profiles/{PROFILE}.yaml",
        BASE,
        expand(RUNS + "/{variant}/seed{seed}/manifest.json", variant=VARIANTS, seed=SEEDS),
    output:
        manifest=RUNS + "/results/manifest.json",
        notebook=RUNS + "/results/06_results.ipynb",
    params:
        figures=FIGURES,
    shell:
        RUN_NOTEBOOK + " notebooks/06_results.ipynb {output.notebook} --manifest {output.manifest}"
        " -p profile {PROFILE} -p runs_dir {RUNS} -p figures_dir {params.figures}"
        " -p manifest {output.manifest}"


rule train:
    input:
        # the base model comes first: it trains what all others find in the cache
        lambda run: [] if run.variant == "base" else BASE,
        notebook="notebooks/05_grpo_training.ipynb",
    output:
        manifest=RUNS + "/{variant}/seed{seed}/manifest.json",
        notebook=RUNS + "/{variant}/seed{seed}/05_grpo_training.ipynb",
    params:
        # a run is out of date when what it depends on has changed
        settings=lambda run: str(
            BEFORE_TRAINING
            if run.variant == "base"
            else [BEFORE_TRAINING, profile.get("train"), profile["variants"][run.variant]]
        ),
    resources:
        gpu=lambda run: GPUS_OF_BASE if run.variant == "base" else GPUS,
        nodes=1,
        cpus_per_gpu=8 if GPUS else 0,
    shell:
        RUN_NOTEBOOK + " notebooks/05_grpo_training.ipynb {output.notebook} --manifest {output.manifest}"
        " -p profile {PROFILE} -p method {wildcards.variant} -p seed {wildcards.seed}"
        " -p runs_dir {RUNS} -p manifest {output.manifest}"
