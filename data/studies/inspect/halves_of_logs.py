"""The first half of each stored training of SmolLM2 against its second: halves_smollm2.csv.

    python data/studies/inspect/halves_of_logs.py

The logs of `smol` and `smol-rollout` have means of ten steps, three in each half.
"""

import json
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent


def mixed_by_step(file: Path) -> pd.Series:
    """Share of mixed groups by step, a mean of ten steps each; empty where nothing was trained."""
    logs = [row for row in json.loads(file.read_text())["logs"] if "frac_reward_zero_std" in row]
    return pd.Series({row["step"]: 1 - row["frac_reward_zero_std"] for row in logs})


def main() -> None:
    rows = []
    for file in sorted(HERE.parent.glob("smol*/logs/*/*.json")):
        mixed = mixed_by_step(file)
        if mixed.empty:
            continue
        first = mixed.iloc[: len(mixed) // 2]
        second = mixed.iloc[len(mixed) // 2 :]
        rows.append(
            {
                "world": file.parent.name,
                "run": file.stem,
                "first half": first.mean(),
                "its last third": first.iloc[-1],
                "second half": second.mean(),
            }
        )
    table = pd.DataFrame(rows)
    table.to_csv(HERE / "halves_smollm2.csv", index=False, float_format="%.4f")
    gaps = table[["its last third", "first half"]].sub(table["second half"], axis=0).abs()
    print(f"{len(table)} runs, absolute error against the second half")
    print(gaps.agg(["mean", "max"]).round(3).to_markdown())


if __name__ == "__main__":
    main()
