"""Sliders beside a picture, for notebooks.

The picture is an image widget whose bytes are replaced, so that moving a slider needs nothing of the
front end but to show an image; `ipywidgets.interact` would open an output area, whose messages to and fro
can stall a notebook that runs without one (papermill on a busy machine).
"""

from html import escape
from io import BytesIO

import ipywidgets as widgets
import matplotlib.pyplot as plt


def explore(picture, **controls):
    """Show `picture(name=value, …)`, a matplotlib figure, under the controls, and draw it anew at each move.

    controls: widgets with a `value`; a control without a description gets its name. What the picture refuses
    (ValueError) is said in place of a traceback, and the last good picture stays. Returns the widget to show.
    """
    image, message = widgets.Image(format="png"), widgets.HTML()

    def redraw(_=None):
        try:
            fig = picture(**{name: control.value for name, control in controls.items()})
        except ValueError as error:
            message.value = f"<b>Refused:</b> {escape(str(error))}"
            return
        message.value = ""
        stream = BytesIO()
        fig.savefig(stream, format="png", dpi=80, bbox_inches="tight")
        plt.close(fig)
        image.value = stream.getvalue()

    for name, control in controls.items():
        control.description = control.description or name
        control.observe(redraw, "value")
    redraw()
    return widgets.VBox([*controls.values(), message, image])
