"""llama.cpp's own server on the loopback, from its Python wheel. usage: serve_llama.py MODEL.gguf PORT_FILE CONTEXT [f32: its cache]"""
import os
import sys
import time

import xllamacpp as x

p = x.CommonParams()
p.model.path = sys.argv[1]
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1  # shared machines: its threads spin
p.n_gpu_layers = 0
p.n_parallel = 1
p.n_ctx = int(sys.argv[3])
p.verbosity = 0
p.port = 0
if sys.argv[4:] == ["f32"]:
    p.cache_type_k = p.cache_type_v = x.ggml_type.GGML_TYPE_F32
server = x.Server(p)
url = server.listening_address
tmp = sys.argv[2] + ".tmp"
with open(tmp, "w", encoding="utf-8") as f:
    f.write(url)
os.rename(tmp, sys.argv[2])
while True:
    time.sleep(1)
