"""llama.cpp on the same CPU through its Python wheel: prefill and decode of the quantized file itself.

usage: anchor_llama.py MODEL.gguf IDS_FILE threads decode repetitions
Prints llama_{prefill,decode} in tokens/s (llama.cpp's own timings of wall time), medians, llama_next and llama_version."""
import importlib.metadata
import json
import os
import statistics
import sys
import time

import xllamacpp as x

path, ids_file, threads, n_decode, reps = sys.argv[1:6]
prompt = [int(l) for l in open(ids_file)]
p = x.CommonParams()
p.model.path = path
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = int(threads)
p.n_gpu_layers = 0
p.n_parallel = 1
p.n_ctx = len(prompt) + int(n_decode) + 64
p.n_batch = p.n_ubatch = 512
p.verbosity = 0
server = x.Server(p)


def ask(n):
    out = server.handle_completions({"prompt": prompt, "n_predict": n, "temperature": 0, "cache_prompt": False, "ignore_eos": True, "n_probs": 1})
    out = json.loads(out) if isinstance(out, (str, bytes)) else out
    t = out["timings"]
    assert t["prompt_n"] == len(prompt), f"llama.cpp processed {t['prompt_n']} prompt tokens of {len(prompt)}"
    assert t["predicted_n"] == n, f"llama.cpp predicted {t['predicted_n']} tokens of {n}"
    return out, t


prefill, decode = [], []
for r in range(int(reps) + 1):  # the first one warms up
    if os.environ.get("MLA_BENCH_CLOCK") == "cpu":  # its own timings are wall time: take differences of CPU time instead
        marks = [time.process_time()]
        for n in (1, int(n_decode) + 1):
            out, t = ask(n)
            marks.append(time.process_time())
        first, both = marks[1] - marks[0], marks[2] - marks[1]
        prefill.append(len(prompt) / first)
        decode.append(int(n_decode) / (both - first))
    else:
        out, t = ask(int(n_decode))
        prefill.append(t["prompt_per_second"])
        decode.append(t["predicted_per_second"])
print(f"llama_prefill {statistics.median(prefill[1:]):.6g}")
print(f"llama_decode {statistics.median(decode[1:]):.6g}")
first = (out["choices"][0].get("logprobs") or {}).get("content") or []
if first:
    print(f"llama_next {first[0]['id']}")
print(f"llama_version xllamacpp {importlib.metadata.version('xllamacpp')}")
