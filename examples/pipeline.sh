#!/usr/bin/env bash
# Run the pipeline command by command, and read its results with jq. It takes six minutes on two cores; needs ccot and
# jq. So few problems of so many kinds teach φ next to nothing: it shows the commands. `ccot demo` learns easier ones.
set -euo pipefail

run=${1:-ccot-example}
[ -e "$run/ccot.yaml" ] || ccot init "$run"
export CCOT_WORKSPACE=$run

ccot precompute --limit 1000
ccot score
ccot train-phi
ccot train-psi
ccot train-baseline direct

ccot eval --limit 200 --format json | jq -r '.rows[] | [.method, .ratio, .accuracy, .seconds_median] | @tsv'

printf '%s\n' \
  '{"id": "a", "question": "Mia has 12 pens. She buys 7 more and gives away 4. How many pens does Mia have now?"}' \
  '{"id": "b", "question": "Hugo has 42 stickers. Hugo uses 9 of the stickers. Hugo buys 4 more stickers. How many stickers does Hugo have?"}' |
  ccot ask --input - --ratio 0.3 | jq -r '[.id, .answer, .contemplation_tokens] | @tsv'
