"""Data that would be trained on silently wrong: left out and named, or refused."""

import pytest
from helpers import answers, write_lines

GOOD = {"question": "1+1?", "answer": "2"}


def choices(texts, answer):
    return {"question": f"Which of {texts}?", "options": texts, "answer": answer}


@pytest.mark.parametrize(
    ("texts", "answer", "letter"),
    [
        (["B. six", "A. five", "C. seven"], "B", "A"),
        (["C. one", "B. two", "A. three"], "C", "A"),
        (["F) a", "G) b", "H) c", "J) d"], "H", "C"),
        (["(2) a", "(1) b"], "1", "B"),
        (["3. a", "1. b", "2. c"], "1.", "B"),
        (["b: x", "a: y"], "a", "B"),
        (["1.5 m", "2.5 m"], "B", "B"),  # no labels
        (["A. one", "two"], "B", "B"),  # not all have one
        (["A. one", "A. two"], "B", "B"),  # nor one of its own
        (["J. Smith", "K. Jones", "A. Brown", "D. Green"], "A", "A"),  # initials
        (["1: 2", "2: 1", "3: 4"], "B", "B"),  # ratios
        (["1: red", "2: blue"], "2", "B"),
        (["E. none", "A. x", "B. y"], "A", "B"),
        ({"text": ["a", "b"]}, "B", "B"),
        ({"text": ["a", "b"], "label": ["x", "y"]}, "x", "A"),
    ],
)
def test_options_are_named_by_their_own_labels(load, texts, answer, letter):
    split = load([choices(texts, answer)], columns={"choices": "options"}, answer="letter")
    assert answers(split) == [letter]


def test_labels_of_other_texts_are_refused(load):
    rows = [choices({"text": ["a", "b"], "label": ["A"]}, "A")]
    with pytest.raises(ValueError, match=r"row 0: .*labels"):
        load(rows, columns={"choices": "options"}, answer="letter")


def test_an_index_from_one_is_not_read_from_zero(load):
    rows = [choices([f"{n}a", f"{n}b", f"{n}c", f"{n}d"], n) for n in (1, 2, 3)]
    with pytest.raises(ValueError, match="index_from_1"):
        load(rows, columns={"choices": "options"}, answer="index")
    split = load(rows, columns={"choices": "options"}, answer="index_from_1")
    assert answers(split) == ["A", "B", "C"]
    rows[0]["answer"] = 0
    split = load(rows, columns={"choices": "options"}, answer="index")
    assert answers(split) == ["A", "C", "D"]


def test_a_question_with_two_answers_is_left_out_with_both(load, tmp_path):
    rows = [{"question": "What is x?", "answer": "4"}, {"question": "what is  $x$", "answer": "5"}]
    split = load([*rows, GOOD])
    assert answers(split) == ["2"]
    assert len(split.dropped) == 2
    assert all("'4', '5'" in fault for fault in split.dropped)
    # also of two sources; another spelling of a key is none other
    (tmp_path / "more.csv").write_text("question,answer\n1+1?,2.0\nWhat is x?,5\n")
    first = write_lines(tmp_path / "first.jsonl", [rows[0], GOOD])
    split = load([GOOD], train=[*map(str, [tmp_path / "more.csv", first])])
    assert answers(split) == ["2.0"]
    with pytest.raises(ValueError, match="one answer"):
        load(rows)


def test_problems_that_name_answers_before_they_ask_are_kept(load):
    """Else a class of answers would be missing: all that are yes, all that are 8."""
    asked = "Is {n} even? Answer yes or no."
    rows = [{"question": asked.format(n=n), "answer": "no" if n % 2 else "yes"} for n in range(6)]
    assert answers(load(rows)) == ["yes", "no"] * 3
    few = "Q: 4+4?\nThe answer is 8. \\boxed{8}\nQ: 7+%s?\nA:"
    assert answers(load([{"question": few % n, "answer": str(7 + n)} for n in (1, 2)])) == [
        "8",
        "9",
    ]


def test_problems_that_differ_in_a_power_or_a_decimal_are_different(load):
    asked = {"3² + 4²?": "25", "32 + 42?": "74", "What is .5 + .2?": "0.7", "What is 5 + 2?": "7"}
    rows = [{"question": problem, "answer": key} for problem, key in asked.items()]
    assert answers(load(rows)) == list(asked.values())


def chat(content, answer="7", role="user"):
    return {"question": [{"role": role, "content": content}], "answer": answer}


@pytest.mark.parametrize(
    ("asked", "reader"),
    [
        ("End with Answer: $Answer.", "answer_line"),
        ("Put it in \\boxed{}.", "boxed"),
        ("Write it after ####.", "hash"),
        ("Put it within <answer></answer>.", "tags"),
    ],
)
def test_a_chat_asks_for_the_form_that_is_read(load, asked, reader):
    rows = [chat(f"{asked}\n\n3+{n}?", str(3 + n)) for n in range(3)]
    assert len(load(rows, completion=reader).rows) == 3
    for other in {"boxed", "hash", "tags", "answer_line"} - {reader}:
        with pytest.raises(ValueError, match=r"task\.completion"):
            load(rows, completion=other)
        assert len(load(rows, completion=other, request="{problem}").rows) == 3


@pytest.mark.parametrize(
    "text",
    [
        "<|im_start|>user\nq0<|im_end|>\n<|im_start|>assistant\n",
        "<|begin_of_text|>q0",
        "<｜User｜>q0<｜Assistant｜>",
        "[INST] q0 [/INST]",
        "<start_of_turn>user\nq0<end_of_turn>",
    ],
)
def test_a_rendered_chat_is_refused(load, text):
    for row in ({"question": text, "answer": "7"}, chat(f"{text} \\boxed{{}}"), chat(text)):
        with pytest.raises(ValueError, match=r"row 0: .*list of messages"):
            load([row])


@pytest.mark.parametrize(
    "text",
    [
        *("<image> How many?", "<img src='a.png'> How many?"),
        *("![](https://a.org/b.png) How many?", r"\includegraphics{a} How many?", "<video>\nWhy?"),
        *("3+4? The answer is 7.", "3+4? Answer: 7", r"3+4? \boxed{7}", "3+4=7\n#### 7"),
        *("3+4? <answer>7</answer>", "3+4? answer = $7$"),
    ],
)
def test_a_problem_without_its_image_or_with_its_answer_is_left_out(load, text):
    split = load([GOOD, {"question": text, "answer": "7"}])
    assert answers(split) == ["2"]
    assert len(split.dropped) == 1


def test_a_key_may_occur_in_a_problem(load):
    texts = ["Which is 7, 7 or 8?", "Is the answer 8? Write 7 if not.", r"Fill in \boxed{?}: 3+4"]
    assert len(load([{"question": text, "answer": "7"} for text in texts]).rows) == 3


@pytest.mark.parametrize("name", ["a|b", "x\n## y", "$x$", "a\rb", "all"])
def test_a_family_that_no_table_could_show_is_refused(load, name):
    with pytest.raises(ValueError, match=r"row 0: .*famil"):
        load([GOOD | {"g": name}], columns={"group": "g"})


GAPS = "- -- — ? … null NULL N/A n.a. #N/A NA None nan TBD"


@pytest.mark.parametrize("key", GAPS.split())
def test_a_mark_of_a_gap_is_no_key(load, key):
    split = load([GOOD, {"question": "3+4?", "answer": key}])
    assert answers(split) == ["2"]
    assert split.dropped[0].startswith("own, row 1: ")


@pytest.mark.parametrize("key", ["Na", "0", "+", "<", "No", "none of them", "n", "\\emptyset"])
def test_a_key_that_looks_like_a_gap_stays(load, key):
    assert answers(load([{"question": "3+4?", "answer": key}])) == [key]
