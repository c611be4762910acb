"""The jobs of a profile for a cluster: those of `gdro run`, one command each.

    snakemake --cores 2 --config profile=tiny
    snakemake --workflow-profile gdro_lab/launch/slurm --config profile=gpu-8b

The runner lists them, so that there is one graph. What is complete is not repeated, and what was
stopped resumes: the commands see to that. `gpu` is what snakemake's slurm executor reserves.
"""

import shlex
from pathlib import Path

from gdro_lab.experiments.profile import load_trainings
from gdro_lab.experiments.records import identity_of
from gdro_lab.experiments.runner import jobs_of

profile = load_trainings(config.setdefault("profile", "tiny"))
runs = Path(config.setdefault("runs", f"runs/{profile.name}"))
plan = jobs_of(profile, runs, ".cache/bases")
DONE = f"{runs}/logs/{{job}}.done"  # empty; delete it to let the command look again
words = {}  # of each job, what follows `gdro`
before = {}  # of each job, the file of the job that it needs
identities = {}  # of each job: with other settings it is done again
for in_turn in plan.chains:
    needed = DONE.format(job="base")
    for job in in_turn:
        variant, seed, folder, cache = job.arguments
        kind = job.title.split()[0]
        command = [kind, config["profile"], variant, "--seed", seed, "--folder", folder]
        words[job.stem] = shlex.join(map(str, command))
        before[job.stem] = needed
        identities[job.stem] = identity_of(profile.settings_of(variant, evaluated=kind == "evaluate"))
        needed = DONE.format(job=job.stem)


rule results:
    input:
        [DONE.format(job=in_turn[-1].stem) for in_turn in plan.chains],
    output:
        plan.printed[0],
    log:
        f"{runs}/logs/results.log",
    shell:
        "gdro report {config[profile]:q} --runs {config[runs]:q} > {log:q} 2>&1"


rule base:
    output:
        touch(DONE.format(job="base")),
    resources:
        gpu=min(profile.gpus, 1) if profile.model.source is None else 0,  # else it prints a name
    log:
        f"{runs}/logs/base.log",
    shell:
        "gdro base {config[profile]:q} > {log:q} 2>&1"


rule train:
    input:
        lambda run: before[f"train-{run.job}"],
    output:
        touch(DONE.format(job="train-{job}")),
    params:
        words=lambda run: words[f"train-{run.job}"],
        identity=lambda run: identities[f"train-{run.job}"],
    resources:
        gpu=profile.gpus,
        runtime=round(60 * profile.hours),
        nodes=1,
        cpus_per_gpu=8 if profile.gpus else 0,
    log:
        f"{runs}/logs/train-{{job}}.log",
    shell:
        "gdro {params.words} > {log:q} 2>&1"


rule evaluate:
    input:
        lambda run: before[f"evaluate-{run.job}"],
    output:
        touch(DONE.format(job="evaluate-{job}")),
    params:
        words=lambda run: words[f"evaluate-{run.job}"],
        identity=lambda run: identities[f"evaluate-{run.job}"],
    resources:
        gpu=min(profile.gpus, profile.evaluation.gpus),
        nodes=1,
        cpus_per_gpu=8 if profile.gpus else 0,
    log:
        f"{runs}/logs/evaluate-{{job}}.log",
    shell:
        "gdro {params.words} > {log:q} 2>&1"
