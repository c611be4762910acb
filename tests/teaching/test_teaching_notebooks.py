"""Notebooks: shipped as executed; of those that teach what is stored is found again."""

import json
import re
from dataclasses import replace

import nbformat
import papermill
import pytest
from processes import REPOSITORY as ROOT

from gdro.metrics import effective_number
from gdro_lab.toy import Game, World, maps, play

STORED = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
TEACHING = [name for name in STORED if name[:2] not in {"05", "06", "08"}]  # these train
# games that would take most of the suite's minutes are played with few seeds; of what they show,
# in cells with one of the words, the tests at the end play again what the text says
FEWER = {
    "02_prompt_gdro": ({"toy_seeds": 2}, r"effective"),
    "04_toy_games": (
        dict.fromkeys(("ablation_seeds", "curve_seeds", "slider_seeds", "check_seeds"), 2)
        | {"size_seeds": 4},
        r"by_change|by_size|compared",
    ),
}


def path_of(name):
    return ROOT / "notebooks" / f"{name}.ipynb"


def stored(name):
    return nbformat.read(path_of(name), as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts_of(notebook, but=None):
    """What the cells have printed and shown, pictures aside; `but`: the words of those left out."""
    cells = [cell for cell in code_cells(notebook) if not (but and re.search(but, cell.source))]
    outputs = [output for cell in cells for output in cell.outputs]
    data = [output.get("data", {}) for output in outputs]
    # a widget without stills is a progress bar, which is not stored
    kept = [d for d in data if not any("widget" in kind for kind in d) or "image/png" in d]
    shown = [item for d in kept for item in sorted(d.items())]
    printed = "".join(output.get("text", "") for output in outputs)  # in however many pieces
    return printed, [value for kind, value in shown if kind.startswith("text/")]


@pytest.mark.parametrize("name", STORED)
def test_shipped_as_executed_and_normalized(name):
    """All cells in order, nothing that differs from run to run or from machine to machine."""
    notebook = stored(name)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {o.output_type for o in outputs} <= {"stream", "display_data", "execute_result"}
    assert {o.get("name", "stdout") for o in outputs} == {"stdout"}  # no warnings
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    # no widget, which needs a kernel
    assert kinds <= {"text/plain", "text/html", "text/markdown", "image/png"}
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert {key for cell in notebook.cells for key in cell.metadata} <= {"tags", "jupyter"}
    sources = "\n".join(cell.source for cell in cells)
    first = re.findall("^(?:import|from|numerics) *.*", sources, re.M)[:2]
    assert [line.partition("  #")[0] for line in first] == [
        "from gdro_lab import numerics",
        "numerics.fix()",
    ]
    text = json.dumps([o for o in outputs if "image/png" not in o.get("data", {})])
    assert not re.search(r"/(work|home|root|tmp|Users)/|0x[0-9a-f]{6}", text)


@pytest.mark.parametrize("name", TEACHING)
def test_runs_to_the_stored_numbers(name, tmp_path, monkeypatch):
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)  # the kernels that the numerics choose
    source = stored(name)
    tagged = [cell for cell in source.cells if "parameters" in cell.metadata.get("tags", [])]
    saves = any("figures_dir" in cell.source for cell in tagged)
    parameters, words = FEWER.get(name, ({}, None))
    parameters |= {"figures_dir": ""} if saves else {}  # nothing is saved
    executed = papermill.execute_notebook(
        path_of(name), tmp_path / "out.ipynb", parameters, progress_bar=False, cwd=ROOT
    )
    assert texts_of(executed, words) == texts_of(source, words)


def test_what_notebook_02_says_of_sums_and_running_means_is_played_again():
    """The two numbers that it sets beside the paper's."""
    text = "\n".join(cell.source for cell in stored("02_prompt_gdro").cells)
    world = World(35, prompts=5 * 35, tail=1.0, spread=1.5, rare="mixed")
    game = Game(world, "resample", batch=35, step_size=16.0, grouping="skill", max_weight=1e9)
    summed = replace(game, score="cumulative", clip=1e6, eta=0.015)
    for playing, step, words in (
        (summed, 150, "{:.1f} (η = 0.015, step 150)"),
        (replace(game, eta=8), 75, "{:.1f} (η = 8, step 75)"),
    ):
        q_SB = play([playing], range(32), [0, step]).probability[0, :, 1]
        assert words.format(effective_number(q_SB).mean()) in text


def test_what_notebook_04_says_of_step_sizes_is_played_again():
    text = "\n".join(cell.source for cell in stored("04_toy_games").cells)
    world = World(tail=1.0, spread=2.0)
    quiet = replace(world, noise=0.0)
    games = [Game(quiet, step_size=128.0)]
    games += [Game(world, step_size=size) for size in (32.0, 64.0, 512.0)]
    found = 100 * play(games, range(64), [50]).accuracy.mean(axis=(1, 2, 3))
    assert f"a step size of 128 ({found[0]:.0f}%)" in text
    assert f"the best is 32 to 64 ({found[1:3].max():.0f}%)" in text
    assert f"512 loses {found[1:3].max() - found[3]:.0f} points" in text


def test_what_notebook_04_sets_beside_real_trainings_is_played_again():
    """One row of the table: resampling in the toy world most like them."""
    shown = texts_of(stored("04_toy_games"))[1]
    [table] = [text for text in shown if "toy inside" in text and "<table" not in text]
    row = next(line.split() for line in table.splitlines() if "prompt:action=resample" in line)
    shipped = json.loads((ROOT / "data/toy/map.json").read_text("utf-8"))
    nearest = World(tail=1.5, spread=3.0, rare="hard")
    place = [World(**world) for world in shipped["settings"][0]].index(nearest)
    step = shipped["step_sizes"]["pass_at_8"][place][0]
    games = [Game(nearest, method, step_size=step, k=1) for method in ("grpo", "resample")]
    values = maps.MEASURES["pass_at_8"][1](play(games, range(128), [25]))[..., 0]
    gain = maps.paired_gain(100 * values[1:], 100 * values[:1])
    low = gain.mean[0] - gain.half[0]
    assert {f"{gain.mean[0]:.1f}", f"{low:.1f}"} <= set(row)


def test_one_row_of_the_ablations_of_notebook_04_is_played_again():
    shown = "\n".join(texts_of(stored("04_toy_games"))[1])
    game = Game(World(tail=1.0, spread=2.0), "resample", step_size=16.0)
    results = play([game, replace(game, eta=0.0)], range(64), [50])
    for measure in ("pass_at_8", "worst_skill", "typical"):
        values = 100 * maps.MEASURES[measure][1](results)[..., 0]
        gain = maps.paired_gain(values[1:], values[:1])
        assert f"{gain.mean[0]:+.1f} ± {gain.half[0]:.1f}" in shown


def test_the_index_of_figures_has_every_file_and_who_draws_it():
    index = (ROOT / "figures" / "README.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", index, re.MULTILINE))
    assert rows.keys() == {path.stem for path in (ROOT / "figures").glob("*.png")}
    assert rows.keys() - {"inspect"} == {path.stem for path in (ROOT / "figures").glob("*.pdf")}
    for figure, drawn_by in rows.items():
        if drawn_by.startswith("notebook "):
            path = next((ROOT / "notebooks").glob(f"{drawn_by[-2:]}_*.ipynb"))
            name = re.sub("(ablation_|map_pass|map_worst).*", r"\1", figure)
            assert f'"{name}' in "".join(cell.source for cell in code_cells(stored(path.stem)))
