#!/bin/sh
# From the demo corpus to an answer, without a network: conversations, their targets, training on packed rows, a question.
# Called by `make demo-chat` with PYTHON set. A second run skips what is already complete.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}

run() {
    printf '\n$ tokenmill %s\n' "$*"
    "$PYTHON" -m tokenmill "$@"
}

run build chat-demo --out out/chat-demo
run inspect out/chat-demo --shard train-00000 --document 1
run train chat-demo --shards out/chat-demo --run out/chat-demo-run
run sample out/chat-demo-run --chat --temperature 0.3 --prompt "What is json.dumps?"
cat <<EOF

  tokenmill sample out/chat-demo-run --chat                              talk with it
  tokenmill export-model out/chat-demo-run --to hf --out out/chat-demo-hf    the model and its chat template
  docs/chat.md                                                           conversations of your own
EOF
