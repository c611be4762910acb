"""What a row holds: fields by path, chats, choices, and keys in their form."""

import re

import pyarrow
import pytest
from helpers import answers
from processes import REPOSITORY as ROOT
from pyarrow import parquet
from ruamel.yaml import YAML

from gdro_lab.tasks import MathChoice

REQUEST = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."


def user(content):
    return [{"role": "user", "content": content}]


# ------------------------------------------------------------------------------- paths and chats


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"q": {"text": "3+4?"}, "a": {"gold": 7}}, ("q.text", "a.gold")),
        ({"turns": [{"value": "3+4?"}, {"value": "7"}]}, ("turns.0.value", "turns.-1.value")),
        ({"q.text": "3+4?", "q": {"text": "no"}, "a": "7"}, ("q.text", "a")),  # its own name first
        ({"x": {"y.z": {"w": "3+4?"}}, "a.b": {"c": [["7"]]}}, ("x.y.z.w", "a.b.c.0.0")),
    ],
)
def test_a_column_may_be_a_path(load, row, columns):
    problem, answer = columns
    split = load([row], columns={"problem": problem, "answer": answer})
    assert [(row["prompt"], row["answer"]) for row in split.rows] == [(user("3+4?" + REQUEST), "7")]


@pytest.mark.parametrize("path", ["a.none", "a.gold.more", "a.0", "b", "a..gold", ""])
def test_a_path_that_leads_nowhere_names_those_that_there_are(load, path):
    rows = [{"q": "3+4?", "a": {"gold": 7, "why": {"text": "so"}}}]
    with pytest.raises(ValueError, match=r"'q', 'a\.gold', 'a\.why\.text'"):
        load(rows, columns={"problem": "q", "answer": path})


VERL = [
    {
        "data_source": "sums",
        "prompt": [
            {"content": "Answer in \\boxed{}.", "role": "system"},
            {"content": f" {a}+{a}? ", "role": "user"},
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(2 * a)},
        "extra_info": {"index": a, "split": "train"},
    }
    for a in range(8)
]
VERL_COLUMNS = {
    "problem": "prompt",
    "answer": "reward_model.ground_truth",
    "group": "data_source",
}


def test_a_chat_is_the_prompt_as_it_is(load, tmp_path):
    path = str(tmp_path / "train.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(VERL), path)
    split = load(path, columns=VERL_COLUMNS)
    wanted = [[{"role": m["role"], "content": m["content"]} for m in row["prompt"]] for row in VERL]
    assert [row["prompt"] for row in split.rows] == wanted
    assert answers(split) == [str(2 * a) for a in range(8)]
    assert {row["family"] for row in split.rows} == {"sums"}
    asked = load(path, columns=VERL_COLUMNS, request="Solve: {problem}").rows[1]["prompt"]
    assert asked == [wanted[1][0], {"role": "user", "content": "Solve:  1+1? "}]


def test_all_messages_but_the_last_may_be_the_prompt(load):
    chat = [{"role": "system", "content": "Be brief."}, *user("3+4?")]
    rows = [{"messages": [*chat, {"role": "assistant", "content": "So \\boxed{7}"}]}]
    columns = {"problem": "messages.:-1", "answer": "messages.-1.content"}
    split = load(rows, columns=columns, answer="boxed", completion="last_number")
    assert [(row["prompt"], row["answer"]) for row in split.rows] == [(chat, "7")]


def test_a_chat_of_one_message_is_a_text_for_a_model_without_a_template(load):
    rows = [{"question": user("3+4?"), "answer": "7"}]
    assert load(rows, chat=False, completion="whole").rows[0]["prompt"] == "3+4?"
    rows[0]["question"].insert(0, {"role": "system", "content": "Be brief."})
    with pytest.raises(ValueError, match=r"own, row 0: .*2 messages.*template"):
        load(rows, chat=False, completion="whole")


@pytest.mark.parametrize(
    ("chat", "message"),
    [
        ([*user("3+4?"), {"role": "assistant", "content": "7"}], r"own, row 0: .*question\.:-1"),
        ([{"role": "system", "content": "Be brief."}], "user"),
        ([{"from": "human", "value": "3+4?"}], r"question\.0\.value"),
        ([{"role": "user", "content": [{"type": "image"}]}], "image"),
        ([{"role": "user", "content": "3+4?", "tool_calls": [1]}], "tool_calls"),
        ([], "chat"),
        (user(" "), "empty"),
        (user("\ud801"), "half of a character"),
    ],
)
def test_a_chat_that_cannot_be_a_prompt_is_refused(load, chat, message):
    with pytest.raises(ValueError, match=message) as caught:
        load([{"question": chat, "answer": "7"}])
    str(caught.value).encode()


def test_chats_repeat_whatever_their_system_prompt_is(load):
    chats = [user("3+4?"), [{"role": "system", "content": "Be brief."}, *user("3+4?")]]
    rows = [{"question": chat, "answer": "7"} for chat in [*chats, chats[1][1:]]]
    split = load(rows, completion="whole")
    assert len(split.rows) == 1


# ------------------------------------------------------------------------- answers and their form


def test_what_is_evaluated_is_tried_before_training(load, tmp_path):
    (tmp_path / "held.jsonl").write_text('{"question": "1?", "answer": {"gold": 1}}')
    with pytest.raises(ValueError, match=r"held, row 0: .*answer\.gold"):
        load([{"question": "3+4?", "answer": "7"}], evaluate=[str(tmp_path / "held.jsonl")])


def test_a_list_of_answers_has_one(load):
    rows = [{"question": "How many?", "answer": ["one", "one season"]}]
    with pytest.raises(ValueError, match=r"row 0: .*answer\.0"):
        load(rows)
    assert answers(load(rows, columns={"answer": "answer.0"})) == ["one"]
    assert answers(load([{"question": "How many?", "answer": ["7"]}])) == ["7"]


@pytest.mark.parametrize(
    ("key", "completion"),
    [("x+1", "last_number"), ("a purple one", "last_number"), ("<answer>7</answer>", "tags")],
)
def test_a_key_that_no_completion_can_reach_is_left_out(load, key, completion):
    rows = [{"question": "Which?", "answer": key}, {"question": "And?", "answer": "7"}]
    split = load(rows, completion=completion)
    assert (answers(split), len(split.dropped)) == (["7"], 1)
    assert split.dropped[0].startswith("own, row 0: ")
    with pytest.raises(ValueError, match=r"own.*no usable row.*row 0"):
        load(rows[:1], completion=completion)


@pytest.mark.parametrize("column", ["question", "answer"])
@pytest.mark.parametrize(
    "text",
    [
        "[{'content': '3+4?', 'role': 'user'}]",
        '{"ground_truth": "9", "style": "rule"}',
        "{'ground_truth': '9'}",
        "['one', 'one season']",
        '["one"]',
    ],
)
def test_a_text_that_holds_nested_values_is_refused(load, column, text):
    """As a table has them that pandas wrote from nested columns."""
    row = {"question": "3+4?", "answer": "7"} | {column: text}
    with pytest.raises(ValueError, match=f"own, row 0: its '{column}' is a text that holds nested"):
        load([row])


@pytest.mark.parametrize(
    "text", ["[5, 6]", "{1, 2}", "(1, 2)", "\\{x : x > 1\\}", "[[1, 0], [0, 1]]"]
)
def test_lists_and_sets_of_mathematics_are_keys(load, text):
    assert answers(load([{"question": f"{text}?", "answer": text}])) == [text]


def test_the_profile_lines_on_the_page_can_be_meant():
    page = (ROOT / "docs/your-own-data.md").read_text("utf-8")
    table = page.partition("| the rows have |")[2].partition("\n\n")[0]
    lines = [row.split(" | ")[-1] for row in table.splitlines()[2:]]
    assert len(lines) > 15
    for line in lines:
        spans = re.findall(r"`([^`]*)`", line)
        fields = {}
        for span in spans:
            fields |= YAML(typ="safe").load(span)
        MathChoice(kind="math", train="own.jsonl", **fields)


# --------------------------------------------------------------------- what is said of what is left


def test_where_nearly_all_rows_are_left_out_the_message_says_so(load):
    rows = [{"question": f"{n}?", "answer": "none at all " * 40} for n in range(60)]
    rows[7]["answer"] = "7"
    with pytest.raises(ValueError, match=r"only 1 usable of 60 rows.*row 0") as caught:
        load(rows, answer="number", held_out=2, evaluate=[])
    assert len(str(caught.value)) < 700
