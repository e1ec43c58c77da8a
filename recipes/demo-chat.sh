#!/bin/sh
# From a base model to one that answers in llama.cpp, without a network: the demo's set and model, conversations, training
# from the base model's weights, a question, a GGUF file with its proof.
# Called by `make demo-chat` with PYTHON set. A second run skips what is already complete.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}

run() {
    printf '\n$ tokenmill %s\n' "$*"
    "$PYTHON" -m tokenmill "$@"
}

run build demo --out out/demo
run train demo --shards out/demo --run out/demo-run
run build chat-demo --out out/chat-demo
run inspect out/chat-demo --shard train-00000 --document 1
run train chat-demo --shards out/chat-demo --run out/chat-demo-run --weights out/demo-run
run sample out/chat-demo-run --chat --temperature 0.3 --prompt "What is json.dumps?"
[ -e out/chat-demo-gguf ] || run export-model out/chat-demo-run --to gguf --out out/chat-demo-gguf
cat <<EOF

  llama-server -m out/chat-demo-gguf/model.gguf                          serve it; export.json beside it says what is proved
  tokenmill sample out/chat-demo-run --chat                              talk with it
  tokenmill export-model out/chat-demo-run --to hf --out out/chat-demo-hf    the model and its chat template
  docs/chat.md                                                           conversations of your own
EOF
