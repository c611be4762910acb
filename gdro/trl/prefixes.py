"""Each prompt is computed once for all of its rollouts, with and without gradients.

Rows whose prompts are equal share one forward of the prompt but for its last token. Its keys and
values, which keep their graph, are handed to each of the rows; TRL's own function then computes
the last token and the completion. No logits of prompts are computed.

Axes: R rows, P different prompts, T tokens.
"""

from collections.abc import Callable
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer
from trl import GRPOTrainer

from gdro.trl.trimming import TokenLogps, count_tokens, say_once

# every process has whole weights, also outside the forward of the whole model
WHOLE_WEIGHTS = {DistributedType.NO, DistributedType.MULTI_GPU, DistributedType.MULTI_CPU}
# what two ways may differ by: gradients in proportion, log-probabilities on average
ROUNDING = {"32 bits": (0.01, 0.002), "16 bits": (0.5, 0.1)}


def score_prompts_once(
    trainer: GRPOTrainer,
    score: Callable[..., TokenLogps],
    model: nn.Module,
    ids_RT: Tensor,
    mask_RT: Tensor,
    length: int,
    **asked: bool,
) -> TokenLogps:
    """TRL's log-probabilities of completions, (R, `length`), to rounding.

    The first call with gradients, and the first without, is computed both ways: where they differ
    by more than rounding, all rows are computed as TRL does from then on.

    Args:
        trainer: counts the tokens that are computed with a gradient.
        score: TRL's `_get_per_token_logps_and_entropies`, whose arguments follow.
        model: policy or reference.
        ids_RT: prompts padded on their left with completions padded on their right.
        mask_RT: 0 for padding.
        length: columns of the completions.
        asked: what is computed besides.
    """
    plain = trainer.accelerator.unwrap_model(model)
    reason = why_apart(trainer, plain)
    if reason:
        say_once(trainer, f"prompts are computed once for each rollout: {reason}")
    texts = (ids_RT, mask_RT, length)
    leads = distinct_leads(*texts)
    if reason or len(leads[0]) == len(ids_RT) or length + 1 >= ids_RT.size(1):
        count_tokens(trainer, mask_RT)
        return score(model, *texts, **asked)
    way = "with" if torch.is_grad_enabled() else "without"
    if way not in trainer.compared_ways:
        trainer.compared_ways.add(way)
        gap = difference(trainer, score, plain, texts, leads)
        if gap:
            trainer.prompts_differ = gap
            return score_prompts_once(trainer, score, model, *texts, **asked)
    count_tokens(trainer, leads[1], mask_RT[:, -length - 1 :])
    return score_from_leads(trainer, score, model, texts, leads, **asked)


def why_apart(trainer: GRPOTrainer, model: Any) -> str:
    """Why the prompt of each row is computed; "" where equal prompts are computed once."""
    config = model.config
    text_config = config.get_text_config()
    layers = DynamicCache(config=config).layers
    is_plain = all(type(layer) is DynamicLayer for layer in layers) and not model._is_stateful
    is_sharded = trainer.accelerator.distributed_type not in WHOLE_WEIGHTS
    reasons = {
        trainer.prompts_differ: bool(trainer.prompts_differ),
        "gradient_checkpointing keeps no keys and values": model.is_gradient_checkpointing,
        "use_liger_kernel is on": trainer.args.use_liger_kernel,
        "dropout would be that of one rollout": has_dropout(model),
        "the model also takes images": text_config is not config,
        "the model's cache is not plain keys and values of all tokens": not is_plain,
        "the loss of routers counts all tokens": trainer.aux_loss_enabled,
        "weights are sharded": is_sharded,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def has_dropout(model: nn.Module) -> bool:
    """Whether any module drops values at random while it trains."""
    return model.training and any(
        (isinstance(module, nn.Dropout) and module.p > 0)
        or float(getattr(module, "attention_dropout", None) or 0) > 0
        for module in model.modules()
    )


def distinct_leads(ids_RT: Tensor, mask_RT: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """The different prompts but for their last token: ids (P, T), masks (P, T), and whose (R,)."""
    lead = ids_RT.size(1) - length - 1
    both_RT = torch.cat([ids_RT[:, :lead], mask_RT[:, :lead]], dim=1)
    both_PT, lead_R = torch.unique(both_RT, dim=0, return_inverse=True)
    return both_PT[:, :lead], both_PT[:, lead:], lead_R


def score_from_leads(
    trainer: GRPOTrainer,
    score: Callable[..., TokenLogps],
    model: nn.Module,
    texts: tuple[Tensor, Tensor, int],
    leads: tuple[Tensor, Tensor, Tensor],
    **asked: bool,
) -> TokenLogps:
    """TRL's log-probabilities, where the keys and values of `leads` are computed once."""
    ids_RT, mask_RT, length = texts
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
    after_T = torch.arange(length + 1, device=ids_RT.device)

    def go_on(**inputs: Any) -> Any:
        """The model, as TRL calls it, after the leads."""
        inputs["attention_mask"] = mask_RT
        inputs["position_ids"] = first_R[:, None] + after_T
        return model(**inputs, past_key_values=cache)

    rest = slice(-length - 1, None)
    return score(go_on, ids_RT[:, rest], mask_RT[:, rest], length, **asked)


def difference(
    trainer: GRPOTrainer,
    score: Callable[..., TokenLogps],
    model: nn.Module,
    texts: tuple[Tensor, Tensor, int],
    leads: tuple[Tensor, Tensor, Tensor],
) -> str:
    """What differs between the two ways by more than rounding; "" for nothing.

    Mean log-probabilities, and where there are gradients those of the lowest weights, which need
    all that is above them. One way after the other, so that memory holds one at a time.
    """
    wanted_R, wanted = mean_logps(model, texts, score(model, *texts)[0])
    logps_R, grad = mean_logps(
        model, texts, score_from_leads(trainer, score, model, texts, leads)[0]
    )
    is_short = trainer.accelerator.mixed_precision != "no" or model.dtype != torch.float32
    of_gradient, of_logps = ROUNDING["16 bits" if is_short else "32 bits"]
    # each so that NaN counts as a difference
    gap = float((grad - wanted).norm() / wanted.norm().clamp(min=1e-30))
    if not gap <= of_gradient:
        return f"their gradient would differ from TRL's by {gap:.2g} of it"
    gap = float((logps_R - wanted_R).abs().mean())
    if not gap <= of_logps:
        return f"their log-probabilities would differ from TRL's by {gap:.2g}"
    return ""


def mean_logps(
    model: nn.Module, texts: tuple[Tensor, Tensor, int], logps_RT: Tensor
) -> tuple[Tensor, Tensor]:
    """The mean of each row, (R,), and its gradient by a few of the model's lowest weights."""
    mask_RT = texts[1][:, -texts[2] :]
    logps_R = (logps_RT * mask_RT).sum(dim=1) / mask_RT.sum(dim=1).clamp(min=1)
    if not torch.is_grad_enabled():
        return logps_R, logps_R.new_zeros(1)
    embeddings = set(model.get_input_embeddings().parameters())
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    layers = [weight for weight in weights if weight not in embeddings]
    # four: with LoRA every second one has a gradient of 0 at the start
    chosen = (layers or weights)[:4]
    grads = torch.autograd.grad(logps_R.mean(), chosen, materialize_grads=True)
    return logps_R.detach(), torch.cat([grad.flatten().float() for grad in grads])
