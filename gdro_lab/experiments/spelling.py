"""Methods as they are spelled in one word, for profiles of the loop and on the command line.

pivotal                      a registered method
prompt:prompt.eta=3          with an option, here an entry of a dictionary
prompt:groups=family         with the task's families in place of difficulty bins
grpo:prompts=64              with the same rollouts a step on 64 prompts, whatever the method
pivotal@2e-4                 only at this learning rate
"""

import json
import re
import runpy
from typing import Any

from pydantic import ValidationError

from gdro.checks import Refusal, check
from gdro.registry import find_method
from gdro_lab.experiments.blocks import Variant
from gdro_lab.failures import at_the_door
from gdro_lab.tasks.world import refusal


def read_spelling(text: str) -> Variant:
    """The variant that a spelling names; Refusal for an unknown method or a repeated option."""
    spelled, at, rate = text.partition("@")
    method, *pairs = spelled.split(":")
    find_method(method)
    options: dict[str, Any] = {}
    for pair in pairs:
        path, _, value = pair.partition("=")
        _set_option(options, path.split("."), _value_of(value), spelled)
    train: dict[str, Any] = {}
    if at:
        with at_the_door(f"a learning rate must be a number, got {rate!r}"):
            train["learning_rate"] = check("a learning rate", float(rate), gt=0)
    if "preset" in options:
        raise Refusal(f"preset needs TRL's losses, which the loop has not, got {text!r}")
    if "prompts" in options:
        train["prompts_per_step"] = options.pop("prompts")
    groups = options.pop("groups") if isinstance(options.get("groups"), str) else None
    try:
        return Variant(method=method, groups=groups, options=options, train=train, label=spelled)
    except ValidationError as error:
        raise refusal("method", error) from error


def import_methods(path: str | None) -> None:
    """Register the methods of a Python file, if there is one; Refusal if it cannot be run."""
    if path is None:
        return
    try:
        runpy.run_path(path)
    except (Exception, SystemExit) as error:  # one that exits would end the command without a word
        reason = f"{type(error).__name__}: {error}"
        raise Refusal(f"methods_from {path!r} cannot be run: {reason}") from error


def slug_of(method: str) -> str:
    """A method's spelling as part of a file's name."""
    return re.sub(r"[^\w.=-]", "_", method)


def _value_of(text: str) -> Any:
    """A value in JSON, or the text itself, where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _set_option(options: dict[str, Any], path: list[str], value: Any, spelled: str) -> None:
    """Set the entry at a path in nested dictionaries."""
    *outer, name = path
    for part in outer:
        options = options.setdefault(part, {})
        if not isinstance(options, dict):
            raise Refusal(f"method must set {part} once, got {spelled!r}")
    if name in options:
        raise Refusal(f"method must set {name} once, got {spelled!r}")
    options[name] = value
