"""Plays a run: in TRL its base, tokenizer and data, its training, its evaluation.

Heavy packages are imported where they are used, since Unsloth must be imported before TRL, and the
console's process imports neither.
"""

from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from gdro.checks import Refusal
from gdro_lab.experiments.records import identity_of, read_training
from gdro_lab.experiments.run import Parts, Run
from gdro_lab.experiments.spelling import import_methods
from gdro_lab.failures import at_the_door
from gdro_lab.machine import only_process_in, own_processes
from gdro_lab.models import import_unsloth
from gdro_lab.tasks import draw_task, load_split
from gdro_lab.tasks.cache import find_made
from gdro_lab.tasks.cold_start import cold_start, load_solutions
from gdro_lab.tasks.pretrained import find_model, model_identity
from gdro_lab.tasks.tiny import SHIPPED, tiny_base
from gdro_lab.tasks.world import read_world

if TYPE_CHECKING:
    from gdro_lab.experiments.training import Training

CACHE = ".cache/bases"


def make_run_base(run: Run, cache_dir: str | Path) -> None:
    """Make what a run starts from, if the cache lacks it; print where it is."""
    if run.world is None:
        print(make_base(run, cache_dir, progress=True))
        return
    from gdro_lab.experiments.loop_runs import draw_base

    _, base = draw_base(run.world, run.replicate, cache_dir)
    print(base)


def play_run(run: Run, file: Path, cache_dir: str | Path = CACHE) -> list[dict[str, Any]]:
    """Train a run of either backend, unless that is done, and evaluate it; return its scores.

    file: that it leaves when it is complete.
    """
    if run.world is not None:
        from gdro_lab.experiments.loop_runs import play_in_loop

        return play_in_loop(run, run.world, file, cache_dir)
    where = (run, file.parent, cache_dir)
    if run.variant is not None:
        if run.gpus or run.train.use_vllm or run.model.is_unsloth:
            # memory of a GPU and of vLLM is free when a process ends; Unsloth changes transformers
            with own_processes(1) as pool:
                pool.submit(train_run, *where).result()
        else:
            train_run(*where)
    return evaluate_run(*where)


def train_run(run: Run, folder: str | Path, cache_dir: str | Path = CACHE) -> list[dict[str, Any]]:
    """Train a run, unless that is done, and return its record.

    Refusal for a folder in which another process trains.
    """
    with only_process_in(Path(folder)):
        training = open_training(run, folder, cache_dir)
        if training.done:
            training.remove_checkpoints()  # a kill just before the end leaves them
        elif training.needs_launcher:
            training.launch()
        else:
            training.train()
    return training.record()


def open_training(run: Run, folder: str | Path, cache_dir: str | Path = CACHE) -> "Training":
    """The training of a run in a folder, with all that it needs; nothing is trained yet."""
    import_methods(run.methods_from)  # in a process of its own, which has not read the profile
    check_installed([run], evaluates=False)
    check_options([run])
    from gdro_lab.experiments.training import Training

    return Training(run, make_parts(run, cache_dir), Path(folder), cache_dir)


def evaluate_run(
    run: Run, folder: str | Path, cache_dir: str | Path = CACHE
) -> list[dict[str, Any]]:
    """Evaluate the base, or the model that `train_run` left in `folder`, unless that is done.

    It returns the counts of held-out prompts; the table has those of training prompts, too. Refusal
    if the training is not complete, or if the folder cannot be written.
    """
    with only_process_in(Path(folder)):
        trained = {} if run.variant is None else read_training(Path(folder))
        is_seeds = trained.get("seed") == run.replicate
        if run.variant is not None and not (is_seeds and trained["settings"] == run.of_training):
            raise Refusal(
                f"{folder} holds no training with the settings of profile {run.profile!r} and "
                f"seed {run.replicate}: train it first"
            )
        parts = make_parts(run, cache_dir, held_out=True, start=trained.get("start"))
        if run.variant is not None:
            own = load_split(run.task, parts.tokenizer, held_out=False, template=run.train.template)
            wanted = identity_of(run.of_training, run.replicate, own.rows, parts.start)
            if trained["identity"] != wanted:  # it may have been trained on what is evaluated now
                raise Refusal(f"{folder} was trained on other data or another base: train it again")
        check_installed([run], trains=False)
        from gdro_lab.experiments.evaluation import evaluate_saved

        return evaluate_saved(run, parts, Path(folder), trained)


def check_installed(runs: Sequence[Run], *, trains: bool = True, evaluates: bool = True) -> None:
    """Refuse (Refusal) trainings and evaluations whose packages are not installed."""
    trained = [run for run in runs if trains and run.variant is not None]
    trains_with_vllm = any(run.train.use_vllm for run in trained)
    evaluates_with_vllm = evaluates and any(run.evaluation.engine == "vllm" for run in runs)
    kinds = {run.task.kind for run in runs}
    is_used = {
        "unsloth": any(run.model.is_unsloth for run in trained),
        "vllm": trains_with_vllm or evaluates_with_vllm,
        "liger_kernel": any((r.train.model_extra or {}).get("use_liger_kernel") for r in trained),
        "math_verify": "math" in kinds,
        "pebble": "math" in kinds,
        "reasoning_gym": "reasoning_gym" in kinds,
    }
    missing = [name for name, used in is_used.items() if used and find_spec(name) is None]
    if missing:
        raise Refusal(
            f"profile {runs[0].profile!r} needs {', '.join(missing)}, not installed: "
            "see docs/install.md and, for GPUs, docs/gpu-box.md, 1"
        )
    is_old = Version(version("trl")) < Version("1.16")
    if is_old and trains_with_vllm and runs[0].launch.shards:
        raise Refusal(
            f"profile {runs[0].profile!r} needs TRL 1.16 to bring sharded weights to vLLM, "
            f"got {version('trl')}"
        )


def check_options(runs: Sequence[Run]) -> None:
    """Refuse (Refusal) what TRL, a method or this machine refuses, before anything is made."""
    unsloth = [run.model for run in runs if run.model.is_unsloth]
    if unsloth:
        import_unsloth(any(model.standby for model in unsloth))  # it comes before TRL
    from gdro_lab.experiments.training import check_arguments

    check_arguments(runs)


def make_base(run: Run, cache_dir: str | Path = CACHE, *, progress: bool = False) -> str:
    """The model that a run starts from, a folder or hub id, made if the cache lacks it.

    Without model.source it is the tiny base; with cold_start, the source that was taught solutions.
    """
    if run.model.source is not None:
        return _pretrained_base(run, run.model.source, cache_dir, progress)
    assert run.task.kind != "math"  # its profiles name their model
    choice = run.base.model_dump()
    if run.task.kind == "reasoning_gym":
        choice |= read_world(run.task.world).base.model_dump()
    return str(tiny_base(draw_task(run.task), cache_dir=cache_dir, progress=progress, **choice))


def _pretrained_base(run: Run, source: str, cache_dir: str | Path, progress: bool) -> str:
    """The source itself as a folder or hub id, or the model that was taught solutions."""
    folder = find_model(source, cache_dir)
    choice = run.cold_start
    if choice is None:
        return folder
    assert run.task.kind != "embedded"  # such profiles have no cold start
    template = run.taught_template
    solutions = load_solutions(
        run.task, load_tokenizer(folder), choice.examples, choice.seed, template
    )
    taught = cold_start(
        source, solutions, choice, cache_dir=cache_dir, template=template, progress=progress
    )
    return str(taught)


def load_tokenizer(source: str) -> Any:
    """The tokenizer of a folder or hub id, which pads on the left; Refusal if it has none."""
    from transformers import AutoTokenizer

    with at_the_door(f"model.source {str(source)!r} cannot be loaded"):
        tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # as TRL does
    return tokenizer


def make_parts(
    run: Run, cache_dir: str | Path, *, held_out: bool = False, start: str | None = None
) -> Parts:
    """The model to start from, which is made if the cache lacks it, with tokenizer and data.

    start: the name of the base that a training began with. Where the cache still has it, it is
        taken; with other versions of the packages, another base would be made.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    kept = None
    if run.model.source is None and start is not None:
        kept = find_made(Path(cache_dir) / start, SHIPPED / start)
    source = str(kept or make_base(run, cache_dir))
    tokenizer = load_tokenizer(source)
    data = load_split(run.task, tokenizer, held_out=held_out, template=run.train.template)
    column = run.variant and run.variant.groups
    if column is not None and column not in data.rows[0]:
        raise Refusal(
            f"groups of variant {run.configuration!r} must be among {sorted(data.rows[0])}, "
            f"got {column!r}"
        )
    start = Path(source).name  # of a base that we have made, after a hash of all it is made of
    if run.model.source is not None and run.cold_start is None:
        start = identity_of(model_identity(run.model.source))
    return Parts(source, tokenizer, data, start)
