"""Print a SHA-256 of each part of the CPU numerics: equal lines are equal bits.

    python scripts/numerics.py [--steps 20] [--parts base,loop,trl,arrays,toy,figure]

The variables of gdro_lab/numerics.py apply unless others are set. An emulator is slow:

    qemu-x86_64 -cpu Haswell .venv/bin/python scripts/numerics.py --steps 2

QEMU 7.2 crashes in numpy's sorts; QEMU 10 does not.
"""

import argparse
import contextlib
import io
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from gdro_lab import numerics

numerics.fix()  # before torch and numpy are imported

import numpy as np
import torch
from hashes import digest, half_right, train_in_trl
from scipy import special, stats
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from gdro import GDROController
from gdro_lab import loop
from gdro_lab.machine import describe_machine
from gdro_lab.tasks import embedded
from gdro_lab.tasks.tiny import tiny_base
from gdro_lab.toy import Game, play

PROMPTS = 16
ROLLOUTS = 4
SEED = 0


def make_base(steps: int, cache: Path) -> Path:
    """The embedded task's base after a few pretraining steps."""
    task = embedded.DEFAULT_SPEC.draw(SEED)
    return tiny_base(task, seed=SEED, steps=steps, cache_dir=cache, progress=False)


def base(steps: int, cache: Path) -> str:
    model = AutoModelForCausalLM.from_pretrained(make_base(steps, cache))
    return digest(*model.parameters())


def own_loop(steps: int, cache: Path) -> str:
    """Weights, record and samples of gdro's own loop, with the adversaries and with pivotal."""
    folder = make_base(steps, cache)
    task = embedded.DEFAULT_SPEC.draw(SEED)
    parts = []
    tokenizer = AutoTokenizer.from_pretrained(folder)
    length = task.max_completion_tokens
    for method in ("both", "pivotal"):
        model = AutoModelForCausalLM.from_pretrained(folder)
        controller = GDROController(method, mean_rollouts=ROLLOUTS, seed=SEED)
        record = loop.train(
            model,
            tokenizer,
            task.train,
            half_right,
            controller,
            steps=steps,
            prompts=PROMPTS,
            learning_rate=2e-4,
            max_new_tokens=length,
            seed=SEED,
        )
        ids = loop.prompt_ids(model, tokenizer, task.eval[:PROMPTS])
        texts = loop.sample(model, ids, length, torch.Generator().manual_seed(SEED))
        parts += [record, *model.parameters(), texts]
    return digest(*parts)


def trl(steps: int, cache: Path) -> str:
    """Weights and record of GDROTrainer in TRL."""
    folder = make_base(steps, cache)
    task = embedded.DEFAULT_SPEC.draw(SEED)
    trainer = train_in_trl(
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
        task.train,
        gdro_method="both",
        max_steps=max(1, steps // 2),
        per_device_train_batch_size=PROMPTS * ROLLOUTS,
        beta=0.01,
        max_completion_length=task.max_completion_tokens,
        learning_rate=2e-4,
    )
    return digest(*trainer.model.parameters(), *trainer.record)


def arrays(steps: int, cache: Path) -> str:
    """What numpy and scipy compute: functions, sums, products, equations, sorts; a controller."""
    rng = np.random.default_rng(SEED)
    z = rng.uniform(0, 1, 1000)
    parts = []
    for kind in (np.float64, np.float32):
        x = rng.normal(0, 3, (64, 257)).astype(kind)
        y = rng.uniform(1e-3, 1, (64, 257)).astype(kind)
        parts += [f(y) for f in (np.exp, np.log, np.log1p, np.expm1, np.log2, np.sqrt)]
        parts += [f(x) for f in (np.tanh, np.sin, np.cos, special.expit, stats.norm.cdf)]
        parts += [y**x, np.logaddexp(x, y), special.softmax(x, axis=1), special.logsumexp(x)]
        parts += [x.sum(axis=0), x.mean(), x.var(axis=1), x.cumsum(), np.linalg.norm(x)]
        parts += [x @ y.T, x.T @ y[:, 0], np.einsum("ij,kj", x, y), np.corrcoef(x)]
        parts += [np.linalg.lstsq(x.T, y[0])[0], np.linalg.solve(x[:, :64], y[:, 0])]
        parts += [np.linalg.svd(x)[1], np.linalg.eigh(x @ x.T)[0], stats.sem(x, axis=1)]
        parts += [np.median(x), np.quantile(x, z), np.argsort((9 * y).astype(int), axis=None)]
    parts += [special.betainc(2 + 5 * z, 3.5, z), special.gammaln(9 * z)]
    parts += [stats.t.ppf(z, 7), stats.beta.ppf(z, 2.5, 4)]
    parts += [rng.gamma(2.0, size=99), rng.dirichlet(z), rng.choice(1000, 99, p=z / z.sum())]
    controller = GDROController("both", mean_rollouts=ROLLOUTS, seed=SEED)
    for _ in range(steps):
        plan = controller.plan(rng.permutation(200)[:PROMPTS])
        groups = np.repeat(np.arange(PROMPTS), plan.rollouts)
        rewards = (rng.random(len(groups)) < 0.4).astype(float)
        parts += [plan.rollouts, controller.observe(plan, groups, rewards).advantages]
    return digest(*map(np.asarray, parts))


def toy(steps: int, cache: Path) -> str:
    games = [Game(method=method) for method in ("grpo", "both", "resample", "pivotal")]
    return digest(*play(games, range(2), [steps, 10 * steps]))


def figure(steps: int, cache: Path) -> str:
    """The pixels of a picture as notebooks draw it."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    import pandas as pd
    import seaborn as sns

    rng = np.random.default_rng(SEED)
    rows = pd.DataFrame({"x": np.tile(np.arange(20), 5), "y": rng.normal(size=100)})
    rows["kind"] = np.repeat(list("abcde"), 20)
    drawn, (left, right) = plt.subplots(1, 2)
    sns.lineplot(rows, x="x", y="y", seed=SEED, ax=left)  # with a bootstrapped band
    sns.kdeplot(rows, x="y", hue="kind", fill=True, ax=right)
    file = io.BytesIO()
    drawn.savefig(file, format="png")
    return digest(plt.imread(io.BytesIO(file.getvalue())))


PARTS: dict[str, Callable[[int, Path], str]] = {
    "base": base,
    "loop": own_loop,
    "trl": trl,
    "arrays": arrays,
    "toy": toy,
    "figure": figure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--parts", default=",".join(PARTS))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    disable_progress_bar()
    torch.set_num_threads(1)
    processor = describe_machine(pretrained=False)["processor"]
    print(f"{processor}; torch computes with {torch.backends.cpu.get_cpu_capability()}")
    with tempfile.TemporaryDirectory() as cache:
        for name in args.parts.split(","):
            began = time.perf_counter()
            with contextlib.redirect_stdout(io.StringIO()):  # TRL prints its last log
                made = PARTS[name](args.steps, Path(cache))
            print(f"{name:7} {made}  {time.perf_counter() - began:5.1f} s", flush=True)


if __name__ == "__main__":
    main()
