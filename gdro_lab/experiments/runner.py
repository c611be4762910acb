"""Runs a profile: makes bases, plays what is missing, writes tables and figures.

What is complete is not repeated. A run that fails stops no other run; a base that fails stops only
the runs that start from it. The two backends meet here. What they need is imported when it is
called, since the console's process does not import torch.
"""

import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gdro_lab import numerics
from gdro_lab.experiments.jobs import Job, only_process_in, own_processes, run_jobs
from gdro_lab.experiments.profile import Profile
from gdro_lab.experiments.run import Run, check_loops, list_runs
from gdro_lab.experiments.spelling import import_methods

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
    is_bare = profile.gpus or any(profile.model_of(v).is_unsloth for v in profile.variants)
    run = partial(
        run_jobs,
        logs=logs,
        workers=1 if profile.gpus else cores,
        preload=[] if is_bare else IMPORTED[profile.backend],
        methods_from=profile.methods_from,
    )
    if profile.backend == "loop":
        check_loops(profile, runs)
    try:
        with only_process_in(runs):
            logs.mkdir(exist_ok=True)
            print(f"profile {profile.name}: {profile.cost}; logs in {logs}/", flush=True)
            failed = _run_all(run, profile, runs, cache_dir)
    except KeyboardInterrupt:
        print("stopped; the same command resumes", file=sys.stderr)
        return 130
    for line in failed.values():
        print(line, file=sys.stderr)
    return 1 if failed else 0


def _run_all(
    run: Callable[[list[Job]], dict[str, str]], profile: Profile, out: Path, cache_dir: str
) -> dict[str, str]:
    """Make bases, play runs, and print the tables of them; what failed."""
    in_loop = profile.backend == "loop"
    # a run of "trl" has more than one file, and finds out itself what is done
    runs = [one for one in list_runs(profile) if not (in_loop and one.file(out).exists())]
    bases = _one_of_each_base(runs)
    failed = run([Job(one.base, make_run_base, (one, cache_dir)) for one in bases])
    runs = [one for one in runs if one.base not in failed]
    failed |= run([Job(one.title, play_run, (one, out, cache_dir)) for one in runs])
    # the loop's table is of pairs by replicate, so complete pairs can be shown
    if failed and not in_loop:
        return failed
    failed |= run([Job("report", make_report, (profile, out))])
    if "report" not in failed:
        for file in printed(profile, out):
            print(file.read_text(encoding="utf-8"))
        print(f"tables and figures: {out}/")
    return failed


def make_bases(profile: Profile, cache_dir: str | Path) -> None:
    """Make the bases of all runs of a profile, and print where they are.

    Refusal for groups that the data lack, which may need the base's tokenizer to read.
    """
    for run in _one_of_each_base(list_runs(profile)):
        make_run_base(run, cache_dir)
    for name, variant in profile.variants.items():
        if variant.groups is not None:
            from gdro_lab.experiments.parts import make_parts

            # held-out rows have these columns too, and to read them does not import Unsloth
            make_parts(profile, name, cache_dir, held_out=True)


def _one_of_each_base(runs: list[Run]) -> list[Run]:
    return list({run.base: run for run in runs}.values())


def make_run_base(run: Run, cache_dir: str | Path) -> None:
    """Make what a run starts from, if the cache lacks it; print where it is."""
    if run.world is not None:
        from gdro_lab.experiments.loop_runs import draw_base

        _, base = draw_base(run.world, run.seed, cache_dir, run.profile.size)
        print(base)
        return
    from gdro_lab.experiments.parts import make_base

    model = run.profile.model_of(run.method)
    drawn = run.profile.drawn(run.seed).model_copy(update={"model": model})
    print(make_base(drawn, cache_dir, progress=True))


def play_run(run: Run, out: Path, cache_dir: str) -> list[dict[str, Any]]:
    """Train a run, unless that is done, and evaluate it; write and return what it scored.

    Args:
        run: of either backend.
        out: folder of the profile's runs.
        cache_dir: where bases are kept.
    """
    if run.world is not None:
        from gdro_lab.experiments.loop_runs import play_in_loop

        return play_in_loop(run, run.world, out, cache_dir)
    where = (run.profile, run.method, run.seed, run.file(out).parent, cache_dir)
    if run.variant is not None:
        model = run.profile.model_of(run.method)
        uses_vllm = run.profile.train_of(run.method).use_vllm
        if run.profile.gpus or uses_vllm or model.is_unsloth:
            # memory of a GPU and of vLLM is free when a process ends; Unsloth changes transformers
            with own_processes(1) as pool:
                pool.submit(_train, *where).result()
        else:
            _train(*where)
    from gdro_lab.experiments.evaluation import evaluate_variant

    return evaluate_variant(*where)


def _train(profile: Profile, *where: Any) -> None:
    """Train in this process, which may be one of its own."""
    import_methods(profile.methods_from)
    from gdro_lab.experiments.training import train_variant

    train_variant(profile, *where)


def make_report(profile: Profile, out: Path) -> str:
    """Write tables and figures from the records of the runs alone; return the tables."""
    if profile.backend == "loop":
        from gdro_lab.experiments.table import write_loop_report

        check_loops(profile, out)
        return write_loop_report(out, profile.baseline)
    from gdro_lab.experiments.report import write_report

    return write_report(profile, out)


def printed(profile: Profile, out: Path) -> list[Path]:
    """The files of `make_report` that the console shows."""
    if profile.backend == "trl":
        return [out / "results/table.md", out / "results/seconds.md"]
    from gdro_lab.experiments.table import table_stem

    return [out / f"{table_stem(profile.baseline)}.md"]
