"""The command `gdro`: what people run, each subcommand with an example in its --help.

A subcommand imports what it needs when it is called, so that `gdro --help` is quick and Unsloth comes before
TRL. It exits with 2 if it refuses its arguments, before any compute, and with 1 if the work itself failed.
"""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from gdro.arena.command import arena_command


class _Refusing(click.Group):
    """Prints a subcommand's ValueError, OSError or RuntimeError as a message instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort):  # click's own, which are RuntimeErrors too
            raise
        except (ValueError, OSError) as error:
            click.echo(f"gdro {ctx.invoked_subcommand}: {error}", err=True)
            sys.exit(2)
        except RuntimeError as error:
            if type(error).__module__.startswith("torch"):  # out of memory, for one: the traceback says where
                raise
            click.echo(f"gdro {ctx.invoked_subcommand}: {error}", err=True)
            sys.exit(1)


@click.group(cls=_Refusing, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gdro")
def main() -> None:
    """Group distributionally robust GRPO: train, evaluate, compare."""


PROFILE = click.argument("profile")
CACHE_DIR = click.option(
    "--cache-dir", default=".cache/bases", show_default=True, help="Where tiny bases are kept."
)


def _options_of_a_run(command: Callable) -> Callable:
    where = "Folder of the run.  [default: runs/PROFILE/VARIANT/seedSEED]"
    command = click.option("--folder", type=click.Path(path_type=Path), help=where)(CACHE_DIR(command))
    command = click.option("--seed", default=0, show_default=True, type=click.IntRange(0))(command)
    return PROFILE(click.argument("variant")(command))


@main.command("run", context_settings={"ignore_unknown_options": True})
@PROFILE
@click.option("--cores", default=2, show_default=True, type=click.IntRange(1), help="Jobs at once.")
@click.option("--runs", help="Folder of the runs.  [default: runs/PROFILE]")
@click.argument("snakemake_options", nargs=-1, type=click.UNPROCESSED)
def run_command(profile: str, cores: int, runs: str | None, snakemake_options: tuple[str, ...]) -> None:
    """Train, evaluate and compare all variants of PROFILE; print the table, draw the figures.

    Complete jobs are kept and stopped ones are resumed. Further options are passed to snakemake.

    Example: gdro run tiny --cores 2
    """
    from gdro.study.console import run_profile

    sys.exit(run_profile(profile, cores, runs, snakemake_options))


@main.command("base")
@PROFILE
@CACHE_DIR
def base_command(profile: str, cache_dir: str) -> None:
    """Check PROFILE, make the base model if it is a tiny one, and print its path or hub id.

    Example: gdro base tiny
    """
    experiment = _start_job()
    from gdro.study.profile_checks import check_installed
    from gdro.study.profiles import load_profile

    chosen = load_profile(profile)
    check_installed(chosen)
    for variant in chosen.variants:
        experiment.training_arguments(chosen, variant, 0, "unused", (1, 1))
    click.echo(experiment.make_base(chosen, cache_dir, progress=True))


def _start_job() -> ModuleType:
    from gdro.training.lifetime import end_with_parent

    end_with_parent()  # first, since the imports below take seconds in which the parent may die
    from gdro.study import experiment

    experiment.start_job()
    return experiment


def _run_of(profile: str, variant: str, seed: int, folder: Path | None, cache_dir: str) -> tuple:
    from gdro.study.profiles import load_profile, run_folder

    chosen = load_profile(profile)
    folder = folder or run_folder(f"runs/{chosen.name}", variant, seed)
    return chosen, variant, seed, folder, Path(cache_dir)


@main.command("train")
@_options_of_a_run
@click.option("--launched", is_flag=True, hidden=True)  # in one of the processes that a launcher started
def train_command(launched: bool, **given: Any) -> None:
    """Train one VARIANT of PROFILE with one seed, or resume it. Notebook 05 does the same and draws it.

    Example: gdro train tiny pivotal --seed 1
    """
    experiment = _start_job()
    run = _run_of(**given)
    if launched:
        experiment.Training(*run).run()
    else:
        record = experiment.train_variant(*run)
        click.echo(f"{len(record)} batches; model and record: {run[3]}/")


@main.command("evaluate")
@_options_of_a_run
def evaluate_command(**given: Any) -> None:
    """Evaluate what `gdro train` left, or the variant "base", the model before training.

    Example: gdro evaluate tiny pivotal --seed 1
    """
    experiment = _start_job()
    run = _run_of(**given)
    rows = experiment.evaluate_variant(*run)
    accuracy = sum(row["successes"] / row["trials"] for row in rows) / len(rows)
    click.echo(f"accuracy {accuracy:.3f} over {len(rows)} prompts: {run[3] / 'evaluation.jsonl'}")


@main.command("notebook")
@click.argument("notebook")
@click.argument("output")
@click.option("-p", "--parameter", "parameters", nargs=2, multiple=True, metavar="NAME VALUE")
@click.option("--manifest", help="The JSON file that the notebook's last cell writes.")
@click.option("--log-output", is_flag=True, help="Print what the cells print.")
def notebook_command(
    notebook: str, output: str, parameters: tuple[tuple[str, str], ...], **options: Any
) -> None:
    """Run NOTEBOOK with papermill and write it to OUTPUT, or fail and say why.

    Unlike plain papermill it refuses misspelt parameters, and fails where a cell calls exit() or the kernel
    dies. A parameter's VALUE is a Python literal or, for a parameter that is text, the text.

    Example: gdro notebook notebooks/05_grpo_training.ipynb out.ipynb -p profile tiny -p method pivotal
    """
    from gdro.training.lifetime import end_with_parent

    end_with_parent()
    import logging

    from gdro.study.notebooks import run_notebook

    logging.getLogger("papermill").setLevel(logging.ERROR)  # it warns of what is refused here or is fine
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that kernel and manifest are cleaned up
        signal.signal(number, lambda signum, frame: sys.exit(128 + signum))
    run_notebook(notebook, output, dict(parameters), **options)


@main.command("report")
@PROFILE
@click.option("--runs", help="Folder of the runs.  [default: runs/PROFILE]")
def report_command(profile: str, runs: str | None) -> None:
    """Make the table and the figures of PROFILE again, from the records of its runs alone.

    Example: gdro report tiny
    """
    from gdro.results.report import write_report
    from gdro.study.profiles import load_profile

    chosen = load_profile(profile)
    click.echo(write_report(chosen, runs or f"runs/{chosen.name}"))


@main.command("diagnose")
@click.argument("record", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--rollouts", default=4, show_default=True, type=click.IntRange(2), help="Rollouts of a group.")
def diagnose_command(record: Path, rollouts: int) -> None:
    """Estimate from the RECORD of a GRPO run whether choosing prompts can help.

    Example: gdro diagnose runs/tiny/grpo/seed0/record.jsonl
    """
    from gdro.results.diagnose import diagnosis
    from gdro.training.records import read_table

    click.echo(diagnosis(read_table(record), rollouts))


@main.command("check")
@click.argument("profile", required=False)
@click.option("--out", type=click.Path(path_type=Path), help="Write the results to this JSON file.")
@CACHE_DIR
def check_command(profile: str | None, out: Path | None, cache_dir: str) -> None:
    """Check a GPU box: engine, weights, gradients, resuming, and what PROFILE takes there.

    Exits with 1 if a check fails. A check that cannot run here, as without a GPU, is a SKIP with the reason.

    Example: gdro check gpu-1.7b-day --out check.json
    """
    from gdro.gpu.check import run_checks

    sys.exit(any(result.status == "FAIL" for result in run_checks(profile, out, cache_dir=cache_dir)))


main.add_command(arena_command)
