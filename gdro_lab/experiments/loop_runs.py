"""Compares methods: trains each in each world, at each learning rate, on several draws.

    gdro arena --world rare-hard --methods grpo,pivotal --draws 8 --out DIR

A world is a task with its base: a name in gdro_lab/tasks/worlds, or a YAML file. A draw is a fresh
task, a fresh base and a fresh training seed, all from the draw's number. So all methods have the
same draws, and differences between them are paired.

A method is spelled NAME or NAME:OPTION=VALUE:…, with options of GDROController and of the method:

    prompt:prompt.eta=3         an entry of a dictionary
    prompt:groups=family        the task's families in place of difficulty bins, for any method
    grpo:prompts=64             the same rollouts a step on 64 prompts
    pivotal@2e-4                at this learning rate alone, in place of those of --learning-rates
    composed:draw=pivotal:advantages.pkpo.k=4    see gdro.peers.composed

DIR has a file for each finished run, so that the same command resumes, and what is made from these
alone by `gdro_lab.experiments.table`. The method "base" is the model before training.

The scores are of held-out prompts, 8 samples each at 20, 40, 60 and 80% of the steps, 32 at the
end: mean_at_8 and worst_family are the mean and the lowest of the families' mean accuracies,
pass_at_8 the mean over families of unbiased pass@8, and training_mix_mean weighs the families as
the training prompts do.
"""

import functools
import itertools
import json
import multiprocessing
import os
import runpy
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field
from tqdm.auto import tqdm

from gdro.bins import as_uids
from gdro.checks import Count, build, check, need, options
from gdro.controller import GDROController
from gdro.files import file_hash, replace_text
from gdro.groups import StaticGroups
from gdro.metrics import pass_at_k
from gdro.registry import find_method
from gdro_lab.experiments.table import BASE, CHECKPOINTS, slug_of, write_scores
from gdro_lab.tasks.base import Task
from gdro_lab.tasks.reasoning_gym import STREAM_SIZE
from gdro_lab.tasks.tiny import tiny_base
from gdro_lab.tasks.world import TaskWorld, read_world

# the options through which methods with an oracle get what `_oracle` knows
ORACLES = {"family_even": ("groups",), "oracle": ("rates",), "composed": ("groups", "rates")}
TRAIN_PROMPTS = 512  # on which accuracy is measured at the end
SPENT = ("tokens", "trained_tokens", "replayed", "seconds")


@options
class Settings:
    """What all runs of one folder have in common."""

    steps: Annotated[int, Field(ge=len(CHECKPOINTS))] = 150
    prompts: Count = 32  # of a step
    rollouts: Count = 4  # per prompt, on average
    size: Literal["tiny", "small", "mid"] | None = None  # of the base; None: the world's
    schedule: Literal["constant", "linear"] = "constant"  # of the learning rate


@dataclass(frozen=True)
class ArenaRun:
    """One training."""

    world: TaskWorld
    method: str
    learning_rate: float
    draw: int

    def file(self, out: Path, kind: str = "runs") -> Path:
        """Where its scores ("runs") or its record ("records") are written."""
        name = f"{slug_of(self.method)}_lr{self.learning_rate!r}_draw{self.draw}.json"
        return out / kind / self.world.name / name


def arena_controller(
    method: str, mean_rollouts: float, seed: int, known: Mapping[str, Any] | None = None
) -> GDROController:
    """The controller of a method as it is spelled; `known` is what `_oracle` knows."""
    name, *pairs = method.split(":")
    find_method(name)
    options: dict[str, Any] = {key: known[key] for key in ORACLES.get(name, ())} if known else {}
    for pair in pairs:
        path, _, text = pair.partition("=")
        *outer, key = path.split(".")
        place = options
        for part in outer:
            place = place.setdefault(part, {})
            need(isinstance(place, dict), f"method must set {part} once, got {method!r}")
        try:
            place[key] = json.loads(text)
        except json.JSONDecodeError:
            place[key] = text
    if options.get("groups") == "family":
        del options["groups"]
        families = known["groups"] if known else {"any": "family"}  # of no task yet: a check
        given = {"uids": list(families), "labels": list(families.values())}
        options["bins"] = build("bins", StaticGroups, options.get("bins", {}), **given)
    more: dict[str, Any] = {"method": name, "mean_rollouts": mean_rollouts, "seed": seed}
    return build(f"options of {name!r}", GDROController, options, **more)


def batch_shape(method: str, settings: Settings) -> tuple[str, int, float]:
    """A method's spelling without `prompts=`, its prompts a step, its mean rollouts a prompt."""
    total, prompts, kept = settings.prompts * settings.rollouts, settings.prompts, []
    for pair in method.split(":"):
        key, _, text = pair.partition("=")
        if key != "prompts":
            kept.append(pair)
            continue
        prompts = int(text) if text.isdigit() else 0
        need(1 <= prompts <= total, f"prompts of {method!r} must be in [1, {total}], got {text!r}")
    mean = total / prompts
    return ":".join(kept), prompts, int(mean) if mean == int(mean) else mean


@functools.lru_cache(4)
def _drawn(world: str, draw: int) -> Task:
    """The task of a draw of a world in JSON; kept, as a worker plays a draw's runs in a row."""
    return TaskWorld.model_validate_json(world).spec.draw(draw)  # type: ignore[return-value]


def draw_base(world: TaskWorld, draw: int, settings: Settings, cache: Path) -> tuple[Task, Path]:
    """The task of a draw and the folder of its base, which is trained if the cache has none."""
    task, options = _drawn(world.model_dump_json(), draw), world.base.options()
    options |= {"size": settings.size} if settings.size else {}
    return task, tiny_base(task, seed=draw, cache_dir=cache, progress=False, **options)


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


def play_run(run: ArenaRun, settings: Settings, out: Path, cache: Path, keep: bool) -> None:
    """Train one run; write a row of scores each checkpoint, and with `keep` its record.

    The base, which is not trained, has one row, as of the last step.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from gdro_lab import loop

    task, base = draw_base(run.world, run.draw, settings, cache)
    model = AutoModelForCausalLM.from_pretrained(base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    due = {round(part * settings.steps): samples for part, samples in CHECKPOINTS.items()}
    length = task.max_completion_tokens
    identity = {"world": run.world.name, "method": run.method, "learning_rate": run.learning_rate}
    spent = dict.fromkeys((*SPENT, "rollouts"), 0.0)
    rows, record = list[dict](), list[dict]()

    def score(step: int) -> None:
        successes_P = loop.evaluate(
            model, tokenizer, task.eval, task.reward, due[step], length, seed=step
        )
        row = identity | {"draw": run.draw, "step": step} | spent
        rows.append(row | scores(task, successes_P, due[step]))
        if step == settings.steps:  # what is above the held-out scores is memory
            some = task.train[:: max(len(task.train) // TRAIN_PROMPTS, 1)]
            hits_P = loop.evaluate(model, tokenizer, some, task.reward, 8, length, seed=step)
            rows[-1]["train_mean"] = float(hits_P.mean() / 8)

    def on_step(step: int, row: dict) -> None:
        for name in SPENT:
            spent[name] += row[name]
        spent["rollouts"] += row["rollouts_spent"]
        if step in due:
            score(step)

    if run.method == BASE:
        score(settings.steps)
    else:
        spelled, prompts, mean_rollouts = batch_shape(run.method, settings)
        known = _oracle(task, model, tokenizer)
        controller = arena_controller(spelled, mean_rollouts, run.draw, known)
        record = loop.train(
            model, tokenizer, task.train, task.reward, controller, prompts=prompts, seed=run.draw,
            steps=settings.steps, learning_rate=run.learning_rate, schedule=settings.schedule,
            stream=run.world.spec.n_train == 0, max_new_tokens=length, on_step=on_step,
        )  # fmt: skip
    if keep:
        replace_text(run.file(out, "records"), json.dumps(record))
    replace_text(run.file(out), json.dumps(rows))


def _oracle(task: Task, model: Any, tokenizer: Any, every: int = 5) -> dict[str, Any]:
    """What no method can know: `groups` has the families, `rates` gives the model's pass rates.

    A prompt's pass rate is the probability of its correct texts. It is computed again every few
    calls only, since that takes longer than a training step.
    """
    import torch

    from gdro_lab.loop import text_logps

    uids_D = as_uids([row["uid"] for row in task.train])
    order_D = uids_D.argsort()
    calls = itertools.count()
    rates_D: Any = None  # of the moment, in increasing order of uids

    @functools.cache  # once, and only if asked: several texts may be correct
    def texts() -> tuple[list[int], torch.Tensor]:
        pairs = [(d, text) for d, row in enumerate(task.train) for text in task.correct_texts(row)]
        ends = [tokenizer.eos_token * (task.max_completion_tokens - len(text)) for _, text in pairs]
        said = [text + end for (_, text), end in zip(pairs, ends, strict=True)]
        prompts = (task.train[d]["prompt"] for d, _ in pairs)
        ids = tokenizer([p + text for p, text in zip(prompts, said, strict=True)])["input_ids"]
        return [d for d, _ in pairs], torch.tensor(ids, device=model.device)

    def rates(wanted: np.ndarray) -> np.ndarray:
        nonlocal rates_D
        if next(calls) % every == 0:
            prompt_of_N, ids_NT = texts()
            with torch.no_grad():
                logps_N = text_logps(model, ids_NT, len(task.train[0]["prompt"]))
            rates_D = np.bincount(prompt_of_N, logps_N.exp().cpu().double().numpy())
            rates_D = rates_D[order_D].clip(0, 1)
        return rates_D[uids_D[order_D].searchsorted(wanted)]

    return {"groups": {row["uid"]: row["family"] for row in task.train}, "rates": rates}


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
    keep: bool = False,
) -> None:
    """Play methods in worlds on fresh draws, train what is not there yet, and write scores.csv.

    Args:
        worlds: names or YAML files.
        methods: spelled as at the top of this file.
        draws: their numbers; for a fair comparison, numbers that chose no method.
        learning_rates: for methods that name none of their own.
        cache: where bases are kept.
        jobs: runs at once, one thread each.
        methods_from: a Python file that registers own methods.
        keep: write each run's record too, a row a step.

    ValueError for what is misspelled, before any training; RuntimeError if a run failed.
    """
    if methods_from:
        runpy.run_path(str(methods_from))
    arms: dict[tuple[str, float], None] = {}  # each method once a rate, though spelled twice
    most = 1
    for spelled in methods:
        method, _, own = spelled.partition("@")
        spelled_alone, prompts, mean = batch_shape(method, settings)
        arena_controller(spelled_alone, mean, 0)  # a misspelled one is refused before any training
        most = max(most, prompts)
        for rate in [own] if own else learning_rates:
            arms[method, check("learning_rates", float(rate), gt=0)] = None
    known = [read_world(world) for world in dict.fromkeys(worlds)]
    streams = any(world.spec.n_train == 0 for world in known)
    fits = not streams or settings.steps * most <= STREAM_SIZE
    need(fits, f"steps × prompts must be at most {STREAM_SIZE} in a stream")
    arms |= {(BASE, 0.0): None}
    runs = [ArenaRun(world, *arm, d) for world, arm, d in itertools.product(known, arms, draws)]
    _check_settings(runs, settings, out, methods_from)
    differ = len({run.file(out) for run in runs}) == len(runs)
    need(differ, "methods must differ in more than signs, which file names leave out")
    # draw by draw, so that every state of the folder holds whole pairs
    missing = sorted((run for run in runs if not run.file(out).exists()), key=lambda run: run.draw)
    of_draw = {(run.world.name, run.draw): run for run in missing}
    os.environ["OMP_NUM_THREADS"] = "1"  # the workers inherit it
    failed = []
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, _start_worker, (methods_from,)) as pool:
        try:
            bases = [pool.submit(_make_base, run, settings, cache) for run in of_draw.values()]
            for future in tqdm(as_completed(bases), "bases", len(bases)):
                future.result()
            play = (settings, out, cache, keep)
            futures = {pool.submit(play_run, run, *play): run for run in missing}
            for future in tqdm(as_completed(futures), "runs", len(futures), smoothing=0):
                if error := future.exception():
                    failed.append(f"{futures[future].file(out).stem}: {error}")
        finally:
            pool.shutdown(cancel_futures=True)  # an error or Ctrl-C starts nothing more
    write_scores(out)
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(missing)} runs failed:\n" + "\n".join(failed))


def _check_settings(
    runs: Sequence[ArenaRun], settings: Settings, out: Path, own: str | None
) -> None:
    """Refuse a folder with other settings, other worlds of the same names or other own methods."""
    file, worlds = out / "settings.json", {run.world.name: run.world for run in runs}
    own_names = all(run.world == worlds[run.world.name] for run in runs)
    need(own_names, f"worlds must have names of their own, got {list(worlds)}")
    specs = {name: world.model_dump(mode="json") for name, world in worlds.items()}
    now: dict[str, Any] = {"settings": asdict(settings), "worlds": specs}
    now["methods_from"] = own and file_hash(Path(own))
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        same = all(before["worlds"].get(name, spec) == spec for name, spec in specs.items())
        same = same and {"schedule": "constant"} | before["settings"] == now["settings"]
        need(same, f"out must have the same settings and worlds, got {out}")
        known = before.get("methods_from")
        unchanged = not (own and known) or known == now["methods_from"]
        need(unchanged, f"methods_from {own!r} has changed since the runs in {out}")
        now["worlds"], now["methods_from"] = before["worlds"] | specs, now["methods_from"] or known
    replace_text(file, json.dumps(now, indent=1))


def _start_worker(own: str | None) -> None:
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    if own:
        runpy.run_path(str(own))


def _make_base(run: ArenaRun, settings: Settings, cache: Path) -> None:
    draw_base(run.world, run.draw, settings, cache)
