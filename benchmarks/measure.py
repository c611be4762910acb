"""Measure a profile's variants on this machine: tokens a second, peak memory, seconds by stage.

    python benchmarks/measure.py gpu-smoke --out data/measured/gpu-smoke.json --minutes 30

Each variant runs once through the workflow, as `make run` would run it, in a folder that is deleted; one
that fails or exceeds the time left is reported and costs the others nothing. The figures are the runs' own
records. The JSON file, with device and versions, is written anew after each variant.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from gdro.study.profiles import BASE, load_profile, run_folder
from gdro.training.records import read_manifest, read_table, write_manifest

COPIED = ("device", "processes", "threads", "steps", "rollouts", "tokens", "peak_memory_gib", "seconds")
STAGES = ("generate", "score", "reward", "controller")  # of `train`; the rest is loss and optimizer

SECONDS_TO_END = 30.0


def run_within(command: list[str], seconds: float, log: Path) -> str:
    """Run a command with all it starts; return why it failed, or an empty text."""
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, start_new_session=True)
        try:
            code = process.wait(timeout=max(seconds, 0))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            for ending in (signal.SIGTERM, signal.SIGKILL):  # if out of time, or interrupted
                if process.poll() is None:
                    os.killpg(process.pid, ending)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(timeout=SECONDS_TO_END)
    if code is None:
        return "out of time"
    last = log.read_text(errors="replace").splitlines()[-30:]
    return "\n".join([f"exit code {code}", *last]) if code else ""


def row_of(folder: Path) -> dict[str, Any]:
    """What a finished run's manifest and tables say about its cost."""
    manifest = read_manifest(folder / "manifest.json")
    row = {key: manifest[key] for key in COPIED if manifest.get(key)}
    evaluation = read_table(folder / "evaluation.jsonl")
    row["evaluated_tokens"] = sum(prompt["tokens"] for prompt in evaluation)
    row["mean_at_n"] = sum(p["successes"] for p in evaluation) / sum(p["trials"] for p in evaluation)
    if manifest.get("steps"):
        seconds = manifest["seconds"]
        row["tokens_per_second"] = manifest["tokens"] / seconds["train"]
        stages = {stage: seconds[stage] / manifest["steps"] for stage in STAGES}
        whole = seconds["train"] / manifest["steps"]
        row["seconds_a_step"] = {"all": whole, **stages, "rest": whole - sum(stages.values())}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("profile", nargs="?", default="smoke")
    parser.add_argument("--out", type=Path, help="JSON file; by default under runs/measured")
    parser.add_argument("--variants", help="names, separated by commas; all by default")
    parser.add_argument("--minutes", type=float, default=60.0, help="for all variants together")
    options = parser.parse_args()
    profile = load_profile(options.profile)
    names = options.variants.split(",") if options.variants else [BASE, *profile.variants]
    for name in names:
        profile.settings_of(name)  # refuses an unknown name before anything runs
    out = options.out or Path("runs") / "measured" / f"{profile.name}.json"
    ends, seed = time.monotonic() + 60 * options.minutes, profile.seeds[0]
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as work:
        for name in names:
            folder = run_folder(Path(work) / "runs", name, seed)
            command = [
                sys.executable,
                "-m",
                "snakemake",
                "--cores",
                "1",
                "--resources",
                f"gpu={profile.gpus}",
            ]
            command += ["--nolock", "--rerun-incomplete", "--config", f"profile={options.profile}"]
            command += [f"runs={work}/runs", "--", str(folder / "manifest.json")]
            error = run_within(command, ends - time.monotonic(), Path(work) / "log")
            rows[name] = {"error": error} if error else row_of(folder)
            write_manifest(out, {"profile": profile.name, "seed": seed, "variants": rows})
            rate = rows[name].get("tokens_per_second")
            print(f"{name}: {error or (f'{rate:,.0f} tokens/s' if rate else 'evaluated')}", flush=True)
    print(f"written to {out}")
    if failed := [name for name, row in rows.items() if "error" in row]:
        sys.exit(f"not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()
