"""Tiny random models of several families, saved as a hub folder would be."""

import copy
from functools import cache
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
FAMILIES = ("Qwen3", "Llama", "Mistral")
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "max_position_embeddings": 1024,
}


def byte_tokenizer(chat_template: str = CHAT_TEMPLATE):
    """One token for each byte of UTF-8: nothing was trained."""
    tokens = ["<pad>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<eos>",
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
    )


def save_tiny_model(family: str, folder: Path, tokenizer=None, **sizes: int) -> Path:
    """A random model of a family and its tokenizer, written to ``folder``; always the same."""
    tokenizer = tokenizer or byte_tokenizer()
    config = getattr(transformers, f"{family}Config")(
        vocab_size=len(tokenizer),
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **SIZES | sizes,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, f"{family}ForCausalLM")(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def untie(source: Path | str, folder: Path) -> Path:
    """A copy of a model whose output matrix is its own, with its tokenizer."""
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype="float32")
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.get_input_embeddings().weight.detach().clone())
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


def fresh_model(folder: Path):
    """A saved model; the folder is read once."""
    return copy.deepcopy(_read(folder))


@cache
def _read(folder: Path):
    return transformers.AutoModelForCausalLM.from_pretrained(folder)
