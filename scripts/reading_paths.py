"""How many lines a person reads to do something: the table in CONTRIBUTING.md.

python scripts/reading_paths.py
"""

from pathlib import Path

ROOT = Path(__file__).parents[1]
STEP = [
    "controller",
    "methods/base",
    "core/beliefs",
    "core/bins",
    "core/budget",
    "core/saved",
    "core/checks",
    "methods/draws",
]
GAMES = [*STEP, *["methods/rollout_gdro", "methods/prompt_gdro", "methods/arms"]]
TRAINER = ["trainer", "training/savings", "training/checkpoints", "training/files"]
RUN = [
    "cli",
    "study/console",
    "study/profiles",
    "study/experiment",
    "study/evaluate",
    "study/records",
    "tasks/__init__",
    "tasks/settings",
    "tasks/chain",
    "training/models",
    "trainer",
    "study/report",
    "Snakefile",
]
# what is read; lines before the rooms were made (release 0.2.0); the goal
PATHS: dict[str, tuple[list[str], int, int]] = {
    "add a method": (["docs/methods.md"], 143, 143),
    "add a method, with the code that it stands on": (
        ["docs/methods.md", "methods/base", "methods/draws"],
        443,
        443,
    ),
    "change the trainer": ([*TRAINER, "controller", "methods/base"], 1271, 1100),
    "understand one step, gdro.loop with pivotal": (
        [*STEP, "methods/pivotal", "loop", "training/qwen3"],
        1712,
        1300,
    ),
    "the same with Rollout-GDRO": ([*GAMES, "loop", "training/qwen3"], 2277, 1700),
    "the same in TRL with both games": ([*GAMES, *TRAINER], 2673, 2000),
    "`make run`, one variant": ([*RUN, "controller"], 3628, 2800),
}


def lines_of(name: str) -> int:
    """Lines of a file, named from the root or, without an ending, from gdro/."""
    path = ROOT / name if Path(name).suffix or (ROOT / name).is_file() else ROOT / "gdro" / f"{name}.py"
    return len(path.read_text(encoding="utf-8").splitlines())


def table() -> str:
    """The paths as a Markdown table."""
    rows = ["| to … | you read | lines before | lines now | goal |", "|---|---|---|---|---|"]
    for task, (names, before, goal) in PATHS.items():
        read = ", ".join(f"`{name}`" for name in names)
        rows.append(f"| {task} | {read} | {before:,} | {sum(map(lines_of, names)):,} | {goal:,} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
