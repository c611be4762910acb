"""Notebooks 00 to 03 with other parameters: asserts hold, and figures show all that is drawn."""

from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest

from gdro_lab.teaching import lessons

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"

SMALL_02 = {"toy_seeds": 2, "regret_seeds": 4, "prompts_per_family": 3, "base_steps": 60}
SMALL_01 = {"num_prompts": 120, "num_visits": 90, "replicates": 4}
PARAMETERS = [
    ("00", {"n": 2}),
    ("00", {"n": 8}),
    ("01", SMALL_01 | {"k": 4, "rollouts": 8, "history": 10}),
    ("01", SMALL_01 | {"rollouts": 2, "history": 20, "hysteresis": 0.1, "seed": 1}),
    ("02", SMALL_02 | {"eta": 2.0, "ema": 0.5, "num_bins": 4, "seed": 1}),
    ("03", {"mean_rollouts": 6, "n_min": 3, "n_max": 10, "eta": 2.0, "seed": 1}),
]


def run(name, parameters, monkeypatch):
    """The figures of a notebook that ran with other parameters."""
    figures = []
    monkeypatch.setattr(lessons, "show", lambda figure, *saved: figures.append(figure))

    def explore(picture, stills=None, **controls):
        present = {key: control.value for key, control in controls.items()}
        for still in stills or [{}]:
            plt.close(picture(**present | still))

    monkeypatch.setattr(lessons, "explore", explore)
    monkeypatch.setattr("IPython.display.display", lambda *shown: None)
    ns = {}
    for cell in nbformat.read(next(NOTEBOOKS.glob(f"{name}_*.ipynb")), as_version=4).cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, f"{name} {cell.id}", "exec"), ns)
            if "parameters" in cell.metadata.get("tags", []):
                assert set(parameters) <= set(ns)
                ns |= parameters
    return figures


def cut_off(axis):
    """Points and bars of an axis that lie outside of it."""
    low, high = sorted(axis.get_ylim())
    slack = 0.01 * (high - low)
    values = [bar.get_height() + bar.get_y() for bar in axis.patches if hasattr(bar, "get_height")]
    for line in axis.lines:
        if line.get_marker() not in {"None", "", None} and line.get_transform() == axis.transData:
            values += list(np.asarray(line.get_ydata(), float))
    return [v for v in values if np.isfinite(v) and not low - slack <= v <= high + slack]


def width_of_title(figure):
    """Of the widest line over all panels, in pixels."""
    return figure._suptitle.get_window_extent().width if figure._suptitle else 0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "parameters"), PARAMETERS)
def test_nothing_is_cut_off(name, parameters, monkeypatch):
    figures = run(name, parameters, monkeypatch)
    assert figures
    for figure in figures:
        for axis in figure.axes:
            assert not cut_off(axis), (figure.get_suptitle(), axis.get_title())
        title = figure.get_suptitle()
        assert width_of_title(figure) <= figure.bbox.width, title
    plt.close("all")
