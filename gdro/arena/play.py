"""Compares methods: trains each in each world, at each learning rate, on several draws, and scores them.

    gdro arena --world rare-hard --methods grpo,pivotal --draws 8 --out DIR

A world is a task with its base: a name in gdro/tasks/worlds, or a YAML file. A draw is a fresh task, a fresh
base and a fresh training seed, all from the draw's number. So all methods have the same draws, and
differences between them are paired. A method is spelled NAME or NAME:OPTION=VALUE:…, with options of
GDROController and of the method. `prompt:prompt.eta=3` sets an entry of a dictionary. `pivotal@2e-4` is
trained at that learning rate alone, in place of those of --learning-rates. `grpo:prompts=64` spends the same
rollouts a step on 64 prompts. A method made of parts of others is spelled
composed:draw=pivotal:advantages.pkpo.k=4, see gdro.methods.peers.composed.

DIR has a file for each finished run, so that the same command resumes, and what is made from these alone:

    scores.csv    one row per world, method, learning rate, draw and checkpoint
    families.csv  at the end, one row more per family, with its share of training
    table.csv, table.md, differences.png, frontier.png, rollouts.png    from scores.csv alone

The scores are of held-out prompts, 8 samples each at 20, 40, 60 and 80% of the steps, 32 at the end:
mean_at_8 and worst_family are the mean and the lowest of the families' mean accuracies, pass_at_8 the
mean over families of unbiased pass@8, and training_mix_mean weighs the families as the training prompts do.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from gdro.arena.tables import CHECKPOINTS, arena_rows, slug_of, write_scores
from gdro.controller import GDROController
from gdro.core.checks import build, check_choice, check_int, check_number
from gdro.core.metrics import pass_at_k
from gdro.core.uids import as_uids
from gdro.methods import METHODS, register_from
from gdro.tasks.protocol import Task
from gdro.tasks.reasoning_gym import STREAM_SIZE
from gdro.tasks.world import TaskWorld, read_world
from gdro.training.checkpoints import file_hash
from gdro.training.files import replace_text
from gdro.training.lifetime import end_with_parent

# the options through which methods with an oracle get what `_oracle` knows
ORACLES = {"family_even": ("groups",), "oracle": ("rates",), "composed": ("groups", "rates")}
COUNTS = ("steps", "prompts", "rollouts")  # of Settings
BASE_WORK = 8  # what making a base costs, in runs: for the time left


@dataclasses.dataclass(frozen=True)
class Settings:
    """What all runs of one folder have in common."""

    steps: int = 150
    prompts: int = 32
    rollouts: int = 4
    size: str | None = None  # of the base; None: the world's


@dataclasses.dataclass(frozen=True)
class ArenaRun:
    """One training."""

    world: TaskWorld
    method: str
    learning_rate: float
    draw: int

    def file(self, out: Path) -> Path:
        """Where its scores are written."""
        name = f"{slug_of(self.method)}_lr{self.learning_rate!r}_draw{self.draw}.json"
        return out / "runs" / self.world.name / name


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
            remedy = f"lower it: a step of {method!r} has {total} rollouts, at least one a prompt"
            prompts = check_int("prompts", int(text) if text.isdigit() else text, 1, total, remedy)
        else:
            kept.append(pair)
    mean = total / prompts
    return ":".join(kept), prompts, int(mean) if mean == int(mean) else mean


@functools.lru_cache(4)
def _drawn(world: str, draw: int) -> Task:
    """The task of a draw of a world in JSON; kept, as a worker plays many runs of a draw in a row."""
    return TaskWorld.model_validate_json(world).spec.draw(draw)


def draw_base(world: TaskWorld, draw: int, settings: Settings, cache: Path) -> tuple[Task, Path]:
    """The task of a draw and the folder of its base, which is trained if the cache does not have it."""
    from gdro.training.models import tiny_base

    task, base = _drawn(world.model_dump_json(), draw), world.base
    return task, tiny_base(
        task,
        seed=draw,
        cache_dir=cache,
        progress=False,
        **base.options() | ({"size": settings.size} if settings.size else {}),
    )


def scores(task: Task, successes_P: np.ndarray, samples: int) -> dict[str, Any]:
    """Scores of a checkpoint from the correct samples of each held-out prompt."""
    names = [row["family"] for row in task.eval]
    solved_P = pass_at_k(successes_P, np.full(len(names), samples), 8)
    prompts = pd.DataFrame({"mean_at_8": successes_P / samples, "pass_at_8": solved_P})
    families, shares = prompts.groupby(names).mean(), pd.Series(task.shares)
    return {
        "mean_at_8": families.mean_at_8.mean(),
        "pass_at_8": families.pass_at_8.mean(),
        "worst_family": families.mean_at_8.min(),
        "training_mix_mean": (families.mean_at_8 * shares).sum(),
        "training_mix_pass_at_8": (families.pass_at_8 * shares).sum(),
        "families": families.assign(share=shares).to_dict("index"),
    }


def train_and_score(run: ArenaRun, settings: Settings, cache: Path) -> list[dict[str, Any]]:
    """Train one run; a row of scores each checkpoint."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from gdro import loop

    task, base = draw_base(run.world, run.draw, settings, cache)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    due = {round(part * settings.steps): samples for part, samples in CHECKPOINTS.items()}
    length = task.max_completion_tokens
    identity = {"world": run.world.name, "method": run.method, "learning_rate": run.learning_rate}
    names = {name: name for name in ("tokens", "seconds", "controller_seconds")}
    names["rollouts"] = "rollouts_spent"
    spent = dict.fromkeys(names, 0.0)
    rows = []

    spelled, prompts, mean_rollouts = batch_shape(run.method, settings)
    controller = arena_controller(spelled, mean_rollouts, run.draw, _oracle(task, model, tokenizer))

    def on_step(step: int, row: dict) -> None:
        for name, key in names.items():
            spent[name] += row[key]
        if step in due:
            of = task.eval, task.reward, due[step], length
            successes_P = loop.evaluate(model, tokenizer, *of, seed=step)
            rows.append(
                identity | {"draw": run.draw, "step": step} | spent | scores(task, successes_P, due[step])
            )

    loop.train(
        model,
        tokenizer,
        task.train,
        task.reward,
        controller,
        steps=settings.steps,
        prompts=prompts,
        learning_rate=run.learning_rate,
        max_new_tokens=length,
        seed=run.draw,
        stream=run.world.spec.n_train == 0,
        on_step=on_step,
    )
    return rows


def _oracle(task: Task, model: Any, tokenizer: Any, every: int = 5) -> dict[str, Any]:
    """What no method can know: `groups` has the families, `rates` computes the model's true pass rates.

    A prompt's pass rate is the probability of its correct texts. It is computed again every few calls only,
    since that takes longer than a training step.
    """
    import torch

    from gdro.loop import text_logps

    uids = as_uids([row["uid"] for row in task.train]).keys
    order_D = uids.argsort()
    keys_D = uids[order_D]
    state: dict[str, Any] = {"calls": 0}

    def prepare() -> None:  # once, and only if asked: several texts may be correct
        pairs = [(d, text) for d, row in enumerate(task.train) for text in task.correct_texts(row)]
        ends = [tokenizer.eos_token * (task.max_completion_tokens - len(text)) for _, text in pairs]
        texts = [task.train[d]["prompt"] + text + end for (d, text), end in zip(pairs, ends, strict=True)]
        ids_NT = torch.tensor(tokenizer(texts)["input_ids"], device=model.device)
        state.update(ids_NT=ids_NT, prompt_of_N=[d for d, _ in pairs])

    def rates(wanted: np.ndarray) -> np.ndarray:
        if state["calls"] == 0:
            prepare()
        if state["calls"] % every == 0:
            with torch.no_grad():
                logps_N = text_logps(model, state["ids_NT"], len(task.train[0]["prompt"]))
            rates_D = np.bincount(state["prompt_of_N"], logps_N.exp().cpu().double().numpy())
            state["rates_D"] = rates_D[order_D].clip(0, 1)
        state["calls"] += 1
        return state["rates_D"][keys_D.searchsorted(wanted)]

    return {"groups": {row["uid"]: row["family"] for row in task.train}, "rates": rates}


def play_all(
    runs: Sequence[ArenaRun], settings: Settings, out: Path, cache: Path, jobs: int, own: str | None
) -> None:
    """Play what is not there yet, `jobs` runs at once, and write scores.csv; RuntimeError if a run failed."""
    _check_settings(runs, settings, out, own)
    if len({run.file(out) for run in runs}) < len(runs):
        raise ValueError(
            "methods must differ in more than signs, as these are left out of file names; rename one"
        )
    arena_rows(out)  # a broken file is found before anything is played
    missing = [run for run in runs if not run.file(out).exists()]
    draws = {(run.world.name, run.draw): run for run in missing}
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
                run = bases[future]
                progress.set_description_str(f"base of {run.world.name} draw {run.draw}", False)
                progress.update(BASE_WORK)
            # draw by draw, so that every state of the folder holds whole pairs
            futures: dict[Future, ArenaRun] = {
                pool.submit(_play_and_write, run, settings, out, cache): run
                for run in sorted(missing, key=lambda run: run.draw)
            }
            for future in as_completed(futures):
                run = futures[future]
                progress.set_description_str(run.file(out).stem, False)
                progress.update()
                if future.exception():
                    failed.append(f"{run.file(out).stem}: {future.exception()}")
        finally:
            pool.shutdown(cancel_futures=True)  # an error or Ctrl-C starts nothing more
    write_scores(out)
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(missing)} runs failed:\n" + "\n".join(failed))


def _check_settings(runs: Sequence[ArenaRun], settings: Settings, out: Path, own: str | None) -> None:
    """Refuse a folder whose runs have other settings, other worlds of the same names or other own methods."""
    file, worlds = out / "settings.json", {run.world.name: run.world for run in runs}
    if any(run.world != worlds[run.world.name] for run in runs):
        raise ValueError(f"worlds must have names of their own, got {list(worlds)}; set `name:` in the file")
    specs = {name: world.model_dump(mode="json") for name, world in worlds.items()}
    methods = own and file_hash(Path(own))
    now = {"settings": dataclasses.asdict(settings), "worlds": specs, "methods_from": methods}
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        same = all(before["worlds"].get(name, spec) == spec for name, spec in specs.items())
        if before["settings"] != now["settings"] or not same:
            raise ValueError(f"out must have the same settings and worlds, got {out}; choose a new folder")
        if methods and (known := before.get("methods_from")) and known != methods:
            raise ValueError(
                f"methods_from {own!r} has changed since the runs in {out} were played; choose a new folder"
            )
        now["worlds"] = before["worlds"] | specs
        now["methods_from"] = methods or before.get("methods_from")
    out.mkdir(parents=True, exist_ok=True)
    replace_text(file, json.dumps(now, indent=1))


def _start_worker(own: str | None) -> None:
    import torch
    import transformers

    end_with_parent()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    if own:
        register_from(own)


def _make_base(run: ArenaRun, settings: Settings, cache: Path) -> None:
    draw_base(run.world, run.draw, settings, cache)


def _play_and_write(run: ArenaRun, settings: Settings, out: Path, cache: Path) -> None:
    rows = train_and_score(run, settings, cache)
    run.file(out).parent.mkdir(parents=True, exist_ok=True)
    replace_text(run.file(out), json.dumps(rows))


def play_arena(
    worlds: Sequence[str],
    methods: Sequence[str],
    draws: range,
    learning_rates: Sequence[float | str],
    settings: Settings,
    out: Path,
    cache: Path,
    jobs: int,
    methods_from: str | None = None,
) -> None:
    """Play methods in worlds on fresh draws; what is not there yet is trained.

    Args:
        worlds: names or YAML files.
        methods: spelled as at the top of this file.
        draws: their numbers; for a fair comparison, take numbers that were not used to choose a method.
        learning_rates: for methods that name none of their own.
        out: folder of the scores.
        cache: where bases are kept.
        jobs: runs at once, one thread each.
        methods_from: a Python file that registers own methods.

    Raises:
        ValueError: for what is misspelled or impossible, before any training.
        RuntimeError: if a run failed.
    """
    for name in COUNTS:
        check_int(name, getattr(settings, name), len(CHECKPOINTS) if name == "steps" else 1)
    check_int("jobs", jobs, 1)
    if methods_from:
        register_from(methods_from)
    arms: dict[tuple[str, float], None] = {}  # methods, which may be spelled at several rates, each once
    for spelled in methods:
        method, _, own = spelled.partition("@")
        spelled_alone, _, mean = batch_shape(method, settings)
        arena_controller(spelled_alone, mean, 0)  # a misspelled one is refused before any training
        for rate in [own] if own else learning_rates:
            with contextlib.suppress(ValueError):  # what is no number is refused by name
                rate = float(rate)
            arms[method, check_number("learning_rates", rate, 0, open_low=True)] = None
    known = [read_world(world) for world in dict.fromkeys(worlds)]
    for world in known:
        if world.spec.n_train == 0:
            largest = max(batch_shape(method, settings)[1] for method, _ in arms)
            most, remedy = STREAM_SIZE // largest, "lower it: a stream holds no prompt twice"
            check_int("steps", settings.steps, 1, most, remedy)
    runs = [ArenaRun(world, *arm, draw) for world, arm, draw in itertools.product(known, arms, draws)]
    play_all(runs, settings, out, cache, jobs, methods_from)
