"""Methods that avoid rows without a signal, in TRL, beside GRPO: what they train on, at what cost.

    python benchmarks/dynamic_sampling.py [--steps 30]

On the small task of the teaching notebooks, all with the same base, prompts, batch of TRL, number
of steps and seed. Printed, a step:

- signal: share of the rows trained on whose advantage is not 0;
- sampled: rollouts, with those that were thrown away;
- each: rollouts sampled for a row with a signal;
- correct: share of all that was sampled; where it is high, most prompts have no signal left;
- seconds: of processor time on one thread, all of the step.
"""

import argparse
import tempfile

from loop import PROMPTS, ROLLOUTS, quiet_base, time_training

from gdro_lab.teaching.gradients import SPEC

METHODS = ("grpo", "dapo", "reinforce_ada", "pivotal")


def main() -> None:
    """Train with each method in turn and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    task = SPEC.draw(0)
    base = quiet_base(task, steps=160, batch_size=64)
    print(f"{PROMPTS} prompts × {ROLLOUTS} rollouts, {args.steps} steps")
    print(f"{'method':15}{'signal':>8}{'sampled':>9}{'each':>7}{'correct':>9}{'seconds':>9}")
    for method in METHODS:
        with tempfile.TemporaryDirectory() as folder:
            # in a comparison all have the same savings
            choices = {"gdro_method": method, "trim_batches": True, "beta": 0.0}
            seconds, trainer = time_training(base, task, args.steps, folder, **choices)
        row = trainer.state.log_history[0]  # means of all steps
        # a method without its own advantages has TRL's, 0 just where a group's rewards are equal
        signal = row.get("gdro/has_signal", 1 - row["frac_reward_zero_std"])
        sampled = sum(row["rollouts_spent"] for row in trainer.record) / args.steps
        each = sampled / (signal * PROMPTS * ROLLOUTS)
        batches = [(row["mean_reward"], row["rollouts_spent"]) for row in trainer.record]
        correct = sum(mean * spent for mean, spent in batches) / (args.steps * sampled)
        print(
            f"{method:15}{signal:8.0%}{sampled:9.0f}{each:7.2f}{correct:9.2f}{seconds:9.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
