"""The math data sets and their rewards: schemas, bad rows, verdicts, hostile answers, counts."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

datasets = pytest.importorskip("datasets")
pytest.importorskip("math_verify")

from gdro import vllm_sampling  # noqa: E402
from gdro.profiles import MathChoice  # noqa: E402
from gdro.tasks import make_task, rewards  # noqa: E402
from gdro.tasks import math as tasks  # noqa: E402
from gdro.tasks.rewards import (  # noqa: E402
    MathReward,
    chosen_letter,
    completion_text,
    last_boxed,
)

FIXTURES = Path(__file__).parent / "fixtures" / "math"
HANGING = "9^{9^{9^{9}}}"  # sympy computes it in C code, until the memory is gone
LONG = "9" * 5000  # more digits than Python turns into an integer


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


def test_the_answers_of_every_data_set_are_correct(reward):
    for name, answers in ANSWERS.items():
        completions = [f"So it is $\\boxed{{{answer.strip('$')}}}$." for answer in answers]
        assert reward(completions, answers) == [1.0] * len(answers), name
        assert reward(["\\boxed{-123456}"] * len(answers), answers) == [0.0] * len(answers), name


def test_levels_and_subjects_read_the_same_in_math_and_math500():
    math, math500 = (
        tasks.load_math(name, fixture(name), check_answers=False) for name in ("math", "math500")
    )
    assert list(math["level"]) == ["2", "1", "3", "2", "?"]
    assert list(math500["level"]) == ["1", "3", "4", "2"]
    assert math["subject"][1] == math500["subject"][3] == "Counting & Probability"


def test_a_chat_is_one_user_message():
    [message] = tasks.load_math("amc", fixture("amc"), check_answers=False)[0]["prompt"]
    assert message["role"] == "user"
    assert message["content"].endswith(f"\n\n{tasks.MATH_REQUEST}")


def test_a_uid_names_the_problem_wherever_it_is(tmp_path):
    rows = fixture_rows("gsm8k")
    backward = write_jsonl(tmp_path / "backward.jsonl", rows[::-1])
    ours = tasks.load_math("gsm8k", fixture("gsm8k"), check_answers=False)["uid"]
    theirs = tasks.load_math("gsm8k", backward, check_answers=False)["uid"]
    assert list(ours) == list(theirs)[::-1]
    assert ours[0] == "gsm8k/4476058a97117203fcd91e9a"  # in every process, version and year
    # a source without the column that names problems is hashed as well
    rows = [{k: v for k, v in row.items() if k != "id"} for row in fixture_rows("amc")]
    data = tasks.load_math("amc", write_jsonl(tmp_path / "amc.jsonl", rows), check_answers=False)
    assert all(len(uid) == len("amc/") + 24 for uid in data["uid"])


def test_hub_and_saved_folders_stand_in_for_the_hub(tmp_path):
    wanted = tasks.load_math("dapo", fixture("dapo"), check_answers=False).to_list()
    raw = datasets.Dataset.from_list(fixture_rows("dapo"))
    raw.save_to_disk(tmp_path / "saved")
    (tmp_path / "hub").mkdir()
    raw.to_parquet(tmp_path / "hub" / "train-00000-of-00001.parquet")
    raw.select([0]).to_parquet(tmp_path / "hub" / "test-00000-of-00001.parquet")
    for source in ("saved", "hub"):
        assert tasks.load_math("dapo", tmp_path / source, check_answers=False).to_list() == wanted
    other = tasks.load_math("dapo", tmp_path / "hub", split="test", check_answers=False)
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


def test_choices_are_shuffled_by_uid_alone(tmp_path):
    data = tasks.load_math("gpqa", fixture("gpqa"), style="text")
    rows = fixture_rows("gpqa")
    for row, shown in zip(rows, data, strict=True):
        assert f"{shown['answer']}) {row['Correct Answer'].strip()}\n" in shown["prompt"]
        assert all(f") {row[f'Incorrect Answer {i}']}\n" in shown["prompt"] for i in (1, 2, 3))
        assert shown["prompt"].endswith(tasks.CHOICE_REQUEST)
    assert tasks.load_math("gpqa", fixture("gpqa"), style="text").to_list() == data.to_list()
    last = write_jsonl(tmp_path / "last.jsonl", rows[-1:])
    assert tasks.load_math("gpqa", last, style="text")[0] == data[len(rows) - 1]
    many = [rows[0] | {"Record ID": f"r{number}"} for number in range(40)]
    path = write_jsonl(tmp_path / "many.jsonl", many)
    assert set(tasks.load_math("gpqa", path)["answer"]) == set("ABCD")


def test_a_letter_is_read_or_not():
    for box in ("B", "(B)", "\\text{B}", "\\textbf{(B)}", "$B$", "B.", "B) Neon"):
        assert chosen_letter(box) == "B", box
    for box in ("Bananas", "A or B", "b", "", "3"):
        assert chosen_letter(box) is None, box


def test_choices_are_scored_and_counted():
    with MathReward(signed=True) as reward:
        given = ["so \\boxed{B}", "\\boxed{C}", "It is B.", "\\boxed{Neon}"]
        assert reward(given, ["B"] * 4) == [1.0, -1.0, -1.0, -1.0]
        assert reward.counts == {"correct": 1, "wrong": 1, "no_box": 1, "unparsed": 1}
        assert not reward._servers  # no process was needed


# Bad rows


def broken(name, row, **change):
    rows = fixture_rows(name)
    rows[row] |= change
    return rows


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("amc", broken("amc", 1, question=" "), "row 1 .amc/1.: 'question' is ' ', not a problem"),
        ("amc", broken("amc", 2, answer=""), "row 2 .amc/2.: 'answer' holds no answer: ''"),
        ("amc", broken("amc", 2, answer=None), "'answer' is None, not an answer"),
        ("amc", broken("amc", 2, answer=float("nan")), "'answer' holds no answer: nan"),
        ("amc", broken("amc", 2, answer="-"), "math-verify cannot use its answer '-'"),
        ("amc", broken("amc", 2, id=0), "row 2 .amc/0.: its uid repeats"),
        ("amc", broken("amc", 2, id=None), "row 2 .no uid.: 'id' is empty"),
        ("amc", [{"problem": "1+1?", "id": 1}], "it has no column 'question', only .'id', 'prob"),
        ("amc", broken("amc", 2, answer=LONG), "math-verify cannot use its answer '999"),
        ("amc", broken("amc", 2, answer="1e" + LONG), "math-verify cannot use its answer '1e999"),
        ("math", broken("math", 0, solution="\\boxed{3"), "'solution' holds no answer"),
        ("math", broken("math", 0, level=None), "level or subject is empty"),
        ("gsm8k", broken("gsm8k", 0, answer="It is 3."), "'answer' holds no answer"),
        ("gsm8k", fixture_rows("gsm8k") * 2, "3 bad rows in .*: row 3 .*its uid repeats"),
        ("olympiad", broken("olympiad", 0, final_answer=None), "'final_answer' is None"),
        ("olympiad", broken("olympiad", 0, final_answer=[]), "holds no answer"),
        ("gpqa", broken("gpqa", 0, **{"Incorrect Answer 2": None}), "not all there and different"),
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
    assert all(reason.startswith("row ") for reason in dropped)


def test_a_hanging_answer_key_is_a_bad_row(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "ANSWER_SECONDS", 2.0)
    path = write_jsonl(tmp_path / "hang.jsonl", broken("amc", 0, answer=HANGING))
    dropped = []
    assert len(tasks.load_math("amc", path, dropped=dropped)) == 2
    [reason] = dropped
    assert reason.startswith("row 0 (amc/0): math-verify cannot use")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "aime"}, "name must be one of .'aime2024', .* got 'aime'"),
        ({"style": "html"}, "style must be one of .* got 'html'"),
        ({"limit": 0}, "'amc' has 0 usable and 0 bad rows"),
        ({"path": "nowhere"}, "path must be a .jsonl file or a folder, got nowhere"),
        ({"path": __file__}, "path must be a .jsonl file or a folder, got .*py"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        tasks.load_math(**({"name": "amc", "path": fixture("amc")} | change))


def test_broken_files_are_named(tmp_path):
    path = tmp_path / "broken.jsonl"
    for text, message in [
        ('{"id": 1}\n{"id"\n', "line 2 of .* is no JSON record"),
        ("[1]\n", "line 1 of .* is no JSON record"),
        ("\n", "'amc' has 0 usable"),
    ]:
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            tasks.load_math("amc", path)


def test_a_task_reads_what_is_asked_for(monkeypatch, tmp_path):
    """Training does not touch evaluation sets, which may be gated; scores keep their denominators."""
    paths = {name: str(fixture(name)) for name in ("dapo", "math500", "amc")}
    bad = write_jsonl(
        tmp_path / "minerva.jsonl", [*fixture_rows("minerva"), {"question": "?", "answer": "-"}]
    )
    choice = MathChoice(
        kind="math", train="dapo", evaluate=["minerva", "gpqa"], paths=paths | {"minerva": str(bad)},
        style="text", drop_bad_rows=True, max_prompt_tokens=200,
    )  # fmt: skip
    monkeypatch.setattr(vllm_sampling, "prompt_ids", lambda tokenizer, prompts: prompts)  # characters
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: 1 / 0)
    task = make_task(choice, None)
    assert task.rows == {}
    assert max(map(len, task.train["prompt"])) == task.max_prompt_tokens <= 200
    assert task.rows["train"] + len(task.dropped["train"]) == len(fixture_rows("dapo"))
    with pytest.raises(ZeroDivisionError):
        _ = task.held_out  # gpqa, from the hub
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: fixture_rows("gpqa"))
    assert task.held_out is task.held_out
    assert {row["family"] for row in task.held_out} == {"minerva", "gpqa"}
    given = [f"\\boxed{{{row['answer']}}}" for row in task.held_out]
    columns = {key: [row[key] for row in task.held_out] for key in ("answer", "dataset", "uid")}
    assert task.held_out_reward(given, **columns) == [1.0] * len(given)
    report = task.report()
    assert report["rows"] == {"train": task.rows["train"], "minerva": 4, "gpqa": len(fixture_rows("gpqa"))}
    assert len(report["dropped"]["minerva"]) == 1
    assert report["outcomes"]["held_out"]["correct"] == len(given)
    task.close()
    with pytest.raises(ValueError, match=r"task\.paths must name files or folders, got 'nowhere' for 'amc'"):
        make_task(MathChoice(kind="math", evaluate=["amc"], paths={"amc": "nowhere"}), None)


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
        with pytest.raises(ValueError, match="completion must be text or a list of messages, got a"):
            completion_text(wrong)


VERDICTS = {  # gold: what equals it, what does not
    "\\frac{1}{2}": (["0.5"], []),
    "034": (["34"], []),
    "2\\sqrt{3}": (["\\sqrt{12}"], []),
    "(x-3)(x+3)": (["x^2-9"], []),
    "$3,-3$": (["-3, 3"], []),
    "120^\\circ": (["120"], []),
    "\\boxed{7}": (["7"], []),
    "x=5": (["5", "x=5"], ["6"]),
    "[2,3)": ([], ["(2,3)"]),
    "1.414": ([], ["\\sqrt{2}"]),
    "0.333333": (["1/3"], []),
    "4.5e33": (["4.5 \\times 10^{33}", "4.5E+33"], ["4.6e33"]),
    "-1./3": (["-1/3"], []),
    "np.arcsin(10/13)": (["\\arcsin(10/13)"], []),
    "0.07": (["7\\%"], []),
    "7\\%": (["7"], []),
    # some of which math-verify itself takes for equal
    "7": (["3+4=7"], ["8=7", "8=7=7", "7\\%", "x = 7 \\text{ percent}"]),
    "1.6 \\times 10^{-19}": (["1.602 \\times 10^{-19}"], ["1.7 \\times 10^{-19}"]),
    "0.00000016": ([], ["0.00000021"]),
    "x < 10^{-9}": (["x < 10^{-9}"], []),
}


@pytest.mark.parametrize("gold", VERDICTS)
def test_verdicts(reward, gold):
    equal, unequal = VERDICTS[gold]
    given = [f"\\boxed{{{box}}}" for box in equal + unequal]
    assert reward(given, [gold] * len(given)) == [1.0] * len(equal) + [0.0] * len(unequal)


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
    assert reward.counts == {"correct": 3, "wrong": 1, "no_box": 1, "unparsed": 1}
    assert (report["correct"], report["timeout"]) == (3, 0)
    assert report["seconds"] > 0
    assert logged["math_reward/no_box"] == logged["math_reward/unparsed"] == 0.2
    assert logged["math_reward/timeout"] == 0


def test_a_bad_answer_key_is_an_error(reward):
    for bad in ("-", "1e" + LONG):
        with pytest.raises(ValueError, match=r"answer of completion 1 \(uid 'b'\) must be mathematics that"):
            reward(["\\boxed{4}"] * 2, ["4", bad], uid=["a", "b"])
    for empty in ("", " ", None):
        with pytest.raises(ValueError, match=r"answer of completion 0 \(uid None\) must be a text, got"):
            reward(["\\boxed{4}"], [empty])
    with pytest.raises(ValueError, match="answer must have one entry per completion, got 1, 2"):
        reward(["\\boxed{4}"] * 2, ["4"])


# Hostile answers


def test_numbers_too_long_to_read_are_wrong(reward):
    given = [
        f"\\boxed{{{box}}}" for box in ("1e" + LONG, LONG, f"10^{{{LONG}}}", LONG + "\\%", "7e" + "0" * 9999)
    ]
    assert reward(given, ["7"] * 5) == [0.0] * 5


def test_what_never_ends_is_killed_beside_the_rest():
    with MathReward(time_limit=4) as reward:
        assert reward(["\\boxed{4}"], ["4"]) == [1.0]  # the server is up
        given = [HANGING, *(f"{n}!" for n in range(10**7, 10**7 + 7)), "4"]
        started = time.monotonic()
        assert reward([f"\\boxed{{{box}}}" for box in given], ["4"] * 9) == [0.0] * 8 + [1.0]
        assert 4 <= time.monotonic() - started < 10  # they do not add up
        assert reward.counts == {"correct": 2, "timeout": 8}
        assert psutil.Process(reward._servers[0].pid).children() == []  # dead and reaped


def test_a_worker_that_dies_is_counted_and_a_server_that_dies_is_started_again():
    pool = MathReward(time_limit=60, workers=1)
    assert pool.verify([("\\boxed{4}", None)]) == ["gold"]
    server, outcomes = psutil.Process(pool._servers[0].pid), []
    asked = threading.Thread(
        target=lambda: outcomes.extend(pool.verify([("\\boxed{4}", "\\boxed{10000000!}")]))
    )
    asked.start()
    time.sleep(1)
    [worker] = server.children()
    worker.kill()
    asked.join(30)
    assert outcomes == ["crash"]
    assert pool.verify([("\\boxed{4}", "\\boxed{4}")] * 2) == ["correct"] * 2
    server.kill()
    assert pool.verify([("\\boxed{4}", "\\boxed{4}")]) == ["correct"]
    assert pool._servers[0].pid != server.pid
    pool.close()
    pool.close()
    assert not pool._servers


KILL = "os.kill(os.getpid(), 9)"


# idle, and at work for many seconds
@pytest.mark.parametrize(("ending", "answer"), [("sys.exit()", "4"), (KILL, "4"), (KILL, "10000000!")])
def test_a_forgotten_reward_leaves_no_process_when_the_program_ends(ending, answer):
    code = (
        "import os, sys, psutil, threading, time\nfrom gdro.tasks.rewards import MathReward\n"
        "reward = MathReward(workers=2)\nreward(['\\\\boxed{4}'], ['4'])\n"
        f"given = ['\\\\boxed{{{answer}}}'], ['5']\n"
        "threading.Thread(target=reward, args=given, daemon=True).start()\ntime.sleep(1)\n"
        "print(*(p.pid for p in psutil.Process().children(recursive=True)), flush=True)\n"
    )
    run = subprocess.run([sys.executable, "-W", "error", "-c", code + ending], capture_output=True, text=True)
    assert run.stderr == ""
    left = [int(pid) for pid in run.stdout.split()]
    assert len(left) == 1 + (answer != "4")
    deadline = time.monotonic() + 20
    while any(psutil.pid_exists(pid) for pid in left):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_server_that_cannot_start_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(rewards, "SERVER", tmp_path / "nowhere.py")
    with pytest.raises(RuntimeError, match="the verification server ended"):
        MathReward(workers=1).verify([("4", "4")])


@pytest.mark.parametrize("change", [{"time_limit": 0}, {"time_limit": float("inf")}, {"workers": 0}])
def test_bad_limits_are_refused(change):
    with pytest.raises(ValueError, match=f"{next(iter(change))} must be"):
        MathReward(**change)


def test_a_missing_math_verify_names_the_extra(monkeypatch):
    monkeypatch.setattr(rewards.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'gdro\[math\]'"):
        MathReward()
