"""Notes what verl's controller plans, observes and loads, a JSON line each, in $GDRO_WATCH."""

import json
import os
from pathlib import Path

from gdro import GDROController
from gdro.files import plain, save_state

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


GDROController.plan = watched_plan
GDROController.load_state_dict = watched_load
