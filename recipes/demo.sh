#!/bin/sh
# The whole product on this machine, without a network: corpus, plan, shards, validation, report, training, plot, samples.
# Called by `make demo` with PYTHON set. A second run skips what is already complete.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}

CORPUS=out/demo-corpus
SHARDS=out/demo
RUN=out/demo-run

step=0
headline() {
    step=$((step + 1))
    printf '\n== %d. %s\n' "$step" "$1"
}
run() {
    printf '$ tokenmill %s\n' "$*"
    "$PYTHON" -m tokenmill "$@"
}

headline "Gather real text from this Python installation: prose, mathematics, code"
run demo-corpus "$CORPUS"

headline "Plan: what the build will read and write"
run plan recipes/data/demo.toml

headline "Build: train the tokenizer, encode, mix 87/10/3 by tokens, write the shards"
run build recipes/data/demo.toml --out "$SHARDS"

headline "Validate: every checksum, every id, every document, every mix share"
run validate "$SHARDS"

headline "Inspect: what is in the set"
run inspect "$SHARDS"

headline "Report: an HTML page, a dataset card, and an audit of the tokens"
run report "$SHARDS"

headline "Train: 1.4 million parameters for about a minute on the CPU"
run train recipes/train/demo.toml --shards "$SHARDS" --run "$RUN"

headline "Plot: losses, scores, learning rate and throughput, by phase"
run plot "$RUN"

headline "Sample: what the model writes after one minute of training"
for prompt in "Return the number of" "The following methods can be defined to" "import os"; do
    printf '$ tokenmill sample %s --max-new-tokens 100 --prompt "%s"\n' "$RUN" "$prompt"
    "$PYTHON" -m tokenmill sample "$RUN" --max-new-tokens 100 --prompt "$prompt"
done

headline "What to look at next"
cat <<EOF
  $SHARDS/manifest.json            the requested and achieved mix
  $SHARDS/train-00000.docs.parquet the source of every document in a shard
  $SHARDS.report/index.html        the set as an HTML page: mix, tokenizer, lengths, audit, samples
  $RUN/metrics.jsonl        loss, tokens per second and validation loss by source, at each step
  $RUN/metrics.png          the same, plotted

  tokenmill compare $RUN out/other-run --out out/comparison    compares two runs: scores, cost, recipes, curves
  tokenmill inspect $SHARDS --shard train-00000 --document 0    decodes a document from its tokens
  tokenmill build recipes/data/demo.toml --out $SHARDS        builds again: there is nothing left to do
  tokenmill build recipes/data/demo.toml --out out/demo-half --set mix.tokens=1_000_000
  docs/data.md                              how to write a recipe for your files
  shards/FORMAT.md                          the format of a shard set
EOF
