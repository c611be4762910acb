"""What notebooks 01 to 04 and 07 share: a chart, sliders, and exercises that check an answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import Image, display
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from gdro.checks import check_array, check_choice
from gdro.style import COLORS, WIDTH, legend_below, save

MEASURED = Path(__file__).parents[1] / "data" / "measured"  # results that the repository ships


@dataclass
class Panel:
    """One panel of a `chart`.

    Attributes:
        curves: y by label, or the pair (x, y) where x is not the panel's.
        x: shared by the curves; 0, 1, 2, … without one.
        styles: matplotlib format by label, such as "--" or "o" (points), "k" first for black; or "bar".
        halves: half-width by label: a band around a line, error bars at points.
        lines: axis ("x" or "y") and place of reference lines, by label.
        log: the axes on a log scale, "x", "y" or "xy".
        options: further settings of the axes, such as `ylim`.
    """

    title: str
    xlabel: str
    ylabel: str
    curves: Mapping[str, Any]
    x: ArrayLike | None = None
    styles: Mapping[str, str] = field(default_factory=dict)
    halves: Mapping[str, ArrayLike] = field(default_factory=dict)
    lines: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    log: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


def chart(
    *panels: Panel,
    title: str = "",
    height: float = 2.6,
    columns: int = 4,
    colors: Mapping[str, str] | None = None,
) -> Figure:
    """Panels side by side with one legend below; a label has one colour in all of them, that of `colors`."""
    figure, axes = plt.subplots(1, len(panels), figsize=(WIDTH, height), squeeze=False)
    color_of = dict(colors or {})
    for axis, panel in zip(axes[0], panels, strict=True):
        for label, curve in panel.curves.items():
            style = panel.styles.get(label, "-")
            y = np.asarray(curve[1] if isinstance(curve, tuple) else curve, float)
            x = curve[0] if isinstance(curve, tuple) else np.arange(len(y)) if panel.x is None else panel.x
            color = "black"
            if not style.startswith("k"):
                color = color_of.setdefault(label, COLORS[len(color_of) % len(COLORS)])
            style = style.removeprefix("k") or "-"
            half = panel.halves.get(label)
            if style == "bar":
                axis.bar(x, y, color=color, label=label)
            elif half is not None and style in {"o", "s", "x"}:
                axis.errorbar(x, y, half, fmt=style, color=color, capsize=2, label=label)
            else:
                axis.plot(x, y, style, color=color, label=label)
                if half is not None:
                    axis.fill_between(x, y - half, y + half, color=color, alpha=0.2, linewidth=0)
        for label, (which, place) in panel.lines.items():
            draw = axis.axvline if which == "x" else axis.axhline
            draw(place, color="grey", linestyle=":", linewidth=1.2, label=label)
        axis.set(title=panel.title, xlabel=panel.xlabel, ylabel=panel.ylabel)
        axis.set(**{f"{name}scale": "log" for name in panel.log}, **panel.options)
    figure.suptitle(title)
    legend_below(figure, columns)
    return figure


def show(figure: Figure, figures_dir: str, name: str) -> str:
    """Save a figure, show it as saved, and return the path of its PNG."""
    width = round(100 * figure.get_figwidth())
    path = save(figure, figures_dir, name)
    display(Image(Path(path).read_bytes(), width=width))
    return str(path)


def explore(picture: Callable[..., Figure], **controls: widgets.Widget) -> widgets.Widget:
    """Show `picture(name=value, …)` under its controls and draw it anew at each move.

    The figure is an image widget whose bytes are replaced: `ipywidgets.interact` would open an output area,
    whose messages can stall a notebook that runs without a front end. Where the picture refuses its
    arguments (ValueError), the reason is shown and the last good picture stays.
    """
    image, message = widgets.Image(format="png"), widgets.HTML()

    def redraw(_: Any = None) -> None:
        try:
            figure = picture(**{name: control.value for name, control in controls.items()})
        except ValueError as error:
            message.value = f"<b>Refused:</b> {escape(str(error))}"
            return
        message.value = ""
        stream = BytesIO()
        figure.savefig(stream, format="png", dpi=110)
        plt.close(figure)
        image.value = stream.getvalue()

    for name, control in controls.items():
        control.description = control.description or name
        control.observe(redraw, "value")
    redraw()
    return widgets.VBox([*controls.values(), message, image])


# the answers, and a hint
EXERCISES: dict[str, tuple[float | list[float], str]] = {
    "01a": (0.3439, "all four must be wrong, with probability 0.9 each"),
    "01b": (0.60278, "multiply (β+i)/(α+β+i) for i = 0, 1 with α = 3.5, β = 5.5, and take it from 1"),
    "01c": (0.64286, "of the 28 pairs, count those without a correct one"),
    "02a": (3.54244, "the bounds (25) are log(B)/η apart"),
    "02b": (0.0, "the advantages of a rollout group sum to zero"),
    "02c": (1.91554, "the shares of two bins are as exp(η S)"),
    "03a": ([7.14286, 4.28571, 1.42857], "√v is 0.5, 0.3 and 0.1; scale by n̄ / Σ q √v"),
    "03b": (0.0049, "the price is (Σ q √v / n̄)²"),
    "03c": (0.1835, "the others get (n̄ − 2f)/(1 − f) rollouts"),
    "04a": (6400.0, "prompts × rollouts × steps, whatever the method"),
    "04b": (1.91554, "failure rates lie in [0, 1], so scores differ by 1 at most"),
}


def check(exercise: str, answer: ArrayLike | None) -> str:
    """Compare an answer, a number or a list of numbers, with the correct one; a wrong one gets a hint."""
    check_choice("exercise", exercise, EXERCISES)
    wanted, hint = EXERCISES[exercise]
    if answer is None:
        return f"{exercise}: no answer yet."
    given = check_array("answer", answer)
    if given.shape == np.shape(wanted) and np.allclose(given, wanted, rtol=0.02, atol=1e-4):
        return f"{exercise}: correct."
    return f"{exercise}: not yet. Hint: {hint}."
