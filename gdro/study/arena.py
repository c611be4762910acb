"""Methods against each other: worlds × methods × learning rates × draws on the loop, scores out.

    python -m gdro.study.arena --world rare-hard --methods grpo,pivotal --draws 8 --out DIR

A world is a specification of the embedded task: a name in gdro/study/worlds, or a YAML file. A draw is a
fresh task (tables, teacher, splits), a fresh base and a fresh training seed, all from the draw's number, so
all methods meet the same draws and are compared in pairs. A method is spelled NAME or NAME:OPTION=VALUE:…,
with options of GDROController and of the method; `prompt:prompt.eta=3` reaches into a dictionary, and
`pivotal@2e-4` is trained at that learning rate alone, in place of those of --learning-rates.
`grpo:prompts=64` spends the same rollouts a step on 64 prompts. A method out of parts of others is spelled
composed:draw=pivotal:advantages.pkpo.k=4, see gdro.methods.composed.

DIR holds a file for each finished run, so that the same command resumes, and, from those alone,

    scores.csv    one row per world, method, learning rate, draw and checkpoint
    table.csv, table.md, differences.png, frontier.png, rollouts.png    from scores.csv alone

The scores are of held-out prompts, 8 samples each at 20, 40, 60 and 80% of the steps, 32 at the end:
mean_at_8 and worst_family are the mean and the lowest of the families' mean accuracies, pass_at_8 the
mean over families of unbiased pass@8, and training_mix_mean weighs the families as the training prompts do.
"""

import argparse
import dataclasses
import itertools
import json
import multiprocessing
import os
import re
import runpy
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from tqdm.auto import tqdm

from gdro.controller import GDROController
from gdro.core.beliefs import as_uids
from gdro.core.checks import build, check_choice, check_int, check_number
from gdro.core.metrics import pass_at_k
from gdro.methods import METHODS
from gdro.study.arena_report import report
from gdro.tasks import chain
from gdro.training.files import replace_text
from gdro.training.lifetime import end_with_parent

WORLDS = Path(__file__).parent / "worlds"
CHECKPOINTS = {0.2: 8, 0.4: 8, 0.6: 8, 0.8: 8, 1.0: 32}  # samples a held-out prompt, by part of the steps
SCORE_COLUMNS = [
    "world",
    "method",
    "learning_rate",
    "draw",
    "step",
    "rollouts",
    "tokens",
    "mean_at_8",
    "pass_at_8",
]
SCORE_COLUMNS += ["worst_family", "training_mix_mean", "seconds", "controller_seconds"]  # of scores.csv
# the options in which methods that are or hold an oracle get what `_oracle` knows
ORACLES = {"family_even": ("groups",), "oracle": ("rates",), "composed": ("groups", "rates")}
BASE_WORK = 8  # what making a base costs, in runs: for the time left


@dataclasses.dataclass(frozen=True)
class Settings:
    """What all runs of one folder have in common."""

    steps: int = 150
    prompts: int = 32
    rollouts: int = 4
    base_steps: int = 800
    base_batch: int = 96


@dataclasses.dataclass(frozen=True)
class ArenaRun:
    """One training."""

    world: str
    spec: chain.ChainSpec
    method: str
    learning_rate: float
    draw: int

    def file(self, out: Path) -> Path:
        """Where its scores are written."""
        slug = re.sub(r"[^\w.=-]", "_", self.method)
        return out / "runs" / self.world / f"{slug}_lr{self.learning_rate:g}_draw{self.draw}.json"


def read_world(name: str) -> tuple[str, chain.ChainSpec]:
    """Name and specification of a shipped world or of a YAML file; ValueError for neither."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else WORLDS / f"{name}.yaml"
    if not path.is_file():
        shipped = sorted(file.stem for file in WORLDS.glob("*.yaml"))
        raise ValueError(f"world must be one of {shipped} or a YAML file, got {name!r}")
    content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    return content.get("name", path.stem), chain.ChainSpec.from_dict(content)


def arena_controller(
    method: str, mean_rollouts: float, seed: int, known: Mapping[str, Any] | None = None
) -> GDROController:
    """The controller of a method as spelled on the command line; `known` holds options for oracles."""
    name, *pairs = method.split(":")
    check_choice("method", name, tuple(METHODS))
    options: dict[str, Any] = {key: known[key] for key in ORACLES.get(name, ())} if known else {}
    for pair in pairs:
        key, _, text = pair.partition("=")
        *outer, key = key.split(".")
        place = options
        for part in outer:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ValueError(f"method must set an option once, got {method!r}; leave out {part}=…")
        try:
            place[key] = json.loads(text)
        except json.JSONDecodeError:
            place[key] = text
    given = {"method": name, "mean_rollouts": mean_rollouts, "seed": seed}
    return build(f"options of {name!r}", GDROController, options, **given)


def batch_shape(method: str, settings: Settings) -> tuple[str, int, float]:
    """A method's spelling without `prompts=`, its prompts a step, and its mean rollouts a prompt."""
    total, prompts, kept = settings.prompts * settings.rollouts, settings.prompts, []
    for pair in method.split(":"):
        key, _, text = pair.partition("=")
        if key == "prompts":
            remedy = f"a step of {method!r} has {total} rollouts, at least one a prompt"
            prompts = check_int("prompts", int(text) if text.isdigit() else text, 1, total, remedy)
        else:
            kept.append(pair)
    mean = total / prompts
    return ":".join(kept), prompts, int(mean) if mean == int(mean) else mean


def draw_base(
    spec: chain.ChainSpec, draw: int, settings: Settings, cache: Path
) -> tuple[chain.ChainTask, Path]:
    """The task of a draw and the folder of its base, which is trained if the cache does not have it."""
    from gdro.training.models import tiny_base

    task = chain.make_task(spec, np.random.default_rng(draw))
    steps, batch_size = settings.base_steps, settings.base_batch
    return task, tiny_base(
        task, seed=draw, cache_dir=cache, steps=steps, batch_size=batch_size, progress=False
    )


def scores(task: chain.ChainTask, successes_P: np.ndarray, samples: int) -> dict[str, Any]:
    """Scores of a checkpoint from the correct samples of each held-out prompt."""
    names = [row["family"] for row in task.eval]
    prompts = pd.DataFrame(
        {"accuracy": successes_P / samples, "solved": pass_at_k(successes_P, np.full(len(names), samples), 8)}
    )
    families = prompts.groupby(names).mean()
    shares = pd.Series({family.name: family.share for family in task.spec.families})
    return {
        "mean_at_8": families.accuracy.mean(),
        "pass_at_8": families.solved.mean(),
        "worst_family": families.accuracy.min(),
        "training_mix_mean": (families.accuracy * shares).sum(),
        "families": families.accuracy.to_dict(),
    }


def train_and_score(run: ArenaRun, settings: Settings, cache: Path) -> list[dict[str, Any]]:
    """Train one run; a row of scores each checkpoint."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from gdro import loop

    task, base = draw_base(run.spec, run.draw, settings, cache)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    due = {round(part * settings.steps): samples for part, samples in CHECKPOINTS.items()}
    length = run.spec.max_completion_tokens
    identity = {
        "world": run.world,
        "method": run.method,
        "learning_rate": run.learning_rate,
        "draw": run.draw,
    }
    names = {"rollouts": "rollouts_spent", "tokens": "tokens", "seconds": "seconds"}
    names["controller_seconds"] = "controller_seconds"
    spent = dict.fromkeys(names, 0.0)
    rows = []

    spelled, prompts, mean_rollouts = batch_shape(run.method, settings)
    controller = arena_controller(spelled, mean_rollouts, run.draw, _oracle(task, model, tokenizer))

    def on_step(step: int, row: dict) -> None:
        for name, key in names.items():
            spent[name] += row[key]
        if step in due:
            successes_P = loop.evaluate(
                model, tokenizer, task.eval, chain.reward, due[step], length, seed=step
            )
            rows.append(identity | {"step": step} | spent | scores(task, successes_P, due[step]))

    loop.train(
        model,
        tokenizer,
        task.train,
        chain.reward,
        controller,
        steps=settings.steps,
        prompts=prompts,
        learning_rate=run.learning_rate,
        max_new_tokens=length,
        seed=run.draw,
        on_step=on_step,
    )
    return rows


def _oracle(task, model, tokenizer, every=5):
    """What no method could know: `groups` names the families, `rates` gives the model's own pass rates.

    A prompt has one correct text, so its pass rate is that text's probability; brought up to date every
    few calls, since it costs more than a step.
    """
    import torch

    from gdro.loop import text_logps

    texts = [row["prompt"] + row["answer"] + tokenizer.eos_token for row in task.train]
    ids_DT = torch.tensor(tokenizer(texts)["input_ids"], device=model.device)
    start, sorted_D = len(task.train[0]["prompt"]), as_uids([row["uid"] for row in task.train]).keys.argsort()
    keys_D = as_uids([row["uid"] for row in task.train]).keys[sorted_D]
    state: dict[str, Any] = {"calls": 0, "rates_D": np.zeros(len(texts))}

    def rates(wanted):
        if state["calls"] % every == 0:
            with torch.no_grad():
                logps_D = text_logps(model, ids_DT, start)
            state["rates_D"] = logps_D.exp().cpu().double().numpy()[sorted_D].clip(0, 1)
        state["calls"] += 1
        return state["rates_D"][keys_D.searchsorted(wanted)]

    return {"groups": {row["uid"]: row["family"] for row in task.train}, "rates": rates}


def play_all(
    runs: Sequence[ArenaRun], settings: Settings, out: Path, cache: Path, jobs: int, own: str | None
) -> None:
    """Play what is not there yet, `jobs` runs at once, and write scores.csv; RuntimeError if a run failed."""
    _check_settings(runs, settings, out)
    missing = [run for run in runs if not run.file(out).exists()]
    draws = {(run.world, run.draw): run for run in missing}
    os.environ["OMP_NUM_THREADS"] = "1"  # the workers inherit it
    failed = []
    with (
        ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _start_worker, (own,)) as pool,
        tqdm(
            total=len(missing) + BASE_WORK * len(draws),
            bar_format="{percentage:3.0f}% {desc}, {elapsed} gone, {remaining} left",
        ) as progress,
    ):
        try:
            bases = {pool.submit(_make_base, run, settings, cache): run for run in draws.values()}
            for future in as_completed(bases):
                future.result()
                progress.set_description_str(
                    f"base of {bases[future].world} draw {bases[future].draw}", False
                )
                progress.update(BASE_WORK)
            # draw by draw, so that every state of the folder holds whole pairs
            futures: dict[Future, ArenaRun] = {
                pool.submit(_play_and_write, run, settings, out, cache): run
                for run in sorted(missing, key=lambda run: run.draw)
            }
            for future in as_completed(futures):
                run = futures[future]
                progress.set_description_str(
                    f"{run.world} {run.method} {run.learning_rate:g} draw {run.draw}", False
                )
                progress.update()
                if future.exception():
                    failed.append(f"{run.file(out).stem}: {future.exception()}")
        finally:
            pool.shutdown(cancel_futures=True)  # an error or Ctrl-C starts nothing more
    files = sorted((out / "runs").glob("*/*.json"))
    rows = [row for file in files for row in json.loads(file.read_text(encoding="utf-8"))]
    table = pd.DataFrame(rows, columns=SCORE_COLUMNS)
    replace_text(out / "scores.csv", table.to_csv(index=False, float_format="%.6g"))
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(missing)} runs failed:\n" + "\n".join(failed))


def _check_settings(runs, settings, out):
    """Refuse a folder whose runs have other settings or other worlds of the same names."""
    file, worlds = out / "settings.json", {run.world: dataclasses.asdict(run.spec) for run in runs}
    if any(dataclasses.asdict(run.spec) != worlds[run.world] for run in runs):
        raise ValueError(f"worlds must have names of their own, got {list(worlds)}; set `name:` in the file")
    now = json.loads(json.dumps({"settings": dataclasses.asdict(settings), "worlds": worlds}))
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        same = all(before["worlds"].get(name, spec) == spec for name, spec in now["worlds"].items())
        if before["settings"] != now["settings"] or not same:
            raise ValueError(f"out must be a new folder or one of the same settings and worlds, got {out}")
        now["worlds"] = before["worlds"] | now["worlds"]
    out.mkdir(parents=True, exist_ok=True)
    replace_text(file, json.dumps(now, indent=1))


def _start_worker(own):
    import torch
    import transformers

    end_with_parent()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    if own:
        runpy.run_path(own)


def _make_base(run, settings, cache):
    draw_base(run.spec, run.draw, settings, cache)


def _play_and_write(run, settings, out, cache):
    rows = train_and_score(run, settings, cache)
    run.file(out).parent.mkdir(parents=True, exist_ok=True)
    replace_text(run.file(out), json.dumps(rows))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; without --methods it reports on what is there."""
    parser = argparse.ArgumentParser(
        prog="python -m gdro.study.arena",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--out",
        type=Path,
        required=True,
        help="folder of scores; without --methods only its tables are made anew",
    )
    add("--world", default="rare-hard", help="names or YAML files, separated by commas")
    add("--methods", help="separated by commas")
    add("--methods-from", help="a Python file that registers own methods")
    add("--draws", type=int, default=8)
    add(
        "--first-draw",
        type=int,
        default=0,
        help="number of the first draw: fresh draws are those never looked at",
    )
    add("--learning-rates", default="1e-4,2e-4")
    for field in dataclasses.fields(Settings):
        add(f"--{field.name.replace('_', '-')}", type=int, default=field.default)
    add("--jobs", type=int, default=os.cpu_count(), help="runs at once, one thread each")
    add("--bases", type=Path, default=Path(".cache/bases"), help="where bases are kept")
    given = parser.parse_args(arguments)
    if given.methods:
        settings = Settings(
            **{field.name: getattr(given, field.name) for field in dataclasses.fields(Settings)}
        )
        for field in dataclasses.fields(Settings):
            check_int(
                field.name, getattr(settings, field.name), len(CHECKPOINTS) if field.name == "steps" else 1
            )
        first = check_int("first_draw", given.first_draw, 0)
        draws = range(first, first + check_int("draws", given.draws, 1))
        if given.methods_from:
            runpy.run_path(given.methods_from)
        arms: dict[tuple[str, float], None] = {}  # methods, which may be spelled at several rates, each once
        for spelled in given.methods.split(","):
            method, _, own = spelled.partition("@")
            spelled_alone, _, mean = batch_shape(method, settings)
            arena_controller(spelled_alone, mean, 0)  # a misspelled one is refused before any training
            for rate in (own or given.learning_rates).split(","):
                arms[method, check_number("learning_rates", float(rate), 0, open_low=True)] = None
        worlds = [read_world(world) for world in dict.fromkeys(given.world.split(","))]
        runs = [ArenaRun(*world, *arm, draw) for world, arm, draw in itertools.product(worlds, arms, draws)]
        play_all(runs, settings, given.out, given.bases, given.jobs, given.methods_from)
    print(report(given.out))


if __name__ == "__main__":
    main()
