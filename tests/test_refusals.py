"""Every refusal names the argument and the value, and ends with what to do."""

import ast
import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from conftest import SMALL_PROFILE

import gdro
from gdro import METHODS, GDROController
from gdro.cli import main
from gdro.core import metrics, theory
from gdro.core.bins import DifficultyBins
from gdro.methods.prompt_gdro import PromptGDRO
from gdro.methods.rollout_gdro import RolloutGDRO
from gdro.study.profiles import load_profile
from gdro.tasks.math.rewards import MathReward
from gdro.tasks.world import WORLDS, read_world
from gdro.training.files import written
from gdro.training.records import read_table, write_table

REMEDY = re.compile(r"; [^;]*[a-z][^;]*$")


def both(**changes):
    return GDROController("both", 4, **changes)


def profile(tmp_path, **changes):
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(SMALL_PROFILE | changes))
    return load_profile(tmp_path / "own.yaml")


def world(tmp_path, **changes):
    fields = yaml.safe_load((WORLDS / "rare-hard.yaml").read_text()) | changes
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(fields))
    return read_world(tmp_path / "own.yaml").spec.draw(0)


def command(*words):
    """Runs the command; what it refuses is raised again."""
    ended = CliRunner().invoke(main, list(map(str, words)))
    assert ended.exit_code == 2, ended.output
    raise ValueError(ended.stderr.strip())


def arena(tmp_path, *words):
    command("arena", "--out", tmp_path / "out", "--bases", tmp_path, "--methods", "grpo", *words)


def one_step(name, **variant):
    return {"variants": {name: {"method": "grpo"} | variant}}


def exits(tmp_path):
    (tmp_path / "exits.py").write_text("import sys; sys.exit(0)")
    return str(tmp_path / "exits.py")


CASES = [  # what is called with a temporary folder; name and value in the message
    (lambda _: both(preset="papre"), "preset", "'papre'"),
    (lambda _: both(seed=-1), "seed", "-1"),
    (lambda _: both(bins={"kk": 1}), "bins", "'kk'"),
    (lambda _: both(success_threshold=float("nan")), "success_threshold", "nan"),
    (lambda _: both().plan([]), "mean_rollouts × prompts", "4 × 0"),
    (lambda _: both().plan([[1]]), "uids", "(1, 1)"),
    (lambda _: both(action="resample").draw([], 1), "uids", "empty"),
    (lambda _: both(action="resample").draw([1], 0), "size", "0"),
    (lambda _: both().load_state_dict({}), "saved GDROController", "settings"),
    (lambda _: metrics.checked_counts([3], [2], 1), "successes", "[3] of [2]"),
    (lambda _: theory.shadow_price([0.0], [1.0], 1.0), "variances", "0"),
    (lambda p: world(p, n_operands=12), "n_operands", "12"),
    (lambda p: world(p, n_train=10**30), "n_train", "1000000000000000"),
    (lambda p: read_world(p), "world", "pytest"),
    (lambda p: profile(p, trian={}), "trian", "{}"),
    (lambda p: profile(p, seeds=[0, 0]), "seeds", "[0, 0]"),
    (lambda p: profile(p, train={"max_steps": "six"}), "train.max_steps", "'six'"),
    (lambda p: profile(p, evaluation={"samples": 4, "k": 8}), "evaluation.k", "8 and 4"),
    (lambda p: profile(p, task={"kind": "math"}), "model.source", "None"),
    (lambda p: profile(p, methods_from="no.py"), "methods_from", "'no.py'"),
    (lambda p: profile(p, launch={"processes": 2, "config": "no"}), "launch.config", "'no'"),
    (lambda p: profile(p, methods_from=exits(p)), "exits.py", "exit(0)"),
    (lambda p: profile(p, **one_step("base")), "variants", "'base'"),
    (lambda p: profile(p, **one_step("-h")), "variants", "'-h'"),
    (lambda p: profile(p, **one_step("a", baseline="b")), "baseline", "'b'"),
    (lambda p: profile(p, **one_step("a", options={"floor": 1})), "variant 'a'", "'floor'"),
    (lambda p: profile(p).train_of("gpro"), "variant", "'gpro'"),
    (lambda _: MathReward()(["1"], ["1", "2"]), "answer", "2"),
    (lambda _: MathReward()(["1"], [None]), "answer", "None"),
    (lambda _: MathReward()([r"\boxed{1}"], [")("]), "answer", "')('"),
    (lambda p: write_table(p / "t", [{"a": np.nan}]), "row 0, 'a'", "nan"),
    (lambda p: read_table(p / "t"), "table", "t"),
    (lambda _: command("train", "tniy", "grpo"), "profile", "'tniy'"),
    (lambda p: arena(p, "--learning-rates", "1e-4,fast"), "learning_rates", "'fast'"),
    (lambda p: arena(p, "--methods", "gpro"), "method", "'gpro'"),
    (lambda p: arena(p, "--methods", "pivotal:k=0"), "Pivotal(k=…)", "0"),
    (lambda p: arena(p, "--methods", "grpo:prompts=x"), "prompts", "'x'"),
    (lambda p: arena(p, "--world", "nowhere"), "world", "'nowhere'"),
    (lambda p: arena(p, "--steps", "0"), "steps", "0"),
]


@pytest.mark.parametrize(("call", "name", "value"), CASES)
def test_a_refusal_names_argument_and_value_and_ends_with_what_to_do(call, name, value, tmp_path):
    with pytest.raises(ValueError) as caught:
        call(tmp_path)
    message = str(caught.value)
    assert name in message
    assert value in message
    assert REMEDY.search(message), message


@pytest.mark.parametrize("kind", [DifficultyBins, PromptGDRO, RolloutGDRO, *METHODS.values()])
def test_every_option_is_refused_by_its_owner(kind):
    for one in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
        if one.metadata:
            with pytest.raises(ValueError) as caught:
                kind(**{one.name: "nonsense"})
            assert str(caught.value).startswith(f"{kind.__name__}({one.name}=…) must be "), one.name
            assert re.search(r", got 'nonsense'; .*[a-z]", str(caught.value)), one.name


def test_a_full_disk_is_named():
    words = r"^x could not be written \(I/O error\); free space .* it resumes$"
    with pytest.raises(RuntimeError, match=words), written("x"):
        raise Exception("I/O error")  # safetensors' errors are no OSErrors
    with pytest.raises(ValueError, match=r"^nonsense$"), written("x"):
        raise ValueError("nonsense")


def raised():
    """Place and text of each ValueError in the package, what is computed as {…}."""

    def text(node):
        if isinstance(node, ast.JoinedStr):
            return "".join(map(text, node.values))
        return node.value if isinstance(node, ast.Constant) else "{" + ast.unparse(node) + "}"

    for file in sorted(Path(gdro.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            is_call = isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
            if is_call and ast.unparse(node.exc.func) == "ValueError":
                yield f"{file.name}:{node.lineno}", text(node.exc.args[0])


def test_every_value_error_in_the_package_says_what_to_do():
    messages = dict(raised())
    assert len(messages) > 100
    # what follows the last semicolon, or what stands before another message that ends so
    silent = {
        place: said
        for place, said in messages.items()
        if "; " not in said and not re.match(r"correct .*: \{", said)
    }
    assert silent == {}
