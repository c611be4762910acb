"""A cold start: solutions of a task, taught once, as adapter or in full; found again, shipped."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from conftest import TRAINS
from safetensors.torch import load_file
from tiny_models import byte_tokenizer

from gdro.files import LEDGER
from gdro_lab.experiments.play import make_parts, make_run_base
from gdro_lab.tasks import GymChoice, MathChoice, draw_task, prompt_token_ids
from gdro_lab.tasks import cold_start as module
from gdro_lab.tasks.cold_start import (
    RECIPE,
    ColdStart,
    Solution,
    cold_start,
    in_order,
    labelled_tokens,
    load_solutions,
    pad_left,
)

pytestmark = TRAINS

WORLD = """
name: words-and-sums
task: reasoning_gym
families:
  - {name: words, task: gsm_symbolic}
  - {name: sums, task: chain_sum, taught: 3.0, config: {min_terms: 2, max_terms: 2, max_digits: 2}}
n_train: 40
n_eval_per_family: 5
max_completion_tokens: 900
"""
SPELLED = [Solution(f"Spell {word}.", " ".join(word)) for word in ("cab", "bead", "face", "deaf")]
SHORT = ColdStart(steps=2, batch_size=4, learning_rate=1e-2, rank=2)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    path = tmp_path_factory.mktemp("world") / "words-and-sums.yaml"
    path.write_text(WORLD)
    return GymChoice(kind="reasoning_gym", world=str(path))


@pytest.mark.parametrize("style", ["chat", "text"])
def test_solutions_are_new_and_are_rewarded(world, style):
    tokenizer = byte_tokenizer()
    if style == "text":
        tokenizer.chat_template = None
    drawn = load_solutions(world, tokenizer, 40, 0)
    assert len(drawn) == 40
    task = draw_task(world, style)
    rows = [*task.train, *task.eval]
    used = [row["prompt"] for row in rows]
    assert not any(solution.prompt in used for solution in drawn)
    assert all(isinstance(solution.prompt, str) == (style == "text") for solution in drawn)
    worked = [solution for solution in drawn if not solution.completion.startswith("<answer>")]
    assert len(worked) == 10  # of one family, with steps; the other is taught three times as often
    puzzles = {str(row["prompt"]): row for row in task.solutions(40)}
    chosen = [puzzles[str(solution.prompt)] for solution in drawn]
    columns = {name: [row[name] for row in chosen] for name in ("answer", "family")}
    rewards = task.reward([solution.completion for solution in drawn], **columns)
    assert rewards == [1.0] * 40


def test_solutions_are_drawn_by_seed_and_only_where_they_fit(world, tmp_path):
    tokenizer = byte_tokenizer()
    first = load_solutions(world, tokenizer, 20, 0)
    assert load_solutions(world, tokenizer, 20, 0) == first
    assert load_solutions(world, tokenizer, 20, 1) != first
    path = tmp_path / "brief.yaml"
    path.write_text(WORLD.replace("900", "100"))
    brief = load_solutions(world.model_copy(update={"world": str(path)}), tokenizer, 20, 0)
    assert 0 < len(brief) < 20
    assert all(len(solution.completion) < 100 for solution in brief)


def test_solutions_of_problems_are_those_that_are_not_drawn(monkeypatch):
    rows = [
        {"prompt": f"Add {n} and 1.", "uid": str(n), "solution": f"#### {n + 1}" if n else None}
        for n in range(6)
    ]

    def load_split(choice, tokenizer, *, held_out, template):
        assert not held_out
        return SimpleNamespace(rows=rows if choice.train_size is None else rows[4:])

    monkeypatch.setattr(module, "load_split", load_split)
    choice = MathChoice(kind="math").model_copy(update={"train_size": 2})
    drawn = load_solutions(choice, byte_tokenizer(), 10, 0)
    assert sorted(drawn) == [(rows[n]["prompt"], rows[n]["solution"]) for n in (1, 2, 3)]
    brief = choice.model_copy(update={"max_completion_tokens": 3})
    with pytest.raises(ValueError, match="3 tokens"):
        load_solutions(brief, byte_tokenizer(), 10, 0)


def test_the_loss_is_on_the_completion_and_its_end():
    tokenizer = byte_tokenizer()
    chat = Solution([{"role": "user", "content": "Add 1 and 2."}], "#### 3")
    for solution in (chat, SPELLED[0]):
        (row,) = labelled_tokens(tokenizer, [solution], {})
        (prompt,) = prompt_token_ids(tokenizer, [solution.prompt])
        assert row["input_ids"][: len(prompt)] == prompt
        assert row["labels"][: len(prompt)] == [-100] * len(prompt)
        completion = row["labels"][len(prompt) :]
        assert completion == row["input_ids"][len(prompt) :]
        assert tokenizer.decode(completion) == solution.completion + "<eos>"


def test_a_padded_batch_has_the_loss_of_its_rows(folders):
    tokenizer = byte_tokenizer()
    long = Solution("Spell a long word, please.", "b a b a b a b a b a b a")
    rows = labelled_tokens(tokenizer, [*SPELLED, long], {})
    model = transformers.AutoModelForCausalLM.from_pretrained(folders["Llama"])
    batch = pad_left(rows, tokenizer.pad_token_id)
    total = 0.0
    tokens = 0
    with torch.no_grad():
        loss = model(**batch).loss
        for row in rows:
            ids, labels = (torch.tensor([row[name]]) for name in ("input_ids", "labels"))
            learned = sum(label != -100 for label in row["labels"])
            total += model(ids, labels=labels).loss.item() * learned
            tokens += learned
    assert batch["logits_to_keep"] == len("b a b a b a b a b a b a") + 2  # its end, and one before
    torch.testing.assert_close(loss.item(), total / tokens)


def test_rows_are_shuffled_until_all_are_used_and_sorted_within_a_step():
    rows = [{"input_ids": [place] * (place + 1)} for place in range(10)]
    choice = ColdStart(steps=5, batch_size=4)
    ordered = [row["input_ids"][0] for row in in_order(rows, choice)]
    assert sorted(ordered[:10] + ordered[10:]) == sorted([*range(10)] * 2)
    steps = [ordered[start : start + 4] for start in range(0, 20, 4)]
    assert steps == [sorted(step, reverse=True) for step in steps]
    others = in_order(rows, choice.model_copy(update={"seed": 1}))
    assert [row["input_ids"][0] for row in others] != ordered


def log_likelihood(folder, tokenizer):
    """Mean log-probability of the tokens of `SPELLED`."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    losses = []
    for row in labelled_tokens(tokenizer, SPELLED, {}):
        ids, labels = (torch.tensor([row[name]]) for name in ("input_ids", "labels"))
        with torch.no_grad():
            losses.append(model(ids, labels=labels).loss.item())
    return -np.mean(losses)


def test_what_is_taught_becomes_likelier(folders, tmp_path):
    source = str(folders["Llama"])
    choice = ColdStart(steps=20, batch_size=6, learning_rate=2e-2, rank=4)
    folder = cold_start(source, SPELLED, choice, cache_dir=tmp_path, progress=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert log_likelihood(folder, tokenizer) > log_likelihood(source, tokenizer) + 0.2


def test_an_adapter_is_taught_once_and_found_where_it_is_shipped(folders, tmp_path, monkeypatch):
    source = str(folders["Llama"])
    cache = tmp_path / "cache"
    merged = cold_start(source, SPELLED, SHORT, cache_dir=cache, progress=False)
    adapter = merged.with_name(merged.name.removesuffix("-merged"))
    assert sorted(path.name for path in cache.iterdir()) == [adapter.name, merged.name]
    weights = load_file(adapter / "adapter_model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    texts = [path.read_text() for path in adapter.glob("*.json") if path.name != LEDGER]
    assert not any(source in text or str(tmp_path) in text for text in texts)
    recipe = json.loads((adapter / RECIPE).read_text())
    assert recipe["choice"] == SHORT.model_dump()
    assert recipe["arithmetic"] == "float32"  # as the tests' numerics are

    def find(cache, **changes):
        choice = SHORT.model_copy(update=changes)
        return cold_start(source, SPELLED, choice, cache_dir=cache, progress=False)

    monkeypatch.setattr(module, "_teach", None)  # nothing is taught from here on
    assert find(cache) == merged
    shipped = tmp_path / "shipped"
    shutil.copytree(adapter, shipped / adapter.name)
    monkeypatch.setattr(module, "SHIPPED", shipped)
    again = find(tmp_path / "other")
    first = load_file(merged / "model.safetensors")
    second = load_file(again / "model.safetensors")
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert {weight.dtype for weight in first.values()} == {torch.float32}
    with pytest.raises(TypeError):
        find(cache, steps=3)  # another choice is another model
    (shipped / adapter.name / RECIPE).write_text("{}")
    with pytest.raises(ValueError, match=RECIPE):
        find(tmp_path / "third")


def test_a_profile_names_its_cold_start(folders, world, profile_of, tmp_path, capsys):
    fields = {
        "task": world.model_dump(),
        "base": {},
        "model": {"source": str(folders["Llama"])},
        "cold_start": {"steps": 1, "batch_size": 2, "examples": 4, "rank": 2},
    }
    profile = profile_of(**fields)
    plain = profile_of(**fields | {"cold_start": None})
    assert "cold_start" in profile.run("grpo", 0).settings
    assert plain.run("grpo", 0).settings["cold_start"] is None
    make_run_base(profile.run("grpo", 0), tmp_path)
    source, _, data, _ = make_parts(profile.run("grpo", 0), tmp_path)
    assert capsys.readouterr().out.strip().endswith(source)
    assert source.endswith("-merged")
    assert len(data.rows) == 40
    with pytest.raises(ValueError, match="cold_start"):
        profile_of(**fields | {"task": {"kind": "embedded"}})
    with pytest.raises(ValueError, match="cold_start"):
        profile_of(cold_start={"steps": 1})
