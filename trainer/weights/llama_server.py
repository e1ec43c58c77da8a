"""llama.cpp's server for one GGUF file, in a process of its own: `llama_server.py FILE CONTEXT`.

It prints its address and runs until its standard input ends. Keys and values are kept in float32, as ours are.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportAttributeAccessIssue=false, reportUnknownArgumentType=false
import sys

import xllamacpp

if __name__ == "__main__":
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx = sys.argv[1], int(sys.argv[2])
    params.n_parallel, params.warmup, params.use_jinja = 1, False, True
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.n_gpu_layers, params.prefill_assistant = 0, False
    server = xllamacpp.Server(params)
    print(str(server.listening_address), flush=True)
    sys.stdin.read()
