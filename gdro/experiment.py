"""One run of a profile: base, train, evaluate.

A run is one variant with one seed, in a folder of its own:

    record.jsonl       a row each training step: what the controller saw and decided, rollouts, tokens
    model/             what was trained: the whole model, or the adapter
    training.json      seconds by stage, outcomes of the reward; says that the two above are whole
    evaluation.jsonl   a row each held-out prompt: successes, trials
    manifest.json      settings, seconds, totals, versions; written when all is there

Training runs here, or on several processes that a launcher starts, each of them with

    python -m gdro.experiment train PROFILE VARIANT SEED FOLDER [CACHE_DIR]

and `run` in place of `train` also evaluates and writes the manifest.

Heavy packages are imported where they are used: Unsloth must come before TRL and transformers.
"""

import gc
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml

from gdro.models import fetched, import_unsloth, load_model, merged_model
from gdro.processes import stream
from gdro.profiles import BASE, Profile, load_profile
from gdro.records import read_table, replace_text, write_manifest, write_table
from gdro.tasks import draw_chain, make_task


def make_base(profile: Profile, cache_dir: str | Path = ".cache/bases") -> Path:
    """The folder of the profile's own tiny base, trained if the cache does not have it."""
    from gdro.tiny import tiny_base

    assert profile.task.kind == "chain"  # other tasks name their model: the profile has seen to it
    return tiny_base(
        draw_chain(profile.task), cache_dir=cache_dir, progress=False, **profile.base.model_dump()
    )


class Run:
    """One variant with one seed: `train`, then `evaluate`, each leaving its part in `folder`.

    seconds: by stage, filled as the stages end. A run that was stopped goes on from its last whole
    checkpoint; one that was whole and is run again starts anew.
    """

    def __init__(
        self, profile: Profile, variant: str, seed: int, folder: str | Path, cache_dir=".cache/bases"
    ):
        if seed < 0:
            raise ValueError(f"seed must be ≥ 0, got {seed}")
        self.profile, self.variant, self.seed = profile, variant, seed
        self.settings = None if variant == BASE else profile.train_of(variant)
        self.model_choice = profile.model_of(variant)
        self.folder, self.cache_dir = Path(folder), Path(cache_dir)
        self.seconds: dict[str, float] = {}
        self.record: list[dict] = []
        if self.model_choice.is_unsloth:
            import_unsloth()
        from transformers import AutoTokenizer

        with self._timed("base"):
            source = self.model_choice.source or str(make_base(profile, cache_dir))
            self.source = fetched(source, self.model_choice.revision)
        self.tokenizer = AutoTokenizer.from_pretrained(self.source, padding_side="left")
        self.task = make_task(profile.task, self.tokenizer)
        depends_on = [profile.settings_of(variant), seed, list(self.task.train["uid"])]
        self.identity = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()

    # Training

    def train(self) -> list[dict]:
        """Train, and return the record; for the base, nothing."""
        if self.settings is None:
            return []
        if self._training_report().get("identity") != self.identity:
            if self.profile.launch.is_here:
                self.train_here()
                self._free_memory()
            else:
                self._launch()
        self.record = read_table(self.folder / "record.jsonl")
        self.seconds |= self._training_report()["seconds"]
        return self.record

    def train_here(self) -> None:
        """Train in this process, which may be one of several that a launcher started."""
        settings = self.settings
        assert settings is not None  # the base is not trained
        # checkpoints of other settings or data are never taken up: the folder's name says whose they are
        checkpoints = self.folder / f"checkpoints-{self.identity[:8]}"
        trainer = self._trainer(settings, checkpoints)

        from accelerate.utils import gather_object

        from gdro.trainer import whole_checkpoints

        if len(set(gather_object([self.identity]))) > 1:
            raise RuntimeError(
                "the processes have read different training data; where rows are dropped for slow answers, "
                "clean the data set once and give that copy (task.paths)"
            )
        whole = whole_checkpoints(checkpoints)
        if whole and whole[-1].name == f"checkpoint-{settings.steps}":
            trainer.load_whole(whole[-1])  # the training had ended; what came after it had not
        else:
            trainer.train(resume_from_checkpoint=str(whole[-1]) if whole else None)
        self._check_budget(settings, trainer.record)
        self._save(trainer)

    def _save(self, trainer):
        """Leave the trained model, the record and, last, the report; on all processes."""
        from accelerate.utils import gather_object

        is_main, model = trainer.accelerator.is_main_process, self.folder / "model"
        if is_main:
            (self.folder / "training.json").unlink(missing_ok=True)
            shutil.rmtree(model, ignore_errors=True)  # what another training left there
        trainer.accelerator.wait_for_everyone()
        trainer.save_model(str(model))  # all processes take part where weights are sharded
        of_all = gather_object([(_peak_memory_gib(), self.task.report()["outcomes"].get("train", {}))])
        if is_main:
            write_table(self.folder / "record.jsonl", trainer.record)
            peaks, outcomes = zip(*of_all, strict=True)
            report = {
                "identity": self.identity,
                "seconds": trainer.seconds,
                "processes": trainer.accelerator.num_processes,
                "peak_memory_gib": None if None in peaks else max(peaks),
                "outcomes": {name: sum(counts[name] for counts in outcomes) for name in outcomes[0]},
            }
            replace_text(self.folder / "training.json", json.dumps(report))

    def _launch(self) -> None:
        """Train on the processes that the profile asks for, and print what they print."""
        launch, profile_file = self.profile.launch, self.folder / "profile.yaml"
        replace_text(profile_file, yaml.safe_dump(self.profile.model_dump(mode="json"), sort_keys=False))
        if launch.config_path is None:
            launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(launch.processes)]
        else:
            launcher = ["accelerate.commands.launch", "--config_file", str(launch.config_path)]
            launcher += ["--num_processes", str(launch.processes)]
        work = ["-m", "gdro.experiment", "train", profile_file, self.variant, self.seed, self.folder]
        stream([sys.executable, "-m", *launcher, *map(str, [*work, self.cache_dir])], "the launched training")

    def _trainer(self, settings, checkpoints):
        variant, choice = self.profile.variants[self.variant], self.model_choice
        longest = self.task.max_prompt_tokens + self.task.max_completion_tokens
        loaded = load_model(
            self.source,
            kind=choice.kind,
            seed=self.seed,
            dtype=choice.dtype,
            gradient_checkpointing=choice.gradient_checkpointing,
            lora=choice.lora,
            max_length=longest,
            attention=choice.attention,
        )
        from transformers import PrinterCallback

        from gdro.progress import ProgressLines
        from gdro.trainer import GDROConfig, GDROTrainer

        on_gpu = torch.cuda.is_available()
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        micro_batch, accumulated = settings.local_batch(processes)
        args = GDROConfig(
            output_dir=str(checkpoints),
            seed=self.seed,
            max_steps=settings.steps,
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=accumulated,
            num_generations=settings.mean_rollouts,
            max_completion_length=self.task.max_completion_tokens,
            learning_rate=settings.learning_rate,
            lr_scheduler_type="constant",
            beta=settings.beta,
            epsilon_high=settings.epsilon_high,
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            loss_type=settings.loss_type,
            advantage_std=settings.advantage_std,
            advantage_clip=settings.advantage_clip,
            gdro_method=variant.method,
            gdro_preset=variant.preset,
            gdro_options=variant.options,
            group_column=variant.groups,
            save_strategy="steps",
            save_steps=settings.save_steps,
            save_total_limit=2,
            logging_steps=settings.steps,
            report_to=[],
            disable_tqdm=True,
            use_cpu=not on_gpu,
            bf16=on_gpu,
            ddp_backend=None if on_gpu or processes == 1 else "gloo",
            ddp_find_unused_parameters=False,
            gradient_checkpointing=choice.gradient_checkpointing,
            **_vllm_arguments(settings.vllm, longest),
        )
        args._n_gpu = min(args.n_gpu, 1)  # as transformers does itself where one process has one GPU
        trainer = GDROTrainer(
            loaded.model,
            self.task.reward,
            args=args,
            train_dataset=self.task.train,
            processing_class=loaded.tokenizer,
            peft_config=loaded.peft_config,
            callbacks=[ProgressLines(f"{self.variant}, seed {self.seed}")],
        )
        trainer.remove_callback(PrinterCallback)  # a page of numbers that the record has
        return trainer

    def _check_budget(self, settings, record):
        spent = sum(row["rollouts_spent"] for row in record)
        wanted = settings.steps * settings.prompts_per_step * settings.mean_rollouts
        if spent != wanted:
            raise RuntimeError(
                f"{self.variant}, seed {self.seed} spent {spent} rollouts, not the {wanted} of its profile; "
                "it cannot be compared at matched rollouts"
            )

    def _training_report(self):
        """training.json, or nothing where the training has not ended."""
        path = self.folder / "training.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    # Evaluation

    def evaluate(self) -> list[dict]:
        """Evaluate the model as it stands, write and return one row a held-out prompt."""
        from gdro import evaluate as engines

        choice = self.profile.evaluation
        shared: dict[str, Any] = {
            "samples": choice.samples,
            "max_new_tokens": self.task.max_completion_tokens,
            "temperature": choice.temperature,
            "top_p": choice.top_p,
            "top_k": choice.top_k,
            "seed": self.seed,
        }
        rows, reward = self.task.held_out, self.task.held_out_reward
        with self._timed("evaluate"):
            if choice.engine == "vllm":
                evaluation = engines.evaluate_with_vllm(
                    self._whole_model(),
                    rows,
                    reward,
                    gpu_memory_utilization=choice.gpu_memory_utilization,
                    tensor_parallel_size=choice.tensor_parallel_size,
                    **shared,
                )
            else:
                evaluation = engines.evaluate(
                    self._loaded_model(),
                    self.tokenizer,
                    rows,
                    reward,
                    batch_size=choice.batch_size,
                    progress=False,
                    **shared,
                )
        write_table(self.folder / "evaluation.jsonl", evaluation)
        return evaluation

    def _whole_model(self) -> str:
        """The folder (or hub id) of the model to evaluate, an adapter merged into its base."""
        if self.settings is None:
            return self.source
        trained = self.folder / "model"
        if not self.model_choice.is_lora:
            return str(trained)
        return str(merged_model(self.source, trained, self.folder / "merged"))

    def _loaded_model(self):
        """The model to evaluate, in this process; as vLLM has it, in 16 bits on a GPU."""
        from transformers import AutoModelForCausalLM

        on_gpu = torch.cuda.is_available()
        dtype = torch.bfloat16 if on_gpu else torch.float32
        model = AutoModelForCausalLM.from_pretrained(self._whole_model(), dtype=dtype)
        return model.to("cuda" if on_gpu else "cpu")

    @staticmethod
    def _free_memory():
        """Let go of the trainer before the evaluation asks for its memory."""
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    # What it leaves

    def manifest(self) -> dict:
        """What the run says of itself, for `gdro.records.write_manifest`; its last act."""
        trained = self._training_report()
        outcomes = {"train": trained.get("outcomes", {})}
        outcomes["held_out"] = self.task.report()["outcomes"].get("held_out", {})
        self.task.close()
        (self.folder / "training.json").unlink(missing_ok=True)  # run again, a whole run starts anew
        for leftover in (*self.folder.glob("checkpoints-*"), self.folder / "merged"):
            shutil.rmtree(leftover, ignore_errors=True)  # a whole run needs none
        if not self.profile.keep_models:
            shutil.rmtree(self.folder / "model", ignore_errors=True)
        return {
            "profile": self.profile.name,
            "settings": self.profile.settings_of(self.variant),
            "variant": self.variant,
            "seed": self.seed,
            "steps": len(self.record),
            "rollouts": sum(row["rollouts_spent"] for row in self.record),
            "tokens": sum(row["tokens"] for row in self.record),
            "seconds": {stage: round(seconds, 3) for stage, seconds in self.seconds.items()},
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "processes": trained.get("processes", 1),
            "peak_memory_gib": trained.get("peak_memory_gib"),
            "threads": torch.get_num_threads(),
            "outcomes": outcomes,
            "dropped": self.task.report()["dropped"],
        }

    @contextmanager
    def _timed(self, stage):
        start = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


def _vllm_arguments(choice, longest):
    """GRPOConfig's arguments for a profile's `train.vllm`."""
    if choice is None:
        return {}
    arguments = {"use_vllm": True, "vllm_mode": choice.mode}
    if choice.mode == "server":
        return arguments | {"vllm_server_base_url": choice.server_base_url}
    return arguments | {
        "vllm_gpu_memory_utilization": choice.gpu_memory_utilization,
        "vllm_tensor_parallel_size": choice.tensor_parallel_size,
        "vllm_max_model_length": longest,
    }


def _peak_memory_gib():
    """The most that PyTorch held on this process's GPU, GiB; None without one."""
    return torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None


def know_cpu_by_rank():
    """Let torch.load restore to "cpu:1": transformers sends a second process's optimizer there."""
    torch.serialization.register_package(
        1, lambda storage: None, lambda storage, place: storage if place.startswith("cpu") else None
    )


def main(arguments: list[str]) -> None:
    """`train`, on every process that a launcher starts; `run`, the whole of notebook 05 without pictures."""
    if len(arguments) not in (5, 6) or arguments[0] not in ("train", "run"):
        raise SystemExit("usage: python -m gdro.experiment train|run PROFILE VARIANT SEED FOLDER [CACHE_DIR]")
    what, profile, variant, seed, folder, *cache_dir = arguments
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what it has started is ended too
    know_cpu_by_rank()
    run = Run(load_profile(profile), variant, int(seed), folder, *cache_dir)
    try:
        if what == "train":
            run.train_here()
        else:
            run.train()
            run.evaluate()
            write_manifest(run.folder / "manifest.json", run.manifest())
    finally:
        run.task.close()


if __name__ == "__main__":
    main(sys.argv[1:])
