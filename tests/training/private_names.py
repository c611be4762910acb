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
    use: str
    """What it is to us."""
    signatures: tuple[str, ...] = ()
    """Parameters of a function without their types, in the versions above; () for an attribute."""
    owner: str = TRAINER
    """The class or module that has it."""


PRIVATE_NAMES = (
    # a generation batch
    PrivateName(
        "_generate_and_score_completions",
        "overridden: the batch is planned before it, and advantages are replaced after it",
        ("(self, inputs)",),
    ),
    PrivateName(
        "_prepare_inputs", "overridden: the rows are ordered", ("(self, generation_batch)",)
    ),
    PrivateName("_buffered_inputs", "set: micro-batches of a generation, in our order"),
    PrivateName(
        "_generate",
        "called for each round, and replaced where rollouts were sampled before",
        ("(self, prompts)",),
    ),
    PrivateName(
        "_generate_single_turn",
        "overridden: rows are sampled one by one, and timed",
        ("(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False)",),
    ),
    PrivateName(
        "_calculate_rewards",
        "overridden: uids go to the rewards that take them; called for each round, and replaced "
        "while TRL's step runs, to keep or to give rewards",
        ("(self, inputs, prompts, completions, completion_ids_list)",),
    ),
    PrivateName("_pending_extra_logs", "columns of `log_extra`, by rollout"),
    # the loss
    PrivateName(
        "_compute_loss",
        "overridden: it gets the rows and columns that have a gradient",
        ("(self, model, inputs)",),
    ),
    PrivateName(
        "_get_per_token_logps_and_entropies",
        "overridden: each prompt is computed once, and rows of similar length together",
        (
            "(self, model, *args, batch_size=None, compute_aux_loss=False, **kwargs)",
            "(self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, "
            "compute_entropy=False, compute_aux_loss=False, pixel_values=None, "
            "image_grid_thw=None, num_images=None, pixel_attention_mask=None, "
            "spatial_shapes=None, num_tiles=None, image_sizes=None, token_type_ids=None, "
            "mm_token_type_ids=None, image_position_ids=None)",
        ),
    ),
    PrivateName("_entropy_bonus_enabled", "whether rows without an advantage train too"),
    PrivateName("_load_best_model", "called where the last step was done before", ("(self)",)),
    PrivateName("_tokenizer", "of the processing class, which may be a processor"),
    # logs and the model card
    PrivateName("_metrics", "numbers of the log, by mode and name"),
    PrivateName("_logs", "columns of the table of completions"),
    PrivateName("_name", "set: the method, on the model card"),
    PrivateName("_paper", "set: the paper, on the model card"),
    PrivateName("_tag_names", "set: tags of the model card"),
    # data, checkpoints and resuming
    PrivateName(
        "_set_signature_columns_if_needed",
        "replaced while the data loader is made: uids of a stream are not removed",
        ("(self)",),
    ),
    PrivateName(
        "_remove_unused_columns",
        "transformers': replaced while the data loader is made: rows get their uids",
        ("(self, dataset, description=None)",),
    ),
    PrivateName("_signature_columns", "the columns that are not removed"),
    PrivateName(
        "_get_train_sampler",
        "replaced while the data loader is made: kept, and advanced on resuming",
        ("(self, dataset=None)",),
    ),
    PrivateName(
        "_save_checkpoint",
        "overridden: our state before it",
        ("(self, model, trial)",),
    ),
    PrivateName(
        "_maybe_log_save_evaluate",
        "transformers': overridden: the ledger after it",
        (
            "(self, tr_loss, grad_norm, model, trial, epoch, ignore_keys_for_eval, start_time, "
            "learning_rate=None)",
        ),
    ),
    PrivateName(
        "_load_optimizer_and_scheduler",
        "overridden: our state after it",
        ("(self, checkpoint)",),
    ),
    PrivateName(
        "_load_from_checkpoint",
        "transformers': called where there is nothing left to train",
        ("(self, resume_from_checkpoint, model=None)",),
    ),
    PrivateName(
        "_get_output_dir",
        "transformers': called, for the folder of a checkpoint",
        ("(self, trial)",),
    ),
    PrivateName("_step", "micro-batches so far, which say whether a batch is used up"),
    # arguments
    PrivateName("_VALID_DICT_FIELDS", "options that a command line gives as JSON", owner=ARGUMENTS),
    PrivateName("_n_gpu", "transformers': set in gdro_lab, one GPU a process", owner=ARGUMENTS),
    # vLLM on a CPU
    PrivateName(
        "LLM",
        "replaced in gdro_lab, for an engine on a CPU",
        owner="trl.generation.vllm_generation",
    ),
)
