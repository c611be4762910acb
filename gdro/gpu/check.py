"""`gdro check`: whether engine, trainer and evaluation do on this machine what the tests show elsewhere.

Each check is one short function that measures a number beside a tolerance. They run in processes of their
own, because vLLM keeps the GPU until its process ends and Unsloth must be imported before TRL. What a machine
cannot run is SKIP, with the reason; a check that dies or takes too long is FAIL, with its last words. On a
GPU the model has 40 million parameters (gpu-smoke's), on a CPU 0.6 million; nothing is downloaded.
"""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gdro.gpu.bench import Bench, CheckResult, Skipped, Watch, start_training, verdict
from gdro.gpu.ranks import flat_gradient, gradient_by_ranks
from gdro.gpu.size import size_of_profile
from gdro.study.profiles import EvaluationChoice, LaunchChoice, load_profile
from gdro.training.lifetime import end_with_parent
from gdro.training.records import read_table, write_manifest

# After these a check counts as hung. Each start of vLLM can take two minutes; `several_gpus` starts it four
# times, and `size` once for each kind of model, before steps of full length.
PATIENCE_S, LONGER_S = 600.0, {"several_gpus": 1800.0, "size": 3600.0}
UNSLOTH = {"kind": "unsloth-lora", "fast_inference": True, "gpu_memory_utilization": 0.3}
GAP = "mean |Δ log-probability|"


def machine(bench: Bench) -> Iterator[CheckResult]:
    """1. Disk, GPU, and a kernel that is compiled here."""
    free = shutil.disk_usage(bench.folder).free / 2**30
    yield verdict("disk", free > 20 or not bench.devices, f"{free:.0f} GiB free", "20 GiB with a GPU")
    import torch

    if not bench.devices:
        raise Skipped(f"no GPU: {platform.machine()}, torch {torch.__version__}")
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    found = f"{bench.devices} × {torch.cuda.get_device_name()}, {memory:.1f} GiB"
    yield verdict("GPU", memory > 20, found, "more than 20 GiB")
    x = torch.randn(4096, device="cuda")
    error = float((torch.compile(torch.special.expit)(x) - x.sigmoid()).abs().max())
    yield verdict("a compiled kernel", error < 1e-5, f"error {error:.1e}", "1e-5")


def uneven(bench: Bench) -> Iterator[CheckResult]:
    """5. Prompts are sampled as often as planned, and advantages are those of plain numpy."""
    trainer = bench.trainer("uneven", "one-two-three")
    trainer.train()
    yield from counts_of(trainer.watch)


def counts_of(watch: Watch) -> Iterator[CheckResult]:
    """5, of any watched training by method "one-two-three"."""
    wrong = sum(a != b for a, b in zip(watch.prompts, watch.planned, strict=True))
    sizes = {n for counts in watch.prompts for n in counts}
    found = f"{wrong} of {len(watch.prompts)} batches differ, {min(sizes)} to {max(sizes)} rollouts a prompt"
    yield verdict("rollouts as planned", wrong == 0 and len(sizes) > 1, found, "0, unequal numbers")
    error = max(watch.errors)
    yield verdict("advantages", error < 1e-4, f"error {error:.1e}", "1e-4 (32 bits)")


def gradients(bench: Bench, model: dict | None = None) -> Iterator[CheckResult]:
    """6. Leaving out rows without a signal leaves the gradient as it is, in one process and in two."""
    import torch

    allowed = 2e-2 if bench.devices else 1e-4
    for loss in ("grpo", "bnpo", "dapo"):
        trainer = bench.trainer(loss, "both", model=model, loss_type=loss, max_steps=1)
        trainer.train()
        trainer.model.train()
        inputs, grads = trainer.watch.inputs[0], []
        signs_R = torch.arange(len(inputs["advantages"])) % 3 - 1.0  # a third of the rows without a signal
        inputs["advantages"] = signs_R.to(inputs["advantages"])
        for trim in (False, True):
            trainer.args.trim_batches = trim
            trainer.model.zero_grad()
            trainer.watch.loss(trainer.model, dict(inputs)).backward()
            grads.append(flat_gradient(trainer.model))
        error = float((grads[1] - grads[0]).norm() / grads[0].norm())
        measured = f"{error:.1e} of its length, {int((signs_R == 0).sum())} of {len(signs_R)} rows left out"
        yield verdict(f"gradient, {loss}", error <= allowed, measured, f"{allowed:g}")
    if model is None:  # the last loss; bnpo's mean is over each process's own tokens
        trainer.save_model(str(bench.folder / "moved"))
        by_two = gradient_by_ranks(bench, str(bench.folder / "moved"), inputs, 2)
        error = float((by_two - grads[0]).norm() / grads[0].norm())
        yield verdict(
            "gradient of two processes", error <= allowed, f"{error:.1e} of its length", f"{allowed:g}"
        )


def resuming(bench: Bench, model: dict | None = None) -> Iterator[CheckResult]:
    """7. A training that is killed resumes to the same record and the same weights."""
    from safetensors.numpy import load_file

    folders = [bench.folder / name for name in ("whole", "killed")]
    profile = bench.small_profile("both", model=model, max_steps=6, save_steps=2)

    def start(folder: Path) -> subprocess.Popen:
        return start_training(profile, "check", folder, bench.cache_dir)

    codes, killed = [start(folders[0]).wait()], start(folders[1])
    while killed.poll() is None and not list(folders[1].glob("*/checkpoint-2/gdro_ledger.json")):
        time.sleep(0.01)
    killed.kill()  # does nothing where it has ended by itself
    codes += [killed.wait(), start(folders[1]).wait()]
    if codes != [0, -signal.SIGKILL, 0]:
        raise RuntimeError(f"the trainings ended with {codes}, not with 0, -9 (killed), 0")
    same = read_table(folders[0] / "record.jsonl") == read_table(folders[1] / "record.jsonl")
    yield verdict("record after a kill", same, "equal" if same else "different", "equal")
    whole, resumed = (load_file(next((folder / "model").glob("*.safetensors"))) for folder in folders)
    error = max(float(np.abs(whole[name] - resumed[name]).max()) for name in whole)
    yield verdict("weights after a kill", error <= 1e-6, f"difference {error:.1e}", "1e-6")


def engine(
    bench: Bench, model: dict | None = None, tolerance: float = 0.0, times: float = 10.0, **train: Any
) -> Iterator[CheckResult]:
    """2 to 5. vLLM samples from the weights of the step, and a base under an adapter stays as it is."""
    bench.needs("vllm", gpu=not bench.reloads)
    model, allowed = model or {"kind": "full"}, tolerance or bench.tolerance
    kind, sleeps = model["kind"], bool(bench.devices) and "fast_inference" not in model
    options = {"use_vllm": True, "vllm_enable_sleep_mode": sleeps} | train
    trainer = bench.trainer(kind, "one-two-three", model, **options)
    frozen = {n: w.detach().clone() for n, w in trainer.model.named_parameters() if not w.requires_grad}
    trainer.train()
    watch, ratio_allowed = trainer.watch, 0.05 if kind == "unsloth-lora" else 0.01
    measured = f"{GAP} {watch.gaps[0]:.4f}, mean ratio {watch.ratios[0]:.4f}, {watch.tokens} tokens"
    is_good = watch.gaps[0] <= allowed and abs(watch.ratios[0] - 1) <= ratio_allowed
    yield verdict(f"{kind}: engine as trainer", is_good, measured, f"{allowed:g}, 1 ± {ratio_allowed:g}")
    new, old = max(watch.gaps[1:3]), min(watch.old_gaps[:2])
    is_good, measured = new <= allowed and old >= times * new, f"to new weights {new:.4f}, to old {old:.4f}"
    yield verdict(f"{kind}: weights arrive", is_good, f"{GAP} {measured}", f"{allowed:g}; {times:g} times")
    if frozen:
        now = dict(trainer.model.named_parameters())
        changes = [
            float((now[n] - w).float().norm() / w.float().norm()) for n, w in frozen.items() if w.any()
        ]
        still = 0.0 if kind == "unsloth-lora" else 1e-6
        steps, measured = len(watch.gaps), f"relative change {max(changes):.1e}"
        yield verdict(f"{kind}: base, {steps} steps", max(changes) <= still, measured, f"{still:g}")
    yield from counts_of(watch)


def engine_lora(bench: Bench) -> Iterator[CheckResult]:
    """3 and 4 for LoRA through TRL: twenty times merged into the base and taken out again."""
    yield from engine(bench, {"kind": "lora"}, max_steps=20)


def several_gpus(bench: Bench) -> Iterator[CheckResult]:
    """3 by DDP and FSDP2, with tied and untied embeddings."""
    bench.needs("vllm", gpu=True)
    if bench.devices < 2:
        raise Skipped("one GPU")
    from gdro.study.experiment import make_base, train_variant

    base = make_base(bench.small_profile(), bench.cache_dir)
    for config in ("ddp", "fsdp2"):
        for name, source in {"tied": base, "untied": untied(base, bench.folder / "model")}.items():
            profile = bench.small_profile("both", model={"source": source}, use_vllm=True)
            launch = LaunchChoice(processes=2, config=f"configs/accelerate/{config}.yaml")
            profile, folder = profile.model_copy(update={"launch": launch}), bench.folder / f"{config}-{name}"
            train_variant(profile, "check", 0, folder, bench.cache_dir)
            logged = "sampling/sampling_logp_difference/mean"
            gap = max(row[logged] for row in read_table(folder / "log_history.jsonl") if logged in row)
            is_good = gap <= bench.tolerance
            yield verdict(
                f"{config}, {name}: weights arrive", is_good, f"{GAP} {gap:.4f}", f"{bench.tolerance}"
            )


def untied(source: str, folder: Path) -> str:
    """A copy of a model whose output matrix is its own."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype="float32")
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.get_input_embeddings().weight.detach().clone())
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return str(folder)


def evaluation(bench: Bench) -> Iterator[CheckResult]:
    """8. vLLM and transformers find the same success rates, on all GPUs."""
    bench.needs("vllm")
    from gdro.study.evaluate import evaluate_model
    from gdro.study.experiment import _start

    source, tokenizer, data = _start(bench.small_profile(), "check", bench.cache_dir, held_out=True)
    rates, rows = [], data.rows[:30]
    for seed, name in enumerate(("hf", "vllm")):
        options = {"engine": name, "samples": 64, "gpu_memory_utilization": 0.3 if bench.devices else 0.1}
        options["data_parallel_size"] = max(bench.devices, 1) if name == "vllm" else 1
        choice = EvaluationChoice.model_validate(options)
        found = evaluate_model(choice, source, tokenizer, rows, data.reward, data.max_completion_tokens, seed)
        rates.append(np.array([row["successes"] / row["trials"] for row in found]))
    pooled = (rates[0] + rates[1]) / 2
    errors = np.sqrt(2 * np.maximum(pooled * (1 - pooled), 1 / 64) / 64)
    worst = float(np.abs((rates[0] - rates[1]) / errors).max())
    measured = f"{worst:.1f} standard errors, {len(rows)} prompts × 64, mean rates {rates[0].mean():.3f}"
    yield verdict(
        "evaluation",
        worst < 4.5 and pooled.any(),
        f"{measured} and {rates[1].mean():.3f}",
        "4.5 standard errors",
    )


def unsloth_lora(bench: Bench) -> Iterator[CheckResult]:
    """(a), (b), (c), (e), (h): the engine has the adapter of the step; each start asserts its parts."""
    bench.needs("unsloth", "vllm", gpu=True)
    yield from engine(bench, UNSLOTH, 0.03, 5.0, learning_rate=5e-3)


def unsloth_gradients(bench: Bench) -> Iterator[CheckResult]:
    """(d), with Unsloth's loss."""
    bench.needs("unsloth", gpu=True)
    os.environ["UNSLOTH_GRPO_SEQ_PACKING"] = "0"
    yield from gradients(bench, {"kind": "unsloth-lora"})


def unsloth_standby(bench: Bench) -> Iterator[CheckResult]:
    """(f): asleep, the engine gives its memory back; awake again, it has the adapter."""
    bench.needs("unsloth", "vllm", gpu=True)
    import torch

    options = {"use_vllm": True, "vllm_enable_sleep_mode": True, "learning_rate": 5e-3, "max_steps": 4}
    trainer = bench.trainer("standby", "both", model=UNSLOTH | {"standby": True}, **options)
    llm, free = trainer.vllm_generation.llm, {"awake": list[int](), "asleep": list[int]()}

    def noting(when: str, call: Callable) -> Callable:
        def noted(*args: Any, **given: Any) -> Any:
            free[when].append(torch.cuda.mem_get_info()[0])
            return call(*args, **given)

        return noted

    llm.generate, trainer.compute_loss = noting("awake", llm.generate), noting("asleep", trainer.compute_loss)
    trainer.train()
    cache, shape = llm.llm_engine.vllm_config.cache_config, trainer.model.config
    token = (
        4 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim
    )  # bytes of keys and values
    back = float(np.median(free["asleep"]) - np.median(free["awake"]))
    share, gap = back / (cache.num_gpu_blocks * cache.block_size * token), trainer.watch.gaps[-1]
    yield verdict("standby: memory given back", share >= 0.8, f"{share:.0%} of the cache", "80%")
    yield verdict("standby: the adapter, awake again", gap <= 0.03, f"{GAP} {gap:.4f}", "0.03")


def unsloth_resuming(bench: Bench) -> Iterator[CheckResult]:
    """(g)."""
    bench.needs("unsloth", gpu=True)
    yield from resuming(bench, {"kind": "unsloth-lora"})


def unsloth_full(bench: Bench) -> Iterator[CheckResult]:
    """(i): all weights through Unsloth, with TRL's vLLM."""
    bench.needs("unsloth", "vllm", gpu=True)
    yield from engine(bench, {"kind": "unsloth-full", "dtype": "float32"})


def size(bench: Bench) -> Iterator[CheckResult]:
    """9. Memory and seconds of the profile's own step, and what the profile will cost."""
    yield from size_of_profile(load_profile(bench.profile or "smoke"), bench.folder, bench.cache_dir)


CHECKS: tuple[Callable[[Bench], Iterator[CheckResult]], ...] = (
    machine, uneven, gradients, resuming, engine, engine_lora, evaluation, several_gpus,
    unsloth_lora, unsloth_gradients, unsloth_standby, unsloth_resuming, unsloth_full, size,
)  # fmt: skip


def run_check(name: str, bench: Bench) -> list[CheckResult]:
    """The results of one check, in this process; an error is a FAIL, after what was found before it."""
    results = list[CheckResult]()
    try:
        results.extend(next(check for check in CHECKS if check.__name__ == name)(bench))
    except Skipped as why:
        results.append(CheckResult(name, "SKIP", why=str(why)))
    except Exception as error:  # what is wrong with a machine is what a check looks for
        sys.excepthook(type(error), error, error.__traceback__)
        results.append(CheckResult(name, "FAIL", why=f"{type(error).__name__}: {str(error)[-300:]}"))
    return results


def run_checks(
    profile: str | None = None,
    out: Path | None = None,
    names: tuple[str, ...] = (),
    cache_dir: str = ".cache/bases",
) -> list[CheckResult]:
    """Run all checks (or those named), print a line for each result, and write them to `out` as JSON.

    profile: whose size is measured, at the end. FAIL among the statuses means that the machine is not ready.
    """
    if profile is not None:
        load_profile(profile)  # refuses a wrong one before anything runs
    results, began = list[CheckResult](), time.monotonic()
    for check in CHECKS:
        if not names or check.__name__ in names:
            found = _in_a_process(check.__name__, profile, cache_dir)
            for one in found:
                rest = one.why or f"{one.measured} (allowed: {one.allowed})"
                print(f"{one.status}  {one.check:34} {rest}", flush=True)
            results += found
    if out is not None:
        seconds = time.monotonic() - began
        write_manifest(out, {"checks": [asdict(result) for result in results], "seconds": seconds})
    return results


def _in_a_process(name: str, profile: str | None, cache_dir: str) -> list[CheckResult]:
    patience = LONGER_S.get(name, PATIENCE_S)
    with tempfile.TemporaryDirectory() as folder:
        answer, log = Path(folder) / "answer.json", Path(folder) / "log"
        command = [sys.executable, "-m", "gdro.gpu.check", name, folder, profile or "", cache_dir]
        with log.open("w") as stream:
            process = subprocess.Popen(command, stdout=stream, stderr=stream, start_new_session=True)
            try:
                why = f"exit code {process.wait(patience)}"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                why = f"took more than {patience:.0f} seconds"
        if answer.is_file():
            return [CheckResult(**fields) for fields in json.loads(answer.read_text())]
        last = " / ".join(log.read_text(errors="replace").splitlines()[-3:])
        return [CheckResult(name, "FAIL", why=f"{why}: {last[-300:]}")]


def main() -> None:
    """One check in this process, for `run_checks`."""
    name, folder, profile, cache_dir = sys.argv[1:]
    end_with_parent()
    from gdro.study.experiment import start_job

    start_job()
    results = run_check(name, Bench(Path(folder), profile or None, cache_dir=cache_dir))
    (Path(folder) / "answer.json").write_text(json.dumps([asdict(result) for result in results]))


if __name__ == "__main__":
    main()
