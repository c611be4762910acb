"""`gdro run`: make the base, train and evaluate all variants and seeds, write table and figures.

Each job is a process of its own, forked from one that has imported torch and TRL already, with its
output in a log; the console has a line a job, with its progress and time left. What is complete is
not repeated, and a job that fails stops no other. On a cluster, the Snakefile runs the same jobs.
"""

import multiprocessing
import os
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from pkgutil import resolve_name
from queue import SimpleQueue
from typing import Any

from tqdm import tqdm

from gdro_lab import numerics
from gdro_lab.experiments.profile import BASE, load_profile, run_folder

# imported once, by the process that the jobs are forked from; Unsloth would have to come first
JOBS, REPORT = "gdro_lab.experiments.training", "gdro_lab.experiments.report"
IMPORTED = [JOBS, "gdro_lab.experiments.evaluation", "gdro.trainer", REPORT]
# "step 8/150, 40 s left" of a training, "8/150 [00:02<00:40" of tqdm
PROGRESS = re.compile(r"(\d+)/(\d+)(?:, \d+ s left| \[)")


def run_profile(name: str, cores: int, runs_dir: str | None, cache_dir: str) -> int:
    """Run the jobs of a profile that are not done yet; print the table and where the figures are.

    Jobs of a profile with GPUs run one by one. Returns 0, 1 where a job failed, 130 on Ctrl-C.
    """
    profile = load_profile(name)
    if profile.is_pretrained:
        numerics.leave_torch_free()
    runs, workers = Path(runs_dir or f"runs/{profile.name}"), 1 if profile.gpus else cores
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([] if profile.gpus else IMPORTED)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as on Ctrl-C
    (runs / "logs").mkdir(parents=True, exist_ok=True)
    lines, failed = SimpleQueue[int](), list[Path]()
    for line in range(workers):
        lines.put(line)

    def job(title: str, target: str, *given: Any) -> bool:
        """Run a job in a process of its own, with a line of progress; False if it failed."""
        log, line = runs / "logs" / f"{title.replace(' ', '-')}.log", lines.get()
        log.unlink(missing_ok=True)
        process = context.Process(target=_logged, args=(log, target, name, *given))
        process.start()
        with tqdm(
            desc=title,
            total=1,
            position=line,
            mininterval=0.1 if sys.stderr.isatty() else 60,
            bar_format="{desc:28} {percentage:3.0f}%, {elapsed} gone, {remaining} left{postfix}",
        ) as bar:
            while process.is_alive():
                process.join(0.5)
                text = log.read_bytes()[-300:].decode(errors="replace") if log.is_file() else ""
                if found := PROGRESS.findall(text):
                    done, bar.total = map(int, found[-1])
                    bar.update(done - bar.n)
            if process.exitcode:
                failed.append(log)
                bar.set_postfix_str("failed")
            else:
                bar.n = bar.total
        lines.put(line)
        return process.exitcode == 0

    def run(variant: str, seed: int) -> None:
        given = variant, seed, run_folder(runs, variant, seed), cache_dir
        if variant == BASE or job(f"train {variant} {seed}", f"{JOBS}:train_variant", *given):
            job(f"evaluate {variant} {seed}", f"{JOBS}:evaluate_variant", *given)

    if profile.gpus:
        from gdro_lab.experiments.training import check_machine

        check_machine(profile, list(profile.variants), evaluates=True)
    print(f"profile {profile.name}: {profile.cost}; logs in {runs / 'logs'}/", flush=True)
    pool = ThreadPoolExecutor(workers)
    try:
        if job("base", f"{JOBS}:prepare", cache_dir):
            pairs = [*product(profile.variants, profile.seeds), (BASE, profile.seeds[0])]
            list(pool.map(lambda pair: run(*pair), pairs))
        if not failed and job("report", f"{REPORT}:write_report", runs):
            table = runs / "results" / "table.md"
            for file in (table, runs / "results" / "seconds.md"):
                print(file.read_text(encoding="utf-8"))
            print(f"table: {table}, figures: {runs / 'figures'}/")
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()
        print("stopped; the same command resumes", file=sys.stderr)
        return 130
    for log in failed:
        last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-8:]
        print(f"\n{log.stem} failed. The end of {log}:", *last, sep="\n  ", file=sys.stderr)
    return int(bool(failed))


def _logged(log: Path, target: str, name: str, *given: Any) -> None:
    """In the job's process: write all that it prints to its log."""
    with log.open("wb") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    from gdro_lab.experiments.training import start_job

    start_job()
    resolve_name(target)(load_profile(name), *given)  # its own methods are registered here, too
