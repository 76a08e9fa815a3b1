"""Shared-rotary factor files judged by the loader of the plugin that serves them (sabi-mla-vllm 0.2.0, file validation alone: the
plugin's engine is not needed), and the runtime's logits by the formulas of that plugin's model class, written in torch.

usage: shared.py DUMP_PROGRAM WORK_FOLDER VALIDATOR.py          (tests/interop/run.sh builds WORK_FOLDER/shared, shared-2)
The last line is "interop-shared: N passed, N failed, N skipped"."""
import hashlib
import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
import traceback

import numpy as np
import torch
from safetensors import safe_open

DUMP, WORK, VALIDATOR = sys.argv[1:4]
BASE, OURS, TWO = "tests/fixtures/tiny-hybrid", f"{WORK}/shared", f"{WORK}/shared-2"
NEAR = 1e-3  # nats, as in interop.py


def validator(config=None):
    """The plugin's module; with a config, its constants replaced by that model's geometry."""
    spec = importlib.util.spec_from_file_location("shared_mla_native_artifact", VALIDATOR)
    m = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(m)
    if config is None:
        return m
    t = config["text_config"]
    layers = [i for i, k in enumerate(t["layer_types"]) if k == "full_attention"]
    H, d, D, r = t["num_attention_heads"], t["head_dim"], t["hidden_size"], max(t["mla"]["ranks"])
    rot = int(d * t["rope_parameters"]["partial_rotary_factor"])
    m.LAYERS = layers
    m.GEOMETRY = dict(hidden_size=D, query_heads=H, kv_heads=t["num_key_value_heads"], head_dim=d, rotary_dim=rot, rank=r)
    m.SHAPES = dict(hidden_down_weight=(r, D), hidden_rotary_weight=(rot, D), rotary_query=(H, rot, rot), residual_query=(H, rot, d - rot),
                    kv_b_weight=(H * (3 * d - 2 * rot), r), mean_v=(H * d,))
    m.SEMANTICS = dict(m.SEMANTICS, content_order=f"original_group_nope_{d - rot},global_rotary_residual_{d - rot}", rotary_width=rot,
                       cache_width=r + rot, query_heads=H, original_kv_groups=t["num_key_value_heads"], head_dim=d)
    parts = [(layers[0], "k"), (layers[(len(layers) - 1) // 2], "v"), (layers[-1], "o")]
    m.FINGERPRINT_TENSORS = tuple(f"model.language_model.layers.{i}.self_attn.{p}_proj.weight" for i, p in parts)
    return m


def read_json(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def refused(call, what):
    try:
        call()
    except Exception:  # ValueError, or a tensor that is not there
        return
    raise AssertionError(f"{what} was accepted: this test cannot fail")


def case_small_model_loads():
    config = read_json(f"{OURS}/config.json")
    assert config["model_type"] == "sabi_mla" and config["architectures"] == ["SabiMlaForConditionalGeneration"]
    block = config["text_config"]["shared_mla"]
    m, path = validator(config), f"{OURS}/{block['artifact']}"
    m.load_native(path, model=OURS, expected_sha256=block["artifact_sha256"])
    refused(lambda: m.load_native(path, expected_sha256="0" * 64), "another sha256")
    refused(lambda: validator().load_native(path), "a small model's file by the 27B constants")
    refused(lambda: m.load_native(f"{TWO}/{block['artifact']}"), "two shared keys per frequency")


def case_other_weights_are_refused():
    config, folder = read_json(f"{OURS}/config.json"), f"{WORK}/shared-other"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(OURS, folder)
    os.remove(f"{folder}/model.safetensors")
    shutil.copy(f"{BASE}/model.safetensors", f"{folder}/model.safetensors")
    with open(f"{folder}/model.safetensors", "r+b") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        at = 8 + n + json.loads(f.read(n))["model.language_model.layers.1.self_attn.k_proj.weight"]["data_offsets"][0]
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1]))
    refused(lambda: validator(config).load_native(f"{folder}/{config['text_config']['shared_mla']['artifact']}", model=folder), "another base")
    shutil.rmtree(folder)


def qwen27b(folder):
    """A folder of the 27B's shape: every tensor a hole of zeros but the attention weights that a fingerprint reads."""
    os.makedirs(folder)
    config = read_json("tests/fixtures/qwen3_8-27b/config.json")
    config.pop("vision_config", None)
    t = config["text_config"]
    t["mtp_num_hidden_layers"] = 0
    D, inter, H, G, d, V = (t[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"))
    nv, dk, dv, nk = (t[k] for k in ("linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads"))
    C = 2 * nk * dk + nv * dv
    shapes = {"lm_head.weight": [V, D], "model.language_model.embed_tokens.weight": [V, D], "model.language_model.norm.weight": [D]}
    for i, kind in enumerate(t["layer_types"]):
        p = f"model.language_model.layers.{i}."
        own = {"input_layernorm.weight": [D], "post_attention_layernorm.weight": [D], "mlp.gate_proj.weight": [inter, D], "mlp.up_proj.weight": [inter, D],
               "mlp.down_proj.weight": [D, inter]}
        if kind == "full_attention":
            own |= {"self_attn.q_proj.weight": [2 * H * d, D], "self_attn.k_proj.weight": [G * d, D], "self_attn.v_proj.weight": [G * d, D],
                    "self_attn.o_proj.weight": [D, H * d], "self_attn.q_norm.weight": [d], "self_attn.k_norm.weight": [d]}
        else:
            own |= {"linear_attn.in_proj_qkv.weight": [C, D], "linear_attn.in_proj_z.weight": [nv * dv, D], "linear_attn.in_proj_a.weight": [nv, D],
                    "linear_attn.in_proj_b.weight": [nv, D], "linear_attn.conv1d.weight": [C, 1, t["linear_conv_kernel_dim"]], "linear_attn.A_log": [nv],
                    "linear_attn.dt_bias": [nv], "linear_attn.norm.weight": [dv], "linear_attn.out_proj.weight": [D, nv * dv]}
        shapes |= {p + k: v for k, v in own.items()}
    shards = {}  # one for each layer: the library maps whole files
    for name in sorted(shapes):
        layer = name.split("layers.")[1].split(".")[0] if "layers." in name else "rest"
        shards.setdefault(f"model-{layer}.safetensors", []).append(name)
    rng = np.random.default_rng(1)
    for shard, names in shards.items():
        header, at = {}, 0
        for name in names:
            size = 2 * int(np.prod(shapes[name]))
            header[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(f"{folder}/{shard}", "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            f.truncate(8 + len(text) + at)
            for name in set(names) & set(validator().FINGERPRINT_TENSORS):
                b, e = header[name]["data_offsets"]
                f.seek(8 + len(text) + b)
                f.write((rng.standard_normal((e - b) // 2, dtype=np.float32) * 0.02).view(np.uint32).__rshift__(16).astype("<u2").tobytes())
    with open(f"{folder}/config.json", "w") as f:
        json.dump(config, f)
    with open(f"{folder}/model.safetensors.index.json", "w") as f:
        json.dump({"metadata": {}, "weight_map": {n: s for s, names in shards.items() for n in names}}, f)


def case_27b_shape_loads_unchanged():
    folder = f"{WORK}/qwen27b"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        qwen27b(folder)
        path = f"{folder}/shared_mla.safetensors"
        subprocess.run([DUMP, "shared", folder, "512", path], check=True)
        m = validator()
        payload = m.load_native(path, model=folder, expected_sha256=hashlib.sha256(open(path, "rb").read()).hexdigest())
        assert len(payload["layers"]) == 16 and payload["teacher"]["format"] == "original_bf16"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def attention(module, state, inv_freq, hidden):
    """One layer as the plugin's model class computes it."""
    B, T, _ = hidden.shape
    H, rot = state["rotary_query"].shape[:2]
    d = module.head_dim
    q, gate = module.q_proj(hidden).view(B, T, H, 2 * d).chunk(2, -1)
    q = module.q_norm(q)
    angle = torch.arange(T)[:, None] * inv_freq
    cos, sin = angle.cos(), angle.sin()

    def turn(x):  # (B, T, heads, rot)
        a, b = x.chunk(2, -1)
        c, s = cos[:, None], sin[:, None]
        return torch.cat((a * c - b * s, b * c + a * s), -1)

    residual = torch.einsum("bthr,hrd->bthd", q[..., :rot], state["residual_query"])
    content = torch.cat((q[..., rot:], residual), -1)
    rotary = turn(torch.einsum("bthr,hrs->bths", q[..., :rot], state["rotary_query"]))
    latent = hidden @ state["hidden_down_weight"].T
    key_r = turn((hidden @ state["hidden_rotary_weight"].T)[:, :, None])[:, :, 0]
    rows = state["kv_b_weight"].view(H, -1, latent.shape[-1])
    dn = 2 * (d - rot)
    key, value = torch.einsum("btr,hnr->bthn", latent, rows[:, :dn]), torch.einsum("btr,hnr->bthn", latent, rows[:, dn:])
    logits = (torch.einsum("bthn,bshn->bhts", content, key) + torch.einsum("bthr,bsr->bhts", rotary, key_r)) * d**-0.5
    p = (logits + torch.full((T, T), float("-inf")).triu(1)).softmax(-1)
    out = torch.einsum("bhts,bshn->bthn", p, value) + state["mean_v"].view(H, d)
    return module.o_proj((out * gate.sigmoid()).flatten(2))


def case_logits_are_the_plugins():
    from transformers import AutoConfig
    from transformers.models.qwen3_5 import modeling_qwen3_5 as M

    text = AutoConfig.from_pretrained(BASE).text_config
    text._attn_implementation = "eager"
    model = M.Qwen3_5ForCausalLM(text).float().eval()
    with safe_open(f"{BASE}/model.safetensors", framework="pt") as f:
        weights = {k.replace("language_model.", ""): f.get_tensor(k).float() for k in f.keys() if not k.startswith(("mtp", "model.visual"))}
    assert not model.load_state_dict(weights, strict=True).missing_keys
    config = read_json(f"{OURS}/config.json")
    layers = validator(config).load_native(f"{OURS}/{config['text_config']['shared_mla']['artifact']}")["layers"]
    rot = layers[1]["rotary_query"].shape[1]
    inv_freq = text.rope_parameters["rope_theta"] ** (-torch.arange(0, rot, 2) / rot)
    for i, state in layers.items():
        module = model.model.layers[i].self_attn
        module.forward = lambda hidden_states, module=module, state=state, **_: (attention(module, state, inv_freq, hidden_states), None)
    ids = [(7 * i * i + 3 * i + 1) % config["text_config"]["vocab_size"] for i in range(96)]
    with open(f"{WORK}/ids.txt", "w") as f:
        f.write("\n".join(map(str, ids)))
    subprocess.run([DUMP, "logits", OURS, f"{WORK}/ids.txt", f"{WORK}/logits.f32"], check=True)
    ours = torch.from_numpy(np.fromfile(f"{WORK}/logits.f32", dtype="<f4").reshape(len(ids), -1)).double().log_softmax(-1)
    with torch.inference_mode():
        def far():
            theirs = model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
            return (ours - theirs).abs()[theirs > theirs.max(-1, keepdim=True).values - 12].max().item()

        first = far()
        assert first <= NEAR, f"log-probabilities {first:.3g} nats apart, at most {NEAR} expected"
        print(f"  shared-rotary logits: at most {first:.2g} nats apart over {len(ids)} positions")
        layers[3]["mean_v"] += 0.05
        assert far() > NEAR, "a changed mean is not seen: this test cannot fail"


def main():
    passed = failed = 0
    for name, case in [(n, c) for n, c in globals().items() if n.startswith("case_")]:
        try:
            case()
            passed += 1
        except Exception as e:
            print(f"FAIL {name}: {e if isinstance(e, AssertionError) else traceback.format_exc()}")
            failed += 1
    print(f"interop-shared: {passed} passed, {failed} failed, 0 skipped")
    return failed > 0


sys.exit(main())
