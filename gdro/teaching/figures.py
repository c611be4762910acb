"""Pictures of the teaching notebooks 01 to 04: arrays in, matplotlib figures out.

Every function draws one figure and returns it; `finish` saves and shows it. Colours are seaborn's
colour-blind set, maps are viridis or a diverging map whose two ends also differ in lightness.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from IPython.display import Image, display

from gdro import theory
from gdro.teaching.binning_study import bounded_pass_at_k, expected_any_of_n, true_pass_at_k
from gdro.toy import METHODS, Game, play
from gdro.toy.maps import MEASURES, paired_gain

COLORS = sns.color_palette("colorblind")
MARKERS = "osD^vPX"
DIVERGING = "vlag_r"  # blue: better, red: worse


def use_style():
    """Set the notebooks' common look; call it once at the top."""
    sns.set_theme(context="notebook", style="whitegrid", palette="colorblind")
    plt.rcParams.update(
        {"figure.dpi": 80, "savefig.dpi": 150, "axes.titlesize": 12, "axes.titleweight": "bold"}
    )
    plt.rcParams.update({"legend.frameon": True, "legend.framealpha": 0.9, "legend.fontsize": 9})


def finish(fig, figures_dir, name):
    """Save `fig` as <figures_dir>/<name>.png, show it, close it, and return the path as text."""
    path = Path(figures_dir) / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path)
    plt.close(fig)
    display(Image(path.read_bytes(), width=round(80 * fig.get_figwidth())))  # drawn once, seen as saved
    return str(path)


def _axes(columns=1, width=5.4, height=3.9, **options):
    fig, axes = plt.subplots(1, columns, figsize=(width * columns, height), layout="constrained", **options)
    return fig, axes


# ---- 01 difficulty binning --------------------------------------------------------------------


def any_of_n(k, allotted, p_marked=0.1):
    """What "any of the n allotted" estimates, against the pass@k that is meant."""
    fig, (left, right) = _axes(2)
    p = np.linspace(0, 1, 201)
    left.plot(p, true_pass_at_k(p, k), color="black", lw=3, label=f"pass@{k}, what is meant")
    for color, n in zip(COLORS, allotted, strict=False):
        left.plot(p, expected_any_of_n(p, n), "--", color=color, label=f"any of n = {n}")
    left.set(
        xlabel="true pass rate p", ylabel="expected estimate", title="One prompt, one p, many difficulties"
    )
    left.legend()
    n = np.arange(1, 17)
    right.plot(n, expected_any_of_n(p_marked, n), "o--", color=COLORS[0], label="any of n")
    right.axhline(true_pass_at_k(p_marked, k), color="black", lw=2, label=f"pass@{k}")
    right.set(
        xlabel="rollouts n that the prompt was allotted",
        ylabel="expected estimate",
        ylim=(0, 1),
        title=f"At p = {p_marked:g} the estimate follows n",
    )
    right.legend()
    return fig


def posterior(successes, failures, k, level):
    """Beta posterior of p and where mean pass@k and its confidence bound lie."""
    from scipy.stats import beta as beta_law

    fig, (left, right) = _axes(2)
    p = np.linspace(0.001, 0.999, 400)
    law = beta_law(0.5 + successes, 0.5 + failures)
    left.fill_between(p, law.pdf(p), color=COLORS[0], alpha=0.4)
    left.set(
        xlabel="pass rate p",
        ylabel="posterior density",
        title=f"{successes} right, {failures} wrong",
        xlim=(0, 1),
    )
    value = true_pass_at_k(p, k)
    right.plot(value, law.cdf(p), color=COLORS[0], label="posterior distribution")
    mean = float(np.trapezoid(value * law.pdf(p), p) / np.trapezoid(law.pdf(p), p))
    right.axvline(mean, color="black", label=f"mean {mean:.2f}")
    bound = float(bounded_pass_at_k(successes, failures, k, level))
    right.axvline(bound, color=COLORS[3], ls="--", label=f"bound at level {level:g}: {bound:.2f}")
    right.set(
        xlabel=f"pass@{k}", ylabel="chance of being below", title="What the bin is read from", xlim=(0, 1)
    )
    right.legend(loc="upper left")
    return fig


def estimator_tracks(truth_V, tracks, switch_visit=None, ylabel="mean over prompts"):
    """Mean estimates over visits beside the truth; `switch_visit` marks a change of the allotted n."""
    fig, ax = _axes(1, width=8)
    visits = np.arange(1, len(truth_V) + 1)
    ax.plot(visits, truth_V, color="black", lw=3, label="truth")
    styles = ["-", "--", "-.", ":", (0, (5, 1))]
    for color, style, (label, values) in zip(COLORS, styles, tracks.items(), strict=False):
        ax.plot(visits, values, color=color, ls=style, lw=2, label=label)
    if switch_visit is not None:
        ax.axvline(switch_visit, color="grey", lw=1)
        ax.annotate("  n changes", (switch_visit, ax.get_ylim()[0]), va="bottom", color="grey")
    ax.set(xlabel="visit", ylabel=f"pass@k, {ylabel}")
    ax.legend(ncols=2)
    return fig


def bars(table, columns, ylabels, titles, rotation=20):
    """Rows of {label: {column: value}} as bars, one panel a column."""
    fig, axes = _axes(len(columns), width=4.2)
    for ax, column, ylabel, title in zip(np.atleast_1d(axes), columns, ylabels, titles, strict=True):
        labels = list(table)
        values = [table[label][column] for label in labels]
        drawn = ax.bar(range(len(labels)), values, color=COLORS[: len(labels)], edgecolor="black", lw=0.5)
        ax.bar_label(drawn, fmt="{:.2g}", fontsize=8)
        ax.set_xticks(range(len(labels)), labels, rotation=rotation, ha="right", fontsize=9)
        ax.set(ylabel=ylabel, title=title)
        ax.axhline(0, color="black", lw=0.8)
        ax.margins(y=0.15)
    return fig


def lines(x, curves, xlabel, ylabel, title="", log_x=False, log_y=False, bands=None):
    """Curves {label: y} over x with a marker each; bands {label: half-width}."""
    fig, ax = _axes(1, width=6.5, height=4.2)
    for color, marker, (label, y) in zip(COLORS, MARKERS, curves.items(), strict=False):
        ax.plot(x, y, marker=marker, color=color, label=label)
        if bands and label in bands:
            ax.fill_between(
                x, np.asarray(y) - bands[label], np.asarray(y) + bands[label], color=color, alpha=0.2
            )
    ax.set(xlabel=xlabel, ylabel=ylabel, title=title)
    if log_x:
        ax.set_xscale("log")
    if log_y:
        ax.set_yscale("log")
    ax.legend()
    return fig


def confusions(tables, correlations):
    """Confusion matrices {label: (B, B)} with their rank correlations."""
    fig, axes = _axes(len(tables), width=4.4, height=4.0)
    for ax, (label, table) in zip(np.atleast_1d(axes), tables.items(), strict=True):
        sns.heatmap(
            table, ax=ax, cmap="viridis", vmin=0, vmax=1, square=True, cbar=ax is axes[-1],
            annot=len(table) <= 6, fmt=".2f", cbar_kws={"label": "share of the true bin's prompts"},
        )  # fmt: skip
        ax.set(
            xlabel="bin assigned (0 hardest)",
            ylabel="true bin",
            title=f"{label}, rank corr. {correlations[label]:.2f}",
        )
    return fig


# ---- 02 Prompt-GDRO ---------------------------------------------------------------------------


def soft_worst_case(losses, eta):
    """The soft worst case between its bounds, and the weights that attain it."""
    fig, (left, right) = _axes(2)
    etas = np.geomspace(0.05, 50, 120)
    values = [theory.soft_worst_case(losses, e)[0] for e in etas]
    bounds = [theory.soft_worst_case_bounds(losses, e) for e in etas]
    left.fill_between(etas, [b[0] for b in bounds], [b[1] for b in bounds], alpha=0.25, label="bounds (25)")
    left.plot(etas, values, color="black", lw=2, label="soft worst case (24)")
    left.axhline(np.mean(losses), color=COLORS[1], ls=":", label="mean loss")
    left.axhline(np.max(losses), color=COLORS[3], ls="--", label="largest loss")
    left.axvline(eta, color="grey", lw=1)
    left.set(
        xscale="log",
        xlabel="step size η",
        ylabel="value",
        ylim=(0, np.max(losses) + 4),
        title="Between the bounds",
    )
    left.legend()
    value, q = theory.soft_worst_case(losses, eta)
    right.bar(range(len(losses)), losses, color=COLORS[7], edgecolor="black", label="loss of the bin")
    right.plot(range(len(losses)), q, "o-", color=COLORS[0], label="weight q of the bin")
    right.set(
        xlabel="bin (0 hardest)",
        ylabel="loss or weight",
        ylim=(0, 1.05),
        title=f"η = {eta:.2g}: value {value:.2f}",
    )
    right.legend()
    return fig


def gradient_mixture(numeric, mixed, per_bin, q):
    """Numeric gradient of the soft worst case beside the mixture of the bins' gradients."""
    fig, (left, right) = _axes(2)
    lim = 1.1 * max(np.abs(numeric).max(), np.abs(mixed).max())
    left.plot([-lim, lim], [-lim, lim], color="grey", lw=1)
    left.scatter(numeric, mixed, color=COLORS[0], s=40)
    left.set(
        xlabel="numeric derivative",
        ylabel="mixture of bins' gradients",
        title="Equation (26), coordinate by coordinate",
    )
    arrow = {"angles": "xy", "scale_units": "xy", "scale": 1}
    for b, (gradient, weight) in enumerate(zip(per_bin, q, strict=True)):
        label = f"bin {b}: q = {weight:.2f}"
        right.quiver(0, 0, *gradient[:2], color=COLORS[b], width=0.004 + 0.02 * weight, label=label, **arrow)
    mix = np.asarray(q) @ np.asarray(per_bin)
    right.quiver(0, 0, *mix[:2], color="black", width=0.014, label="mixture", **arrow)
    right.legend()
    reach = 1.35 * np.abs(np.asarray(per_bin)[:, :2]).max()
    right.set(
        xlim=(-reach, reach),
        ylim=(-reach, reach),
        xlabel="∂/∂θ₀",
        ylabel="∂/∂θ₁",
        title="First two coordinates",
    )
    return fig


def frequency_bias(steps, effective, effective_bound, rows):
    """Effective number of groups over steps, and the worst group against it. rows: (label, x, y, half)."""
    fig, (left, right) = _axes(2, width=5.8, height=4.2)
    looks = {label: (COLORS[i], MARKERS[i]) for i, (label, *_) in enumerate(rows)}
    for label, values in effective.items():
        left.plot(steps, values, marker=looks[label][1], color=looks[label][0], label=label)
    left.axhline(effective_bound, color="grey", ls=":", label="all groups")
    left.set(
        xlabel="step",
        ylabel="effective groups, exp(entropy of q)",
        ylim=(0, None),
        title="How many groups are played (colours as on the right)",
    )
    for label, x, y, half in rows:
        right.errorbar(
            x, y, half, marker=looks[label][1], color=looks[label][0], ls="", capsize=3, label=label, ms=8
        )
    right.set(
        xlabel="effective groups at the end",
        ylabel="accuracy of the worst group (%)",
        title="What that does to the worst",
    )
    right.legend()
    return fig


def signals(rates, values, titles):
    """Each signal of a rollout group against its prompt's pass rate. values: {name: (P,)}."""
    fig, axes = _axes(len(values), width=4.4)
    for ax, color, (name, value) in zip(axes, COLORS, values.items(), strict=False):
        ax.scatter(rates, value, color=color, alpha=0.6, edgecolor="none")
        ax.set(xlabel="pass rate of the prompt, measured apart", ylabel=name, title=titles[name])
        if np.ptp(value) < 1e-3:
            ax.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    return fig


def regret(horizons, panels):
    """Measured regret against its bound. panels: {title: {label: (values, style)}}."""
    fig, axes = _axes(len(panels), width=5.0, height=4.4, sharey=True)
    for ax, (title, curves) in zip(axes, panels.items(), strict=True):
        for color, (label, (values, style)) in zip(
            [*COLORS[:3], "black", "grey"], curves.items(), strict=False
        ):
            ax.plot(horizons, np.maximum(values, 0.05), style, color=color, label=label)
        ax.set(xscale="log", yscale="log", xlabel="horizon T (steps)", title=title, ylim=(1, None))
    axes[0].set_ylabel("regret (units of loss)")
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return fig


# ---- 03 Rollout-GDRO --------------------------------------------------------------------------


def gradient_variance(arms, curves, slopes):
    """Variance of a group's gradient against n, per family, relative to n = the first arm."""
    fig, axes = _axes(len(curves), width=5.4, height=4.2, sharey=True)
    for ax, (title, families) in zip(axes, curves.items(), strict=True):
        reference = None
        for color, marker, (family, values) in zip(COLORS, MARKERS, families.items(), strict=False):
            ax.plot(
                arms, values, marker=marker, color=color, label=f"{family}: slope {slopes[title][family]:.2f}"
            )
            reference = values[0] if reference is None else max(reference, values[0])
        ax.plot(arms, reference * arms[0] / np.asarray(arms), color="black", ls=":", label="1/n")
        ax.set(xscale="log", yscale="log", xlabel="rollouts n of the group", title=title)
        ax.set_xticks(arms, [str(n) for n in arms])
        ax.minorticks_off()
        ax.legend()
    axes[0].set_ylabel("variance of the group's gradient")
    return fig


def variance_by_rate(rates, variances, families):
    """Gradient variance v = n·Var of each prompt against its pass rate, with p(1−p) fitted in height."""
    fig, ax = _axes(1, width=6.5, height=4.2)
    p = np.linspace(0, 1, 101)
    shape = np.asarray(rates) * (1 - np.asarray(rates))
    height = float(shape @ variances / (shape @ shape))
    ax.plot(p, height * p * (1 - p), color="black", ls=":", label="reward variance p(1−p), scaled")
    for color, marker, name in zip(COLORS, MARKERS, dict.fromkeys(families), strict=False):
        own = np.array(families) == name
        ax.scatter(
            np.asarray(rates)[own], np.asarray(variances)[own], color=color, marker=marker, s=45, label=name
        )
    ax.set(
        xlabel="pass rate of the prompt",
        ylabel="n · variance of the group's gradient",
        title="What v is, prompt by prompt",
    )
    ax.legend()
    return fig


def allocation(variances, shares, mean_rollouts, arms=None, numeric=None):
    """Square-root law by bin, with shares; `numeric` is an optimizer's answer to lay over it."""
    fig, ax = _axes(1, width=6.5, height=4.2)
    bins = np.arange(len(variances))
    law = theory.square_root_allocation(variances, shares, mean_rollouts)
    ax.bar(bins, law, color=COLORS[0], edgecolor="black", label="square-root law (30)")
    if numeric is not None:
        ax.plot(bins, numeric, "x", color="black", ms=10, mew=2, label="numeric optimizer")
    ax.axhline(mean_rollouts, color=COLORS[1], ls="--", label=f"uniform, n̄ = {mean_rollouts:g}")
    ax.plot(bins, np.asarray(shares) * 10, ":o", color=COLORS[2], label="share of prompts (tenths)")
    ax.set(xlabel="bin (0 hardest)", ylabel="rollouts per prompt", title="Who gets how many")
    ax.set_xticks(bins)
    ax.legend()
    return fig


def staircase(variances, shares, arms, price):
    """Demand of each bin against the price: the law's curve and the staircase of whole arms."""
    fig, (left, right) = _axes(2, height=4.2)
    prices = np.geomspace(price / 30, price * 30, 400)
    steps = theory.staircase(np.asarray(variances)[None], prices, arms)
    for b, color in zip(range(len(variances)), COLORS, strict=False):
        left.plot(prices, steps[:, b], color=color, label=f"v = {variances[b]:.2g}")
        left.plot(
            prices, np.clip(theory.demand_at_price(variances[b], prices), arms[0], arms[-1]), ":", color=color
        )
    left.axvline(price, color="grey")
    left.set(
        xscale="log",
        xlabel="price μ (variance per rollout)",
        ylabel="rollouts n(μ)",
        title="Stairs, and the law (dotted)",
    )
    left.legend(title="bin", fontsize=8)
    right.plot(prices, steps @ np.asarray(shares), color="black", label="mean demand")
    bought = float(theory.staircase(np.asarray(variances), price, arms) @ np.asarray(shares))
    right.plot(
        [price], [bought], "o", color=COLORS[3], ms=9, label=f"at μ = {price:.3g}: {bought:.2f} a prompt"
    )
    right.set(
        xscale="log",
        xlabel="price μ (variance per rollout)",
        ylabel="rollouts per prompt, mean",
        title="All bins together",
    )
    right.legend()
    return fig


def price_path(demand, prices, mean_rollouts):
    """Price and demand over steps, under each driver. prices, demand: {driver: (T,)}."""
    fig, (left, right) = _axes(2)
    for color, style, (name, values) in zip(COLORS, ("-", "--"), prices.items(), strict=False):
        left.plot(values, style, color=color, lw=2, label=f"driven by {name}")
        right.plot(demand[name], style, color=color, lw=2, label=f"driven by {name}")
    left.set(xlabel="step", ylabel="price μ", title="The price")
    right.axhline(mean_rollouts, color="grey", lw=1, label="budget n̄")
    right.set(xlabel="step", ylabel="rollouts per prompt demanded", title="What the bins ask for")
    left.legend()
    right.legend()
    return fig


def standard_error(shares_without, curves, reported):
    """Reduction of WSE (%) against the share of prompts whose rewards do not vary. reported: {label: %}."""
    fig, ax = _axes(1, width=7, height=4.4)
    for color, style, (label, values) in zip(COLORS, ("-", "--", "-."), curves.items(), strict=False):
        ax.plot(100 * np.asarray(shares_without), values, style, color=color, lw=2, label=label)
    for label, value in reported.items():
        ax.axhline(value, color="grey", lw=1, ls=":")
        ax.annotate(f"reported, {label}", (1, value), fontsize=9, va="bottom", color="dimgrey")
    ax.set(
        xlabel="prompts whose rewards do not vary (%)",
        ylabel="WSE below uniform (%)",
        title="How much is there to gain?",
    )
    ax.legend(loc="upper left", bbox_to_anchor=(0.0, 0.62))
    return fig


# ---- 04 toy games -----------------------------------------------------------------------------


def shares_and_starts(shares, starts):
    """Share and first pass rate of each skill."""
    fig, ax = _axes(1, width=6)
    place = np.arange(len(shares))
    ax.bar(place - 0.2, 100 * np.asarray(shares), 0.4, color=COLORS[0], label="share of training prompts")
    ax.bar(place + 0.2, 100 * np.asarray(starts), 0.4, color=COLORS[1], label="accuracy before training")
    ax.set(xlabel="skill, most frequent first", ylabel="percent", title="The world")
    ax.legend()
    return fig


def learning_curves(rollouts, curves, halves):
    """Measures over rollouts: {title: {method: (C,)}} and half-widths alike."""
    fig, axes = _axes(len(curves), width=5.4, height=4.2)
    for ax, (title, methods) in zip(axes, curves.items(), strict=True):
        for i, (method, values) in enumerate(methods.items()):
            ax.plot(rollouts, 100 * values, marker=MARKERS[i], color=COLORS[i], label=method, ms=4)
            half = 100 * halves[title][method]
            ax.fill_between(rollouts, 100 * values - half, 100 * values + half, color=COLORS[i], alpha=0.12)
        ax.set(xlabel="rollouts spent", ylabel=f"{title} (%)")
    axes[0].legend()
    return fig


def curves_of(world, seeds, checkpoints, step_size=16.0):
    """All methods in one world: the learning curves with intervals of the difference from GRPO."""
    results = play([Game(world, method, step_size=step_size) for method in METHODS], seeds, checkpoints)
    curves, halves = {}, {}
    for name, measure in MEASURES.values():
        values = np.moveaxis(measure(results), 1, -1)  # games, checkpoints, seeds
        gains = paired_gain(values, values[:1], seeds)
        curves[name] = dict(zip(METHODS.values(), values.mean(axis=-1), strict=True))
        halves[name] = dict(zip(METHODS.values(), gains.half, strict=True))
    rollouts = [Game().batch * Game().mean_rollouts * step for step in checkpoints]
    return learning_curves(rollouts, curves, halves)


def gain_map(gains, verdicts, rows, columns, row_label, column_label, title, unit="points"):
    """Heatmaps of gains in percent, {row title: {panel title: (len(rows), len(columns))}}.

    verdicts: the same of +1, 0, −1: undecided cells are hatched and their numbers grey.
    """
    lines_, panels = list(gains), list(next(iter(gains.values())))
    reach = max(1.0, max(np.abs(v).max() for line in gains.values() for v in line.values()))
    width, height = 2.75 * len(panels) + 1.6, 2.1 * len(lines_) + 1.2
    # margins in inches: constrained layout would take longer than the drawing
    fig, axes = plt.subplots(len(lines_), len(panels), figsize=(width, height), squeeze=False)
    fig.subplots_adjust(
        left=0.95 / width,
        right=1 - 1.2 / width,
        bottom=0.55 / height,
        top=1 - 0.85 / height,
        wspace=0.04,
        hspace=0.25,
    )
    norm = plt.matplotlib.colors.SymLogNorm(1.0, vmin=-reach, vmax=reach)
    for i, line in enumerate(lines_):
        for j, panel in enumerate(panels):
            ax, values, sure = axes[i, j], gains[line][panel], verdicts[line][panel]
            image = ax.imshow(values, cmap=DIVERGING, norm=norm, aspect="auto", origin="lower")
            for (r, c), value in np.ndenumerate(values):
                certain = sure[r, c] != 0
                if not certain:
                    ax.add_patch(
                        plt.Rectangle((c - 0.5, r - 0.5), 1, 1, fill=False, hatch="////", ec="silver", lw=0)
                    )
                mark = {1: "▲", -1: "▼"}.get(int(sure[r, c]), "")
                dark = abs(norm(value) - 0.5) > 0.36
                color = ("white" if dark else "black") if certain else "dimgrey"
                ax.text(c, r, f"{value:+.1f}{mark}", ha="center", va="center", fontsize=8, color=color)
            ax.set_xticks(range(len(columns)), columns, fontsize=8)
            ax.set_yticks(range(len(rows)), rows if j == 0 else [""] * len(rows), fontsize=8)
            ax.grid(visible=False)
            if i == 0:
                ax.set_title(panel, fontsize=10)
            if j == 0:
                ax.set_ylabel(f"{line}\n{row_label}", fontsize=9)
            if i == len(lines_) - 1:
                ax.set_xlabel(column_label, fontsize=9)
    place = fig.add_axes((1 - 1.05 / width, 0.2, 0.16 / width, 0.6))
    bar = fig.colorbar(image, cax=place, label=f"gain over GRPO ({unit})")
    ticks = [t for t in (-30, -10, -3, -1, 0, 1, 3, 10, 30) if abs(t) <= reach]
    bar.set_ticks(ticks, labels=[f"{t:+d}" if t else "0" for t in ticks])
    fig.suptitle(title, fontsize=12, fontweight="bold")
    return fig


def gain_bars(tables, measures, title):
    """Gains with intervals: {label: {measure: (mean, half)}} in points, one panel a measure."""
    fig, axes = _axes(len(measures), width=5.0, height=0.33 * len(tables) + 1.6, sharey=True)
    labels = list(tables)
    place = np.arange(len(labels))[::-1]
    for ax, (measure, name) in zip(np.atleast_1d(axes), measures.items(), strict=True):
        for y, label in zip(place, labels, strict=True):
            mean, half = tables[label][measure]
            color = COLORS[0] if mean - half > 0 else COLORS[3] if mean + half < 0 else "grey"
            ax.errorbar(100 * mean, y, xerr=100 * half, marker="o", color=color, capsize=3)
        ax.axvline(0, color="black", lw=1)
        ax.set(xlabel="gain over GRPO (points)", title=name)
        ax.set_yticks(place, labels, fontsize=9)
    fig.suptitle(title, fontsize=12, fontweight="bold")
    return fig


def toy_against_real(table, measures, toy_name, real_name):
    """Gains with intervals, toy above real, {label: {measure: {"toy": (gain, low, high), "real": …}}}."""
    fig, axes = _axes(len(measures), width=5.6, height=0.5 * len(table) + 1.7, sharey=True)
    labels = list(table)
    place = np.arange(len(labels))[::-1]
    kinds = {"toy": (toy_name, 0.14, COLORS[0], "o"), "real": (real_name, -0.14, COLORS[1], "s")}
    for ax, (measure, title) in zip(np.atleast_1d(axes), measures.items(), strict=True):
        for kind, (name, shift, color, marker) in kinds.items():
            mean, low, high = 100 * np.array([table[label][measure][kind] for label in labels]).T
            ax.errorbar(
                mean, place + shift, xerr=[mean - low, high - mean],
                fmt=marker, color=color, capsize=3, label=name,
            )  # fmt: skip
        ax.axvline(0, color="black", lw=1)
        ax.set(xlabel="gain over GRPO (points)", title=title)
        ax.set_yticks(place, labels, fontsize=9)
    fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return fig
