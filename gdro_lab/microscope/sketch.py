"""Gradients of log-probabilities, text by text, as sketches of a few thousand numbers.

The gradient of a text with respect to the weight of a linear layer is Σ_t δ_t x_tᵀ, with x_t the
layer's input at token t and δ_t the derivative with respect to its output. Its sketch is
Pᵀ (Σ_t δ_t x_tᵀ) Q, where P and Q have `width` columns of random signs over √width; a text's sketch
is the sum over layers, each with signs of its own. Inner products of sketches are unbiased for
those of the whole gradients, since E[P Pᵀ] and E[Q Qᵀ] are identities. Gradients of weights are
never formed: only activations are differentiated.

Axes: N texts, T tokens, V vocabulary, S numbers of a sketch.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear

TOKENS = 1024  # of the texts that are computed at once, with their prompts: more is not faster
LOGITS = 2**25  # of these texts: 128 MB

Model = Any  # a causal model of transformers with `model` and `lm_head`, such as Llama or Qwen3


class Sketcher:
    """Sketches the gradients of a model's linear layers, those of the vocabulary left out.

    The model's weights are frozen, and its layers get hooks.

    Args:
        model: in float32.
        width: a sketch has width² numbers.
        seed: of the signs.
    """

    def __init__(self, model: Model, width: int, seed: int) -> None:
        self.model = model.requires_grad_(False)
        self.width = width
        self.vocabulary = model.config.vocab_size
        self._sketch_NAA: Tensor | None = None  # of the texts that are being computed
        generator = torch.Generator().manual_seed(seed)
        for layer in model.model.modules():
            if isinstance(layer, Linear):
                left = self._signs(layer.out_features, generator)
                right = self._signs(layer.in_features, generator)
                layer.register_forward_hook(self._hook(left, right))

    def _signs(self, rows: int, generator: torch.Generator) -> Tensor:
        """Random signs over √width, (rows, width)."""
        bits = torch.randint(0, 2, (rows, self.width), generator=generator)
        return ((2 * bits - 1) / self.width**0.5).to(self.model.device)

    def _hook(self, left: Tensor, right: Tensor) -> Any:
        """A forward hook that adds the layer's part to the sketch when the backward pass comes."""

        def forward(layer: Linear, inputs: tuple[Tensor], output: Tensor) -> None:
            if not output.requires_grad:
                return
            input_NTA = inputs[0].detach() @ right

            def backward(delta: Tensor) -> None:
                assert self._sketch_NAA is not None
                delta_NTA = delta @ left
                self._sketch_NAA += delta_NTA.transpose(1, 2) @ input_NTA

            output.register_hook(backward)

        return forward

    def __call__(self, prompt_T: Tensor, text_NT: Tensor, length_N: Tensor) -> Tensor:
        """Sketches of texts that follow one prompt, (N, S).

        Args:
            prompt_T: its tokens.
            text_NT: tokens of the texts, whatever behind their ends.
            length_N: tokens of each text.
        """
        sketches = [
            self._chunk(prompt_T, text_NT[chunk_N], length_N[chunk_N])
            for chunk_N in self._chunks(len(prompt_T), length_N)
        ]
        back_N = length_N.argsort(stable=True).argsort()
        return torch.cat(sketches)[back_N]

    def _chunks(self, prompt_tokens: int, length_N: Tensor) -> list[Tensor]:
        """Places of texts that are computed at once: of like lengths, so with little padding."""
        chunks: list[list[int]] = [[]]
        for place in length_N.argsort(stable=True).tolist():
            count = len(chunks[-1]) + 1
            longest = int(length_N[place])
            tokens = count * (prompt_tokens + longest)
            if count > 1 and max(tokens / TOKENS, count * longest * self.vocabulary / LOGITS) > 1:
                chunks.append([])
            chunks[-1].append(place)
        return [torch.tensor(chunk, device=length_N.device) for chunk in chunks]

    def _chunk(self, prompt_T: Tensor, text_NT: Tensor, length_N: Tensor) -> Tensor:
        """The same for texts that are computed at once."""
        longest = int(length_N.max())
        text_NT = text_NT[:, :longest].clamp(min=0)
        mask_NT = torch.arange(longest, device=text_NT.device) < length_N[:, None]
        # without the last token, from which nothing is predicted
        ids_NT = torch.cat([prompt_T.expand(len(text_NT), -1), text_NT[:, :-1]], dim=1)
        self._sketch_NAA = torch.zeros(len(ids_NT), self.width, self.width, device=ids_NT.device)
        # activations are differentiated from here on
        embedded = self.model.get_input_embeddings()(ids_NT).requires_grad_(True)
        hidden = self.model.model(inputs_embeds=embedded, use_cache=False).last_hidden_state
        logits_NTV = self.model.lm_head(hidden[:, len(prompt_T) - 1 :])
        logps_NTV = logits_NTV.log_softmax(dim=-1)
        logps_NT = logps_NTV.gather(-1, text_NT[..., None])[..., 0]
        (logps_NT * mask_NT).sum().backward()
        return self._sketch_NAA.flatten(1)
