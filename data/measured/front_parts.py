"""Part of `recompute.py`: the tables of the short pages, and the rows of their picture."""

import json
from functools import cache
from itertools import chain
from typing import NamedTuple

import pandas as pd
from paired_rows import FOUR, HERE, differences, ends, memory_of, show

from gdro.metrics import weighted_standard_error
from gdro.theory import variance_proxy

SHORT = {"mean_at_8": "mean@8", "pass_at_8": "pass@8", "training_mix_mean": "training mix"}
NAMES = {
    "grpo": "GRPO",
    "prompt": "Prompt-GDRO",
    "rollout": "Rollout-GDRO",
    "both": "both games",
    "pkpo": "PKPO",
    "pivotal:epsilon=1": "PKPO",  # pivotal with an even draw
    "pivotal": "pivotal",
    "raft": "RAFT",
    "bank": "`pivotal_replay`",  # its name when word problems were played
    "pivotal_replay": "`pivotal_replay`",
    "family_even": "groups evenly",
}
KEYS = ["arm", "draw"]


@cache
def read_ends(folder: str) -> pd.DataFrame:
    """`ends` of a folder of data/measured, read once."""
    return ends(HERE / folder)


class Comparison(NamedTuple):
    """A configuration minus a baseline, paired by replicate, from the rows of some folders."""

    world: str
    arm: str
    baseline: str
    folders: tuple[str, ...]
    replicates: tuple[int, int] = (0, 10_000)
    """The first and the last one that counts."""

    def rows(self) -> pd.DataFrame:
        """The last row of each run of the two configurations."""
        rows = pd.concat(map(read_ends, self.folders)).query("world == @self.world")
        return rows[rows.arm.isin([self.arm, self.baseline]) & rows.draw.between(*self.replicates)]

    def by_replicate(self) -> pd.DataFrame:
        """The difference of each score, a row a replicate."""
        of = self.rows().groupby(KEYS)[FOUR].mean()
        return (of.loc[self.arm] - of.loc[self.baseline]).dropna()

    def ratio(self, cost: str) -> float:
        """Trained tokens or seconds over the baseline's on the same replicates.

        NaN where they were not recorded.
        """
        rows = self.rows()
        if cost not in rows:
            return float("nan")
        of = rows[rows.draw.isin(self.by_replicate().index)].groupby("arm")[cost].mean()
        return of[self.arm] / of[self.baseline]

    def gap(self) -> pd.DataFrame:
        """The memorization gap minus the baseline's, a row a replicate."""
        gaps = pd.concat(memory_of(HERE / folder) for folder in self.folders)
        of = gaps.xs(self.world, level="world")
        return (of.loc[self.arm] - of.loc[self.baseline]).dropna().to_frame("gap")

    def label(self) -> str:
        """As in "rare-hard, 2e-4 (16)"; with the baseline's learning rate where it differs."""
        rate = self.arm.partition("@")[2]
        own = self.baseline.partition("@")[2]
        beside = "" if rate == own else f" against {own}"
        return f"{self.world}, {rate}{beside} ({len(self.by_replicate())})"

    def name(self) -> str:
        return NAMES[self.arm.partition("@")[0]]


GAMES = ("prompt", "rollout", "both")
RARE_GAMES = [
    Comparison("rare-hard", f"{game}@2e-4", "grpo@2e-4", ("games-confirmed/equal-rates",))
    for game in GAMES
]
RARE_PKPO = Comparison("rare-hard", "pkpo@2e-4", "grpo@2e-4", ("arena/rare-hard", "arena-transfer"))
RARE_PIVOTAL = Comparison("rare-hard", "pivotal@2e-4", "grpo@2e-4", ("arena-fair/rare-hard",))
HARD_GAMES = [
    Comparison("all-hard", f"{game}@2e-4", "grpo@2e-4", ("games-confirmed/all-hard",))
    for game in GAMES
]
HARD_OURS = [
    Comparison("all-hard", f"{method}@2e-4", "grpo@2e-4", ("pivotal-hard/fresh",))
    for method in ("pkpo", "pivotal")
]
REACH_GAMES = Comparison(
    "out-of-reach", "both@2e-4", "grpo@2e-4", ("games-confirmed/out-of-reach",)
)
WEAK_GAMES = [
    Comparison("gym-weak", f"{game}@5e-5", "grpo@5e-5", ("games-confirmed/gym-weak",))
    for game in GAMES
]
WEAK_OURS = [
    Comparison(
        "gym-weak",
        f"{method}@1e-4",
        "grpo@1e-4",
        ("k-progress/control", "k-progress/gym-weak"),
    )
    for method in ("pkpo", "pivotal")
]
LATER = ("smol", "smol-rollout")
WORDS_BOTH = Comparison("words", "both@5e-6", "grpo@5e-6", LATER)
WORDS_ROLLOUT = Comparison("words", "rollout@5e-6", "grpo@5e-6", LATER)
WORDS_PKPO = Comparison("words", "pkpo@2.5e-6", "grpo@2.5e-6", ("smol",))
WORDS_PIVOTAL = Comparison("words", "pivotal@2.5e-6", "grpo@2.5e-6", ("smol",))
WORDS_REPLAY = Comparison("words", "bank@2.5e-6", "grpo@2.5e-6", ("smol",))
WORDS_RATE = Comparison("words", "grpo@5e-6", "grpo@2.5e-6", LATER)

PICTURE = {
    "rare-hard": [*RARE_GAMES, RARE_PKPO, RARE_PIVOTAL],
    "all-hard": [*HARD_GAMES, *HARD_OURS],
    "gym-weak": [*WEAK_GAMES, *WEAK_OURS],
    "word problems": [WORDS_ROLLOUT, WORDS_BOTH, WORDS_PKPO, WORDS_PIVOTAL],
}
"""World: what the forest plot shows, all at equal learning rates."""

STRINGS_OURS = [
    Comparison("gym-strings", f"{method}@2e-4", "grpo@2e-4", ("replay/fresh-strings",))
    for method in ("pivotal:epsilon=1", "pivotal")
]
REACH_PIVOTAL = Comparison(
    "out-of-reach", "pivotal@2e-4", "grpo@2e-4", ("k-progress/hard-worlds-2e-4",)
)
BY_WORLD = {
    "rare-hard": [RARE_GAMES[2], RARE_PKPO, RARE_PIVOTAL],
    "all-hard": [HARD_GAMES[2], *HARD_OURS],
    "out-of-reach": [REACH_GAMES, None, REACH_PIVOTAL],
    "gym-weak": [WEAK_GAMES[2], *WEAK_OURS],
    "gym-strings, 1,500 batches": [None, *STRINGS_OURS],
    "word problems, SmolLM2-135M": [WORDS_BOTH, WORDS_PKPO, WORDS_PIVOTAL],
}
"""The README's table: both games, PKPO and pivotal in a world."""

PALINDROMES = ("palindromes/fresh",)
LONG_WEAK = ("replay/fresh", "replay/fresh-raft", "replay/fresh-library")
LONG_STRINGS = ("replay/fresh-strings", "replay/fresh-raft", "replay/fresh-library")
PKPO_WORLDS = [
    RARE_PKPO,
    Comparison("rare-hard", "pkpo@1e-4", "grpo@1e-4", ("arena-fair/rare-hard",)),
    HARD_OURS[0],
    WEAK_OURS[0],
    Comparison("gym-strings", "pkpo@1e-4", "grpo@1e-4", ("arena-fair/shapes",)),
    Comparison("gym-weak", "pivotal:epsilon=1@2e-4", "grpo@2e-4", ("replay/fresh",)),
    STRINGS_OURS[0],
    Comparison("gym-palindromes", "pkpo@2e-4", "grpo@2e-4", PALINDROMES),
    WORDS_PKPO,
]
"""PKPO in every world; the second gym-weak and gym-strings are the runs of 1,500 batches."""

TABLES = {
    "The paper's games": [*RARE_GAMES, HARD_GAMES[2], REACH_GAMES, WEAK_GAMES[2]],
    "PKPO and pivotal": [RARE_PKPO, RARE_PIVOTAL, *HARD_OURS, *WEAK_OURS],
    "A pretrained model": [
        WORDS_RATE,
        WORDS_ROLLOUT,
        WORDS_BOTH,
        WORDS_PKPO,
        WORDS_PIVOTAL,
        WORDS_REPLAY,
    ],
    "PKPO in every world": PKPO_WORLDS,
    "Groups drawn evenly": [
        Comparison("rare-hard", "family_even@2e-4", "grpo@2e-4", ("gdro-best/rare-hard",)),
        Comparison("out-of-reach", "family_even@2e-4", "grpo@2e-4", REACH_GAMES.folders),
        Comparison("all-hard", "family_even@2e-4", "grpo@2e-4", HARD_GAMES[0].folders),
        Comparison("gym-weak", "family_even@5e-5", "grpo@5e-5", WEAK_GAMES[0].folders),
    ],
    "Pivotal elsewhere": [
        Comparison("rare-hard", "pivotal@1e-4", "grpo@1e-4", ("arena-fair/rare-hard",)),
        Comparison("rare-easy", "pivotal@2e-4", "grpo@2e-4", ("arena-transfer",)),
        STRINGS_OURS[1],
    ],
}
PIVOTAL_MINUS_PKPO = [
    Comparison("rare-hard", "pivotal@1e-4", "pkpo@1e-4", ("arena-fair/rare-hard",)),
    Comparison("all-hard", "pivotal@2e-4", "pkpo@2e-4", HARD_OURS[0].folders),
    Comparison("gym-weak", "pivotal@1e-4", "pkpo@1e-4", WEAK_OURS[0].folders),
    Comparison("gym-weak", "pivotal@2e-4", "pivotal:epsilon=1@2e-4", ("replay/fresh",)),
    Comparison("gym-strings", "pivotal@2e-4", "pivotal:epsilon=1@2e-4", STRINGS_OURS[0].folders),
]
TABLES["What pivotal's draw adds to PKPO"] = PIVOTAL_MINUS_PKPO
REPLAY = [
    Comparison("gym-weak", "raft@4e-4", "grpo@2e-4", LONG_WEAK),
    Comparison("gym-weak", "pivotal_replay@4e-4", "grpo@2e-4", LONG_WEAK),
    Comparison("gym-strings", "raft@4e-4", "grpo@2e-4", LONG_STRINGS),
    Comparison("gym-strings", "pivotal_replay@4e-4", "grpo@2e-4", LONG_STRINGS),
    Comparison("gym-palindromes", "raft@2e-4", "grpo@2e-4", PALINDROMES),
    Comparison("gym-palindromes", "pivotal_replay@4e-4", "grpo@4e-4", PALINDROMES),
]


def noise() -> pd.DataFrame:
    """What Rollout-GDRO's counts do to the noise on word problems: a row a run.

    WSE (33) and the variance proxy, each over that of four rollouts for every bin, from the batches
    after the first epoch: the proxy (28), where every prompt counts once, and as shipped, where
    every rollout does.
    """
    runs = {}
    for folder in LATER:
        for file in sorted((HERE / folder / "logs/words").glob("rollout@*.json")):
            record = json.loads(file.read_text())["record"][12:]
            sigma, q, n = (
                pd.DataFrame([step[name] for step in record], dtype=float).fillna(0)
                for name in ("deviation", "share", "rollouts")
            )
            n = n.mask(n == 0, 4)  # a bin without prompts in the batch
            even = variance_proxy(sigma**2, q, 4).sum()
            wse = weighted_standard_error(sigma, q, n).sum()
            runs[file.stem] = {
                "WSE": wse / weighted_standard_error(sigma, q, 4).sum(),
                "proxy, averaging by prompt": variance_proxy(sigma**2, q, n).sum() / even,
                "proxy, averaging by rollout": (q * n * sigma**2 / 4**2).to_numpy().sum() / even,
            }
    return pd.DataFrame(runs).T


def cell(by_replicate: pd.Series) -> str:
    """As in "+.024 ±.015", with a space that does not break; each replicate where there are two."""
    if len(by_replicate) < 3:
        return ", ".join(signed(value) for value in by_replicate)
    found = differences(by_replicate.to_frame()).iloc[0]
    return f"{signed(found.difference)}\u00a0±{unsigned(found.half)}"


def signed(value: float) -> str:
    text = f"{value:+.3f}".replace("0.", ".").replace("-", "−")
    return text[1:] if text[1:] == ".000" else text


def unsigned(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1)


def times(ratio: float) -> str:
    return "–" if pd.isna(ratio) else f"{ratio:.2f}".removeprefix("0")


def row(*texts: str) -> str:
    return f"| {' | '.join(texts)} |"


def cells(one: Comparison) -> list[str]:
    """Label, name and the three scores."""
    scores = one.by_replicate()
    return [one.label(), one.name(), *(cell(scores[name]) for name in SHORT)]


def both_scores(one: Comparison | None) -> str:
    """mean@8 with its training mix, and the number of replicates; a dash if not played."""
    if one is None:
        return "–"
    scores = one.by_replicate()
    mix = cell(scores.training_mix_mean)
    return f"{cell(scores.mean_at_8)}; mix\u00a0{mix} ({len(scores)})"


def front() -> None:
    """The tables of README, docs/results.md and docs/choose.md, as they are printed there."""
    print("\n## By world\n")
    for world, comparisons in BY_WORLD.items():
        print(row(world, *map(both_scores, comparisons)))
    scores = (*SHORT.values(), "trained tokens")
    print(f"\n## At equal learning rates\n\n{row('world, learning rate (n)', 'method', *scores)}")
    for title, comparisons in TABLES.items():
        print(f"\n### {title}\n")
        for one in comparisons:
            print(row(*cells(one), times(one.ratio("trained_tokens"))))
    print("\n## Replay, with the memorization gap\n")
    for one in REPLAY:
        gap = cell(one.gap().gap)
        print(row(*cells(one), gap, times(one.ratio("trained_tokens"))))
    print("\n## Seconds over the baseline's\n")
    for one in chain(*TABLES.values(), REPLAY):
        print(row(one.label(), one.name(), times(one.ratio("seconds"))))
    show("Noise of Rollout-GDRO over that of even rollouts, word problems", noise().reset_index())
