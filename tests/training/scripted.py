"""Small data, a reward, and completions that no model samples, for many quick trainings."""

from pathlib import Path

import numpy as np
import trl

QWEN3 = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
ROWS = [{"prompt": f"Spell {n}.", "answer": str(n), "uid": n} for n in range(12)]
CHATS = [row | {"prompt": [{"role": "user", "content": row["prompt"]}]} for row in ROWS]


class Room:
    """An environment without a reward."""

    def reset(self, **columns):
        return "Go."

    def look(self) -> str:
        """Look around."""
        return "nothing"


def text_of(completion):
    return completion if isinstance(completion, str) else completion[-1].get("content") or ""


def even(completions, **columns):
    """1 where the last character is even, so that most groups have a signal."""
    return [float(bool(text_of(c)) and ord(text_of(c)[-1]) % 2 == 0) for c in completions]


def scripted(trainer, prompt_ids, *args, **kwargs):
    """Random bytes of unequal length, in place of what the model would sample."""
    trainer.calls = getattr(trainer, "calls", 0) + 1
    rng = np.random.default_rng(trainer.calls)
    end = trainer.processing_class.eos_token_id
    texts = [rng.integers(40, 90, rng.integers(2, 9)).tolist() for _ in prompt_ids]
    return [[*text, end] for text in texts], None
