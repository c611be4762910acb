"""What the notebooks share: charts, sliders, the drawing, and gradients of a tiny model."""

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from gdro.core.bins import move_bins
from gdro.methods import METHODS
from gdro.results.style import LABEL_COLORS, METHOD_COLORS, OTHERS, PEER, legend_below, save, use_style
from gdro.teaching import gradients, lessons


@pytest.fixture(autouse=True)
def style():
    use_style()
    yield
    plt.close("all")


def test_bad_arguments_are_refused_with_field_and_value():
    with pytest.raises(ValueError, match=r"name must be one of .*'pass_at_k'.* got '99z'"):
        lessons.check("99z", abs)
    with pytest.raises(ValueError, match=r"part must be one of .*'bins'.* got 'learner'"):
        lessons.roadmap("bins", "learner")
    with pytest.raises(ValueError, match=r"per_family must be an integer in \[1, 16\], got 17"):
        gradients.load_tiny(1, 1, 17)


def test_a_chart_has_one_colour_per_label_and_its_legend_below_the_panels(tmp_path):
    panel = lessons.Panel(
        "left", "x", "y", {"a": [1, 2], "b": ([0, 1], [2, 1])}, styles={"a": "k--"}, log="x"
    )
    other = lessons.Panel("right", "x", "y", {"c": [1, 2], "b": [3, 4]}, halves={"c": [0.1, 0.1]})
    figure = lessons.chart(panel, other, title="a finding")
    (a, b), (c, again) = (axis.lines for axis in figure.axes)
    assert (a.get_color(), a.get_linestyle()) == ("black", "--")
    assert b.get_color() == again.get_color() == OTHERS[0] != c.get_color()
    assert figure.axes[0].get_xscale() == "log"
    assert len(figure.axes[1].collections) == 1  # the band
    path = save(figure, tmp_path, "chart")
    assert path.read_bytes().startswith(b"\x89PNG")
    first = (tmp_path / "chart.pdf").read_bytes()
    figure.draw_without_rendering()
    below = figure.legends[0].get_window_extent().y1
    assert below <= min(axis.get_window_extent().y0 for axis in figure.axes)
    save(figure, tmp_path, "chart")
    assert (tmp_path / "chart.pdf").read_bytes() == first  # the same bytes every time


def test_one_colour_is_one_thing_and_no_method_shares_it():
    panel = lessons.Panel("", "x", "y", dict.fromkeys(["new", "Hedge", "Prompt-GDRO", "pivotal"], (0, 1)))
    new, hedge, prompt, pivotal = (line.get_color() for line in lessons.chart(panel).axes[0].lines)
    assert (hedge, prompt, pivotal) == (OTHERS[0], METHOD_COLORS["prompt"], METHOD_COLORS["pivotal"])
    assert new == OTHERS[0]  # what has no entry takes the next of the others
    of_methods = list(METHOD_COLORS.values())
    assert len(set(of_methods)) == len(of_methods)
    assert not set(of_methods) & {*OTHERS, PEER}
    assert set(METHOD_COLORS) - set(METHODS) == {"base", "resample"}
    assert LABEL_COLORS["GRPO"] == METHOD_COLORS["grpo"]


def test_the_drawing_fills_the_parts_asked_for():
    def filled(*parts):
        boxes = [
            patch
            for patch in lessons.roadmap(*parts).axes[0].patches
            if patch.get_facecolor()[:3] != (1, 1, 1)
        ]
        return sum(isinstance(box, plt.Rectangle) for box in boxes)

    assert [filled(), filled("bins"), filled("plan", "gradient")] == [5, 1, 2]


def test_no_legend_for_a_single_curve():
    figure, axis = plt.subplots()
    axis.plot([1, 2], label="alone")
    legend_below(figure)
    assert not figure.legends


def test_a_slider_redraws_and_a_refused_value_keeps_the_last_picture():
    def picture(n):
        if n < 0:
            raise ValueError(f"n must be ≥ 0, got {n}")
        return lessons.chart(lessons.Panel(f"n = {n}", "x", "y", {"a": [0, n]}))

    slider = widgets.IntSlider(1, min=-1, max=5)
    explorer = lessons.explore(picture, n=slider)
    *_, message, image = explorer.children
    first = image.value
    data, metadata = explorer._repr_mimebundle_()
    assert {"image/png", "application/vnd.jupyter.widget-view+json"} <= set(data)
    assert metadata["image/png"]["width"] == 700
    slider.value = 3
    assert image.value != first
    shown = image.value
    slider.value = -1
    assert image.value == shown
    assert "n must be ≥ 0, got -1" in message.value


def test_move_bins_takes_leading_axes():
    rng, edges = np.random.default_rng(0), np.array([0.25, 0.5, 0.75])
    current, estimate = rng.integers(-1, 4, (3, 5)), rng.random((3, 5))
    together = move_bins(current, estimate, edges, 0.05)
    for row in range(3):
        np.testing.assert_array_equal(together[row], move_bins(current[row], estimate[row], edges, 0.05))


def test_log_probabilities_are_those_of_transformers_up_to_the_end(tmp_path):
    tiny = gradients.load_tiny(20, 16, 1, str(tmp_path))
    model = tiny.model
    texts, start, rewards = gradients.sample_groups(tiny, tiny.rows, 3, seed=0)
    assert rewards.shape == (4, 3)
    logps = gradients.token_logps(model, texts, start)
    wanted = (
        model(input_ids=texts).logits.log_softmax(-1)[:, start - 1 : -1].gather(2, texts[:, start:, None])
    )
    for own, theirs, said in zip(logps, wanted[..., 0], texts[:, start:].tolist(), strict=True):
        length = [*said, model.config.eos_token_id].index(model.config.eos_token_id) + 1
        torch.testing.assert_close(own[:length], theirs[:length], atol=1e-5, rtol=1e-5)
        assert own[length:].isnan().all()
