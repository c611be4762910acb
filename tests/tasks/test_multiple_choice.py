"""Problems with choices: in which forms they come, and how the right one is named."""

import pytest
from helpers import answers

STEM = {"question": "Which is red?", "answer": None}
SHOWN = "Which is red?\n\nA) grass\nB) blood\nC) snow"
TEXTS = ["grass", "blood", "snow"]


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        ({"choices": TEXTS, "answer": 1}, {"answer": "index"}),
        ({"choices": TEXTS, "answer": "1"}, {"answer": "index"}),
        ({"choices": TEXTS, "answer": 2}, {"answer": "index_from_1"}),
        ({"choices": TEXTS, "answer": "B"}, {"answer": "letter"}),
        ({"choices": TEXTS, "answer": " (b)"}, {"answer": "letter"}),
        ({"choices": TEXTS, "answer": "blood"}, {"answer": "whole"}),
        ({"choices": {"x": "grass", "y": "blood", "z": "snow"}, "answer": "y"}, {}),
        ({"choices": {"A": "grass", "B": "blood", "C": "snow", "D": None}, "answer": "B"}, {}),
        ({"choices": {"label": ["1", "2", "3"], "text": TEXTS}, "answer": "2"}, {}),
        (
            {"choices": [{"label": i, "text": text} for i, text in zip("ABC", TEXTS, strict=True)]}
            | {"answer": "B"},
            {},
        ),
        ({"more": {"options": TEXTS}, "answer": "B"}, {"choices": "more.options"}),
        ({"a": "grass", "b": "blood", "c": "snow", "answer": "B"}, {"choices": ["a", "b", "c"]}),
    ],
)
def test_choices_come_in_many_forms(load, row, fields):
    columns = {"choices": fields.get("choices", "choices")}
    reader = fields.get("answer", "letter")
    first = {"question": "Which is green?", "choices": TEXTS, "answer": 0}
    rows = [STEM | row, first] if reader == "index" else [STEM | row]
    split = load(rows, columns=columns, answer=reader)
    assert answers(split)[0] == "B"
    assert split.rows[0]["prompt"][0]["content"].startswith(SHOWN + "\n\nPlease reason")
    assert "the letter of the correct choice" in split.rows[0]["prompt"][0]["content"]


@pytest.mark.parametrize(
    ("row", "reader", "message"),
    [
        ({"choices": TEXTS, "answer": 3}, "index", "row 0: .*no index of 3 choices.*from 0"),
        ({"choices": TEXTS, "answer": 0}, "index_from_1", "row 0: .*no index.*from 1"),
        ({"choices": TEXTS, "answer": "D"}, "letter", "row 0: .*'D'"),
        ({"choices": TEXTS, "answer": "B"}, "whole", "row 0: .*'B'"),
        ({"choices": TEXTS, "answer": ["A", "B"]}, "letter", "row 0: .*list"),
        ({"choices": [*TEXTS, "blood"], "answer": "B"}, "letter", "row 0: .*'blood'"),
        ({"choices": list(map(str, range(11))), "answer": "A"}, "letter", "row 0: .*2 to 10"),
        ({"choices": "A) grass B) blood", "answer": "B"}, "letter", "row 0: .*list of choices"),
    ],
)
def test_choices_that_cannot_be_meant_are_refused(load, row, reader, message):
    with pytest.raises(ValueError, match=message):
        load([STEM | row], columns={"choices": "choices"}, answer=reader)


@pytest.mark.parametrize("reader", ["index", "letter", "whole"])
def test_a_row_without_a_right_choice_is_left_out(load, reader):
    rows = [STEM | {"choices": TEXTS, "answer": answer} for answer in (None, "", "1")]
    rows[-1]["answer"] = {"index": "0", "letter": "B", "whole": TEXTS[1]}[reader]
    assert len(load(rows, columns={"choices": "choices"}, answer=reader).rows) == 1


def test_the_same_question_with_other_choices_is_another(load):
    rows = [STEM | {"choices": TEXTS, "answer": "B"}, STEM | {"choices": TEXTS[:2], "answer": "B"}]
    split = load(rows, columns={"choices": "choices"}, answer="letter")
    assert len({row["uid"] for row in split.rows}) == 2
