"""Records: whole or not at all, and the same numbers back."""

import json
import math
import os
import platform
import re

import numpy as np
import pytest

from gdro import __version__
from gdro.checkpoint import replace_text
from gdro_lab.study.records import read_manifest, read_table, write_manifest, write_table


def test_floats_come_back_bit_for_bit(tmp_path):
    bits = np.random.default_rng(0).integers(0, 2**63, size=4000, dtype=np.int64)
    floats = bits.view(np.float64)
    floats = [float(x) for x in floats[np.isfinite(floats)]]
    floats += [0.1, -0.0, 5e-324, 1.7976931348623157e308, 1 / 3]
    write_table(tmp_path / "t.jsonl", [{"x": x} for x in floats] + [{"all": floats}])
    *rows, last = read_table(tmp_path / "t.jsonl")
    assert [row["x"].hex() for row in rows] == [x.hex() for x in floats]
    assert [x.hex() for x in last["all"]] == [x.hex() for x in floats]


def test_numpy_values_and_ragged_rows(tmp_path):
    rows = [
        {"step": np.int64(3), "loss": np.float32(0.1), "ok": np.bool_(True), "n": 2**70},
        {"w_B": np.array([0.25, 0.75]), "zero_d": np.array(2.0), "none": None, "name": "σ\u2028\n"},
        {},
        {"nested": [[1, 2.5], []], "tuple": (1, "a")},
    ]
    write_table(tmp_path / "t.jsonl", rows)
    assert read_table(tmp_path / "t.jsonl") == [
        {"step": 3, "loss": float(np.float32(0.1)), "ok": True, "n": 2**70},
        {"w_B": [0.25, 0.75], "zero_d": 2.0, "none": None, "name": "σ\u2028\n"},
        {},
        {"nested": [[1, 2.5], []], "tuple": [1, "a"]},
    ]
    write_table(tmp_path / "t.jsonl", [])
    assert read_table(tmp_path / "t.jsonl") == []


@pytest.mark.parametrize("bad", [math.nan, math.inf, np.float32("-inf"), np.array([1.0, np.nan])])
def test_no_nan_and_no_infinity(tmp_path, bad):
    path = tmp_path / "t.jsonl"
    write_table(path, [{"x": 1}])
    with pytest.raises(ValueError, match="JSON"):
        write_table(path, [{"x": 1}, {"loss": bad}])
    with pytest.raises(ValueError, match="JSON"):
        write_manifest(tmp_path / "m.json", {"loss": bad})
    assert read_table(path) == [{"x": 1}], "the earlier table must stand"
    assert os.listdir(tmp_path) == ["t.jsonl"]


def test_other_types_are_refused(tmp_path):
    with pytest.raises(TypeError, match="set"):
        write_table(tmp_path / "t.jsonl", [{"when": [1, {2}]}])


@pytest.mark.parametrize("text", ['{"a": 1}\n{"a": \n', '{"a": 1}\n\n{"a": 1}\n', '{"a": 1}\n{"a'])
def test_a_broken_table(tmp_path, text):
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(ValueError, match="line 1 column"):
        read_table(tmp_path / "t.jsonl")


def test_manifest_says_what_it_ran_on(tmp_path):
    path = tmp_path / "new" / "m.json"
    write_manifest(path, {"steps": np.int64(5), "curve": np.arange(3)})
    manifest = read_manifest(path)
    assert manifest["steps"] == 5
    assert manifest["curve"] == [0, 1, 2]
    assert manifest["gdro"] == __version__
    assert manifest["python"] == platform.python_version()
    assert manifest["packages"]["numpy"] == np.__version__
    assert set(manifest["platform"]) == {"system", "machine", "cpus"}
    text = path.read_text()
    assert str(tmp_path) not in text
    assert platform.node() not in text


def test_an_absent_or_broken_manifest(tmp_path):
    path = tmp_path / "m.json"
    with pytest.raises(ValueError, match=re.escape(f"no manifest at {path}")):
        read_manifest(path)
    with pytest.raises(ValueError, match="no table at"):
        read_table(path)
    for text in ("", '{"a": 1'):
        path.write_text(text)
        with pytest.raises(ValueError, match="line 1 column"):
            read_manifest(path)


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


def test_a_result_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "plain").touch()
    write_manifest(tmp_path / "m.json", {})
    assert (tmp_path / "m.json").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert json.loads((tmp_path / "m.json").read_text())["gdro"] == __version__


def test_what_a_killed_process_left_is_replaced(tmp_path):
    (tmp_path / ".a.json.tmp").write_text("half a fi")
    replace_text(tmp_path / "a.json", "whole")
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]
