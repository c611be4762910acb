"""Logs of projects whose rows are nested: tinker-cookbook's and prime-rl's, as flat rows.

tinker-cookbook   iteration_*/train_rollout_summaries.jsonl   a row for each trajectory
prime-rl          rollouts/step_*/train/all/traces.jsonl      a row for each episode
"""

from collections.abc import Mapping
from typing import Any

LOGS = (  # files of a run, relative to its folder; the first pattern that finds any is read
    "completions/completions_*.parquet",  # TRL's
    "iteration_*/train_rollout_summaries.jsonl",
    "rollouts/step_*/train/all/traces.jsonl",
    "rollouts/step_*/train/effective/traces.jsonl",
    "step_*/train/all/traces.jsonl",
    "step_*/train/effective/traces.jsonl",
)
PROJECTS = {"train_rollout_summaries.jsonl": "tinker-cookbook", "traces.jsonl": "prime-rl"}
Row = Mapping[str, Any]


def flatten(row: Row, project: str) -> list[dict[str, Any]]:
    """The rollouts in a row: reward, group and, where the row has them, prompt, step and tokens."""
    return _trajectory(row) if project == "tinker-cookbook" else _episode(row)


def _trajectory(row: Row) -> list[dict[str, Any]]:
    turns = row.get("steps") or []
    return [
        {
            "reward": row["total_reward"],
            "step": row["iteration"],
            "group": row["group_idx"],
            "prompt_tokens": turns[0]["ob_len"] if turns else None,
            "tokens": sum(turn["ac_len"] for turn in turns) if turns else None,
        }
    ]


def _episode(row: Row) -> list[dict[str, Any]]:
    """A rollout for each agent that is trained; one without a reward for an episode that failed."""
    task = row["task"]
    work = (row.get("run") or {}).get("work") or {}
    group = (row.get("group") or {}).get("id")
    common = {
        "prompt": task.get("key") or task.get("hash") or task["data"],
        "step": work.get("step"),
    }
    traces = [trace for trace in row["traces"] if (trace.get("agent") or {}).get("trainable", True)]
    rollouts = []
    for trace in traces or [{}]:
        agent = (trace.get("agent") or {}).get("name", "")
        rewards = [reward for reward in (trace.get("rewards") or {}).values() if reward]
        total = sum(reward["score"] * reward.get("weight", 1) for reward in rewards)
        named = {} if group is None else {"group": f"{group} {agent}"}
        rollout = {"reward": total if rewards else None}
        rollouts.append(common | named | rollout | _tokens(trace.get("calls") or []))
    return rollouts


def _tokens(calls: list[Row]) -> dict[str, int | None]:
    """Tokens of the first request, and all that were sampled; None where a call has no usage."""
    usages = [call["usage"] for call in calls if call.get("usage")]
    if not usages or len(usages) < len(calls):
        return {"prompt_tokens": None, "tokens": None}
    first = usages[0]
    return {
        "prompt_tokens": first["prompt_tokens"] + (first.get("cached_input_tokens") or 0),
        "tokens": sum(usage["completion_tokens"] for usage in usages),
    }
