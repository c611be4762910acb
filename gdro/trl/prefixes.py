"""Each prompt is computed once for all of its rollouts, with and without gradients.

Rows whose prompts are equal share one forward of the prompt but for its last token. Its keys and
values, which keep their graph, are handed to each of the rows; TRL's own function then computes
the last token and the completion. No logits of prompts are computed.

Axes: R rows, P different prompts, T tokens.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from accelerate.utils import DistributedType
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer
from trl import GRPOTrainer

from gdro.trl.trimming import TokenLogps, count_tokens, say_once

# every process has whole weights, also outside the forward of the whole model
WHOLE_WEIGHTS = {DistributedType.NO, DistributedType.MULTI_GPU, DistributedType.MULTI_CPU}
# what rounding changes at most: gradients in proportion, log-probabilities in absolute terms
ROUNDING = {"32 bits": (0.01, 0.002), "16 bits": (0.5, 0.1)}


class Texts(NamedTuple):
    """Prompts padded on their left with completions padded on their right."""

    ids_RT: Tensor
    mask_RT: Tensor
    length: int
    """Columns of the completions."""

    def leads(self) -> tuple[Tensor, Tensor, Tensor]:
        """The different prompts but for their last tokens: ids and masks (P, T), whose (R,)."""
        lead = self.ids_RT.size(1) - self.length - 1
        both_RT = torch.cat([self.ids_RT[:, :lead], self.mask_RT[:, :lead]], dim=1)
        both_PT, lead_R = torch.unique(both_RT, dim=0, return_inverse=True)
        return both_PT[:, :lead], both_PT[:, lead:], lead_R

    def rest(self) -> tuple[Tensor, Tensor, int]:
        """The last tokens of the prompts, and the completions."""
        columns = slice(-self.length - 1, None)
        return self.ids_RT[:, columns], self.mask_RT[:, columns], self.length


def score_prompts_once(
    trainer: GRPOTrainer,
    score: Callable[..., TokenLogps],
    model: nn.Module,
    *given: Any,
    **asked: bool,
) -> TokenLogps:
    """TRL's log-probabilities of completions, to rounding; `score` is its own function.

    The first call with gradients, and the first without, is computed both ways. Where they differ
    by more than rounding, all rows are computed as TRL does from then on.
    """
    plain = trainer.accelerator.unwrap_model(model)
    texts = Texts(*given)
    reason = why_apart(trainer, plain)
    if reason:
        say_once(trainer, f"prompts are computed once for each rollout: {reason}")
    leads = texts.leads()
    if reason or len(leads[0]) == len(texts.ids_RT) or leads[0].size(1) == 0:
        count_tokens(trainer, texts.mask_RT)
        return score(model, *texts, **asked)
    ours = partial(score_from_leads, trainer, score, leads)
    way = "with" if torch.is_grad_enabled() else "without"
    if way not in trainer.savings.compared:
        trainer.savings.compared.add(way)
        trainer.savings.differ = difference(trainer, (score, ours), plain, texts)
        if trainer.savings.differ:
            return score_prompts_once(trainer, score, model, *texts, **asked)
    count_tokens(trainer, leads[1], texts.rest()[1])
    return ours(model, *texts, **asked)


def why_apart(trainer: GRPOTrainer, model: Any) -> str:
    """Why the prompt of each row is computed; "" where equal prompts are computed once."""
    savings = trainer.savings
    if savings.apart is None:  # once, as it looks at every module
        savings.apart = why_always_apart(trainer, trainer.accelerator.unwrap_model(trainer.model))
        savings.has_dropout = any(map(drops, trainer.model.modules()))
    if model.is_gradient_checkpointing:
        return "gradient_checkpointing keeps no keys and values"
    if model.training and savings.has_dropout:
        return "all rollouts would have one dropout"
    return savings.differ or savings.apart


def why_always_apart(trainer: GRPOTrainer, model: Any) -> str:
    """The reasons that hold for a whole training."""
    layers = DynamicCache(config=model.config).layers
    is_plain = all(type(layer) is DynamicLayer for layer in layers) and not model._is_stateful
    is_whole = trainer.accelerator.distributed_type in WHOLE_WEIGHTS
    reasons = {
        "use_liger_kernel is on": trainer.args.use_liger_kernel,
        "the model also takes images": model.config.get_text_config() is not model.config,
        "the model's cache is not plain keys and values of all tokens": not is_plain,
        "the loss of routers counts all tokens": trainer.aux_loss_enabled,
        "weights are sharded": not is_whole,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def drops(module: nn.Module) -> bool:
    """Whether a module drops values at random while it trains."""
    is_dropout = isinstance(module, nn.Dropout) and module.p > 0
    return is_dropout or float(getattr(module, "attention_dropout", None) or 0) > 0


def score_from_leads(
    trainer: GRPOTrainer,
    score: Callable[..., TokenLogps],
    leads: tuple[Tensor, Tensor, Tensor],
    model: nn.Module,
    *given: Any,
    **asked: bool,
) -> TokenLogps:
    """TRL's log-probabilities, where the keys and values of `leads` are computed once."""
    texts = Texts(*given)
    ids_PT, mask_PT, lead_R = leads
    plain = trainer.accelerator.unwrap_model(model)
    cache = DynamicCache(config=plain.config)
    with trainer.accelerator.autocast():
        plain.get_decoder()(
            input_ids=ids_PT,
            attention_mask=mask_PT,
            position_ids=(mask_PT.cumsum(dim=1) - 1).clamp(min=0),
            past_key_values=cache,
            use_cache=True,
        )
    cache.batch_select_indices(lead_R)
    first_R = mask_PT.sum(dim=1)[lead_R]
    after_T = torch.arange(texts.length + 1, device=first_R.device)

    def go_on(**inputs: Any) -> Any:
        """The model, as TRL calls it, after the leads."""
        inputs["attention_mask"] = texts.mask_RT
        inputs["position_ids"] = first_R[:, None] + after_T
        return model(**inputs, past_key_values=cache)

    return score(go_on, *texts.rest(), **asked)


def difference(
    trainer: GRPOTrainer,
    ways: tuple[Callable[..., TokenLogps], Callable[..., TokenLogps]],
    model: nn.Module,
    texts: Texts,
) -> str:
    """What differs between two ways by more than rounding; "" for nothing.

    The gradient, where there is one, else the log-probabilities. One way after the other, so that
    memory holds one at a time.
    """
    wanted, found = (mean_logps(model, texts, way(model, *texts)[0]) for way in ways)
    is_short = trainer.accelerator.mixed_precision != "no" or model.dtype != torch.float32
    of_gradient, of_logps = ROUNDING["16 bits" if is_short else "32 bits"]
    gap = (found - wanted).norm()
    if torch.is_grad_enabled():
        name, bound = "gradient", of_gradient * wanted.norm()
    else:
        name, bound = "log-probabilities", of_logps * len(wanted) ** 0.5
    if gap <= bound:  # False for NaN
        return ""
    return f"their {name} would differ from TRL's by {gap / wanted.norm():.2g}"


def mean_logps(model: Any, texts: Texts, logps_RT: Tensor) -> Tensor:
    """The mean of each row, or the gradient of all by the lowest weights, which need all others."""
    mask_RT = texts.mask_RT[:, -texts.length :]
    logps_R = (logps_RT * mask_RT).sum(dim=1) / mask_RT.sum(dim=1).clamp(min=1)
    if not torch.is_grad_enabled():
        return logps_R
    embeddings = set(model.get_input_embeddings().parameters())
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    # four: with LoRA every second one has a gradient of 0 at the start
    chosen = ([weight for weight in weights if weight not in embeddings] or weights)[:4]
    grads = torch.autograd.grad(logps_R.mean(), chosen, materialize_grads=True)
    return torch.cat([grad.flatten().float() for grad in grads])
