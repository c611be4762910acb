"""Make a pool, and judge methods on one.

python -m gdro_lab.microscope make pool.npz --world rare-hard
python -m gdro_lab.microscope judge data/pools/rare-hard.npz rollout rollout:averaging=rollout
"""

import sys

import click

from gdro_lab import numerics


@click.group()
def main() -> None:
    """The gradient of a batch itself: its mean, bias and variance, for any method."""
    numerics.fix()


@main.command("make")
@click.argument("pool")
@click.option("--world", default="rare-hard", show_default=True, help="A world's name or file.")
@click.option("--world-seed", default=0, show_default=True, help="Draws the task, the tiny base.")
@click.option("--prompts", default=64, show_default=True)
@click.option("--rollouts", default=64, show_default=True)
@click.option("--width", default=64, show_default=True, help="A sketch has width² numbers.")
@click.option("--flat", is_flag=True, help="Gradients of prompts whose rewards are equal, too.")
@click.option("--seed", default=0, show_default=True, help="Of prompts, samples and signs.")
def make_command(
    pool: str,
    world: str,
    world_seed: int,
    prompts: int,
    rollouts: int,
    width: int,
    flat: bool,
    seed: int,
) -> None:
    """Sample POOL, an .npz file, of the world's tiny base, and sketch its gradients."""
    import torch

    from gdro_lab.experiments.loop_runs import draw_base
    from gdro_lab.experiments.play import CACHE
    from gdro_lab.microscope.making import PoolChoice, choose_prompts, load_base, make_pool
    from gdro_lab.tasks.world import read_world

    torch.set_num_threads(1)  # sums are split by threads
    task, folder = draw_base(read_world(world), world_seed, CACHE)
    model, tokenizer, ends = load_base(folder)
    choice = PoolChoice(
        rollouts=rollouts,
        max_new_tokens=task.max_completion_tokens,
        ends=ends,
        seed=seed,
        width=width,
        flat=flat,
    )
    rows = choose_prompts(task.train, prompts, seed)
    named = {"world": world, "world_seed": world_seed, "model": folder.name}
    made = make_pool(model, tokenizer, rows, task.reward, choice, made=named)
    made.save(pool)
    rate = made.rewards_PK.mean()
    click.echo(f"{pool}: mean pass rate {rate:.3f}, {len(made.sketch_NS)} distinct texts")


@main.command("judge")
@click.argument("pool")
@click.argument("methods", nargs=-1, required=True)
@click.option("--prompts", type=int, help="Of a batch.  [default: all]")
@click.option("--visits", default=3, show_default=True, help="Earlier batches with each prompt.")
@click.option("--splits", default=20, show_default=True, help="Random divisions of the pool.")
@click.option("--methods-from", help="A Python file that registers methods of your own.")
def judge_command(
    pool: str,
    methods: tuple[str, ...],
    prompts: int | None,
    visits: int,
    splits: int,
    methods_from: str | None,
) -> None:
    """Judge METHODS on POOL: variance and signal-to-noise of the batch gradient, to GRPO's.

    Bins know nothing before a few visits, and a batch of all prompts leaves nothing to draw. A
    method is NAME or NAME:OPTION=VALUE, as in `gdro arena`. One that cannot be judged is named
    with the reason, and the others go on.
    """
    from gdro_lab.experiments.spelling import import_methods, read_spelling
    from gdro_lab.microscope.judge import Setting, judge, scores_against
    from gdro_lab.microscope.pool import read_pool

    import_methods(methods_from)
    setting = Setting(prompts=prompts, visits=visits, splits=splits, plays=8 if prompts else 1)
    found = read_pool(pool)
    baseline = judge(found, "grpo", setting)
    refused = False
    for method in methods:
        variant = read_spelling(method)
        try:
            judged = judge(found, variant.method, setting, **variant.options)
        except ValueError as error:
            click.echo(f"{method}: {error}", err=True)
            refused = True
            continue
        scores = scores_against(judged, baseline)
        line = [f"{name} {s[0]:.2f} [{s[1]:.2f}, {s[2]:.2f}]" for name, s in scores.items()]
        click.echo(f"{method}: {', '.join(line)}")
    sys.exit(2 if refused else 0)


if __name__ == "__main__":
    main()
