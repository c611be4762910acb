"""Runs a profile: makes bases, plays what is missing, writes tables and figures.

What is complete is not repeated, and a run that fails stops no other; where a base fails, no run is
played. Both backends list their jobs here.
"""

import signal
import sys
from pathlib import Path

from gdro_lab import numerics
from gdro_lab.experiments.pool import Job, Pool
from gdro_lab.experiments.processes import only_process_in
from gdro_lab.experiments.profile import Profile
from gdro_lab.experiments.run import list_runs

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


def run_profile(profile: Profile, cores: int, runs_dir: str | Path | None, cache_dir: str) -> int:
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
        profile,
        runs / "logs",
        workers=1 if profile.gpus else cores,
        preload=[] if is_bare else IMPORTED[profile.backend],
    )
    try:
        pool.check(Job("check", f"{__name__}:check_runs", (profile, runs)))
        with only_process_in(runs):
            pool.logs.mkdir(exist_ok=True)
            print(f"profile {profile.name}: {profile.cost}; logs in {pool.logs}/", flush=True)
            _run_jobs(pool, profile, runs, cache_dir)
    except KeyboardInterrupt:
        print("stopped; the same command resumes", file=sys.stderr)
        return 130
    for line in pool.failed:
        print(line, file=sys.stderr)
    return 1 if pool.failed else 0


def _run_jobs(pool: Pool, profile: Profile, out: Path, cache_dir: str) -> None:
    """Make bases, play runs, and print the tables of them."""
    in_loop = profile.backend == "loop"
    # a run of "trl" has more than one file, and finds out itself what is done
    runs = [run for run in list_runs(profile) if not (in_loop and run.file(out).exists())]
    bases = [Job("base", "gdro_lab.experiments.training:make_bases", (profile, cache_dir))]
    if in_loop:
        make = "gdro_lab.experiments.loop_runs:make_run_base"
        draws = {(run.columns["world"], run.seed): run for run in runs}
        bases = [
            Job(f"base {world} {seed}", make, (run, cache_dir))
            for (world, seed), run in draws.items()
        ]
    if not pool.run(bases):
        return
    play = "gdro_lab.experiments.run:play"
    is_whole = pool.run([Job(run.title, play, (run, out, cache_dir)) for run in runs])
    # differences in the loop are in pairs by draw, so some are there without the rest
    if (is_whole or in_loop) and pool.run([Job("report", f"{__name__}:report", (profile, out))]):
        for file in printed(profile, out):
            print(file.read_text(encoding="utf-8"))
        print(f"tables and figures: {out}/")


def check_runs(profile: Profile, out: Path) -> None:
    """Refuse (Refusal) what could not be trained, before anything is written."""
    if profile.backend == "loop":
        from gdro_lab.experiments.loop_runs import check_loops

        check_loops(profile, out)
    else:
        from gdro_lab.experiments.training import check_trainings

        check_trainings(profile)


def report(profile: Profile, out: Path) -> str:
    """Write tables and figures from the records of the runs alone; return the tables."""
    if profile.backend == "loop":
        from gdro_lab.experiments.loop_runs import write_loop_report

        return write_loop_report(profile, out)
    from gdro_lab.experiments.report import write_report

    return write_report(profile, out)


def printed(profile: Profile, out: Path) -> list[Path]:
    """What `report` writes and the console shows."""
    if profile.backend == "trl":
        return [out / "results/table.md", out / "results/seconds.md"]
    from gdro_lab.experiments.table import table_stem

    return [out / f"{table_stem(profile.baseline)}.md"]
