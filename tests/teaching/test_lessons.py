"""What the notebooks share: charts, sliders, and a tiny model's log-probabilities."""

from base64 import b64decode
from io import BytesIO

import ipywidgets as widgets
import matplotlib.pyplot as plt
import pytest
import torch
from PIL import Image

from gdro_lab.results.style import METHOD_COLORS, OTHERS, PEER, use_style
from gdro_lab.teaching import gradients, lessons


@pytest.fixture(autouse=True)
def style():
    use_style()
    yield
    plt.close("all")


def test_a_chart_has_one_colour_a_label_and_no_thing_has_that_of_a_method():
    left = {"a": [1, 2], "new": ([0, 1], [2, 1])}
    panel = lessons.Panel("left", "x", "y", left, styles={"a": "k--"}, log="x")
    right = {label: [3, 4] for label in ("c", "new", "Hedge", "pivotal")}
    other = lessons.Panel("right", "x", "y", right, halves={"c": [0.1, 0.1]})
    figure = lessons.chart(panel, other)
    (a, new), (c, again, hedge, pivotal) = (axis.lines for axis in figure.axes)
    assert (a.get_color(), a.get_linestyle()) == ("black", "--")
    assert new.get_color() == again.get_color() == OTHERS[0] != c.get_color()
    assert hedge.get_color() == OTHERS[0]  # its own
    assert pivotal.get_color() == METHOD_COLORS["pivotal"]
    assert len(figure.axes[1].collections) == 1  # the band
    figure.draw_without_rendering()
    below = figure.legends[0].get_window_extent().y1
    assert below <= min(axis.get_window_extent().y0 for axis in figure.axes)
    assert len({*METHOD_COLORS.values(), *OTHERS, PEER}) == len([*METHOD_COLORS, *OTHERS, PEER])


def test_a_figure_is_saved_with_the_same_bytes_every_time(tmp_path):
    found = []
    for _ in range(2):
        figure = lessons.chart(lessons.Panel("", "x", "y", {"alone": [1, 2]}))
        assert not figure.legends  # of one curve
        lessons.show(figure, str(tmp_path), "chart")
        found.append([(tmp_path / f"chart.{kind}").read_bytes() for kind in ("png", "pdf")])
    assert found[0] == found[1]


def test_the_drawing_fills_the_parts_asked_for():
    def filled(*parts):
        patches = lessons.roadmap(*parts).axes[0].patches
        boxes = [patch for patch in patches if isinstance(patch, plt.Rectangle)]
        return sum(box.get_facecolor()[:3] != (1, 1, 1) for box in boxes)

    assert [filled(), filled("bins"), filled("plan", "gradient")] == [5, 1, 2]


def test_a_slider_redraws_and_a_refused_value_keeps_the_last_picture():
    def picture(n):
        if n > 5:
            raise ValueError(f"n must be ≤ 5, got {n}")
        return lessons.chart(lessons.Panel(f"n = {n}", "x", "y", {"a": [0, n]}))

    slider = widgets.IntSlider(1, min=0, max=9)
    explorer = lessons.explore(picture, [{"n": 1}], n=slider)
    *_, message, image = explorer.children
    first = image.value
    slider.value = 3
    assert image.value != first
    shown = image.value
    slider.value = 6
    assert image.value == shown
    assert "n must be ≤ 5, got 6" in message.value


def test_without_a_kernel_a_slider_is_a_strip_of_stills():
    def size_of(width, **options):
        def picture(n, m):
            asked.append((n, m))
            return lessons.chart(lessons.Panel("", "x", "y", {"a": [n, m]}), width=width, height=2)

        controls = {"n": widgets.IntSlider(1, min=0, max=5), "m": widgets.IntSlider(2)}
        data, _ = lessons.explore(picture, **options, **controls)._repr_mimebundle_()
        assert "application/vnd.jupyter.widget-view+json" in data
        return Image.open(BytesIO(b64decode(data["image/png"]))).size

    asked = []
    wide, high = size_of(2.3)
    assert asked[1:] == [(0, 2), (1, 2), (5, 2)]  # least, present and largest
    assert (wide, high) == (3 * 345, 300)  # side by side
    assert size_of(7, stills=[{"n": 1}, {"n": 2}]) == (1050, 600)  # one above the other


def test_log_probabilities_are_those_of_transformers_up_to_the_end(tmp_path):
    tiny = gradients.load_tiny(20, 16, 1, str(tmp_path))
    model = tiny.model
    texts, start, rewards = gradients.sample_groups(tiny, tiny.rows, 3, seed=0)
    assert rewards.shape == (4, 3)
    logps, said_RT = gradients.token_logps(model, texts, start), texts[:, start:]
    wanted = model(input_ids=texts).logits.log_softmax(-1)[:, start - 1 : -1]
    wanted = wanted.gather(2, said_RT[..., None])[..., 0]
    for own, theirs, said in zip(logps, wanted, said_RT.tolist(), strict=True):
        length = [*said, model.config.eos_token_id].index(model.config.eos_token_id) + 1
        torch.testing.assert_close(own[:length], theirs[:length], atol=1e-5, rtol=1e-5)
        assert own[length:].isnan().all()
