"""The memory formula, against numbers worked out by hand and weights counted by transformers."""

import pytest

from gdro.estimate import GIB, QWEN3, ModelShape, describe, training_memory

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
    ],
)
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        training_memory(SMALL, **RUN | change)
