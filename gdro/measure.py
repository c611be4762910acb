"""Measure a profile on this machine: seconds by stage, tokens a second, peak memory, scores.

    python -m gdro.measure gpu-smoke --out data/measured/gpu-smoke

Every variant trains and is evaluated once, in a process of its own, so that one that fails or runs out
of time costs the others nothing and memory is counted from zero. After each of them the table, its
picture and measured.json are written anew: what was measured before an interruption is kept.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import matplotlib
import pandas as pd

from gdro import figures
from gdro.processes import stream
from gdro.profiles import BASE, Profile, load_profile, run_folder
from gdro.records import read_manifest, read_table, replace_text, write_manifest

STAGES = {
    "generate": "generate",
    "score": "probabilities of old and reference policy",
    "reward": "reward",
    "controller": "controller",
    "rest": "loss, optimizer, checkpoints",
}


@click.command()
@click.argument("profile_name", metavar="PROFILE")
@click.option("--out", type=Path, required=True, help="Folder for measured.json, table.md, stages.png.")
@click.option("--variants", default="", help="Names, separated by commas; all by default.")
@click.option("--seed", default=0, show_default=True)
@click.option("--minutes", default=60.0, show_default=True, help="For all together; what is left is skipped.")
@click.option("--cache-dir", default=".cache/bases", show_default=True)
def main(profile_name, out, variants, seed, minutes, cache_dir):
    """Measure the variants of PROFILE on this machine."""
    profile = load_profile(profile_name)
    names = [name for name in variants.split(",") if name] or [BASE, *profile.variants]
    for name in names:
        profile.settings_of(name)  # an unknown name is refused before anything is computed
    ends = time.monotonic() + 60 * minutes
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as work:
        for name in names:
            print(f"== {name}, {max(ends - time.monotonic(), 0) / 60:.0f} minutes left", flush=True)
            folder = run_folder(work, name, seed)
            rows.append(_measured(profile, profile_name, name, seed, folder, cache_dir, ends))
            _write(profile, rows, seed, out)
    failed = [row["variant"] for row in rows if row["error"]]
    print(f"\n{_table(rows)}\n\nwritten to {out}/: measured.json, table.md, stages.png")
    if failed:
        raise SystemExit(f"not measured: {', '.join(failed)} (see measured.json)")


def _measured(profile: Profile, profile_name, variant, seed, folder, cache_dir, ends) -> dict[str, Any]:
    """One row: what the run says of itself, or why there is none."""
    row: dict[str, Any] = {"variant": variant, "label": profile.label(variant), "error": ""}
    command = [sys.executable, "-m", "gdro.experiment", "run", profile_name, variant, str(seed), str(folder)]
    try:
        stream([*command, cache_dir], f"variant {variant}", seconds=ends - time.monotonic())
    except RuntimeError as error:
        return row | {"error": str(error).strip()}
    manifest = read_manifest(folder / "manifest.json")
    evaluation = read_table(folder / "evaluation.jsonl")
    row["device"] = manifest["device"]
    row["kind"] = manifest["settings"]["model"]["kind"]
    row["seconds"] = manifest["seconds"]
    row["score"] = sum(r["successes"] for r in evaluation) / sum(r["trials"] for r in evaluation)
    row["evaluated_tokens"] = sum(r["tokens"] for r in evaluation)
    if variant != BASE:
        row |= {key: manifest[key] for key in ("steps", "rollouts", "tokens", "peak_memory_gib")}
    return row


def stage_seconds(row: dict[str, Any]) -> dict[str, float]:
    """Seconds a training step by stage; they add up to the whole step."""
    seconds, steps = row["seconds"], row["steps"]
    parts = {name: seconds[name] / steps for name in STAGES if name != "rest"}
    return parts | {"rest": seconds["train"] / steps - sum(parts.values())}


def _table(rows) -> str:
    trained = [row for row in rows if "steps" in row]
    lines = [
        "| variant | model | s a step | generate | score | reward | controller | tokens/s | peak GiB "
        "| evaluate s | mean@n |",
        "|" + "---|" * 11,
    ]
    for row in trained:
        stages, whole = stage_seconds(row), row["seconds"]["train"] / row["steps"]
        memory = "–" if row["peak_memory_gib"] is None else f"{row['peak_memory_gib']:.1f}"
        cells = [row["label"], row["kind"], f"{whole:.3f}"]
        cells += [f"{stages[name] / whole:.1%}" for name in ("generate", "score", "reward", "controller")]
        cells += [f"{row['tokens'] / row['seconds']['train']:,.0f}"]
        cells += [memory, f"{row['seconds']['evaluate']:.1f}", f"{row['score']:.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        f"\n{row['label']}: not measured: {row['error'].splitlines()[-1]}" for row in rows if row["error"]
    ]
    if trained:
        lines += [
            f"\nDevice: {trained[0]['device']}. tokens/s: prompt and completion tokens of training, over"
        ]
        lines[-1] += " the whole step. mean@n: over held-out prompts, one seed."
    return "\n".join(lines)


def _write(profile, rows, seed, out):
    table = _table(rows)
    replace_text(out / "table.md", table + "\n")
    write_manifest(out / "measured.json", {"profile": profile.name, "seed": seed, "rows": rows})
    trained = {row["label"]: stage_seconds(row) for row in rows if "steps" in row}
    if trained:
        stages = pd.DataFrame(trained).T.rename(columns=STAGES)
        device = next(row["device"] for row in rows if "steps" in row)
        figures.save(figures.stage_bars(stages, f"Profile {profile.name} on {device}"), out, "stages")


if __name__ == "__main__":
    matplotlib.use("Agg")
    figures.use_style()
    main()
