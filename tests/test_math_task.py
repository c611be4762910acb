"""The math data sets and their rewards: schemas, bad rows, verdicts, hangs, counts."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

datasets = pytest.importorskip("datasets")
pytest.importorskip("math_verify")

from gdro.tasks import math as tasks  # noqa: E402
from gdro.tasks import verify  # noqa: E402
from gdro.tasks.rewards import (  # noqa: E402
    ChoiceReward,
    MathReward,
    chosen_letter,
    completion_text,
    last_boxed,
)

FIXTURES = Path(__file__).parent / "fixtures" / "math"
HANGING = "9^{9^{9^{9}}}"  # sympy computes it in C code, until the memory or the sun is gone


def fixture(name):
    return FIXTURES / f"{name}.jsonl"


def fixture_rows(name):
    return [json.loads(line) for line in fixture(name).read_text(encoding="utf-8").splitlines()]


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def reward():
    with MathReward(workers=1, time_limit=60) as reward:  # the machine may be busy
        yield reward


# Reading

ANSWERS = {
    "dapo": ["19", "8", "4", "8", "15", "7"],
    "math500": ["\\frac{3}{4}", "[2,3)", "2i", "120"],
    "aime2024": ["019", "401", "032"],
    "aime2025": ["36", "36", "36"],
    "amc": ["25", "11", "5.0"],
    "minerva": ["4", "\\sqrt{\\frac{k}{m}}", "\\frac{\\ln 2}{2}", "1.6 \\times 10^{-19}"],
    "olympiad": ["$3,-3$", "$729$", "$\\frac{12}{\\pi}$", "$2^{n-1}$"],
    "gsm8k": ["134", "2400", "-3"],
    "math": [
        "2\\sqrt{3}",
        "\\frac{1}{4}",
        "\\begin{pmatrix}2\\\\6\\end{pmatrix}",
        "120^\\circ",
        "(x-3)(x+3)",
    ],
}


def test_every_spec_has_a_fixture():
    assert sorted(path.stem for path in FIXTURES.glob("*.jsonl")) == sorted(tasks.MATH_SPECS)
    assert sorted([*ANSWERS, "gpqa"]) == sorted(tasks.MATH_SPECS)


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_answers_are_found_and_every_one_of_them_parses(name):
    data = tasks.load_math(name, fixture(name), style="text")
    assert list(data["answer"]) == ANSWERS[name]
    assert all(uid.startswith(f"{name}/") for uid in data["uid"])
    assert len(set(data["uid"])) == len(data)
    spec = tasks.MATH_SPECS[name]
    problem = fixture_rows(name)[0][spec.problem]
    assert data[0]["prompt"] == f"{problem}\n\n{tasks.MATH_REQUEST}"
    assert ("level" in data.column_names) == (spec.level is not None)
    assert ("subject" in data.column_names) == (spec.subject is not None)


def test_right_answers_of_every_data_set_are_right(reward):
    for name, answers in ANSWERS.items():
        completions = [f"So it is $\\boxed{{{answer.strip('$')}}}$." for answer in answers]
        assert reward(completions, answers) == [1.0] * len(answers), name
        assert reward(["\\boxed{-123456}"] * len(answers), answers) == [0.0] * len(answers), name


def test_levels_and_subjects_are_alike_in_math_and_math500():
    math, math500 = (
        tasks.load_math(name, fixture(name), check_answers=False) for name in ("math", "math500")
    )
    assert list(math["level"]) == ["2", "1", "3", "2", "?"]
    assert list(math500["level"]) == ["1", "3", "4", "2"]
    assert math["subject"][1] == math500["subject"][3] == "Counting & Probability"


def test_a_chat_is_one_user_message_and_the_request_can_be_replaced():
    data = tasks.load_math("amc", fixture("amc"), request="Box it.", check_answers=False)
    [message] = data[0]["prompt"]
    assert message["role"] == "user"
    assert message["content"].endswith("\n\nBox it.")


def test_a_uid_names_the_problem_whatever_its_place(tmp_path):
    rows = fixture_rows("gsm8k")
    backward = write_jsonl(tmp_path / "backward.jsonl", rows[::-1])
    ours = tasks.load_math("gsm8k", fixture("gsm8k"), check_answers=False)["uid"]
    theirs = tasks.load_math("gsm8k", backward, check_answers=False)["uid"]
    assert list(ours) == list(theirs)[::-1]
    assert ours[0] == "gsm8k/4476058a97117203fcd91e9a"  # in every process, version and year


def test_parquet_and_saved_folders_stand_in_for_the_hub(tmp_path):
    wanted = tasks.load_math("dapo", fixture("dapo"), check_answers=False).to_list()
    raw = datasets.Dataset.from_list(fixture_rows("dapo"))
    raw.to_parquet(tmp_path / "dapo.parquet")
    raw.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": raw, "other": raw.select([0])}).save_to_disk(tmp_path / "more")
    (tmp_path / "hub").mkdir()
    raw.to_parquet(tmp_path / "hub" / "train-00000-of-00001.parquet")
    for source in ("dapo.parquet", "one", "more", "hub"):
        assert tasks.load_math("dapo", tmp_path / source, check_answers=False).to_list() == wanted
    other = tasks.load_math("dapo", tmp_path / "more", split="other", check_answers=False)
    assert other.to_list() == wanted[:1]
    some = tasks.load_math("dapo", str(fixture("dapo")), limit=4, check_answers=False)
    assert some.to_list() == wanted[:4]


def test_the_hub_is_asked_by_the_spec(monkeypatch):
    asked = []

    def load_dataset(*args, **kwargs):
        asked.append((args, kwargs))
        return datasets.Dataset.from_list(fixture_rows("dapo"))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    tasks.load_math("dapo", check_answers=False)
    assert asked == [(("open-r1/DAPO-Math-17k-Processed", "en"), {"split": "train"})]


# Multiple choice


def test_choices_are_shuffled_by_seed_and_uid_alone(tmp_path):
    data = tasks.load_math("gpqa", fixture("gpqa"), style="text")
    rows = fixture_rows("gpqa")
    for row, shown in zip(rows, data, strict=True):
        assert f"{shown['answer']}) {row['Correct Answer'].strip()}\n" in shown["prompt"]
        assert all(f") {row[f'Incorrect Answer {i}']}\n" in shown["prompt"] for i in (1, 2, 3))
        assert shown["prompt"].endswith(tasks.CHOICE_REQUEST)
    assert tasks.load_math("gpqa", fixture("gpqa"), style="text").to_list() == data.to_list()
    last = write_jsonl(tmp_path / "last.jsonl", rows[-1:])
    assert tasks.load_math("gpqa", last, style="text")[0] == data[len(rows) - 1]
    others = [list(tasks.load_math("gpqa", fixture("gpqa"), seed=s)["answer"]) for s in range(9)]
    assert {letter for answers in others for letter in answers} == set("ABCD")


@pytest.mark.parametrize(
    ("box", "letter"),
    [
        ("B", "B"),
        ("(B)", "B"),
        ("\\text{B}", "B"),
        ("\\textbf{(B)}", "B"),
        ("$B$", "B"),
        ("B.", "B"),
        ("B) Neon", "B"),
        ("Bananas", None),
        ("A or B", None),
        ("b", None),
        ("", None),
        ("3", None),
    ],
)
def test_a_letter_is_read_or_not(box, letter):
    assert chosen_letter(box) == letter


def test_choice_reward_scores_and_counts():
    with tasks.reward_for("gpqa", signed=True) as reward:
        assert isinstance(reward, ChoiceReward)
        given = ["so \\boxed{B}", "\\boxed{C}", "It is B.", "\\boxed{Neon}"]
        assert reward(given, ["B"] * 4) == [1.0, -1.0, -1.0, -1.0]
        counts = reward.report()
    assert [counts[key] for key in ("right", "wrong", "no_box", "unparsed")] == [1, 1, 1, 1]
    with pytest.raises(ValueError, match="answer of completion 0 is 'Neon'; a choice is one lett"):
        reward(["\\boxed{B}"], ["Neon"])


# Bad rows


def broken(name, row, **change):
    rows = fixture_rows(name)
    rows[row] |= change
    return rows


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("amc", broken("amc", 1, question=" "), "row 1 .amc/1.: 'question' is ' ', not a problem"),
        ("amc", broken("amc", 1, question=7), "'question' is 7, not a problem"),
        ("amc", broken("amc", 2, answer=""), "row 2 .amc/2.: 'answer' holds no answer: ''"),
        ("amc", broken("amc", 2, answer=None), "'answer' is None, not an answer"),
        ("amc", broken("amc", 2, answer=float("nan")), "'answer' holds no answer: nan"),
        ("amc", broken("amc", 2, answer=["3"]), "'answer' is .'3'., not an answer"),
        ("amc", broken("amc", 2, answer="-"), "math-verify cannot use its answer '-' .bad_gold."),
        ("amc", broken("amc", 2, id=0), "row 2 .amc/0.: its uid repeats"),
        ("amc", broken("amc", 2, id=None), "row 2 .no uid.: 'id' is empty"),
        ("amc", [{"problem": "1+1?", "id": 1}], "it has no column 'question', only .'id', 'prob"),
        ("dapo", broken("dapo", 0, extra_info={}), "it has no column 'extra_info.index'"),
        ("math", broken("math", 0, solution="It is 3."), "'solution' holds no answer"),
        ("math", broken("math", 0, solution="\\boxed{3"), "'solution' holds no answer"),
        ("math", broken("math", 0, level=None), "'level' is empty"),
        ("gsm8k", broken("gsm8k", 0, answer="It is 3."), "'answer' holds no answer"),
        ("gsm8k", fixture_rows("gsm8k") * 2, "has 3 bad rows: row 3 .*its uid repeats"),
        ("olympiad", broken("olympiad", 0, final_answer=None), "'final_answer' is None"),
        ("olympiad", broken("olympiad", 0, final_answer=[]), "holds no answer"),
        ("gpqa", broken("gpqa", 0, **{"Incorrect Answer 2": None}), "not all there and different"),
        ("gpqa", broken("gpqa", 1, **{"Incorrect Answer 2": "Xenon"}), "not all there and diff"),
    ],
)
def test_bad_rows_are_named_or_left_out_and_handed_over(tmp_path, name, rows, message):
    path = write_jsonl(tmp_path / "bad.jsonl", rows)
    check = "math-verify" in message  # workers take seconds to start
    with pytest.raises(ValueError, match=message):
        tasks.load_math(name, path, check_answers=check)
    # beside good rows they can be left out, but not without a list that says which they were
    path = write_jsonl(path, fixture_rows(name) + rows)
    dropped = []
    data = tasks.load_math(name, path, check_answers=check, dropped=dropped)
    assert len(data) == len(fixture_rows(name))
    assert len(dropped) == len(rows)
    assert all(isinstance(row, tasks.BadRow) for row in dropped)


def test_a_hanging_answer_key_is_a_bad_row(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "ANSWER_SECONDS", 2.0)
    path = write_jsonl(tmp_path / "hang.jsonl", broken("amc", 0, answer=HANGING))
    dropped = []
    assert len(tasks.load_math("amc", path, dropped=dropped)) == 2
    assert [(row.row, row.uid) for row in dropped] == [(0, "amc/0")]
    assert dropped[0].reason.endswith("(timeout)")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "aime"}, "name is 'aime'; the math data sets are"),
        ({"style": "html"}, "style is 'html'; give one of"),
        ({"limit": 0}, "limit is 0; give an integer of at least 1"),
        ({"path": "nowhere"}, "path nowhere does not exist"),
        ({"path": __file__}, "ends in '.py'; give a .jsonl or .parquet file"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        tasks.load_math(**({"name": "amc", "path": fixture("amc")} | change))


def test_broken_files_are_named(tmp_path):
    path = tmp_path / "broken.jsonl"
    for text, message in [
        ('{"id": 1}\n{"id"\n', "line 2 of .* is not JSON"),
        ("[1]\n", "line 1 of .* holds no record"),
        ("\n", "'amc' has no rows in"),
    ]:
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            tasks.load_math("amc", path)
    raw = datasets.Dataset.from_list(fixture_rows("amc"))
    datasets.DatasetDict({"train": raw}).save_to_disk(tmp_path / "splits")
    with pytest.raises(ValueError, match=r"has the splits \['train'\], not 'test'; give split="):
        tasks.load_math("amc", tmp_path / "splits")


# Rewards


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("\\boxed{1} and \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"),
        ("\\boxed {3}.", "3"),
        ("\\fbox{3}", "3"),
        ("\\boxed{\\boxed{3}}", "3"),
        ("{ \\boxed{3}", "3"),
        ("\\boxed{3} but \\boxed{4", "3"),
        ("\\boxed{3} in \\boxed{}", "3"),
        ("3", None),
        ("\\boxed{}", None),
        ("\\boxed{3", None),
        ("\\\\boxed{3}", None),
    ],
)
def test_the_last_whole_box_counts(text, content):
    assert last_boxed(text) == content


def test_a_text_that_repeats_itself_is_read_in_one_pass():
    started = time.monotonic()
    assert last_boxed("\\boxed{" * 50_000) is None
    assert time.monotonic() - started < 2


def test_completions_are_texts_or_chats():
    say = {"role": "assistant", "content": "\\boxed{4}"}
    assert completion_text("\\boxed{4}") == completion_text([say]) == "\\boxed{4}"
    blocks = [{"type": "text", "text": "\\boxed"}, {"type": "text", "text": "{4}"}]
    assert completion_text([say | {"content": blocks}]) == "\\boxed{4}"
    tool = {"role": "tool", "content": "\\boxed{5}"}
    assert completion_text([say, tool]) == "\\boxed{4}"
    assert completion_text([{"role": "assistant", "content": None}]) == completion_text([]) == ""
    for wrong in (None, 4, [4], b"4"):
        with pytest.raises(ValueError, match="a completion is of type"):
            completion_text(wrong)


@pytest.mark.parametrize(
    ("gold", "given", "right"),
    [
        ("\\frac{1}{2}", "0.5", True),
        ("034", "34", True),
        ("2\\sqrt{3}", "\\sqrt{12}", True),
        ("(x-3)(x+3)", "x^2-9", True),
        ("$3,-3$", "-3, 3", True),
        ("120^\\circ", "120", True),
        ("\\boxed{7}", "7", True),
        ("x=5", "5", True),
        ("5", "6", False),
        ("[2,3)", "(2,3)", False),
        ("1.414", "\\sqrt{2}", False),
        ("0.333333", "1/3", True),
        ("4.5e33", "4.5 \\times 10^{33}", True),
        ("4.5 \\times 10^{33}", "4.5E+33", True),
        ("4.5e33", "4.6e33", False),
        # math-verify itself takes the following two for equal
        ("1.6 \\times 10^{-19}", "1.7 \\times 10^{-19}", False),
        ("0.00000016", "0.00000021", False),
        ("1.6 \\times 10^{-19}", "1.602 \\times 10^{-19}", True),
        ("x < 10^{-9}", "x < 10^{-9}", True),
    ],
)
def test_verdicts(reward, gold, given, right):
    assert reward([f"\\boxed{{{given}}}"], [gold]) == [float(right)]


def test_values_and_counts_and_metrics():
    logged = {}
    with MathReward(signed=True, workers=2, time_limit=60) as reward:
        given = ["\\boxed{4}", "\\boxed{5}", "4", "\\boxed{)(}", [{"content": "\\boxed{4}"}]]
        values = reward(given, ["4"] * 5, uid=list("abcde"), log_metric=logged.__setitem__)
        assert values == [1.0, -1.0, -1.0, -1.0, 1.0]
        assert all(type(value) is float for value in values)
        reward(["\\boxed{4}"], ["4"])
        report = reward.report()
    assert reward.__name__ == "math_reward"
    assert reward.counts == {"right": 3, "wrong": 1, "no_box": 1, "unparsed": 1}
    assert report["right"] == 3
    assert report["timeout"] == 0
    assert report["seconds"] > 0
    assert logged["math_reward/no_box"] == logged["math_reward/unparsed"] == 0.2
    assert logged["math_reward/timeout"] == 0


def test_the_whole_text_can_be_searched_instead():
    with MathReward(workers=1, time_limit=60, boxed_only=False) as reward:
        assert reward(["The answer is 4.", "no number"], ["4", "4"]) == [1.0, 0.0]


def test_a_bad_answer_key_is_an_error(reward):
    with pytest.raises(ValueError, match=r"answer of completion 1 \(uid 'b'\) is '-', which math"):
        reward(["\\boxed{4}"] * 2, ["4", "-"], uid=["a", "b"])
    for empty in ("", " ", None):
        with pytest.raises(ValueError, match="answer of completion 0 is"):
            reward(["\\boxed{4}"], [empty])
    with pytest.raises(ValueError, match="answer has 1 entries for 2 completions"):
        reward(["\\boxed{4}"] * 2, ["4"])


# Hangs


def test_a_hanging_verification_is_killed_scored_wrong_and_counted():
    with MathReward(workers=1, time_limit=4) as reward:
        assert reward(["\\boxed{4}"], ["4"]) == [1.0]  # the worker is up
        first = reward.pool._workers[0]._process
        started = time.monotonic()
        assert reward([f"\\boxed{{{'10000000'}!}}", "\\boxed{4}"], ["4", "4"]) == [0.0, 1.0]
        elapsed = time.monotonic() - started
        assert first.returncode is not None  # dead and reaped, not left behind
        assert reward.pool.restarts == 1
        assert reward.counts == {"right": 2, "timeout": 1}
    assert 4 <= elapsed < 30


def test_it_is_killed_off_the_main_thread_too():
    values = []
    with MathReward(workers=1, time_limit=4) as reward:
        thread = threading.Thread(
            target=lambda: values.extend(reward(["\\boxed{10000000!}", "\\boxed{4}"], ["4"] * 2))
        )
        thread.start()
        thread.join(timeout=60)
    assert values == [0.0, 1.0]


def test_hangs_beside_each_other_do_not_add_up():
    with MathReward(workers=2, time_limit=6) as reward:
        reward(["\\boxed{4}", "\\boxed{5}"], ["4", "4"])
        started = time.monotonic()
        given = ["\\boxed{10000000!}", "\\boxed{10000001!}"]
        assert reward(given, ["4", "4"]) == [0.0, 0.0]
        assert time.monotonic() - started < 11  # one limit and not two
        assert reward.counts["timeout"] == 2


def test_a_worker_that_dies_is_counted_and_started_again():
    with verify.VerifierPool(60, workers=1) as pool:
        assert pool.verify([("\\boxed{4}", None)]) == ["gold"]
        pool._workers[0]._process.kill()
        pool._workers[0]._process.wait()
        assert pool.verify([("\\boxed{4}", "\\boxed{4}")]) == ["crash"]
        assert pool.verify([("\\boxed{4}", "\\boxed{4}")]) == ["right"]
        assert pool.restarts == 1


def test_equal_pairs_are_verified_once(monkeypatch):
    asked = []

    def verify_one(self, pair):
        asked.append(pair)
        return "right"

    monkeypatch.setattr(verify.VerifierPool, "_verify_one", verify_one)
    with verify.VerifierPool(workers=2) as pool:
        assert pool.verify([("a", "b"), ("a", "b"), ("c", None)]) == ["right"] * 3
    assert asked == [("a", "b"), ("c", None)]


def test_workers_end_with_the_pool_and_a_closed_pool_says_so():
    reward = MathReward(workers=1)
    reward(["\\boxed{4}"], ["4"])
    process = reward.pool._workers[0]._process
    reward.close()
    reward.close()
    assert process.returncode is not None
    with pytest.raises(RuntimeError, match="VerifierPool is closed; make a new one"):
        reward(["\\boxed{4}"], ["4"])


def test_a_forgotten_reward_leaves_no_process_when_the_program_ends():
    code = (
        "from gdro.tasks.rewards import MathReward\n"
        "reward = MathReward(workers=1)\n"
        "reward(['\\\\boxed{4}'], ['4'])\n"
        "print(reward.pool._workers[0]._process.pid)\n"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stderr == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int(run.stdout), 0)


def test_a_worker_that_cannot_start_is_an_error(tmp_path, monkeypatch):
    script = tmp_path / "worker.py"
    script.write_text("raise SystemExit(1)\n")
    monkeypatch.setattr(verify, "WORKER_FILE", script)
    with (
        verify.VerifierPool(workers=1) as pool,
        pytest.raises(RuntimeError, match="worker did not start"),
    ):
        pool.verify([("4", "4")])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time_limit": 0}, "time_limit is 0; give a positive number"),
        ({"time_limit": float("inf")}, "time_limit is inf"),
        ({"workers": 0}, "workers is 0; give at least 1"),
    ],
)
def test_bad_limits_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        MathReward(**change)


def test_a_missing_math_verify_names_the_extra(monkeypatch):
    monkeypatch.setattr(verify.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'gdro\[math\]'"):
        MathReward()
