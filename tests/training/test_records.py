"""Records: whole or not at all, and the same numbers back."""

import math
import os

import numpy as np
import pytest

from gdro.files import replace_text
from gdro_lab.experiments.records import read_manifest, read_table, write_manifest, write_table


def test_floats_come_back_bit_for_bit(tmp_path):
    bits = np.random.default_rng(0).integers(0, 2**63, size=4000, dtype=np.int64)
    floats = bits.view(np.float64)
    floats = [float(x) for x in floats[np.isfinite(floats)]]
    floats += [0.1, -0.0, 5e-324, 1.7976931348623157e308, 1 / 3]
    write_table(tmp_path / "t.jsonl", [{"x": x} for x in floats] + [{"all": floats}])
    *rows, last = read_table(tmp_path / "t.jsonl")
    assert [row["x"].hex() for row in rows] == [x.hex() for x in floats]
    assert [x.hex() for x in last["all"]] == [x.hex() for x in floats]


def test_a_failed_write_leaves_the_old_file_and_no_partial(tmp_path, monkeypatch):
    path = tmp_path / "m.json"
    replace_text(path, "old")

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        replace_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["m.json"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, np.array([1.0, np.nan])])
def test_what_json_cannot_hold_is_refused_and_the_earlier_file_stands(tmp_path, bad):
    write_table(tmp_path / "t.jsonl", [{"x": 1}])
    with pytest.raises(ValueError, match="JSON"):
        write_table(tmp_path / "t.jsonl", [{"x": 1}, {"loss": bad}])
    with pytest.raises(ValueError, match="JSON"):
        write_manifest(tmp_path / "m.json", {"loss": bad})
    assert read_table(tmp_path / "t.jsonl") == [{"x": 1}]
    assert os.listdir(tmp_path) == ["t.jsonl"]


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_a_broken_file_is_named(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=r"manifest\.json"):
        read_manifest(tmp_path / "manifest.json")
    (tmp_path / "record.jsonl").write_text(text + "\n")
    with pytest.raises(ValueError, match=r"record\.jsonl"):
        read_table(tmp_path / "record.jsonl")
