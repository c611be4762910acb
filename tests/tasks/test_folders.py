"""Folders of files, and of `save_to_disk`: splits."""

import json

import datasets
import pytest

from gdro_lab.tasks import math_data as tasks
from gdro_lab.tasks.math_sets import Schema
from gdro_lab.tasks.sources import find_place, read_rows


def read(path, **options):
    schema = Schema(("question",), "answer")
    return tasks.read_problems(tasks.Source("own", find_place(str(path), **options), (schema,)))


def write_folder(folder):
    """A folder as the hub has it."""
    folder.mkdir()
    rows = [json.dumps({"question": f"{number}?", "answer": number}) for number in range(6)]
    for name, part in {"train-0": rows[:2], "train-1": rows[2:4], "test": rows[4:]}.items():
        (folder / f"{name}.jsonl").write_text("\n".join(part))


def test_splits_of_a_folder(tmp_path):
    """By the names of files, or as its README says."""
    write_folder(tmp_path / "own")
    for split, keys in {"train": "0123", "test": "45", "train+test": "012345"}.items():
        problems, _ = read(tmp_path / "own", split=split)
        assert "".join(problem.answer for problem in problems) == keys
    with pytest.raises(ValueError, match="'dev'"):
        read(tmp_path / "own", split="dev")
    named = "configs:\n- {config_name: small, data_files: train-0.jsonl}"
    (tmp_path / "own/README.md").write_text(f"---\n{named}\n---\n")
    assert len(read(tmp_path / "own", config="small")[0]) == 2


def test_reading_leaves_no_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    write_folder(tmp_path / "own")
    assert len(read(tmp_path / "own")[0]) == 4
    assert not (tmp_path / "cache").exists()


def test_a_column_of_mixed_types_holds_values_not_json(tmp_path):
    features = {"question": datasets.Value("string"), "answer": datasets.Json()}
    answers = [r"\frac{1}{2}", 7, {"key": "b"}, None]
    columns = {"question": list("ABCD"), "answer": answers}
    made = datasets.Dataset.from_dict(columns, datasets.Features(features))
    made.save_to_disk(tmp_path / "saved")
    made.to_parquet(tmp_path / "own.parquet")
    for name in ("saved", "own.parquet"):
        rows = read_rows(find_place(str(tmp_path / name)))
        assert [row["answer"] for row in rows] == answers


def test_saved_splits_are_read_and_one_that_is_not_there_is_named(tmp_path):
    rows = datasets.Dataset.from_list([{"question": f"{n}?", "answer": f"00{n}"} for n in range(3)])
    datasets.DatasetDict(train=rows, dev=rows.select([0])).save_to_disk(tmp_path / "own")
    assert [problem.answer for problem in read(tmp_path / "own")[0]] == ["000", "001", "002"]
    rows.save_to_disk(tmp_path / "one")  # and has no splits
    for name, named in {"own": r"train.*'test'", "one": "neither.*'test'"}.items():
        with pytest.raises(ValueError, match=named):
            read(tmp_path / name, split="test")
