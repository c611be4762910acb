"""A picture of a training while it runs: bins, rollouts and signal over its batches.

    trainer.add_callback(GDROCallback(trainer))

It needs matplotlib. The picture is `gdro.png` in the output folder, and goes to TensorBoard,
Weights & Biases and Trackio where `report_to` has started them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pandas as pd
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gdro.checks import Count, check

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from trl import GRPOTrainer


class GDROCallback(TrainerCallback):
    """Draws `trainer.record` every `every` steps and at the end."""

    def __init__(self, trainer: GRPOTrainer, every: int = 50) -> None:
        self.trainer = trainer
        self.every = check("every", every, Count)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        if state.global_step % self.every == 0:
            self.on_train_end(args, state, control)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        if not state.is_world_process_zero or not self.trainer.record:
            return
        names = [name.replace("$", r"\$") for name in self.trainer.bin_names]  # no formulas
        figure = figure_of(self.trainer.record, names)
        file = f"{args.output_dir}/gdro.png"
        figure.savefig(file, dpi=120)
        for callback in self.trainer.callback_handler.callbacks:
            if getattr(callback, "tb_writer", None) is not None:
                callback.tb_writer.add_figure("gdro", figure, state.global_step)
        for name in ("wandb", "trackio"):
            tracker = sys.modules.get(name)
            if tracker is not None and name in args.report_to:
                tracker.log({"gdro": tracker.Image(file)})


def figure_of(record: list[dict[str, Any]], bins: list[str]) -> Figure:
    """A figure of three panels over batches; each bin has a colour, from hard to easy.

    Rollouts and signal are means of ten batches.

    Args:
        record: of the trainer, at least one row.
        bins: names of the bins (`GDROTrainer.bin_names`).
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3), layout="constrained")
    shares, rollouts = (  # NaN for empty bins
        pd.DataFrame([row[name] for row in record], columns=bins, dtype=float)
        for name in ("share", "rollouts")
    )
    signal = pd.Series([row["signal"] for row in record])
    panels = figure.subplots(1, 3, sharex=True)
    left, middle, right = panels
    shares.plot.area(ax=left, cmap="viridis", ylim=(0, 1), lw=0, legend=False)
    rollouts.rolling(10, min_periods=1).mean().plot(ax=middle, cmap="viridis", legend=False)
    signal.rolling(10, min_periods=1).mean().plot(ax=right, color="black", ylim=(0, 1))
    left.set(title="Prompts in each bin", ylabel="share of the batch")
    middle.set(title="Rollouts in each bin", ylabel="rollouts per prompt")
    right.set(title="Rollouts with an advantage", ylabel="share of the rollouts")
    for panel in panels:
        panel.set_xlabel("generation batch")
    # beside the panels, where it hides nothing
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center", fontsize=7)
    return figure
