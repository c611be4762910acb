"""Runs a profile: makes bases, plays what is missing, writes tables and figures.

What is complete is not repeated, and a job that fails stops no other. Both backends list their jobs
here.
"""

import signal
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from gdro_lab import numerics
from gdro_lab.experiments.blocks import BASE
from gdro_lab.experiments.loop_profile import LoopProfile
from gdro_lab.experiments.pool import Job, Pool
from gdro_lab.experiments.processes import only_process_in
from gdro_lab.experiments.profile import Profile, run_folder

# imported once, by the process that the jobs are forked from
IMPORTED = {
    "trl": [
        "gdro_lab.experiments.pool",
        "gdro_lab.experiments.training",
        "gdro_lab.experiments.evaluation",
        "gdro.trainer",
        "gdro_lab.experiments.report",
    ],
    "loop": [
        "gdro_lab.experiments.pool",
        "gdro_lab.experiments.loop_runs",
        "gdro_lab.loop",
        "transformers",
    ],
}


@dataclass(frozen=True)
class Jobs:
    """The jobs of a profile that are to be done, in their order."""

    check: Job
    """Refuses what could not be trained, before anything is written."""
    bases: list[Job]
    """If one of these fails, no later job runs."""
    chains: list[list[Job]]
    """Independent of each other; within a chain each job needs the one before."""
    report: Job
    printed: list[Path]
    """What the report writes and the console shows."""
    reports_parts: bool = False
    """Whether the report is made although some jobs failed."""


def jobs_of(profile: Profile | LoopProfile, runs: Path, cache_dir: str) -> Jobs:
    """The jobs of a profile. A job of "trl" finds what is done; of "loop" only the missing runs."""
    if isinstance(profile, LoopProfile):
        return _loop_jobs(profile, runs, cache_dir)
    training = "gdro_lab.experiments.training"
    evaluation = "gdro_lab.experiments.evaluation:evaluate_variant"
    chains = []
    for variant, seed in [*product(profile.variants, profile.seeds), (BASE, profile.seeds[0])]:
        run = (variant, seed, run_folder(runs, variant, seed), cache_dir)
        train = Job(f"train {variant} {seed}", f"{training}:train_variant", profile, run)
        evaluate = Job(f"evaluate {variant} {seed}", evaluation, profile, run)
        chains.append([evaluate] if variant == BASE else [train, evaluate])
    return Jobs(
        check=Job("check", f"{training}:check_trainings", profile),
        bases=[Job("base", f"{training}:make_bases", profile, (cache_dir,))],
        chains=chains,
        report=Job("report", "gdro_lab.experiments.report:write_report", profile, (runs,)),
        printed=[runs / "results/table.md", runs / "results/seconds.md"],
    )


def _loop_jobs(profile: LoopProfile, runs: Path, cache_dir: str) -> Jobs:
    from gdro_lab.experiments.loop_runs import missing_runs
    from gdro_lab.experiments.table import table_stem

    loops = "gdro_lab.experiments.loop_runs"
    missing = missing_runs(profile, runs)
    draws = {(run.world.name, run.seed): run for run in missing}
    return Jobs(
        check=Job("check", f"{loops}:check_loops", profile, (runs,)),
        bases=[
            Job(f"base {world} {seed}", f"{loops}:make_run_base", profile, (run, cache_dir))
            for (world, seed), run in draws.items()
        ],
        chains=[
            [Job(run.title, f"{loops}:play_run", profile, (run, runs, cache_dir))]
            for run in missing
        ],
        report=Job("report", f"{loops}:write_loop_report", profile, (runs,)),
        printed=[runs / f"{table_stem(profile.baseline)}.md"],
        reports_parts=True,
    )


def run_profile(
    profile: Profile | LoopProfile, cores: int, runs_dir: str | Path | None, cache_dir: str
) -> int:
    """Run the jobs of a profile that are not done yet; print the table and where the figures are.

    Args:
        profile: of either backend.
        cores: jobs at once; those of a profile with GPUs run one by one.
        runs_dir: folder of the runs, runs/PROFILE by default.
        cache_dir: where bases are kept.

    Returns:
        The exit code: 0, 1 where a job failed, 130 on Ctrl-C.
    """
    # before the server starts that forks the jobs, which inherits the environment
    if profile.is_pretrained:
        numerics.leave_torch_free()
    runs = Path(runs_dir or f"runs/{profile.name}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as on Ctrl-C
    is_bare = profile.gpus or profile.uses_unsloth
    pool = Pool(
        runs / "logs",
        workers=1 if profile.gpus else cores,
        preload=[] if is_bare else IMPORTED[profile.backend],
    )
    try:
        jobs = jobs_of(profile, runs, cache_dir)
        pool.check(jobs.check)
        with only_process_in(runs):
            pool.logs.mkdir(exist_ok=True)
            print(f"profile {profile.name}: {profile.cost}; logs in {pool.logs}/", flush=True)
            _run_jobs(pool, jobs)
    except KeyboardInterrupt:
        print("stopped; the same command resumes", file=sys.stderr)
        return 130
    for line in pool.failed:
        print(line, file=sys.stderr)
    return 1 if pool.failed else 0


def _run_jobs(pool: Pool, jobs: Jobs) -> None:
    """Run all jobs, and print what the last one has written."""
    if not pool.run([[job] for job in jobs.bases]):
        return
    is_whole = pool.run(jobs.chains)
    if (is_whole or jobs.reports_parts) and pool.run([[jobs.report]]):
        for file in jobs.printed:
            print(file.read_text(encoding="utf-8"))
        print(f"tables and figures: {pool.logs.parent}/")
