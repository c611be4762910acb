"""What is refused of a profile whose fields are right one by one."""

from gdro.checks import Refusal
from gdro_lab.experiments.blocks import BASE
from gdro_lab.experiments.profile import LOOP_TRAIN, Configuration, Profile
from gdro_lab.experiments.scores import K
from gdro_lab.tasks.reasoning_gym import STREAM_SIZE, GymSpec
from gdro_lab.tasks.world import read_world

RESERVED = {BASE, "results", "figures", "logs"}
"""Folders of a profile's runs."""
OF_LOOP = {"worlds", "methods", "learning_rates", "size", "baseline"}
OF_TRL = {"one_task", "task", "base", "model", "cold_start", "evaluation", "launch", "gpus"}
OF_TRL |= {"hours", "variants"}


def _check_fields(profile: Profile, others: set[str]) -> None:
    """Refuse fields of the other backend."""
    named = sorted(profile.model_fields_set & others)
    if named:
        raise Refusal(f"{named[0]} must be left out with the backend {profile.backend!r}")


def check_loop(profile: Profile) -> None:
    """Refuse (Refusal) what is misspelled, before any training."""
    _check_fields(profile, OF_TRL)
    train = profile.train
    unknown = sorted((train.model_fields_set | set(train.model_extra or {})) - set(LOOP_TRAIN))
    if unknown:
        raise Refusal(f"train must have no other fields than {LOOP_TRAIN}, got {unknown}")
    if train.lr_scheduler_type not in ("constant", "linear"):
        raise Refusal(
            "train.lr_scheduler_type must be 'constant' or 'linear' in the loop, "
            f"got {train.lr_scheduler_type!r}"
        )
    # with fewer, two of the five checkpoints would be the same step
    if train.max_steps < 5:
        raise Refusal(f"train.max_steps must be at least 5 in the loop, got {train.max_steps}")
    if not profile.methods:
        raise Refusal("methods must name what is compared, got []")
    worlds = profile.drawn_worlds
    names = [world.name for world in worlds]
    if len(set(names)) != len(names):
        raise Refusal(f"worlds must have names of their own, got {names}")
    known = sorted({"grpo", *(one.method for one in profile.configurations())})
    if profile.baseline not in known:
        raise Refusal(f"baseline must be one of {known}, got {profile.baseline!r}")
    most = max(profile.batch_shape(one.variant)[0] for one in profile.configurations())
    streams = [world.name for world in worlds if world.spec.n_train == 0]
    if streams and train.max_steps * most > STREAM_SIZE:
        raise Refusal(
            f"steps × prompts must be at most {STREAM_SIZE} in the stream {streams[0]!r}, "
            f"got {train.max_steps} × {most}"
        )


def check_trl(profile: Profile) -> None:
    """Refuse (Refusal) what would otherwise fail after hours."""
    _check_fields(profile, OF_LOOP)
    if not profile.variants:
        raise Refusal("variants must name what is compared, got {}")
    if RESERVED & set(profile.variants):
        raise Refusal(
            f"variants may not be called {sorted(RESERVED)}, got {list(profile.variants)}"
        )
    labels = [profile.label(variant) for variant in (BASE, *profile.variants)]
    if len(set(labels)) != len(labels):
        raise Refusal(f"labels of variants must differ, got {labels}")
    if profile.evaluation.k > profile.evaluation.samples:
        raise Refusal(
            f"evaluation.k must be at most the {profile.evaluation.samples} samples, "
            f"got {profile.evaluation.k}"
        )
    if profile.launch.file is None and profile.launch.options:
        options = sorted(profile.launch.options)
        raise Refusal(f"launch.config must be given with further options, got {options}")
    _check_seeds(profile)
    _check_task(profile)
    for name in profile.variants:
        try:
            _check_variant(profile, name)
        except (ValueError, TypeError) as error:
            raise Refusal(f"variant {name!r}: {error}") from error


def _check_seeds(profile: Profile) -> None:
    """Refuse a second meaning of a seed, and scores that no table has."""
    samples = profile.evaluation.samples
    if len(profile.seeds) > 1 and not profile.one_task and samples < K:
        raise Refusal(
            f"evaluation.samples must be at least {K} where each seed draws its own task (or "
            f"one_task must be true), got {samples}"
        )
    for name in ("task", "base", "cold_start"):
        part = getattr(profile, name)
        if part is not None and "seed" in part.model_fields_set and not profile.one_task:
            raise Refusal(
                f"{name}.seed must be left out, since the profile's seeds draw it, or one_task be "
                f"true, got {part.seed}"
            )


def _check_task(profile: Profile) -> None:
    """Refuse a task without the model that it needs."""
    task = profile.task
    source = profile.model.source
    if task.kind == "math" and source is None:
        raise Refusal("model.source must be given for task.kind 'math', got None")
    if task.kind == "reasoning_gym":
        spec = read_world(task.world).spec
        if not isinstance(spec, GymSpec) or spec.n_train == 0:
            raise Refusal(f"task.world must be a finite one of reasoning-gym, got {task.world!r}")
        if source is None and spec.prompt_length is None:
            raise Refusal(f"model.source must be given for task.world {task.world!r}, got None")
        changed = sorted(profile.base.model_fields_set - {"seed"})
        if changed:
            raise Refusal(f"base must be the world's, but for its seed, got {changed}")
    if profile.cold_start is not None and (source is None or task.kind == "embedded"):
        raise Refusal(
            "cold_start needs model.source and a task of kind math or reasoning_gym, "
            f"got {source!r} and {task.kind!r}"
        )


def _check_variant(profile: Profile, name: str) -> None:
    """Refuse a variant that cannot be trained, or not be compared."""
    variant = profile.variants[name]
    train = profile.train_of(name)
    model = profile.model_of(name)
    known = [*profile.variants, "grpo"]
    if variant.baseline not in known:
        raise Refusal(f"baseline must be one of {known}, got {variant.baseline}")
    steps = profile.train.max_steps
    batches = profile.train.generation_batches
    if (train.max_steps, train.generation_batches) != (steps, batches):
        raise Refusal(
            "max_steps, updates_per_step and num_iterations must give the profile's "
            f"{steps} steps in {batches} batches, "
            f"got {train.max_steps} in {train.generation_batches}"
        )
    unit = train.updates_per_step * train.num_iterations
    if train.max_steps % unit != 0:
        raise Refusal(
            f"max_steps must be a multiple of {unit} updates a batch, got {train.max_steps}"
        )
    if train.save_steps < train.max_steps and train.save_steps % unit != 0:
        # a checkpoint within a batch does not resume to the same weights
        raise Refusal(
            f"save_steps must be a multiple of {unit} updates a batch, got {train.save_steps}"
        )
    if model.kind.startswith("unsloth") and profile.launch.shards:
        raise Refusal(
            f"launch.config must not shard the weights of Unsloth, got {profile.launch.config!r}"
        )
    if model.kind == "unsloth-lora" and train.use_vllm != model.fast_inference:
        raise Refusal(
            "use_vllm and fast_inference must be equal for unsloth-lora, "
            f"got {train.use_vllm} and {model.fast_inference}"
        )
    processes = profile.launch.processes
    if model.fast_inference and processes != 1:
        raise Refusal(f"launch.processes must be 1 with fast_inference, got {processes}")
    if profile.evaluation.at:
        is_like = train.use_vllm == (profile.evaluation.engine == "vllm")
        options = train.model_extra or {}
        sleeps = options.get("vllm_enable_sleep_mode") or options.get("vllm_mode") == "server"
        if not is_like or sleeps or processes > 1 or model.kind.startswith("unsloth"):
            raise Refusal(
                "evaluation.at needs one process without Unsloth, whose engine is that of the "
                f"evaluation and stays awake, got {profile.evaluation.at}"
            )
    train.local_batch(processes)
    profile.controller_of(Configuration(name, variant, train.learning_rate))
