"""Memory and time by formula, against numbers worked out by hand and weights counted by transformers."""

import json
import subprocess
import sys

import pytest

from gdro.cost import (
    DEVICES,
    GIB,
    QWEN3,
    Device,
    ModelShape,
    describe,
    generation_time,
    step_time,
    training_memory,
)
from gdro.estimate import estimate_profile, main, shape_of_config
from gdro.profiles import Profile, load_profile

SMALL = ModelShape(2, 8, 2, 1, 4, 16, 100, tied=True)
RUN = {"prompt_length": 6, "completion_length": 4, "batch_size": 3, "sequences": 5}


def test_weights_by_hand():
    # a layer: q 8·8, k and v 8·4 each, o 8·8, three maps 8·16, norms 8 + 8, q and k norm 4 + 4
    layer = 64 + 32 + 32 + 64 + 3 * 128 + 16 + 8
    assert SMALL.weights == 2 * layer + 8 + 100 * 8
    # rank × (in + out): 16 + 12 + 12 + 16 + 3 · 24
    assert SMALL.lora_weights(3) == 2 * 3 * 128


def test_full_training_by_hand():
    n = SMALL.weights
    estimate = training_memory(SMALL, **RUN, beta=0.001)
    assert (estimate.weights, estimate.casts, estimate.reference) == (4 * n, 2 * n, 4 * n)
    assert (estimate.gradients, estimate.optimizer) == (4 * n, 8 * n)
    # 30 tokens; a = 4·8 + 4·(2 + 1)·4 + 4·16 = 144
    assert estimate.activations == 4 * 2 * 30 * 8 + 2 * 30 * 144
    assert estimate.logits == 12 * 12 * 100
    assert estimate.kv_cache == 4 * 5 * 10 * 2 * 1 * 4
    parts = estimate.activations + estimate.logits
    assert estimate.total == 22 * n + parts + 2 * GIB
    assert training_memory(SMALL, **RUN).reference == 0
    plain = training_memory(SMALL, **RUN, gradient_checkpointing=False)
    assert plain.activations == 2 * 2 * 30 * 144


def test_lora_trains_its_adapter_alone():
    n, trained = SMALL.weights, 768
    estimate = training_memory(SMALL, **RUN, lora_rank=3, beta=0.001)
    assert estimate.weights == 2 * n + 4 * trained
    assert (estimate.casts, estimate.reference) == (0, 0)
    assert (estimate.gradients, estimate.optimizer) == (4 * trained, 8 * trained)


def test_the_fuller_turn_counts():
    long = training_memory(SMALL, **RUN | {"sequences": 10**6})
    assert long.kv_cache > long.casts + long.activations + long.logits
    assert long.total == 16 * SMALL.weights + long.kv_cache + 2 * GIB


def test_shards_split_the_state_and_not_the_activations():
    one, four = training_memory(SMALL, **RUN), training_memory(SMALL, **RUN, shards=4)
    assert four.optimizer == one.optimizer // 4
    assert four.activations == one.activations


def test_qwen3_has_the_weights_that_its_config_makes():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    for shape in QWEN3.values():
        config = transformers.Qwen3Config(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.key_heads,
            head_dim=shape.head_dim,
            intermediate_size=shape.intermediate,
            tie_word_embeddings=shape.tied,
        )
        with torch.device("meta"):
            model = transformers.Qwen3ForCausalLM(config)
        model.tie_weights()
        assert sum(weight.numel() for weight in model.parameters()) == shape.weights


def test_description_and_sizes_of_the_paper_models():
    text = describe(training_memory(QWEN3["1.7b"], **RUN))
    assert text.splitlines()[0] == "weights         6.41 GiB"  # 4 · 1 720 574 976 / 2³⁰
    assert text.splitlines()[-1].startswith("total")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; give an integer of at least 1"),
        ({"lora_rank": 0}, "lora_rank is 0"),
        ({"dtype": "int8"}, "dtype is 'int8'; give 'float32' or 'bfloat16'"),
        ({"vllm": -1}, "vllm is -1 bytes; give 0 or more"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        training_memory(SMALL, **RUN | change)


def test_vllm_keeps_its_part_and_brings_the_cache():
    plain, beside = training_memory(SMALL, **RUN), training_memory(SMALL, **RUN, vllm=10**9)
    assert beside.kv_cache == 0
    assert beside.total == plain.total + 10**9


def test_zero_2_leaves_the_weights_whole():
    one, two = training_memory(SMALL, **RUN), training_memory(SMALL, **RUN, shards=4, shard_weights=False)
    assert (two.weights, two.casts) == (one.weights, one.casts)
    assert (two.gradients, two.optimizer) == (one.gradients // 4, one.optimizer // 4)


# 2 TB/s, of which half is reached, and 10 Tflop/s, of which half
GPU = Device("toy", memory=1e9, bandwidth=2e12, rate=1e13, link=1e9)
SHARES = {"bandwidth_share": 0.5, "utilization": 0.5, "overhead": 0.0}
STEP = {"completions": 10, "prompt_length": 6, "completion_length": 4, "longest": 8}
N = 2 * 600 + 808  # SMALL's weights: 600 a layer, see above


def forward(length):  # a token's: two for each weight, and scores and sums of two heads of width 4
    return 2 * N + 2 * 2 * 2 * 4 * length


def test_generation_by_hand():
    assert SMALL.weights == N
    # 8 decode steps, the longest; keys and values: 4 bytes · 2 layers · 1 head · width 4 a token
    memory = (8 * 2 * N + 32 * 10 * 4 * (6 + 2)) / 1e12
    compute = 10 * 10 * forward(10) / 5e12
    assert generation_time(SMALL, GPU, **STEP, **SHARES) == pytest.approx(max(memory, compute))
    fast = Device("fast", 1e9, 2e12, 1e30, 1e9)
    assert generation_time(SMALL, fast, **STEP, **SHARES) == pytest.approx(memory)
    # two at once: 10 · 4 / 2 = 20 decode steps, each with its overhead; weights split in two
    slow = generation_time(SMALL, fast, **STEP, **SHARES | {"overhead": 0.5}, at_once=2, engine_gpus=2)
    assert slow == pytest.approx((20 * N + 32 * 10 * 4 * 8) / 1e12 + 10)


@pytest.mark.parametrize(
    ("full", "checkpointing", "passes"),
    [(True, True, 4), (True, False, 3), (False, True, 3), (False, False, 2)],
)
def test_step_by_hand(full, checkpointing, passes):
    chosen = {"full": full, "gradient_checkpointing": checkpointing, "forwards": 2, "other": 7.0}
    step = step_time(SMALL, GPU, **STEP, **SHARES, **chosen)
    once = 10 * (6 + 8) * forward(14) / 5e12  # padded to the longest
    assert step.score == pytest.approx(2 * once)
    assert step.train == pytest.approx(passes * once)
    assert step.total == pytest.approx(step.generate + (2 + passes) * once + 7)


def test_gathering_counts_where_it_is_slower():
    step = step_time(SMALL, GPU, **STEP, **SHARES, micro_batches=5, sharded=True)
    assert step.score == pytest.approx(2 * N * 5 / 1e9)
    assert step.train == pytest.approx(3 * 2 * N * 5 / 1e9)


def test_an_input_embedding_of_its_own_is_not_multiplied():
    shape = QWEN3["8b"]
    assert shape.weights - shape.matmul_weights == 151936 * 4096
    assert QWEN3["4b"].matmul_weights == QWEN3["4b"].weights


def test_more_work_takes_longer_and_better_gpus_less():
    def seconds(device=DEVICES["h100"], shape=QWEN3["4b"], **changes):
        base = {"completions": 256, "prompt_length": 200, "completion_length": 1000, "longest": 3072}
        return step_time(shape, device, **base | changes).total

    assert seconds() < seconds(completions=512)
    assert seconds() < seconds(completion_length=2000)
    assert seconds() < seconds(shape=QWEN3["8b"])
    assert seconds() < seconds(at_once=16)
    assert seconds() < seconds(forwards=2)
    assert seconds(full=False) < seconds() < seconds(utilization=0.2)
    assert seconds(DEVICES["h200"]) < seconds() < seconds(DEVICES["a100"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"completions": 0}, "completions is 0; give a number above 0"),
        ({"at_once": -1}, "at_once is -1"),
        ({"utilization": 0}, "utilization is 0"),
        ({"overhead": -1.0}, "overhead is -1.0 s; give 0 or more"),
        ({"longest": 3}, "longest is 3 tokens, below completion_length 4"),
        ({"forwards": -1}, "forwards is -1; give 0 or more"),
        ({"micro_batches": 0}, "micro_batches is 0"),
    ],
)
def test_bad_times_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        step_time(SMALL, GPU, **STEP | change)


# Of a profile


@pytest.mark.parametrize("name", ["gpu-smoke", "gpu-1.7b", "gpu-4b", "gpu-8b"])
def test_the_shipped_profiles_fit_what_they_name(name):
    profile = load_profile(name)
    assert profile.gpus == profile.launch.processes
    for variant in profile.variants:
        estimate = estimate_profile(profile, variant, DEVICES["h100"])
        assert estimate.fits, variant
        assert estimate.gpus == profile.gpus
    # the paper's: 256 prompts, 4 each, 1000 steps
    if name != "gpu-smoke":
        train = profile.train
        assert (train.prompts_per_step, train.mean_rollouts, train.steps) == (256, 4, 1000)


def test_a_profile_gives_the_formulas_their_numbers():
    profile, device = load_profile("gpu-8b"), DEVICES["h100"]
    estimate = estimate_profile(profile, "grpo", device, completion_tokens=900)
    n, reserved = QWEN3["8b"].weights, int(0.4 * 80e9)
    assert estimate.memory.vllm == reserved
    assert estimate.memory.optimizer == 8 * n // 8
    expected = step_time(
        QWEN3["8b"], device, completions=128, micro_batches=64, prompt_length=200, completion_length=900,
        longest=3072, forwards=2, sharded=True, at_once=int((reserved - 2 * n) / (1100 * 147456)),
    )  # fmt: skip
    assert estimate.step == expected
    assert estimate.gpu_hours == pytest.approx(8 * (1000 * expected.total + estimate.evaluation) / 3600)
    assert estimate_profile(profile, "grpo-lora", device).memory.reference == 0


def of_model(source, **changes):
    fields = {"name": "x", "task": {"kind": "math"}, "model": {"source": str(source)}, "seeds": [0]}
    return Profile(**fields | {"variants": {"grpo": {"method": "grpo"}}} | changes)


def test_a_local_folder_says_its_own_shape(tmp_path):
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2,
        "intermediate_size": 16, "vocab_size": 100, "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert shape_of_config(config) == ModelShape(2, 8, 2, 2, 4, 16, 100, tied=True, qk_norm=False)
    memory = estimate_profile(of_model(tmp_path), "grpo", DEVICES["h100"]).memory
    assert memory.weights == 4 * shape_of_config(config).weights
    with pytest.raises(ValueError, match="the config lacks \\['vocab_size'\\]"):
        shape_of_config({key: value for key, value in config.items() if key != "vocab_size"})
    with pytest.raises(ValueError, match="mixture of experts"):
        shape_of_config(config | {"num_local_experts": 8})


def test_what_is_not_known_is_said():
    with pytest.raises(ValueError, match=r"'someone/model', whose shape is not known; give a local folder"):
        estimate_profile(of_model("someone/model"), "grpo", DEVICES["h100"])
    with pytest.raises(ValueError, match="variant must be one of"):
        estimate_profile(load_profile("gpu-8b"), "gpro", DEVICES["h100"])
    crowded = of_model("Qwen/Qwen3-8B-Base", train={"vllm": {"gpu_memory_utilization": 0.1}})
    with pytest.raises(ValueError, match=r"gpu_memory_utilization leaves vLLM 7.5 GiB"):
        estimate_profile(crowded, "grpo", DEVICES["h100"])


def test_the_command_prints_every_variant(capsys):
    main(["gpu-8b", "--device", "h200", "--completion-tokens", "800"])
    printed = capsys.readouterr().out
    for label in ("GRPO", "Rollout-GDRO as printed", "Prompt-GDRO, LoRA"):
        assert printed.count(f"| {label} |") == 2  # memory and time
    assert "gpu-8b on H200 141 GB (SXM), 131.3 GiB: 8 variants with 2 seeds take" in printed
    assert "GPU-hours. A formula, not a measurement." in printed
    with pytest.raises(SystemExit):
        main(["gpu-9b"])
    assert "profile must be one of" in capsys.readouterr().err


def test_importing_it_brings_nothing_heavy():
    code = "import sys, gdro.estimate; sys.exit(bool({'torch', 'transformers', 'pandas'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
