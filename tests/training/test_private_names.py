"""The private names of TRL and transformers that the trainer leans on are as they were seen."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest
import tiny_run
from conftest import TRAINS
from private_names import ARGUMENTS, PRIVATE_NAMES, TRAINER
from trl import GRPOConfig, GRPOTrainer
from trl.import_utils import is_vllm_available

from gdro.trl import trainer

pytestmark = TRAINS
LISTED = {private.name for private in PRIVATE_NAMES}


@pytest.fixture(scope="module")
def owners(base, tmp_path_factory):
    """The things that have the names: TRL's own trainer, its arguments, and modules."""
    args = tiny_run.arguments(GRPOConfig, tmp_path_factory.mktemp("names"))
    stock = tiny_run.make_trainer(GRPOTrainer, args, base)
    return {TRAINER: stock, ARGUMENTS: args}


@pytest.mark.parametrize("private", PRIVATE_NAMES, ids=lambda private: private.name)
def test_a_private_name_is_as_it_was_seen(owners, private):
    if private.name == "LLM" and not is_vllm_available():
        pytest.skip("TRL imports it where vLLM is installed")
    owner = owners.get(private.owner) or importlib.import_module(private.owner)
    assert hasattr(owner, private.name), f"{private.owner} has no {private.name}"
    if private.signatures:
        function = inspect.unwrap(getattr(type(owner), private.name))
        parameters = inspect.signature(function).parameters.values()
        shown = [str(p.replace(annotation=inspect.Parameter.empty)) for p in parameters]
        assert f"({', '.join(shown)})" in private.signatures


def names_used():
    """Private attributes that a file of gdro.trl reads, calls or sets on something of TRL."""
    for file in Path(trainer.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                yield node.attr


def test_no_private_name_is_used_that_is_not_listed(owners):
    of_trl = {name for owner in owners.values() for name in dir(owner) if name.startswith("_")}
    used = {name for name in names_used() if not name.startswith("__")}
    assert used & of_trl <= LISTED
    # nor does one of our own take the place of one of TRL's
    classes = [kind for kind in trainer.GDROTrainer.__mro__ if kind.__module__.startswith("gdro.")]
    ours = {name for kind in classes for name in vars(kind) if not name.startswith("__")}
    assert ours & of_trl <= LISTED
