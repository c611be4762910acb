"""Charts and sliders of the notebooks, and the drawing of the whole method."""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from PIL import Image

from gdro_lab.experiments.style import (
    LABEL_COLORS,
    METHOD_COLORS,
    OTHERS,
    WIDTH,
    legend_below,
    save,
)
from gdro_lab.teaching.exercises import check as check  # for the notebooks

DPI = 150  # of pictures in notebooks
MEASURED = Path(__file__).parents[2] / "data" / "studies"  # results that the repository ships
POOLS = Path(__file__).parents[2] / "data" / "pools"  # rollouts with their gradients
STEP_COLOR = "#777777"  # of a step's parts that are not adversaries
# the drawing of the method: what a step does, in order, as (x, y, name, what it does, colour)
ROADMAP_PARTS: dict[str, tuple[float, float, str, str, str]] = {
    "bins": (0.2, 0.5, "bins", "how hard is\neach prompt?", STEP_COLOR),
    "prompt": (0.4, 0.77, "Prompt-GDRO", "weight of each bin", METHOD_COLORS["prompt"]),
    "rollout": (0.4, 0.23, "Rollout-GDRO", "rollouts of each bin", METHOD_COLORS["rollout"]),
    "plan": (0.6, 0.5, "plan", "sample, reward,\nobserve", STEP_COLOR),
    "gradient": (0.8, 0.5, "gradient", "weights ×\nadvantages (3)", STEP_COLOR),
}


@dataclass
class Panel:
    """One panel of a `chart`: y by label, or the pair (x, y) where x is not the panel's."""

    title: str
    xlabel: str
    ylabel: str
    curves: Mapping[str, Any]
    x: ArrayLike | None = None
    """Shared by the curves; 0, 1, 2, … by default."""
    styles: Mapping[str, str] = field(default_factory=dict)
    """By label: "--", "o" (points) or "bar"; with "k" first it is black."""
    halves: Mapping[str, ArrayLike] = field(default_factory=dict)
    """By label: half of a line's band."""
    lines: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """Straight lines by label: which axis they cross ("x" or "y") and where."""
    log: str = ""
    """Axes on a log scale: "x", "y" or "xy"."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """More settings of the axes, such as ylim."""


def chart(
    *panels: Panel,
    title: str = "",
    height: float = 2.6,
    columns: int = 4,
    colors: Mapping[str, str] | None = None,
    width: float = WIDTH,
) -> Figure:
    """Panels side by side with one legend below.

    A label has one colour in all panels: of `colors`, else of `LABEL_COLORS`, else of `OTHERS`.
    """
    figure, axes = plt.subplots(1, len(panels), figsize=(width, height), squeeze=False)
    color_of = dict(colors or {})
    free = cycle([color for color in OTHERS if color not in color_of.values()])
    for axis, panel in zip(axes[0], panels, strict=True):
        for label, curve in panel.curves.items():
            style = panel.styles.get(label, "-")
            y = np.asarray(curve[1] if isinstance(curve, tuple) else curve, float)
            x = curve[0] if isinstance(curve, tuple) else panel.x
            x = np.arange(len(y)) if x is None else x
            black = style.startswith("k")
            if black:
                style = style[1:] or "-"
            elif label not in color_of:
                color_of[label] = LABEL_COLORS.get(label) or next(free)
            color = "black" if black else color_of[label]
            half = panel.halves.get(label)
            if style == "bar":
                axis.bar(x, y, color=color, label=label)
            else:
                axis.plot(x, y, style, color=color, label=label, alpha=0.6 if style == "o" else 1)
                if half is not None:
                    axis.fill_between(x, y - half, y + half, color=color, alpha=0.2, linewidth=0)
        for label, (which, place) in panel.lines.items():
            draw = {"x": axis.axvline, "y": axis.axhline}[which]
            draw(place, c="grey", ls=":", lw=1.2, label=label)
        axis.set(title=panel.title, xlabel=panel.xlabel, ylabel=panel.ylabel)
        axis.set(**{f"{name}scale": "log" for name in panel.log}, **panel.options)
    figure.suptitle(title)
    legend_below(figure, columns)
    return figure


def show(figure: Figure, folder: str = "", name: str = "") -> None:
    """Show a figure; where a folder is given, save it there as PNG and PDF too."""
    if folder:
        save(figure, folder, name)
    titles = ", ".join(filter(None, (axis.get_title() for axis in figure.axes)))
    alt = figure.get_suptitle() or titles or str(figure.get_label()) or name or "a chart"
    data, metadata = _as_output([figure], alt)
    display(data, raw=True, metadata=metadata)


def _as_output(figures: Sequence[Figure], alt: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Figures as one PNG output, side by side as far as the width allows; 256 colours."""
    page = Image.new("RGB", (0, 0))
    left = 0
    top = 0
    for figure in figures:
        figure.savefig(stream := BytesIO(), format="png", dpi=DPI)
        plt.close(figure)
        image = Image.open(stream).convert("RGB")
        if left + image.width > WIDTH * DPI + len(figures):  # the next row
            left = 0
            top = page.height
        size = max(page.width, left + image.width), max(page.height, top + image.height)
        before = page
        page = Image.new("RGB", size, "white")
        page.paste(before)
        page.paste(image, (left, top))
        left += image.width
    page.quantize(256).save(stream := BytesIO(), "png", optimize=True)
    data = {"image/png": b64encode(stream.getvalue()).decode(), "text/plain": "<Figure>"}
    return data, {"image/png": {"width": round(100 * page.width / DPI), "alt": alt}}


class Explorer(widgets.VBox):
    """Controls above a picture; where no kernel answers, as on GitHub, only a strip of stills."""

    static: tuple[dict[str, str], dict[str, Any]]

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return super()._repr_mimebundle_(**kwargs) | self.static[0], self.static[1]


def explore(
    picture: Callable[..., Figure],
    stills: Sequence[Mapping[str, Any]] | None = None,
    **controls: widgets.Widget,
) -> Explorer:
    """Show `picture(name=value, …)` under its controls and redraw it at each move.

    Where the picture refuses its arguments (ValueError), the reason appears above the last one.

    Args:
        stills: what is stored, for readers without a kernel: values of some controls, by name, for
            each picture of the strip. By default the first control's least, present and largest
            value, where it is a linear slider.
    """
    # an image whose bytes are replaced: `interact` can stall a notebook without a front end
    image = widgets.Image(format="png")
    message = widgets.HTML()

    def present() -> dict[str, Any]:
        return {name: control.value for name, control in controls.items()}

    def redraw(_: Any = None) -> None:
        try:
            figure = picture(**present())
        except ValueError as error:
            message.value = f"<b>Refused:</b> {escape(str(error))}"
            return
        message.value = ""
        image.width = f"{130 * figure.get_figwidth():.0f}"
        figure.savefig(stream := BytesIO(), format="png", dpi=200)
        plt.close(figure)
        image.value = stream.getvalue()

    for name, control in controls.items():
        control.description = control.description or name
        if hasattr(control, "continuous_update"):
            control.continuous_update = False
        control.observe(redraw, "value")
    redraw()
    explorer = Explorer([*controls.values(), message, image])
    if stills is None:
        name, first = next(iter(controls.items()))
        linear = isinstance(first, widgets.IntSlider | widgets.FloatSlider)
        values = dict.fromkeys([first.min, first.value, first.max]) if linear else [first.value]
        stills = [{name: value} for value in values]
    strip = [picture(**{**present(), **still}) for still in stills]
    explorer.static = _as_output(strip, "what the controls change, at some of their values")
    return explorer


def roadmap(*parts: str) -> Figure:
    """One step of GDRO as a drawing, from prompts to gradient; what a notebook is about is filled.

    Args:
        parts: of "bins", "prompt", "rollout", "plan", "gradient"; all of them by default.
    """
    figure, axis = plt.subplots(figsize=(WIDTH, 1.9))
    figure.set_label("one step of GDRO, from the prompts of a batch to the gradient")
    axis.set(xlim=(-0.09, 0.91), ylim=(-0.08, 1))
    axis.axis("off")
    arrow: dict[str, Any] = {"arrowstyle": "-|>", "color": "black", "shrinkA": 0, "shrinkB": 0}
    for start, end in (  # from one box to the next
        ((0.07, 0.5), (0.12, 0.5)),
        ((0.28, 0.55), (0.32, 0.77)),
        ((0.28, 0.45), (0.32, 0.23)),
        ((0.48, 0.23), (0.55, 0.33)),
        ((0.68, 0.5), (0.72, 0.5)),
        ((0.48, 0.77), (0.75, 0.67)),
    ):
        axis.annotate("", end, start, arrowprops=arrow)
    axis.plot([0.6, 0.6, 0.2], [0.33, -0.04, -0.04], "--", color=STEP_COLOR, linewidth=1)
    arrow |= {"linestyle": "--", "color": STEP_COLOR}
    axis.annotate("", (0.2, 0.33), (0.2, -0.04), arrowprops=arrow)
    axis.text(0.62, 0.02, "rewards: bins and both adversaries learn", fontsize=7, color="#555555")
    axis.text(0, 0.5, "prompts\nof the batch", ha="center", va="center")
    for name, (x, y, title, words, color) in ROADMAP_PARTS.items():
        filled = not parts or name in parts
        face, ink = (color, "black") if filled else ("white", "#555555")
        if filled and color == STEP_COLOR:
            ink = "white"
        box = plt.Rectangle((x - 0.08, y - 0.17), 0.16, 0.34, fc=face, ec=color, lw=1.2)
        axis.add_patch(box)
        axis.text(x, y + 0.09, title, ha="center", va="center", weight="bold", color=ink)
        axis.text(x, y - 0.05, words, ha="center", va="center", fontsize=7, color=ink)
    return figure
