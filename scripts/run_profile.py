"""`make run`: the jobs of a profile with a quiet console, one line a job with progress and time left.

    python scripts/run_profile.py PROFILE [--cores 2] [--runs FOLDER] [further options of snakemake]

snakemake's own words go to runs/PROFILE/logs/snakemake.log, and each job's to a log beside it.
"""

import argparse
import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from gdro.study.profiles import load_profile
from gdro.training.lifetime import end_with_parent

EVENT = re.compile(
    r"^    log: (\S+)|^    jobid: (\d+)|^Finished jobid: (\d+)|^(Error in rule) |^total +(\d+)", re.MULTILINE
)
# "step 8/150, 40 s left" of a training, "8/150 [00:02<00:40" of tqdm
PROGRESS = re.compile(r"(\d+)/(\d+)(?:, (\d+ s) left| \[[\d:]+<([\d:]+))")
SECONDS_BETWEEN_LINES = 30.0  # where the console is a file


def jobs_of(text: str) -> tuple[int, list[Path], list[Path], list[Path]]:
    """From snakemake's log, the number of all jobs, and the logs of those that run, ended and failed."""
    total, seen, is_failing = 0, Path(), False
    logs, ended, failed = {}, [], []
    for log, started, finished, error, number in EVENT.findall(text):
        if log:
            seen = Path(log)
            failed += [seen] if is_failing and seen not in failed else []
            is_failing = False
        elif started and not is_failing:
            logs[started] = seen
        elif finished:
            ended.append(logs[finished])
        elif error:
            is_failing = True
        elif number:
            total = int(number)
    return total, [log for log in logs.values() if log not in ended + failed], ended, failed


def progress_of(log: Path) -> str:
    """What a job's log last says of its progress and the time left."""
    text = log.read_bytes()[-4000:].decode(errors="replace") if log.is_file() else ""
    found = PROGRESS.findall(text)
    if not found:
        return "starting"
    done, total, seconds, clock = found[-1]
    return f"{done}/{total}, {seconds or clock} left" if done != total else "finishing"


def show(log: Path, process: subprocess.Popen) -> list[Path]:
    """Print a line as each job ends, and what runs: in place on a terminal, now and then into a file."""
    in_place, began = sys.stdout.isatty(), {}
    shown, drawn, spoke = 0, 0, time.monotonic()
    while True:
        is_over, now = process.poll() is not None, time.monotonic()
        total, running, ended, failed = jobs_of(log.read_text(encoding="utf-8", errors="replace"))
        began = dict.fromkeys(running, now) | began
        lines = [
            f"{job.stem:28} done in {now - began.get(job, now):.0f} s ({place} of {total} jobs)"
            for place, job in enumerate(ended, start=1)
        ][shown:]
        live = [] if is_over else [f"{job.stem:28} {progress_of(job)}" for job in sorted(running)]
        if not in_place and now - spoke < SECONDS_BETWEEN_LINES:
            live = []
        elif not in_place:
            spoke = now
        erase = f"\x1b[{drawn}A\x1b[J" if drawn else ""
        print(erase + "".join(f"{line}\n" for line in lines + live), end="", flush=True)
        shown, drawn = len(ended), len(live) if in_place else 0
        if is_over:
            return failed
        time.sleep(0.5)


def main() -> int:
    """Run the jobs; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("profile")
    parser.add_argument("--cores", default="2")
    parser.add_argument("--runs")
    given, further = parser.parse_known_args()
    try:
        profile = load_profile(given.profile)
    except ValueError as error:
        print(f"run_profile: {error}", file=sys.stderr)
        return 2
    runs = given.runs or f"runs/{profile.name}"
    log = Path(runs) / "logs" / "snakemake.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    lock = (log.parent / ".lock").open("w")  # ends with this process, unlike snakemake's own
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"run_profile: another run writes to {runs}; wait for it, or end it", file=sys.stderr)
        return 2
    command = [sys.executable, "-m", "snakemake", "--cores", given.cores, "--rerun-incomplete", "--nolock"]
    command += ["--resources", f"gpu={profile.gpus}", *further]
    command += ["--config", f"profile={given.profile}", f"runs={runs}"]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # should this process be killed, snakemake ends, and its jobs with it
    options = {
        "stderr": subprocess.STDOUT,
        "start_new_session": True,
        "preexec_fn": lambda: end_with_parent(signal.SIGKILL),
    }
    with log.open("w") as stream:
        environment = {"TQDM_MININTERVAL": "5"} | os.environ
        process = subprocess.Popen(command, stdout=stream, env=environment, **options)
    print(f"profile {given.profile}: logs in {log.parent}/", flush=True)
    try:
        failed = show(log, process)
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGTERM)  # the jobs too; a background process may ignore SIGINT
        process.wait()
        print("stopped; the same command resumes", file=sys.stderr)
        return 130
    if process.returncode:
        for job in failed or [log]:
            lines = [line for line in job.read_text(errors="replace").splitlines() if line.strip()]
            print(f"\n{job.stem} failed. The end of {job}:", *lines[-8:], sep="\n  ", file=sys.stderr)
        print("Complete jobs are kept. Fix the cause and run the same command again.", file=sys.stderr)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
