"""Every private name of TRL and transformers that `gdro.trl` overrides, calls or sets.

A private name may change in any release. test_private_names.py looks at each of them in the
packages that are installed, and fails by its name where it has changed; it also finds names that
are used and not listed here. To take a new TRL: run it, read what changed, and add the
signature. The names are those of TRL 1.14.2 and 1.16.0 and of transformers 5.17.0.
"""

from typing import NamedTuple

TRAINER = "trl.GRPOTrainer"
ARGUMENTS = "trl.GRPOConfig"


class PrivateName(NamedTuple):
    """A name that a package calls private."""

    name: str
    signatures: tuple[str, ...] = ()
    """Parameters of a function without their types, in the versions above; () for an attribute."""
    owner: str = TRAINER
    """The class or module that has it."""


PRIVATE_NAMES = (
    # a generation batch
    PrivateName("_generate_and_score_completions", ("(self, inputs)",)),
    PrivateName("_prepare_inputs", ("(self, generation_batch)",)),
    PrivateName("_buffered_inputs"),
    PrivateName("_generate", ("(self, prompts)",)),
    PrivateName(
        "_generate_single_turn",
        ("(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False)",),
    ),
    PrivateName(
        "_calculate_rewards", ("(self, inputs, prompts, completions, completion_ids_list)",)
    ),
    PrivateName("_pending_extra_logs"),
    # the loss
    PrivateName("_compute_loss", ("(self, model, inputs)",)),
    PrivateName(
        "_get_per_token_logps_and_entropies",
        (
            "(self, model, *args, batch_size=None, compute_aux_loss=False, **kwargs)",
            "(self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, "
            "compute_entropy=False, compute_aux_loss=False, pixel_values=None, "
            "image_grid_thw=None, num_images=None, pixel_attention_mask=None, "
            "spatial_shapes=None, num_tiles=None, image_sizes=None, token_type_ids=None, "
            "mm_token_type_ids=None, image_position_ids=None)",
        ),
    ),
    PrivateName("_entropy_bonus_enabled"),
    PrivateName("_load_best_model", ("(self)",)),
    PrivateName("_tokenizer"),
    # logs and the model card
    PrivateName("_metrics"),
    PrivateName("_logs"),
    PrivateName("_name"),
    PrivateName("_paper"),
    PrivateName("_tag_names"),
    # data, checkpoints and resuming
    PrivateName("_set_signature_columns_if_needed", ("(self)",)),
    PrivateName("_remove_unused_columns", ("(self, dataset, description=None)",)),
    PrivateName("_signature_columns"),
    PrivateName("_get_train_sampler", ("(self, dataset=None)",)),
    PrivateName("_save_checkpoint", ("(self, model, trial)",)),
    PrivateName(
        "_maybe_log_save_evaluate",
        (
            "(self, tr_loss, grad_norm, model, trial, epoch, ignore_keys_for_eval, start_time, "
            "learning_rate=None)",
        ),
    ),
    PrivateName("_load_optimizer_and_scheduler", ("(self, checkpoint)",)),
    PrivateName("_load_from_checkpoint", ("(self, resume_from_checkpoint, model=None)",)),
    PrivateName("_get_output_dir", ("(self, trial)",)),
    PrivateName("_step"),
    # arguments
    PrivateName("_VALID_DICT_FIELDS", owner=ARGUMENTS),
    PrivateName("_n_gpu", owner=ARGUMENTS),
    # vLLM on a CPU
    PrivateName("LLM", owner="trl.generation.vllm_generation"),
)
