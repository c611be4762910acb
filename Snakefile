"""The jobs of a profile as a graph: what is missing is run, what was stopped is resumed.

    snakemake --cores 2 --config profile=tiny
    snakemake --cores 16 --resources gpu=1 --config profile=gpu-1.7b    # one run at a time on one GPU

For a cluster, through snakemake's own executors (--executor slurm, kubernetes); `gpu` is what its
slurm executor reserves. On one machine, `gdro run` does the same with a quieter console.

Training goes through notebook 05, so that every run leaves its curves, and the results through
notebook 06; base and evaluation are plain commands. Each job is a process of its own, whose end
frees the GPU.
"""

import json

from gdro_lab.experiments.profile import BASE, load_profile

profile = load_profile(config.setdefault("profile", "tiny"))
RUNS = config.setdefault("runs", f"runs/{profile.name}")
RUN = RUNS + "/{variant}/seed{seed}"
BASE_MODEL = f"{RUNS}/base/model.txt"
BASE_RUN = f"{RUNS}/base/seed{profile.seeds[0]}/manifest.json"
RUN_NOTEBOOK = "papermill --no-progress-bar --log-output {input.notebook:q} {output.notebook:q}"


def settings(variant, evaluated):
    """What a job depends on, by the profile's own notion: a renamed label repeats nothing."""
    return json.dumps(profile.settings_of(variant, evaluated=evaluated), sort_keys=True)


wildcard_constraints:
    variant="[A-Za-z0-9._-]+",
    seed=r"\d+",


rule results:
    input:
        BASE_RUN,
        expand(RUN + "/manifest.json", variant=profile.variants, seed=profile.seeds),
        notebook="notebooks/06_results.ipynb",
    output:
        manifest=RUNS + "/results/manifest.json",
        notebook=RUNS + "/results/06_results.ipynb",
    params:
        profile=lambda run: profile.model_dump_json(),  # a function: braces in it are not wildcards
    log:
        RUNS + "/logs/results.log",
    shell:
        RUN_NOTEBOOK + " -p profile {config[profile]:q} -p runs_dir {config[runs]:q}"
        " -p figures_dir {config[runs]:q}/figures -p manifest {output.manifest:q} > {log:q} 2>&1"


rule base:
    output:
        BASE_MODEL,
    params:
        settings=lambda run: settings(BASE, evaluated=False),
    resources:
        gpu=min(profile.gpus, 1) if profile.model.source is None else 0,  # else it prints a name
    log:
        RUNS + "/logs/base.log",
    shell:
        "gdro base {config[profile]:q} > {output:q} 2> {log:q}"


rule train:
    input:
        BASE_MODEL,
        notebook="notebooks/05_grpo_training.ipynb",
    output:
        manifest=RUN + "/notebook.json",
        notebook=RUN + "/05_grpo_training.ipynb",
    params:
        settings=lambda run: settings(run.variant, evaluated=False),
    resources:
        gpu=profile.gpus,
        runtime=round(60 * profile.hours),
        nodes=1,
        cpus_per_gpu=8 if profile.gpus else 0,
    log:
        RUNS + "/logs/train-{variant}-seed{seed}.log",
    shell:
        RUN_NOTEBOOK + " -p profile {config[profile]:q} -p method {wildcards.variant:q}"
        " -p seed {wildcards.seed}"
        " -p runs_dir {config[runs]:q} -p manifest {output.manifest:q} > {log:q} 2>&1"


rule evaluate:
    input:
        lambda run: BASE_MODEL if run.variant == BASE else RUN + "/notebook.json",
    output:
        RUN + "/manifest.json",
    params:
        settings=lambda run: settings(run.variant, evaluated=True),
    resources:
        gpu=min(profile.gpus, profile.evaluation.gpus),
        nodes=1,
        cpus_per_gpu=8 if profile.gpus else 0,
    log:
        RUNS + "/logs/evaluate-{variant}-seed{seed}.log",
    shell:
        "gdro evaluate {config[profile]:q} {wildcards.variant:q} --seed {wildcards.seed} --folder"
        " {config[runs]:q}/{wildcards.variant:q}/seed{wildcards.seed} > {log:q} 2>&1"
