"""What the notebooks share: charts, sliders, and a checker for the exercises."""

from base64 import b64encode
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from html import escape
from inspect import signature
from io import BytesIO
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from PIL import Image

from gdro.core.checks import check_choice
from gdro.study.style import COLORS, WIDTH, legend_below, save
from gdro.teaching.exercises import ARGUMENTS, EXERCISES

MEASURED = Path(__file__).parents[2] / "data" / "measured"  # results that the repository ships
NONE: Mapping[str, str] = {}
PALETTE = [color for i, color in enumerate(COLORS) if i != 3]  # red is left for what needs a warning


@dataclass
class Panel:
    """One panel of a `chart`: y by label, or the pair (x, y) where x is not the panel's."""

    title: str
    xlabel: str
    ylabel: str
    curves: Mapping[str, Any]
    x: ArrayLike | None = None  # shared by the curves; 0, 1, 2, … without one
    styles: Mapping[str, str] = field(default_factory=dict)  # "--", "o" (points), "bar"; "k" first: black
    halves: Mapping[str, ArrayLike] = field(default_factory=dict)  # band of a line, error bars of points
    lines: Mapping[str, tuple[str, float]] = field(default_factory=dict)  # axis ("x", "y") and place
    log: str = ""  # axes on a log scale: "x", "y" or "xy"
    options: Mapping[str, Any] = field(default_factory=dict)  # more settings of the axes, such as ylim


def chart(
    *panels: Panel, title: str = "", height: float = 2.6, columns: int = 4, colors: Mapping[str, str] = NONE
) -> Figure:
    """Panels side by side with one legend below; a label has one colour in all of them, that of `colors`."""
    figure, axes = plt.subplots(1, len(panels), figsize=(WIDTH, height), squeeze=False)
    color_of, free = dict(colors), [color for color in PALETTE if color not in colors.values()]
    for axis, panel in zip(axes[0], panels, strict=True):
        for label, curve in panel.curves.items():
            style = panel.styles.get(label, "-")
            y = np.asarray(curve[1] if isinstance(curve, tuple) else curve, float)
            x = curve[0] if isinstance(curve, tuple) else np.arange(len(y)) if panel.x is None else panel.x
            if black := style.startswith("k"):
                style = style[1:] or "-"
            new = free[(len(color_of) - len(colors)) % len(free)]
            color = "black" if black else color_of.setdefault(label, new)
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
            {"x": axis.axvline, "y": axis.axhline}[which](place, c="grey", ls=":", lw=1.2, label=label)
        axis.set(title=panel.title, xlabel=panel.xlabel, ylabel=panel.ylabel)
        axis.set(**{f"{name}scale": "log" for name in panel.log}, **panel.options)
    figure.suptitle(title)
    legend_below(figure, columns)
    return figure


def show(figure: Figure, figures_dir: str, name: str) -> None:
    """Save a figure as PNG and PDF, and show it."""
    data, metadata = _picture(save(figure, figures_dir, name), figure.get_suptitle() or name)
    display(data, raw=True, metadata=metadata)


def _picture(png: Any, alt: str) -> tuple[dict[str, str], dict[str, Any]]:
    """A PNG (path or stream) as notebooks store it: 256 colours, half of the bytes."""
    Image.open(png).convert("RGB").quantize(256).save(stream := BytesIO(), "png", optimize=True)
    data = b64encode(stream.getvalue()).decode()
    return {"image/png": data, "text/plain": "<Figure>"}, {"image/png": {"width": 100 * WIDTH, "alt": alt}}


class Explorer(widgets.VBox):
    """Controls above a picture; the first picture alone where no kernel answers, as on GitHub."""

    static: tuple[dict[str, str], dict[str, Any]]

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return super()._repr_mimebundle_(**kwargs) | self.static[0], self.static[1]


def explore(picture: Callable[..., Figure], **controls: widgets.Widget) -> Explorer:
    """Show `picture(name=value, …)` under its controls and draw it anew at each move.

    The figure is an image widget whose bytes are replaced: `ipywidgets.interact` would open an output area,
    whose messages can stall a notebook that runs without a front end. Where the picture refuses its
    arguments (ValueError), the reason is shown and the last good picture stays.
    """
    image, message = widgets.Image(format="png", width=100 * WIDTH), widgets.HTML()

    def redraw(_: Any = None) -> None:
        try:
            figure = picture(**{name: control.value for name, control in controls.items()})
        except ValueError as error:
            message.value = f"<b>Refused:</b> {escape(str(error))}"
            return
        message.value = ""
        figure.savefig(stream := BytesIO(), format="png", dpi=150)
        plt.close(figure)
        image.value = stream.getvalue()

    for name, control in controls.items():
        control.description = control.description or name
        control.observe(redraw, "value")
    redraw()
    explorer = Explorer([*controls.values(), message, image])
    explorer.static = _picture(BytesIO(image.value), "the first picture")
    return explorer


def check(name: str, answer: Callable[..., Any], cases: int = 20) -> str:
    """Compare an exercise's function with the package's on hidden cases; says what differs."""
    check_choice("name", name, EXERCISES)
    reference, rng = EXERCISES[name], np.random.default_rng(0)
    for _ in range(cases):
        drawn = {key: ARGUMENTS[key] for key in signature(reference).parameters}
        case = {key: draw(rng) if callable(draw) else draw for key, draw in drawn.items()}
        shown = ", ".join(f"{key} = {np.round(value, 4).tolist()}" for key, value in case.items())
        wanted = reference(**case)
        try:
            given = answer(*deepcopy(list(case.values())))
            if given is None:
                return f"{name}: not written yet."
            yours, right = (
                [np.asarray(part, float) for part in (x if isinstance(x, tuple) else [x])]
                for x in (given, wanted)
            )
        except Exception as error:
            error.add_note(f"{name} was called with {shown}")
            raise
        same = [y.shape == r.shape and np.allclose(y, r) for y, r in zip(yours, right, strict=False)]
        if len(yours) != len(right) or not all(same):
            yours, right = ([np.round(x, 4).tolist() for x in values] for values in (yours, right))
            return f"{name}: not yet. For {shown} it should return {right}, and it returns {yours}."
    return f"{name}: correct in {cases} cases."
