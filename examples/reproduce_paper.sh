#!/usr/bin/env bash
# Run the paper's experiment (Table 2): LLaMA2-7b-chat on GSM8K; CCoT and PAUSE at r = 0.05 and 0.10; r = 0 and r = 1.
#
#     examples/reproduce_paper.sh [DIR]              on a GPU with 80 GB; needs access to meta-llama on Hugging Face
#     examples/reproduce_paper.sh --dry-run [DIR]    prints the commands and their estimated cost, and runs nothing
#
# After a stop, the same command continues from the last shard or checkpoint. The costs below are computed, not
# measured. They assume 7,473 problems of about 65 tokens with chains of about 90, 33 indices of 4,096 numbers in 16
# bits, 6.7 billion weights, 9 MB of activations for each token that a gradient passes, and a GPU with 100 trillion
# useful operations a second, a third of an A100's peak.
set -euo pipefail

is_dry=
[ "${1:-}" = --dry-run ] && is_dry=1 && shift
run=${1:-ccot-paper}

stage() {  # stage "what it needs" COMMAND ...
  printf '# %s\n$ %s\n' "$1" "${*:2}"
  [ -n "$is_dry" ] || "${@:2}"
}

[ -e "$run/ccot.yaml" ] || stage "a workspace with the experiment's settings" ccot init "$run" --preset gsm8k-llama2-7b
export CCOT_WORKSPACE=$run
printf '$ export CCOT_WORKSPACE=%s\n' "$run"

stage "downloads 13.5 GB and checks that the model works" ccot doctor --model meta-llama/Llama-2-7b-chat-hf
stage "3 minutes of computing, 190 GB of disk (--max-disk 10 keeps one index; score then runs the model once more)" \
  ccot precompute
stage "15 minutes: 400 steps of the scorer, which serves both ratios; 60 GB on the GPU; 12 and 20 GB of disk" \
  ccot score --ratio 0.05 --ratio 0.1
stage "minutes each: 3 epochs for each of 32 layers, on selected tokens only; 20 GB of memory, 20 GB on the GPU" \
  ccot train-phi --ratio 0.05 --ratio 0.1
stage "15 minutes each; 20 GB on the GPU" ccot train-psi --ratio 0.05 --ratio 0.1
stage "15 minutes each; 40 GB on the GPU: gradients pass the query too" ccot train-baseline pause --ratio 0.05 --ratio 0.1
stage "15 minutes; 40 GB on the GPU" ccot train-baseline direct
stage "35 minutes; 60 GB on the GPU: the chain is learned too" ccot train-baseline cot
stage "minutes, most of them for the explicit chain; 1,319 test problems" \
  ccot eval --format markdown --plot "$run/frontier.svg"
