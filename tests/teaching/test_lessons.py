"""What the notebooks share: charts, and a tiny model's log-probabilities."""

import ipywidgets as widgets
import matplotlib.pyplot as plt
import pytest
import torch

from gdro_lab.experiments.style import use_style
from gdro_lab.teaching import gradients, lessons


@pytest.fixture(autouse=True)
def style():
    use_style()
    yield
    plt.close("all")


def test_a_figure_is_saved_with_the_same_bytes_every_time(tmp_path):
    found = []
    for _ in range(2):
        figure = lessons.chart(lessons.Panel("", "x", "y", {"alone": [1, 2]}))
        assert not figure.legends  # of one curve
        lessons.show(figure, str(tmp_path), "chart")
        found.append([(tmp_path / f"chart.{kind}").read_bytes() for kind in ("png", "pdf")])
    assert found[0] == found[1]


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


def test_a_slider_redraws_and_a_refused_value_keeps_the_last_picture():
    def picture(n):
        if n > 5:
            raise ValueError(f"n must be ≤ 5, got {n}")
        return lessons.chart(lessons.Panel(f"n = {n}", "x", "y", {"a": [0, n]}), width=2, height=2)

    slider = widgets.IntSlider(1, min=0, max=9)
    explorer = lessons.explore(picture, [{"n": 1}], n=slider)
    *_, message, image = explorer.children
    first, slider.value = image.value, 3
    shown, slider.value = image.value, 6
    assert shown != first
    assert image.value == shown
    assert "got 6" in message.value
    data, _ = explorer._repr_mimebundle_()  # without a kernel, a picture
    assert {"image/png", "application/vnd.jupyter.widget-view+json"} <= set(data)
