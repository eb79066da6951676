#!/usr/bin/env bash
# Train comparisons that need many small φ: hours on two cores. A stopped run continues. The tables of docs/studies.md
# were made by these commands on θ-tiny, the earlier model in the package.
#
#     examples/ablations.sh             # in build/ablation
#     examples/ablations.sh FOLDER
#
# With problems of two and three steps and few passes, a cell takes six minutes on one core, or fifteen if a scorer is
# trained. Every cell has three seeds.
set -euo pipefail

run=${1:-build/ablation}
if [ ! -e "$run/ccot.yaml" ]; then
  mkdir -p "$run"
  cat > "$run/ccot.yaml" <<'YAML'
data:
  limit: 4000
  validation_limit: 500
  steps: [2, 3]
train_phi:
  taught_epochs: 8
  epochs: 4
train_psi:
  epochs: 3
YAML
fi
export CCOT_WORKSPACE=$run
seeds=(--seed 0 --seed 1 --seed 2)

ccot precompute

# Which tokens φ imitates, and how it is trained; the paper's choices are `learned` and `layerwise`.
selectors=(--selector predictive --selector even --selector learned)
ccot sweep --ratio 0.1 "${selectors[@]}" --schedule joint --schedule layerwise "${seeds[@]}"

# Layers of φ that learn with ψ; the paper's is `above`.
ccot sweep --ratio 0.1 --unfreeze none --unfreeze above "${seeds[@]}"

# The layer that is fed back (the paper's appendix), and the number of tokens (where accuracy stops growing).
ccot sweep --ratio 0.1 --layer 3 --layer 5 --layer 7 --layer 8 "${seeds[@]}"
ccot sweep --ratio 0.05 --ratio 0.1 --ratio 0.2 --ratio 0.3 --ratio 0.5 "${seeds[@]}"

# Every method, on test problems.
methods=(--method ccot --method direct --method pause --method filler --method short-cot --method icot)
ccot sweep --ratio 0.1 "${methods[@]}" --method coconut --method cot --method gold "${seeds[@]}" --test 1000

# Baselines with as many steps as CCoT's φ and ψ together.
ccot sweep --ratio 0.1 --epochs 15 --method direct --method pause --method coconut "${seeds[@]}" --test 1000
