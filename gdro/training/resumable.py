"""Which of TRL's options a profile may set: those with which a killed run resumes to the same weights.

A list of what is known to work, since TRL has options whose state is in no checkpoint (`sync_ref_model`,
`use_adaptive_entropy`) or that leave state out of it (`save_only_model`, `ignore_data_skip`). The tests train
through a kill with them. Options that change nothing in the weights, such as those of logging, are here too.
"""

from gdro.core.checks import check_number

INF = float("inf")
UNBOUNDED = """
    per_device_train_batch_size lr_scheduler_type lr_scheduler_kwargs max_steps optim optim_args bf16 tf32
    gradient_checkpointing gradient_checkpointing_kwargs use_liger_kernel accelerator_config
    average_tokens_across_devices ddp_backend ddp_timeout ddp_bucket_cap_mb ddp_find_unused_parameters
    dataloader_pin_memory dataloader_num_workers disable_dropout shuffle_dataset pad_to_multiple_of
    sync_each_batch use_cpu model_init_kwargs cast_lm_head_to_fp32 num_generations num_iterations
    generation_kwargs chat_template_kwargs use_vllm vllm_mode vllm_model_impl vllm_enable_sleep_mode
    vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port
    vllm_max_model_length vllm_tensor_parallel_size vllm_importance_sampling_correction
    vllm_importance_sampling_mode importance_sampling_level multi_objective_aggregation scale_rewards
    loss_type mask_truncated_completions reward_weights use_bias_correction_kl top_k gdro_preset uid_column
    advantage_std trim_batches save_steps save_total_limit logging_strategy logging_steps logging_first_step
    report_to run_name log_completions log_unique_prompts num_completions_to_print disable_tqdm log_level
    eval_strategy eval_steps eval_delay eval_on_start per_device_eval_batch_size num_generations_eval
""".split()  # noqa: SIM905
# with the range of a number where TRL checks none
RESUMABLE: dict[str, tuple[float, float] | None] = {
    **dict.fromkeys(UNBOUNDED),
    "learning_rate": (0.0, 1e3),
    "warmup_steps": (0.0, INF),
    "weight_decay": (0.0, INF),
    "adam_beta1": (0.0, 1.0),
    "adam_beta2": (0.0, 1.0),
    "adam_epsilon": (0.0, INF),
    "max_grad_norm": (0.0, INF),
    "temperature": (0.0, INF),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-6, INF),
    "beta": (0.0, INF),
    "epsilon": (0.0, INF),
    "epsilon_high": (0.0, INF),
    "delta": (0.0, INF),
    "advantage_clip": (0.0, INF),
    "top_entropy_quantile": (0.0, 1.0),
    "entropy_coef": (-INF, INF),
    "sapo_temperature_neg": (0.0, INF),
    "sapo_temperature_pos": (0.0, INF),
    "off_policy_mask_threshold": (0.0, INF),
    "vllm_gpu_memory_utilization": (0.0, 1.0),
    "vllm_importance_sampling_cap": (0.0, INF),
    "vllm_importance_sampling_clip_max": (0.0, INF),
    "vllm_importance_sampling_clip_min": (0.0, INF),
}


def check_resumable(name: str, value: object) -> None:
    """Refuse (ValueError) an option that is not known to resume, and a number out of its range."""
    if name not in RESUMABLE:
        raise ValueError(
            f"{name} is no option with which a killed run is known to resume to the same weights; leave it "
            "out, or train with gdro.trainer directly"
        )
    bounds = RESUMABLE[name]
    if bounds is not None and value is not None:
        check_number(name, value, *bounds)
