"""`gdro run`: the jobs of a profile with a quiet console, one line a job with progress and time left.

The Snakefile defines the jobs and snakemake runs them. Its own output goes to logs/snakemake.log in the
folder of the runs, the output of each job to a log beside that.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gdro.study.profiles import Profile, load_profile
from gdro.training.files import repository
from gdro.training.lifetime import end_with_parent, only_process_in

# "step 8/150, 40 s left" of a training, "8/150 [00:02<00:40" of tqdm
PROGRESS = re.compile(r"(\d+)/(\d+)(?:, (\d+ s) left| \[[\d:]+<([\d:]+))")
SECONDS_BETWEEN_LINES = 30.0  # where the console is a file


class Jobs(NamedTuple):
    """The jobs of a run by their logs, in the order in which they started, ended or failed."""

    total: int
    running: list[Path]
    ended: list[Path]
    failed: list[Path]


def read_jobs(events: Path) -> Jobs:
    """The jobs, from what the logger plugin (scripts/snakemake_logger_plugin_gdro) has written so far."""
    text = events.read_text(encoding="utf-8") if events.is_file() else ""
    total, logs, ended, failed = 0, dict[int, Path](), list[Path](), list[Path]()
    for event in map(json.loads, text.splitlines()[: text.count("\n")]):  # the last line may be half written
        total = event.get("total", total)
        if "started" in event:
            logs[event["started"]] = Path(*event["log"])
        elif "finished" in event:
            ended.append(logs[event["finished"]])
        elif "failed" in event and logs[event["failed"]] not in failed:
            failed.append(logs[event["failed"]])
    return Jobs(total, [log for log in logs.values() if log not in ended + failed], ended, failed)


def progress_of(log: Path) -> str:
    """Progress and time left of a job, as the end of its log has them."""
    text = log.read_bytes()[-4000:].decode(errors="replace") if log.is_file() else ""
    found = PROGRESS.findall(text)
    if not found:
        return "starting"
    done, total, seconds, clock = found[-1]
    return f"{done}/{total}, {seconds or clock} left" if done != total else "finishing"


def show_progress(events: Path, process: subprocess.Popen) -> None:
    """Print a line when a job ends, and the running jobs: in place on a terminal, else now and then."""
    in_place, began = sys.stdout.isatty(), dict[Path, float]()
    shown, drawn, last_time = 0, 0, time.monotonic()
    while True:
        is_over, now, jobs = process.poll() is not None, time.monotonic(), read_jobs(events)
        began = dict.fromkeys(jobs.running, now) | began
        lines = [
            f"{job.stem:28} done in {now - began.get(job, now):.0f} s ({place} of {jobs.total} jobs)"
            for place, job in enumerate(jobs.ended, start=1)
        ][shown:]
        live = [] if is_over else [f"{job.stem:28} {progress_of(job)}" for job in sorted(jobs.running)]
        if not in_place and now - last_time < SECONDS_BETWEEN_LINES:
            live = []
        elif not in_place:
            last_time = now
        # on a terminal, go up over the lines of the running jobs and erase them, then draw them again
        erase = f"\x1b[{drawn}A\x1b[J" if drawn else ""
        print(erase + "".join(f"{line}\n" for line in lines + live), end="", flush=True)
        shown, drawn = len(jobs.ended), len(live) if in_place else 0
        if is_over:
            return
        time.sleep(0.5)


def run_profile(name: str, cores: int, runs: str | None = None, further: Sequence[str] = ()) -> int:
    """Run the jobs of a profile that are not done yet; print the table and where the figures are.

    Args:
        name: of the profile, or the path of its file.
        cores: jobs at once.
        runs: the folder of the runs; runs/<profile> by default.
        further: options of snakemake.

    Returns:
        The exit code: 0, snakemake's own where a job failed, 130 where it was interrupted.

    Raises:
        ValueError: for a wrong profile, and where another process runs the same jobs.
    """
    profile = load_profile(name)
    runs = runs or f"runs/{profile.name}"
    with only_process_in(Path(runs) / "logs"):  # the lock ends with this process, unlike snakemake's own
        return _run_jobs(profile, name, cores, runs, further)


def _run_jobs(profile: Profile, name: str, cores: int, runs: str, further: Sequence[str]) -> int:
    logs = Path(runs) / "logs"
    events, log = logs / "events.jsonl", logs / "snakemake.log"
    events.unlink(missing_ok=True)
    # without snakemake's own lock, which a killed run would leave behind
    command = [sys.executable, "-m", "snakemake", "--cores", str(cores), "--rerun-incomplete", "--nolock"]
    command += ["--logger", "gdro", "--logger-gdro-events", str(events)]
    command += ["--resources", f"gpu={profile.gpus}", *further]
    command += ["--config", f"profile={name}", f"runs={runs}"]
    plugins = os.pathsep.join([str(repository() / "scripts"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"TQDM_MININTERVAL": "5"} | os.environ | {"PYTHONPATH": plugins}
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as on Ctrl-C, so that the jobs end too
    with log.open("w") as stream:
        process = subprocess.Popen(
            command,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            # if this process is killed, snakemake ends too, and its jobs with it
            preexec_fn=lambda: end_with_parent(signal.SIGKILL),
        )
    print(f"profile {name}: {profile.cost}; logs in {logs}/", flush=True)
    try:
        show_progress(events, process)
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGTERM)  # the jobs too; a background process may ignore SIGINT
        process.wait()
        print("stopped; the same command resumes", file=sys.stderr)
        return 130
    if process.returncode < 0:
        signum = -process.returncode
        print(f"snakemake was killed by signal {signum}; run the same command again", file=sys.stderr)
        return 128 + signum
    if process.returncode:
        for job in read_jobs(events).failed or [log]:
            lines = [line for line in job.read_text(errors="replace").splitlines() if line.strip()]
            print(f"\n{job.stem} failed. The end of {job}:", *lines[-8:], sep="\n  ", file=sys.stderr)
        print("Complete jobs are kept. Fix the cause and run the same command again.", file=sys.stderr)
        return process.returncode
    if (table := Path(runs) / "results" / "table.md").is_file():
        print(table.read_text(encoding="utf-8"))
        print(f"table: {table}, figures: {runs}/figures/, records: {runs}/")
    return 0
