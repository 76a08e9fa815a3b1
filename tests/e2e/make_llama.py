"""Writes a small random model of the llama family for the tests, with the standard library alone.

usage: make_llama.py FOLDER llama|qwen2|qwen3 [JSON with further config keys]"""
import json
import math
import os
import random
import struct
import sys

D, I, L, H, G, HEAD, V = 96, 128, 2, 6, 2, 16, 2048
folder, kind = sys.argv[1], sys.argv[2]
rng = random.Random(7)
tensors = {}


def put(name, *shape, scale=None, base=0.0):
    n = math.prod(shape)
    s = 1.5 / math.sqrt(shape[-1]) if scale is None else scale
    tensors[name] = (shape, struct.pack(f"<{n}f", *(base + s * rng.gauss(0, 1) for _ in range(n))))


put("model.embed_tokens.weight", V, D, scale=1.0)
put("model.norm.weight", D, scale=0.1, base=1)
for layer in range(L):
    p = f"model.layers.{layer}."
    put(p + "input_layernorm.weight", D, scale=0.1, base=1)
    put(p + "post_attention_layernorm.weight", D, scale=0.1, base=1)
    for name, rows, cols in (("gate", I, D), ("up", I, D), ("down", D, I)):
        put(p + f"mlp.{name}_proj.weight", rows, cols)
    for name, heads in (("q", H), ("k", G), ("v", G)):
        put(p + f"self_attn.{name}_proj.weight", heads * HEAD, D)
        if kind == "qwen2":
            put(p + f"self_attn.{name}_proj.bias", heads * HEAD, scale=0.5)
    for name in "qk" if kind == "qwen3" else "":
        put(p + f"self_attn.{name}_norm.weight", HEAD, scale=0.2, base=1)
    put(p + "self_attn.o_proj.weight", D, H * HEAD)

header, at = {}, 0
for name in sorted(tensors):
    shape, data = tensors[name]
    header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + len(data)]}
    at += len(data)
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
os.makedirs(folder, exist_ok=True)
with open(f"{folder}/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    for name in sorted(tensors):
        f.write(tensors[name][1])
config = dict(architectures=[{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}[kind]], model_type=kind,
              torch_dtype="float32", hidden_size=D, intermediate_size=I, num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=G,
              head_dim=HEAD, vocab_size=V, rms_norm_eps=1e-5, rope_theta=10000.0, max_position_embeddings=2048, tie_word_embeddings=True,
              hidden_act="silu")
config.update(json.loads(sys.argv[3]) if len(sys.argv) > 3 else {})
with open(f"{folder}/config.json", "w") as f:
    json.dump(config, f, indent=2)
