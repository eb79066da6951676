#!/usr/bin/env bash
# The pipeline, command by command, and its results in shell pipelines. Minutes on a laptop; needs ccot and jq.
set -euo pipefail

run=${1:-ccot-example}
[ -e "$run/ccot.yaml" ] || ccot init "$run"
export CCOT_WORKSPACE=$run

ccot precompute --limit 1000
ccot score --ratio 0.05 --ratio 0.1
ccot train-phi --ratio 0.05 --ratio 0.1
ccot train-psi --ratio 0.05 --ratio 0.1
ccot train-baseline direct

ccot eval --limit 200 --format json | jq -r '.rows[] | [.method, .ratio, .accuracy, .seconds_median] | @tsv'

printf '%s\n' \
  '{"id": "a", "question": "Mia has 12 pens. Mia buys 7 more pens. How many pens does Mia have?"}' \
  '{"id": "b", "question": "Ben has 20 coins. Ben gives 8 coins to a friend. How many coins does Ben have?"}' |
  ccot ask --input - --ratio 0.1 | jq -r '[.id, .answer, .contemplation_tokens] | @tsv'
