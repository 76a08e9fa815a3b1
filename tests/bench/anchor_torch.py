"""PyTorch on the same CPU: prefill and decode of a llama model whose weights are decoded from the same GGUF file.

usage: anchor_torch.py MODEL.gguf IDS_FILE threads decode repetitions f32|bf16
A forward of its own rather than a library's: fewer Python steps per layer, weights of q, k, v and of gate, up joined,
cache preallocated; what remains is PyTorch's own kernels. Prints torch_<precision>_{prefill,decode} in tokens/s, medians,
torch_<precision>_next, and torch_version."""
import os
import statistics
import sys
import time

import gguf
import numpy as np
import torch
import torch.nn.functional as F

now = time.process_time if os.environ.get("MLA_BENCH_CLOCK") == "cpu" else time.perf_counter
path, ids_file, threads, n_decode, reps, precision = sys.argv[1:7]
torch.set_num_threads(int(threads))
dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[precision]
reader = gguf.GGUFReader(path)
field = lambda key: reader.fields[key].contents()
layers, heads, kv_heads = field("llama.block_count"), field("llama.attention.head_count"), field("llama.attention.head_count_kv")
hidden, eps, base = field("llama.embedding_length"), field("llama.attention.layer_norm_rms_epsilon"), field("llama.rope.freq_base")
dim = hidden // heads
tensors = {t.name: t for t in reader.tensors}


def weight(name):
    t = tensors[name]
    return torch.from_numpy(np.array(gguf.quants.dequantize(t.data, t.tensor_type), dtype=np.float32, copy=True))


def unpermute(w, n):  # GGUF stores rotary pairs side by side, the halves belong apart
    return w.reshape(n, dim // 2, 2, hidden).transpose(1, 2).reshape(n * dim, hidden)


class Layer:
    def __init__(self, i, capacity):
        part = lambda s: weight(f"blk.{i}.{s}.weight")
        self.qkv = torch.cat([unpermute(part("attn_q"), heads), unpermute(part("attn_k"), kv_heads), part("attn_v")]).to(dtype)
        self.out, self.down = part("attn_output").to(dtype), part("ffn_down").to(dtype)
        self.gate_up = torch.cat([part("ffn_gate"), part("ffn_up")]).to(dtype)
        self.norm1, self.norm2 = part("attn_norm").to(dtype), part("ffn_norm").to(dtype)
        self.k = torch.zeros(1, kv_heads, capacity, dim, dtype=dtype)
        self.v = torch.zeros_like(self.k)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def forward(model, embed, norm, ids, pos, cos, sin):
    """Logits of the last token of ids, which stand at positions pos.. (everything before is cached)."""
    x, T = embed[ids], len(ids)
    c, s = cos[pos : pos + T], sin[pos : pos + T]
    for l in model:
        h = F.linear(F.rms_norm(x, (hidden,), l.norm1, eps), l.qkv)
        q, k, v = (p.view(1, T, -1, dim).transpose(1, 2) for p in h.split([heads * dim, kv_heads * dim, kv_heads * dim], -1))
        l.k[:, :, pos : pos + T], l.v[:, :, pos : pos + T] = rotate(k, c, s), v
        o = F.scaled_dot_product_attention(rotate(q, c, s), l.k[:, :, : pos + T], l.v[:, :, : pos + T], is_causal=T > 1, enable_gqa=True)
        x = x + F.linear(o.transpose(1, 2).reshape(T, -1), l.out)
        g, u = F.linear(F.rms_norm(x, (hidden,), l.norm2, eps), l.gate_up).chunk(2, -1)
        x = x + F.linear(F.silu(g) * u, l.down)
    return F.linear(F.rms_norm(x[-1:], (hidden,), norm, eps), embed)[0]


with torch.inference_mode():
    prompt = torch.tensor([int(l) for l in open(ids_file)])
    total = len(prompt) + int(n_decode) + 1
    model = [Layer(i, total) for i in range(layers)]
    embed, norm = weight("token_embd.weight").to(dtype), weight("output_norm.weight").to(dtype)
    angle = torch.arange(total)[:, None] * base ** (-torch.arange(0, dim, 2) / dim)[None, :]
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    prefill, decode = [], []
    for r in range(int(reps) + 1):  # the first one warms up
        t = now()
        first = ids = forward(model, embed, norm, prompt, 0, cos, sin).argmax()[None]
        prefill.append(len(prompt) / (now() - t))
        t = now()
        for i in range(int(n_decode)):
            ids = forward(model, embed, norm, ids, len(prompt) + i, cos, sin).argmax()[None]
        decode.append(int(n_decode) / (now() - t))
print(f"torch_{precision}_prefill {statistics.median(prefill[1:]):.6g}")
print(f"torch_{precision}_decode {statistics.median(decode[1:]):.6g}")
print(f"torch_{precision}_next {int(first)}")
print(f"torch_version {torch.__version__}")
