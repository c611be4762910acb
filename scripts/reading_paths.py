"""How many lines a person reads to do something: the table in CONTRIBUTING.md.

python scripts/reading_paths.py

A path lists every file that the person has to open. What these files import besides may be left off where its
name and the first line of its docstring say all that the reader needs; `LEFT_OFF` says of each why. The table
has both numbers: what is read, and that with what is left off.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONTROLLER = ["controller", "core/returned"]
STEP = [*CONTROLLER, "methods/base", "methods/batch", "core/bins", "core/beliefs", "core/budget"]
ROLLOUT = ["core/advantages", "methods/rollout_gdro", "methods/bin_game", "methods/arms"]
LOOP = ["loop", "training/qwen3"]
TRAINER = ["trainer", *(f"training/{name}" for name in ("trl_names", "rounds", "refusals", "savings"))]
RUN = [
    *["Snakefile", "profiles/tiny.yaml", "cli", "study/console", "study/profiles"],
    *["study/experiment", "study/arguments", "tasks/__init__", "tasks/chain", "training/models"],
    *["trainer", "controller", "study/evaluate", "results/report"],
]
# what is read; lines before the rooms were made (release 0.2.0); the goal
PATHS: dict[str, tuple[list[str], int, int]] = {
    "add a method": (["docs/methods.md"], 143, 143),
    "add a method, with the code that it stands on": (
        ["docs/methods.md", "methods/base", "methods/batch", "methods/draws"],
        443,
        443,
    ),
    "change the trainer": ([*TRAINER, "controller"], 1271, 1100),
    "understand one step, gdro.loop with pivotal": (
        [*STEP, "methods/draws", "methods/pivotal", *LOOP],
        1712,
        1300,
    ),
    "the same with Rollout-GDRO": ([*STEP, *ROLLOUT, *LOOP], 2277, 1700),
    "the same in TRL with both games": (
        [*STEP, *ROLLOUT, "methods/prompt_gdro", "methods/both", "trainer"],
        2673,
        2000,
    ),
    "`make run`, one variant": (RUN, 3628, 2800),
}
LEFT_OFF = {
    "arena/command": "the options of `gdro arena`",
    "core/any_of_k": "the paper's estimator of pass@k, for who wants that choice in place of the default",
    "core/arrays": "four functions on arrays, each said by its name",
    "core/checks": "each check raises a ValueError; what it allows stands where it is called",
    "core/groups": "groups of the data set in place of bins, for who has such groups",
    "core/limits": "constants, each said by its name",
    "core/metrics": "a step takes one check of counts from it",
    "core/saved": "what `state` means is said where it is declared; how it is saved changes no step",
    "core/shared": "a lock, so that calls run one at a time",
    "core/uids": "a uid has a row that never changes; how it is found does not matter",
    "methods/bandit": "the arms as printed, for who wants utility 'loss' in place of the default",
    "methods/checked": "asks the method, refuses wrong answers and puts back what a refused step changed",
    "methods/draws": "positions by a score or in proportion; who draws prompts reads it",
    "methods/record": "a row of the record, on which no step depends",
    "methods/setup": "makes the method and its bounds from arguments that the controller documents",
    "study/choices": "which fields a profile may have; profiles/ shows them in use",
    "study/profile_checks": "which fields do not fit together, which packages are missing",
    "tasks/protocol": "what every task offers, which chain shows",
    "tasks/settings": "which fields a profile's task may have",
    "training/checkpoints": "whether a folder is as it was written",
    "training/files": "files that are written whole or not at all",
    "training/held_out": "evaluates held-out prompts while training in one call of the engine",
    "training/lifetime": "one process in a folder, which ends with its parent",
    "training/progress": "what a training prints",
    "training/records": "reads and writes tables and manifests",
    "training/refusals": "what is refused before training; who changes the trainer reads it",
    "training/resumable": "which of TRL's options cannot be resumed",
    "training/rounds": "for methods that sample in rounds; who changes the trainer reads it",
    "training/savings": "work left out that changes no gradient; who changes the trainer reads it",
    "training/trl_names": "TRL's names, checked; who changes the trainer reads it",
    "training/unsloth": "Unsloth in place of plain TRL, for who uses it",
}


def path_of(name: str) -> Path:
    """A file, named from the root or, without an ending, from gdro/."""
    return ROOT / name if Path(name).suffix or (ROOT / name).is_file() else ROOT / "gdro" / f"{name}.py"


def lines_of(name: str) -> int:
    return len(path_of(name).read_text(encoding="utf-8").splitlines())


def imported(name: str) -> set[str]:
    """What a file imports of the modules in `LEFT_OFF`, in functions too."""
    if path_of(name).suffix != ".py":
        return set()
    nodes = ast.walk(ast.parse(path_of(name).read_text(encoding="utf-8")))
    modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {module.removeprefix("gdro.").replace(".", "/") for module in modules} & LEFT_OFF.keys()


def with_left_off(names: list[str]) -> list[str]:
    """The files of a path and what they leave off, directly or through one another."""
    found, waiting = list(names), list(names)
    while waiting:
        new = sorted(imported(waiting.pop()) - set(found))
        found += new
        waiting += new
    return found


def table() -> str:
    """The paths as a Markdown table."""
    heads = ["to …", "you read", "lines in 0.2.0", "lines now", "goal", "with what is left off"]
    rows = [f"| {' | '.join(heads)} |", "|---|---|---|---|---|---|"]
    for task, (names, before, goal) in PATHS.items():
        read = ", ".join(f"`{name}`" for name in names)
        now, whole = (sum(map(lines_of, files)) for files in (names, with_left_off(names)))
        rows.append(f"| {task} | {read} | {before:,} | {now:,} | {goal:,} | {whole:,} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
