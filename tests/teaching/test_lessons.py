"""What the notebooks share: exercises, charts, sliders, and gradients of a tiny model."""

import re
from inspect import signature

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from gdro.core.bins import move_bins
from gdro.study.style import COLORS, legend_below, save, use_style
from gdro.teaching import gradients, lessons
from gdro.teaching.exercises import EXERCISES


@pytest.fixture(autouse=True)
def style():
    use_style()
    yield
    plt.close("all")


@pytest.mark.parametrize("name", EXERCISES)
def test_exercises_tell_right_answers_from_wrong_ones(name):
    right = EXERCISES[name]
    assert lessons.check(name, lambda *case: right(*case)) == f"{name}: correct in 20 cases."
    assert lessons.check(name, lambda *case: None) == f"{name}: not written yet."

    def wrong(*case):
        answer = right(*case)
        return (answer[0], answer[1] + 0.001) if isinstance(answer, tuple) else answer + 1

    case = ", ".join(f"{argument} = .*" for argument in signature(right).parameters)
    pattern = rf"{name}: not yet\. For {case} it should return \[.*\], and it returns \[.*\]\."
    assert re.fullmatch(pattern, lessons.check(name, wrong))
    assert "not yet" in lessons.check(name, lambda *case: 0)  # of another shape


def test_a_case_says_what_differs_and_cannot_be_changed_by_the_answer():
    def in_place(worth, size, epsilon, clocks):
        clocks /= (1 - epsilon) * worth / worth.sum() + epsilon / len(worth)
        return clocks.argsort()[:size]

    assert lessons.check("draw_by_clocks", in_place).endswith("correct in 20 cases.")
    said = lessons.check("arm_strategies", lambda arm_losses, eta, gamma: arm_losses)
    assert re.search(r"gamma = 0\.\d+ it should return \[\[\[0\.", said)
    with pytest.raises(ZeroDivisionError) as caught:
        lessons.check("value_for_two", lambda alpha, beta: 1 / 0)
    assert "value_for_two was called with alpha = [" in caught.value.__notes__[0]


def test_bad_arguments_are_refused_with_field_and_value():
    with pytest.raises(ValueError, match=r"name must be one of .*'pass_at_k'.* got '99z'"):
        lessons.check("99z", abs)
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
    assert b.get_color() == again.get_color() == COLORS[0] != c.get_color()
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
