"""Rows → what a profile's task makes of them."""

import json

import pytest
from tiny_models import byte_tokenizer

from gdro_lab.tasks import MathChoice, load_split


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def load(tmp_path):
    """Rows → the split that a profile's task makes of them."""

    def make(rows, chat=True, evaluated=False, tokenizer=None, **fields):
        tokenizer = tokenizer or byte_tokenizer()
        tokenizer.chat_template = tokenizer.chat_template if chat else None
        path = rows if isinstance(rows, str) else write(tmp_path / "own.jsonl", rows)
        defaults = {"train": path, "evaluate": ["someone/sums"], "deduplicate": False}
        choice = MathChoice(kind="math", **(defaults | fields))
        return load_split(choice, tokenizer, held_out=evaluated)

    return make
