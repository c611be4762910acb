"""Eight answers of the base of profile smol to sixty of its training questions.

    python data/studies/smol-gym/sample_base.py    # base.jsonl; some minutes on one core

The base is SmolLM2-135M-Instruct after the cold start that is shipped in data/bases. The questions
are the first five of each family of the world smol, made by reasoning-gym. Sampled by transformers
as in training: temperature 1, at most 64 tokens.
"""

from dataclasses import replace
from pathlib import Path

from gdro_lab.experiments.blocks import EvaluationChoice
from gdro_lab.experiments.evaluation import evaluate_model
from gdro_lab.experiments.play import make_parts
from gdro_lab.experiments.profile import load_profile
from gdro_lab.experiments.records import write_table
from gdro_lab.machine import arithmetic

OF_EACH_FAMILY = 5
SAMPLING = {"samples": 8, "k": 8, "temperature": 1.0, "batch_size": 96}


def main(path: Path) -> None:
    """Sample the answers and write a row a question."""
    profile = load_profile("smol-transformers")
    source, tokenizer, data, _ = make_parts(profile.run("grpo", 0), ".cache/bases")
    chosen = []
    for family in dict.fromkeys(row["family"] for row in data.rows):
        rows = [row for row in data.rows if row["family"] == family]
        chosen += rows[:OF_EACH_FAMILY]
    counts = evaluate_model(
        EvaluationChoice(texts=OF_EACH_FAMILY, **SAMPLING),
        source,
        tokenizer,
        replace(data, rows=chosen),
        dtype=arithmetic(pretrained=True),
    )
    kept = []
    for row, count in zip(chosen, counts, strict=True):
        kept.append(
            {
                "family": row["family"],
                "problem": count["question"],
                "answer": row["answer"],
                "texts": count["texts"],
                "correct": count["successes"],
            }
        )
    write_table(path, kept)


if __name__ == "__main__":
    main(Path(__file__).with_name("base.jsonl"))
