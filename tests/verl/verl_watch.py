"""Notes what verl's controller plans and loads, a JSON line each, in $GDRO_WATCH; a method."""

import json
import os
from pathlib import Path

from gdro import GDROController, register
from gdro.files import plain, save_state
from gdro.methods.rollout_prompts import RolloutPrompts

FILE = Path(os.environ["GDRO_WATCH"])
plan = GDROController.plan
load = GDROController.load_state_dict


def note(**line):
    with FILE.open("a") as stream:
        stream.write(json.dumps(line, default=plain) + "\n")


def watched_plan(controller, uids):
    made = plan(controller, uids)
    note(number=made.number, uids=uids, rollouts=made.rollouts)
    return made


def watched_load(controller, state):
    load(controller, state)
    save_state(FILE.with_name("loaded.json"), controller.state_dict())


@register("every_second")
class EverySecond(RolloutPrompts):
    """Rollouts by prompt; every second batch is drawn, the others come in verl's order."""

    state = (*RolloutPrompts.state, "batches")

    def start(self, run):
        super().start(run)
        self.batches = 0

    def draw(self, pool, size, rng):
        return rng.choice(len(pool), size, replace=False) if self.batches % 2 else None

    def update(self, batch):
        super().update(batch)
        self.batches += 1


GDROController.plan = watched_plan
GDROController.load_state_dict = watched_load
