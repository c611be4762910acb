"""Runs a profile: makes bases, runs what is missing, writes tables and figures.

Each job is a process of its own, forked from one that has imported torch and TRL already, with its
output in a log; the console has a line a job, with its progress and time left. What is complete is
not repeated, and a job that fails stops no other. Both backends list their jobs here.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from pkgutil import resolve_name
from queue import SimpleQueue
from typing import Any

from tqdm import tqdm

from gdro.checks import Refusal
from gdro_lab import numerics
from gdro_lab.experiments.blocks import BASE
from gdro_lab.experiments.loop_profile import LoopProfile
from gdro_lab.experiments.processes import (
    PROGRESS,
    end_with_parent,
    only_process_in,
    read_progress,
    set_up_process,
)
from gdro_lab.experiments.profile import Profile, run_folder
from gdro_lab.experiments.spelling import slug_of
from gdro_lab.failures import at_the_door, in_one_line

# imported once, by the process that the jobs are forked from; Unsloth would have to come first
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
BAR = "{desc:28} {percentage:3.0f}%, {elapsed} elapsed, {remaining} left{postfix}"
MANY = 30
"""With more jobs than this the line of a job goes when it is done."""


@dataclass(frozen=True)
class Job:
    """A function to call in a process of its own, as `function(profile, *arguments)`."""

    title: str
    target: str
    """Where the function is, as in "package.module:function": a name, since the console's process
    must not import torch, and a job of Unsloth imports that first."""
    arguments: tuple[Any, ...] = ()

    @property
    def stem(self) -> str:
        """What the names of its files in logs/ begin with."""
        return "-".join(slug_of(word) for word in self.title.split())


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
    chains = []
    for variant, seed in [*product(profile.variants, profile.seeds), (BASE, profile.seeds[0])]:
        run = (variant, seed, run_folder(runs, variant, seed), cache_dir)
        train = Job(f"train {variant} {seed}", f"{training}:train_variant", run)
        evaluate = Job(
            f"evaluate {variant} {seed}", "gdro_lab.experiments.evaluation:evaluate_variant", run
        )
        chains.append([evaluate] if variant == BASE else [train, evaluate])
    return Jobs(
        check=Job("check", f"{training}:check_trainings"),
        bases=[Job("base", f"{training}:make_bases", (cache_dir,))],
        chains=chains,
        report=Job("report", "gdro_lab.experiments.report:write_report", (runs,)),
        printed=[runs / "results/table.md", runs / "results/seconds.md"],
    )


def _loop_jobs(profile: LoopProfile, runs: Path, cache_dir: str) -> Jobs:
    from gdro_lab.experiments.loop_runs import missing_runs
    from gdro_lab.experiments.table import table_stem

    loops = "gdro_lab.experiments.loop_runs"
    missing = missing_runs(profile, runs)
    draws = {(run.world.name, run.seed): run for run in missing}
    return Jobs(
        check=Job("check", f"{loops}:check_loops", (runs,)),
        bases=[
            Job(f"base {world} {seed}", f"{loops}:make_run_base", (run, cache_dir))
            for (world, seed), run in draws.items()
        ],
        chains=[[Job(run.title, f"{loops}:play_run", (run, runs, cache_dir))] for run in missing],
        report=Job("report", f"{loops}:write_loop_report", (runs,)),
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
    workers = 1 if profile.gpus else cores
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as on Ctrl-C
    runner = Runner(profile, runs, workers)
    try:
        jobs = jobs_of(profile, runs, cache_dir)
        runner.check(jobs.check)
        with only_process_in(runs):
            (runs / "logs").mkdir(exist_ok=True)
            runner.run(jobs)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would be a traceback
        runner.stop()
        print("stopped; the same command resumes", file=sys.stderr)
        return 130
    for log in runner.failed:
        text = log.read_text(errors="replace") if log.is_file() else "It left no log."
        lines = [line for line in text.splitlines() if line.strip()]
        print(f"\n{log.stem} failed. The end of {log}:", *lines[-8:], sep="\n  ", file=sys.stderr)
    return 1 if runner.failed else 0


class Runner:
    """Starts jobs and shows how far they are.

    Args:
        profile: handed to each job.
        runs: folder of the runs; output of the jobs goes to its logs/.
        workers: jobs at once.
    """

    def __init__(self, profile: Profile | LoopProfile, runs: Path, workers: int) -> None:
        self.profile = profile
        self.logs = runs / "logs"
        self.context = multiprocessing.get_context("forkserver")
        # a job starts CUDA itself, and Unsloth must come before TRL: then nothing is imported ahead
        is_bare = profile.gpus or profile.uses_unsloth
        self.context.set_forkserver_preload([] if is_bare else IMPORTED[profile.backend])
        self.pool = ThreadPoolExecutor(workers)
        self.lines = SimpleQueue[int]()
        """Lines of the console that no job has."""
        for line in range(workers):
            self.lines.put(line)
        self.failed: list[Path] = []
        """Logs of the jobs that failed."""
        self.asking = threading.RLock()
        """Held where a process is started or asked for its end. Both read the exit codes of all
        processes, each of which can be read once: of two threads at once, one would get 255."""
        self.is_stopped = False
        self.keeps_lines = True
        self.overall: tqdm | None = None
        """The bar of all jobs; None while bases are made."""

    def check(self, job: Job) -> None:
        """Run a job that refuses (Refusal) or does nothing, without a log."""
        receiver, sender = self.context.Pipe(duplex=False)
        process = self.context.Process(target=_run_check, args=(sender, job, self.profile))
        process.start()
        sender.close()  # ours: while it is open, recv would wait for ever for a killed process
        try:
            refusal = receiver.recv()
        except EOFError:  # the process was killed, or failed
            process.join()
            code = process.exitcode
            raise RuntimeError(
                f"the check of {self.profile.name} ended with exit code {code}"
            ) from None
        process.join()
        if refusal:
            raise Refusal(refusal)

    def run(self, jobs: Jobs) -> None:
        """Run all jobs, and print what the last one has written."""
        count = sum(len(chain) for chain in jobs.chains)
        self.keeps_lines = count <= MANY
        cost = self.profile.cost
        print(f"profile {self.profile.name}: {cost}; logs in {self.logs}/", flush=True)
        if not self._map(self._run_job, jobs.bases):
            return
        with tqdm(desc="jobs", total=count, disable=self.keeps_lines, smoothing=0) as self.overall:
            self._map(self._run_chain, jobs.chains)
        if self.failed and not jobs.reports_parts:
            return
        if self._run_job(jobs.report):
            for file in jobs.printed:
                print(file.read_text(encoding="utf-8"))
            print(f"tables and figures: {self.logs.parent}/")

    def stop(self) -> None:
        """End all jobs that run, and start no other."""
        self.is_stopped = True
        self.pool.shutdown(wait=False, cancel_futures=True)
        with self.asking:
            for process in multiprocessing.active_children():
                process.terminate()

    def _map(self, function: Callable[[Any], bool], parts: Sequence[Any]) -> bool:
        """Call a function on all parts, one a worker at once; whether all succeeded."""
        return all(list(self.pool.map(function, parts)))

    def _run_chain(self, chain: Sequence[Job]) -> bool:
        """Run jobs one after the other, up to the first that fails."""
        return all(self._run_job(job) for job in chain)

    def _run_job(self, job: Job) -> bool:
        """Run a job in a process of its own, with a line of progress; False if it failed."""
        if self.is_stopped:
            return False
        line = self.lines.get()
        log = self.logs / f"{job.stem}.log"
        progress = self.logs / f".{job.stem}.progress"
        process = self.context.Process(
            target=_run_logging, args=(log, progress, job, self.profile), name=job.title
        )
        with self.asking:
            process.start()
        if self.is_stopped:  # meanwhile: `stop` has not seen this process
            process.terminate()
        with tqdm(
            desc=job.title,
            total=1,
            position=line + (0 if self.keeps_lines else 1),
            leave=self.keeps_lines,
            mininterval=0.1 if sys.stderr.isatty() else 60,
            bar_format=BAR,
        ) as bar:
            while self._is_alive(process):
                wait([process.sentinel], 0.5)
                _show(bar, progress)
            if process.exitcode:
                self.failed.append(log)
                bar.set_postfix_str("failed")
            else:
                bar.n = bar.total
        progress.unlink(missing_ok=True)
        self.lines.put(line)
        if self.overall is not None:
            self.overall.update()
        return process.exitcode == 0

    def _is_alive(self, process: BaseProcess) -> bool:
        with self.asking:
            return process.is_alive()


def _show(bar: tqdm, progress: Path) -> None:
    """Move a job's bar to where the job is."""
    place = read_progress(progress)
    if place is not None:
        done, total = place
        if bar.total != total:  # the first report of a job that resumes may be far on
            bar.total = total
            bar.initial = done
            bar.n = done
            bar.last_print_n = done
            bar.start_t = bar.last_print_t = time.time()
        bar.update(done - bar.n)


def _run_check(refusals: Connection, job: Job, profile: Profile | LoopProfile) -> None:
    """In the process of a check: send what is refused, if anything, and print nothing."""
    end_with_parent()
    with open(os.devnull, "wb") as nowhere:
        for descriptor in (1, 2):
            os.dup2(nowhere.fileno(), descriptor)
    try:
        with at_the_door():
            profile.import_methods()
            resolve_name(job.target)(profile, *job.arguments)
    except Exception as error:
        refusals.send(in_one_line(error))
    else:
        refusals.send("")


def _run_logging(log: Path, progress: Path, job: Job, profile: Profile | LoopProfile) -> None:
    """In the process of a job: write all that it prints to its log, behind what is there."""
    try:
        with log.open("ab") as stream:
            for descriptor in (1, 2):
                os.dup2(stream.fileno(), descriptor)
        os.environ[PROGRESS] = str(progress.absolute())
        end_with_parent()
        set_up_process()
        profile.import_methods()
        resolve_name(job.target)(profile, *job.arguments)
    except Exception as error:
        if not isinstance(error, Refusal):
            traceback.print_exc()
        folders = [log, *(folder for folder in job.arguments if isinstance(folder, str | Path))]
        print(in_one_line(error, folders), file=sys.stderr)  # last, where the console shows it
        sys.exit(1)
