"""The command `gdro arena`. It imports the arena when it is called, so that `gdro --help` is quick."""

from pathlib import Path
from typing import Any

import click


@click.command("arena")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder of the scores.")
@click.option("--methods", help="Separated by commas. Without any, the tables are made again.")
@click.option("--world", default="rare-hard", show_default=True, help="Names or YAML files.")
@click.option("--draws", default=8, show_default=True, type=click.IntRange(1))
@click.option(
    "--first-draw", default=0, type=click.IntRange(0), help="Its number: take fresh ones to compare."
)
@click.option("--learning-rates", default="1e-4,2e-4", show_default=True)
@click.option("--baseline", default="grpo", show_default=True, help="What the table's differences are to.")
@click.option("--methods-from", help="A Python file that registers methods of your own.")
@click.option("--steps", default=150, show_default=True)
@click.option("--prompts", default=32, show_default=True, help="Prompts of a step.")
@click.option("--rollouts", default=4, show_default=True, help="Mean rollouts per prompt.")
@click.option("--size", help="Size of all bases, in place of the worlds' own.")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(1), help="Runs at once.")
@click.option("--bases", default=".cache/bases", show_default=True, help="Where bases are kept.")
def arena_command(
    out: Path,
    methods: str | None,
    world: str,
    draws: int,
    first_draw: int,
    learning_rates: str,
    baseline: str,
    **given: Any,
) -> None:
    """Compare methods over fresh draws of task, base and seed, at matched rollouts.

    A method is spelled NAME or NAME:OPTION=VALUE; `pivotal@2e-4` has a learning rate of its own. Finished
    runs are kept, so the same command resumes.

    Example: gdro arena --world rare-hard --methods grpo,pivotal --draws 8 --out runs/arena
    """
    from gdro.arena.play import Settings, play_arena
    from gdro.arena.tables import report

    if methods:
        sizes = {name: given.pop(name) for name in ("steps", "prompts", "rollouts", "size")}
        rates = learning_rates.split(",")
        numbers = range(first_draw, first_draw + draws)
        jobs, bases, own = given["jobs"], Path(given["bases"]), given["methods_from"]
        play_arena(
            world.split(","), methods.split(","), numbers, rates, Settings(**sizes), out, bases, jobs, own
        )
    click.echo(report(out, baseline))
