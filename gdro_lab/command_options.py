"""Options that several commands have."""

from pathlib import Path

import click

from gdro_lab.experiments.processes import check_folder

SEED = click.IntRange(0, 2**32 - 1)


def check_place(ctx: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Refuse a folder that cannot be written, before anything is computed for it."""
    if value:
        check_folder(Path(value))
    return value


CACHE_DIR = click.option(
    "--cache-dir",
    default=".cache/bases",
    show_default=True,
    help="Where models are kept.",
    callback=check_place,
)
