"""Runs a profile: makes bases, plays what is missing, writes tables and figures.

What is complete is not repeated. A run that fails stops no other run; a base that fails stops only
the runs that start from it. The two backends meet here. Each job is a process of its own, forked
from one that has imported torch and TRL already, with its output in a log; the console, whose
process imports neither, has one line, with the jobs that are done and the time left.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gdro.checks import Refusal
from gdro_lab import numerics
from gdro_lab.experiments.play import check_installed, check_options, make_run_base, play_run
from gdro_lab.experiments.profile import Profile
from gdro_lab.experiments.records import read_manifest
from gdro_lab.experiments.run import Run
from gdro_lab.experiments.spelling import import_methods, slug_of
from gdro_lab.machine import only_process_in, set_up_process

# imported once, by the process that the jobs are forked from
IMPORTED = {
    "trl": [
        "gdro_lab.experiments.runner",
        "gdro_lab.experiments.training",
        "gdro_lab.experiments.evaluation",
        "gdro.trainer",
        "gdro_lab.experiments.report",
    ],
    "loop": [
        "gdro_lab.experiments.runner",
        "gdro_lab.experiments.loop_runs",
        "gdro_lab.loop",
        "transformers",
    ],
}
SHARED = ("train", "success_threshold", "at")
"""Settings that all runs of a folder have in common, besides each world's."""


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
    # before the server of the jobs starts, which inherits the environment
    if profile.is_pretrained:
        numerics.leave_torch_free()
    runs = Path(runs_dir or f"runs/{profile.name}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as on Ctrl-C
    logs = runs / "logs"
    planned = profile.runs()
    is_bare = profile.gpus or any(run.model.is_unsloth for run in planned)
    run = partial(
        run_jobs,
        logs=logs,
        workers=1 if profile.gpus else cores,
        preload=[] if is_bare else IMPORTED[profile.backend],
        methods_from=profile.methods_from,
    )
    if profile.backend == "loop":
        check_loops(planned, runs)
    try:
        with only_process_in(runs):
            logs.mkdir(exist_ok=True)
            print(f"profile {profile.name}: {_cost(profile, planned)}; logs in {logs}/", flush=True)
            failed = _run_all(run, profile, planned, runs, cache_dir)
    except KeyboardInterrupt:
        print("stopped; the same command resumes", file=sys.stderr)
        return 130
    for line in failed.values():
        print(line, file=sys.stderr)
    return 1 if failed else 0


def _cost(profile: Profile, runs: Sequence[Run]) -> str:
    """A sentence: how many trainings there are, and the GPU-hours that they may take."""
    trainings = sum(run.variant is not None for run in runs)
    each = trainings // len(profile.seeds)
    text = f"{trainings} trainings, {each} by each of {len(profile.seeds)} seeds"
    hours = trainings * profile.gpus * profile.hours
    return f"{text}, up to {hours:,.0f} GPU-hours" if hours else text


def _run_all(
    run: "Callable[[list[Job]], dict[str, str]]",
    profile: Profile,
    planned: list[Run],
    out: Path,
    cache_dir: str,
) -> dict[str, str]:
    """Make bases, play runs, and print the tables of them; what failed."""
    in_loop = profile.backend == "loop"
    if not in_loop:
        check_installed(planned)  # also what evaluates, not after hours of training
        trained = [one for one in planned if one.variant is not None]
        refused = run([Job("check", check_options, (trained,))])
        if refused:
            raise Refusal(refused["check"])
    # a run of "trl" has more than one file, and finds out itself what is done
    runs = [one for one in planned if not (in_loop and one.file(out).exists())]
    bases = {one.start_title: one for one in runs}
    failed = run([Job(title, make_run_base, (one, cache_dir)) for title, one in bases.items()])
    runs = [one for one in runs if one.start_title not in failed]
    failed |= run([Job(one.title, play_run, (one, one.file(out), cache_dir)) for one in runs])
    # the loop's table is of pairs by replicate, so complete pairs can be shown
    if failed and not in_loop:
        return failed
    failed |= run([Job("report", make_report, (profile, out))])
    if "report" not in failed:
        for file in printed(profile, out):
            print(file.read_text(encoding="utf-8"))
        print(f"tables and figures: {out}/")
    return failed


def check_loops(runs: Sequence[Run], out: Path) -> None:
    """Refuse (Refusal) a folder of other settings, other worlds or other methods of your own."""
    run_of = {run.file(out): run for run in runs}
    if len(run_of) < len(runs):
        raise Refusal(
            "methods must still differ where file names have '_' for their signs, "
            f"got {sorted({run.configuration for run in runs})}"
        )
    shared = {name: runs[0].settings[name] for name in SHARED}
    of_world = {run.columns["world"]: shared | {"world": run.settings["world"]} for run in runs}
    for file in sorted((out / "runs").glob("*/*.json")):
        before = read_manifest(file)["settings"]
        run = run_of.get(file)
        # a run that this profile does not have is still in the same table
        theirs = shared | {"world": before.get("world")}
        ours = run.settings if run else of_world.setdefault(file.parent.name, theirs)
        for name, value in ours.items():
            if before.get(name) != value:
                raise Refusal(
                    f"runs must have the same {name} settings, got others in {file}: choose "
                    "another folder"
                )


def make_report(profile: Profile, out: Path) -> str:
    """Write tables and figures from the records of the runs alone; return the tables."""
    if profile.backend == "loop":
        from gdro_lab.experiments.table import write_loop_report

        check_loops(profile.runs(), out)
        return write_loop_report(out)
    from gdro_lab.experiments.report import write_report

    return write_report(profile, out)


def printed(profile: Profile, out: Path) -> list[Path]:
    """The files of `make_report` that the console shows."""
    if profile.backend == "trl":
        return [out / "results/table.md", out / "results/seconds.md"]
    return [out / "table.md"]


@dataclass(frozen=True)
class Job:
    """A function to call in a process of its own."""

    title: str
    function: Callable[..., Any]
    """Of a module that does not import torch: a job of Unsloth imports that first."""
    arguments: tuple[Any, ...] = ()

    @property
    def stem(self) -> str:
        """What the names of its files in logs/ begin with."""
        return "-".join(slug_of(word) for word in self.title.split())


def run_jobs(
    jobs: Sequence[Job],
    logs: Path,
    workers: int,
    preload: Sequence[str] = (),
    methods_from: str | None = None,
) -> dict[str, str]:
    """Run jobs, so many at once; return a line for each that failed, by its title.

    Args:
        jobs: started in their order.
        logs: folder of their output.
        workers: jobs at once.
        preload: modules that the process imports which the jobs are forked from. With a GPU or with
            Unsloth none: a job starts CUDA itself, and Unsloth must come before TRL.
        methods_from: a file whose methods each process registers.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*preload])
    waiting = [*jobs]
    running: dict[Any, Job] = {}
    failed: dict[str, str] = {}
    every = 0.1 if sys.stderr.isatty() else 60
    bar = tqdm(total=len(jobs), mininterval=every, disable=not jobs, unit="job")
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.pop(0)
                bar.set_description_str(job.title)
                given = (job, logs / f"{job.stem}.log", methods_from)
                process = context.Process(target=_play, args=given)
                process.start()
                running[process] = job
            connection.wait([process.sentinel for process in running], 0.5)
            for process, job in [*running.items()]:
                if process.exitcode is None:
                    continue
                del running[process]
                bar.update()
                if process.exitcode:
                    failed[job.title] = _line_of(process.exitcode, logs / f"{job.stem}.log", job)
                    bar.set_postfix_str(f"{len(failed)} failed")
    finally:
        bar.close()
        for process in running:
            process.terminate()
        for process in running:
            process.join()
    return failed


def _line_of(exitcode: int, log: Path, job: Job) -> str:
    """Why a job failed: the last line of its log."""
    reason = "its process was killed"
    if exitcode > 0:
        reason = log.read_text(errors="replace").strip().rpartition("\n")[2]
    return f"{job.stem} failed: {reason} (log: {log})"


def _play(job: Job, log: Path, methods_from: str | None) -> None:
    """In the process of a job: write all that it prints to its log, behind what is there."""
    with log.open("ab") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    set_up_process()
    try:
        import_methods(methods_from)
        job.function(*job.arguments)
    except Refusal as error:
        sys.exit(str(error))  # one line in place of a traceback
