#!/bin/bash
# Six steps of verl with gdro on a CPU, in two to five minutes: rollout groups of several sizes.
#
#   make .venv-verl/ready && examples/verl_cpu.sh        # into runs/verl-cpu; or examples/verl_cpu.sh FOLDER
#
# A random model of two layers learns nothing here: the script shows that all parts work together. verl
# has no CPU of its own, so a platform and an engine of tests/verl take the places of a GPU and vLLM.
# The data have a column of pass rates that were measured before, by which the first step is planned.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
python=$PWD/.venv-verl/bin/python
run=$(mkdir -p "${1:-runs/verl-cpu}" && cd "${1:-runs/verl-cpu}" && pwd)
temporary=$(mktemp -d) # Ray's sockets need a short path
trap 'rm -rf "$temporary"' EXIT

export PYTHONPATH=$PWD:$PWD/tests:$PWD/tests/verl OMP_NUM_THREADS=1
export VERL_USE_EXTERNAL_MODULES=verl_on_cpu HF_HUB_OFFLINE=1
export RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=disabled RAY_enable_worker_prestart=0

"$python" tests/verl/make_run.py "$run"
mapfile -t options < tests/verl/options.txt
cd "$run" # where Hydra writes too
"$python" -m verl.trainer.main_ppo --config-path=pkg://gdro.verl --config-name=gdro "${options[@]}" \
    gdro.method=rollout_prompts \
    gdro.pass_rate_column=pass_rate \
    data.train_files="$run/train.parquet" \
    data.val_files="$run/held_out.parquet" \
    actor_rollout_ref.model.path="$run/model" \
    actor_rollout_ref.rollout.agent.num_workers=1 \
    reward.custom_reward_function.path="$root/tests/verl/verl_reward.py" \
    trainer.n_gpus_per_node=1 \
    trainer.total_training_steps=6 \
    trainer.default_local_dir="$run" \
    trainer.rollout_data_dir="$run/rollouts" \
    +ray_kwargs.ray_init.num_gpus=1 \
    +ray_kwargs.ray_init._temp_dir="$temporary" > "$run/log.txt" 2>&1 ||
    { tail -n 30 "$run/log.txt"; exit 1; }

"$python" - "$run/rollouts" << 'PYTHON'
import json, sys
from collections import Counter
from pathlib import Path

for step in range(1, 7):
    lines = Path(sys.argv[1], f"{step}.jsonl").read_text().split("\n")
    sizes = Counter(json.loads(line)["input"] for line in lines if line)
    print(f"step {step}: {sizes.total()} rollouts, by prompt", sorted(sizes.values()))
PYTHON
