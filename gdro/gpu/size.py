"""The size of a profile, measured: some steps with random weights, at full length, before days are spent."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gdro.gpu.bench import CheckResult, Skipped, start_training, verdict
from gdro.study.profiles import Profile
from gdro.tasks.settings import MathChoice
from gdro.training.records import read_manifest

BATCHES = 3
QWEN3: dict[str, dict[str, Any]] = {  # of the models that our profiles name
    f"Qwen/Qwen3-{size}": {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    | {"intermediate_size": inner, "vocab_size": 151_936, "tie_word_embeddings": size != "8B-Base"}
    for size, width, layers, heads, inner in (
        ("1.7B-Base", 2048, 28, 16, 6144),
        ("1.7B", 2048, 28, 16, 6144),
        ("4B-Base", 2560, 36, 32, 9728),
        ("8B-Base", 4096, 36, 32, 12288),
    )
}
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def size_of_profile(profile: Profile, folder: Path, cache_dir: str) -> Iterator[CheckResult]:
    """Memory and seconds of the first variant of each kind of model.

    A model that has a source is made anew with its configuration and random weights, which hardly ever end a
    completion, so that all have full length: more than a real training takes. Such completions are all wrong;
    `trim_batches` is off, or their rows would be left out for having no signal. Of a large generation batch
    two micro-batches a process are measured, and the seconds are scaled.
    """
    kinds = dict[tuple, str]()
    for variant in profile.variants:
        model = profile.model_of(variant)
        kinds.setdefault((model.kind, model.fast_inference, model.quantization), variant)
    source = None if profile.model.source is None else random_model(profile.model.source, folder / "model")
    for (kind, *_), variant in kinds.items():
        small, scale = shortened(profile, variant, source, folder)
        seconds, peak, total = measured_training(small, variant, folder / variant, cache_dir)
        yield verdict(f"{variant}: memory", peak < 0.97 * total, f"{peak:.1f} GiB", f"{total:.1f} GiB")
        hours = seconds * scale * profile.train_of(variant).generation_batches / 3600
        trainings = len(profile.seeds) * sum(profile.model_of(v).kind == kind for v in profile.variants)
        cost = (
            f"{seconds * scale:.1f} s a generation batch, {hours:.2f} hours a training, {trainings} like it: "
        )
        cost += f"{trainings * hours * max(profile.gpus, 1):.1f} {'GPU-' if profile.gpus else ''}hours"
        yield verdict(f"{variant}: time", hours <= profile.hours, cost, f"{profile.hours:g} hours a training")


def shortened(profile: Profile, variant: str, source: str | None, folder: Path) -> tuple[Profile, float]:
    """A profile of one variant and a few small generation batches, and by how much its own are larger."""
    train, processes = profile.train_of(variant), profile.launch.processes
    micro_batch, passes = train.local_batch(processes)
    steps = train.updates_per_step * train.num_iterations
    rows = micro_batch * processes * train.updates_per_step * min(passes, 2)
    prompts = -(-rows // train.num_generations)
    fields = profile.model_dump(mode="json")
    own = fields["variants"][variant]
    own["train"] |= {"max_steps": BATCHES * steps, "save_steps": BATCHES * steps, "eval_strategy": "no"}
    own["train"] |= {"prompts_per_step": prompts, "per_device_train_batch_size": micro_batch}
    own["train"] |= {"trim_batches": False}
    fields |= {
        "variants": {variant: own | {"baseline": variant}},
        "seeds": [0],
        "train": fields["train"] | own["train"],
    }
    if source is not None and profile.task.kind == "math":
        fields["model"]["source"] = source
        fields["task"]["paths"] = {
            profile.task.train: str(long_prompts(profile.task, source, folder / "prompts.jsonl"))
        }
    return Profile.model_validate(fields), train.prompts_per_step / prompts


def random_model(source: str, folder: Path) -> str:
    """A model with random weights in the shape of a hub's, and its tokenizer.

    Without the hub: the shapes in `QWEN3`, and bytes for a tokenizer; another model is skipped.
    """
    import torch
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(source)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    except OSError as error:
        if source not in QWEN3:
            why = f"no hub, no local copy and no known shape of {source!r}; give model.source a folder"
            raise Skipped(why) from error
        config = qwen3(source)
        tokenizer = byte_tokenizer(config.vocab_size)
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def qwen3(source: str) -> Any:
    """The configuration of a Qwen3 in the table above."""
    from transformers import Qwen3Config

    return Qwen3Config(**QWEN3[source], num_key_value_heads=8, head_dim=128)


def byte_tokenizer(size: int = 258) -> Any:
    """One token for each byte of UTF-8, and words that no text has up to `size`: nothing was trained."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = ["<pad>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += [f"word{i}" for i in range(len(tokens), size)]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<eos>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def long_prompts(task: MathChoice, source: str, file: Path) -> Path:
    """Problems whose prompts are nearly as long as the profile allows, but for 150 tokens of instructions."""
    import transformers

    tokens_a_term = len(transformers.AutoTokenizer.from_pretrained(source)("1 + " * 100)["input_ids"]) / 100
    text = "1 + " * max(int((task.max_prompt_tokens - 150) / tokens_a_term), 1)
    rows = [{"prompt": f"{text}{i}", "solution": str(i)} for i in range(2000)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def measured_training(
    profile: Profile, variant: str, folder: Path, cache_dir: str
) -> tuple[float, float, float]:
    """Train in a process of its own: seconds a generation batch, the most GiB used at once, all there are."""
    process, peak, total = start_training(profile, variant, folder, cache_dir), 0.0, 1.0
    while process.poll() is None:
        used, total = memory_used(process.pid)
        peak = max(peak, used)
        time.sleep(0.05)
    if process.returncode:
        raise RuntimeError(f"the training of {variant!r} failed; its words are above")
    manifest = read_manifest(folder / "training.json")
    return manifest["seconds"]["train"] / BATCHES, peak, total


def memory_used(pid: int) -> tuple[float, float]:
    """GiB in use and there: of the fullest GPU, or without one of a process and its children."""
    import psutil
    import torch

    if torch.cuda.is_available():
        free, total = zip(
            *(torch.cuda.mem_get_info(i) for i in range(torch.cuda.device_count())), strict=True
        )
        return (total[0] - min(free)) / 2**30, total[0] / 2**30
    try:
        found = psutil.Process(pid)
        resident = sum(one.memory_info().rss for one in (found, *found.children(recursive=True)))
    except psutil.NoSuchProcess:  # it has just ended
        resident = 0
    return resident / 2**30, psutil.virtual_memory().total / 2**30
