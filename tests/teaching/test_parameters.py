"""Notebooks 00 to 03 with other parameters: asserts hold, and titles say what was computed.

Each title of a figure is computed again here from the notebook's variables, by the first of
`CLAIMS` that it matches; a title that none matches only names what is drawn, and must be in
`NAMES`. Points and bars must lie within their axes.
"""

import re
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
    ("02", SMALL_02 | {"eta": 2.0}),
    ("02", SMALL_02 | {"eta": 0.1, "ema": 0.5, "num_bins": 4, "seed": 1}),
    ("03", {"mean_rollouts": 3, "n_max": 8, "seed": 1}),
    ("03", {"mean_rollouts": 6, "n_min": 3, "n_max": 10, "eta": 2.0}),
]
NAMES = {
    "",
    "Four signs, four random tables. Framed: what 2*0*0? needs",
}


def mixed_share(n):
    """% of the groups of notebook 00 that are not mixed, on average."""
    counts = {0.02: 4, 0.5: 4, 0.98: 16}
    return 100 - 100 / 24 * sum(c * (1 - p**n - (1 - p) ** n) for p, c in counts.items())


def steps_until_known(ns):
    """The first step after which one visit, and k rollouts, are there for 14,000 prompts."""
    visits = np.array([1, -(-ns["k"] // ns["rollouts"])])
    return np.ceil(visits * 14_000 / 256)


def moved(ns):
    """How far each mean estimate is after n has grown, from where it was."""
    half = ns["num_visits"] // 2
    return {name: abs(of[-1].mean() - of[half - 1].mean()) for name, of in ns["grown"].items()}


def true_bins(ns, count):
    """The bin of each prompt's own pass@k, of so many, at the end of the improving run."""
    return np.minimum((1 - (1 - ns["improving"][-1]) ** ns["k"]) * count, count - 1).astype(int)


def price_met(ns):
    is_met = np.isclose(ns["demand_T"], ns["mean_rollouts"]).any()
    return ["some" if is_met else "no", str(ns["mean_rollouts"])]


def regret_powers(ns):
    rules = ("Hedge", "EXP3.P", "Prompt-GDRO's EMA")
    return [np.log10(ns["regrets"][r][2].mean() / ns["regrets"][r][1].mean()) for r in rules]


CLAIMS = {
    r"24 prompts with (\d+) answers each: (\d+) groups hold": lambda ns: (
        [ns["n"], (np.ptp(ns["correct_PR"] * 1, axis=1) > 0).sum()]
    ),
    r"On average (\d+)% of the groups are not mixed": lambda ns: [mixed_share(ns["n"])],
    r"makes a hard prompt count ([\d.]+) times as much": lambda ns: [
        ns["whole"].weight[0.02] / ns["whole"].weight[0.98]
    ],
    r"gives undecided prompts ([\d.]+) answers in place of (\d+)": lambda ns: [
        ns["whole"].answers.max(),
        ns["n"],
    ],
    r"can move no answers: every prompt gets at least 2, and the mean is (\d+)": lambda ns: [
        ns["whole"].answers.max()
    ],
    r"fourfold, any_of_n moves by ([\d.]+), the others by at most ([\d.]+)": lambda ns: [
        moved(ns)["any_of_n"],
        max(of for name, of in moved(ns).items() if name != "any_of_n"),
    ],
    r"At δ = ([\d.]+) at most ([\d.]+) moves are left; the truth makes ([\d.]+)": lambda ns: [
        0.1,
        max(ns["churn"](of, 0.1) for of in ns["moving"].values()),
        ns["true_moves"],
    ],
    r"after step (\d+) \(one visit\) or (\d+) \(": steps_until_known,
    r"lies ([\d.]+) above the largest loss": lambda ns: [
        np.log(np.exp(0.65 * (ns["losses"] - ns["losses"].max())).sum()) / 0.65
    ],
    r"Effective groups at the end: sums (\d+) and (\d+), running means (\d+) and (\d+) and (\d+)": (
        lambda ns: ns["effective"][:, -1]
    ),
    r"by the pass rate is ([\d.]+), by the printed loss less than ([\d.]+)": lambda ns: [
        np.exp(ns["eta"] * ns["signals"]["1 − pass rate (footnote 3)"].max()),
        1
        + np.ceil(1000 * np.expm1(ns["eta"] * ns["signals"]["printed loss (6)–(7)"].max())) / 1000,
    ],
    r"to the power of (\S+) \(Hedge\), (\S+) \(EXP3.P\), (\S+) \(": regret_powers,
    r"In their true bin: (\d+)% with 3, (\d+)% with 6, (\d+)% with 10 bins": lambda ns: [
        100
        * np.mean(
            true_bins(ns, count)
            == ns["follow"](ns["moving"]["beta"], np.arange(1, count) / count, ns["hysteresis"])[-1]
        )
        for count in (3, 6, 10)
    ],
    r"steps: ([\d.]+) \(Hedge\), ([\d.]+) \(EMA, η = \S+\), ([\d.]+) \(EMA": lambda ns: [
        of[-1][0] for of in ns["gaps"].values()
    ],
    r"differs by a factor of (\d+) between skills": lambda ns: [
        np.exp(np.ptp(np.log(ns["by_family"]["ratio"]))),
    ],
    r"by bins: ([\d.]+) promised, ([\d.]+) measured; by measured variance: ([\d.]+), ([\d.]+)": (
        lambda ns: ns["allocated"].iloc[[0, 2], :2].to_numpy().ravel()
    ),
    r"jumps: (\w+) price asks for exactly (\d+)": price_met,
    r"B gets better: EXP3.P (\S+), EXP3 (\S+); where nothing changes: (\S+), (\S+)": lambda ns: [
        ns["played"][world][bandit][0].mean()
        for world in ("B gets better", "nothing changes")
        for bandit in ("EXP3.P", "EXP3")
    ],
    r"at the end: ([\d.]+) driven by what was spent, ([\d.]+) driven by demand": lambda ns: [
        0.0,
        ns["runs"]["η = 2", "demand"].price.iloc[-1],
    ],
    r"take (\d+) to (\d+)% of prompts without variance": lambda ns: [
        100 * np.interp(ns["reported"]["value"], ns["curves"][ns["ours"]], ns["without"]).min(),
        100 * np.interp(ns["reported"]["value"], ns["curves"][ns["ours"]], ns["without"]).max(),
    ],
    r"with these arms: (\d+) of (\d+) can be reached": lambda ns: [
        (ns["reported"]["value"] <= ns["curves"][ns["ours"]].max()).sum(),
        len(ns["reported"]),
    ],
}


def run(name, parameters, monkeypatch):
    """The variables of a notebook that ran with other parameters, and its figures."""
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
    return ns, figures


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
def test_titles_are_true_and_nothing_is_cut_off(name, parameters, monkeypatch):
    ns, figures = run(name, parameters, monkeypatch)
    assert figures
    for figure in figures:
        for axis in figure.axes:
            assert not cut_off(axis), (figure.get_suptitle(), axis.get_title())
        title = figure.get_suptitle()
        assert width_of_title(figure) <= figure.bbox.width, title
        found = {pattern: re.search(pattern, title) for pattern in CLAIMS}
        pattern, match = next(((p, m) for p, m in found.items() if m), (None, None))
        if match is None:
            assert title in NAMES, f"a title that nothing computes again: {title!r}"
            continue
        for said, computed in zip(match.groups(), CLAIMS[pattern](ns), strict=True):
            if isinstance(computed, str):
                assert said == computed, title
                continue
            digits = len(said.partition(".")[2])
            assert float(said) == pytest.approx(computed, abs=0.51 * 10.0**-digits), title
    plt.close("all")
