"""Judges retrofitted folders and the toolkit's own logits and token ids with safetensors, tokenizers and transformers.

usage: interop.py DUMP_PROGRAM WORK_FOLDER [SMOLLM2.gguf]      (tests/interop/run.sh builds WORK_FOLDER/hybrid, smollm2)
Every case prints one line when it fails or is skipped; the last line is "interop: N passed, N failed, N skipped"."""
import json
import os
import shutil
import subprocess
import sys
import traceback

import numpy as np
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

DUMP, WORK, GGUF = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""
FIXTURES = "tests/fixtures"
BASE, HYBRID, SMOL = f"{FIXTURES}/tiny-hybrid", f"{WORK}/hybrid", f"{WORK}/smollm2"
NEAR = 1e-3  # nats, log-probability of any token within 12 nats of the best: two fp32 paths of the same weights


class Skip(Exception):
    pass


def need(condition, why):
    if not condition:
        raise Skip(why)


def read_json(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def shards(folder):
    return sorted(n for n in os.listdir(folder) if n.endswith(".safetensors"))


def our_logits(model, ids, vocab):
    source, out = f"{WORK}/ids.txt", f"{WORK}/logits.f32"
    with open(source, "w") as f:
        f.write("\n".join(str(int(i)) for i in ids))
    subprocess.run([DUMP, "logits", model, source, out], check=True)
    return torch.from_numpy(np.fromfile(out, dtype="<f4").reshape(len(ids), vocab))


def our_ids(model, texts):
    source, out = f"{WORK}/texts.bin", f"{WORK}/encoded.txt"
    with open(source, "wb") as f:
        f.write(b"".join(t.encode() + b"\0" for t in texts))
    subprocess.run([DUMP, "encode", model, source, out], check=True)
    with open(out) as f:
        return [[int(x) for x in line.split()] for line in f]


def calib_texts():
    texts = []
    for name in ("evaluation.jsonl", "tune.jsonl"):
        with open(f"calib/{name}", encoding="utf-8") as f:
            texts += [json.loads(line)["text"] for line in f if line.strip()]
    for raw in (bytes.fromhex(h) for h in read_json(f"{FIXTURES}/tokenizer/texts.json")["texts"]):
        try:
            texts.append(raw.decode())
        except UnicodeDecodeError:  # the library takes text only
            pass
    assert len(texts) > 150, f"only {len(texts)} texts"
    return [t for t in texts if "\0" not in t]


def distance(ours, theirs):
    """Largest difference of log-probabilities, over tokens that matter, and positions whose clear winner differs."""
    a, b = ours.double().log_softmax(-1), theirs.double().log_softmax(-1)
    top = b.topk(2, -1).values
    matters = b > top[:, :1] - 12
    flips = ((a.argmax(-1) != b.argmax(-1)) & (top[:, 0] - top[:, 1] >= 0.01)).sum().item()
    return (a - b).abs()[matters].max().item(), flips


def same_logits(ours, theirs, what):
    far, flips = distance(ours, theirs)
    assert flips == 0, f"{what}: {flips} positions with another clear winner"
    assert far <= NEAR, f"{what}: log-probabilities {far:.3g} nats apart, at most {NEAR} expected"
    print(f"  {what}: log-probabilities at most {far:.2g} nats apart over {len(ours)} positions")


def opens_with_safetensors(folder):
    index = read_json(f"{folder}/model.safetensors.index.json")["weight_map"]
    found, total = {}, 0
    for shard in shards(folder):
        with safe_open(f"{folder}/{shard}", framework="pt") as f:
            for key in f.keys():
                t = f.get_tensor(key)
                assert t.numel() > 0 and (not t.is_floating_point() or torch.isfinite(t.float()).all()), f"{shard}: {key} is not finite"
                total += t.numel() * t.element_size()
                found[key] = shard
    assert found == index, f"{folder}: index and shards name {len(set(found.items()) ^ set(index.items()))} different tensors"
    assert total > 0


def case_files_hybrid():
    opens_with_safetensors(HYBRID)


def case_files_smollm2():
    need(GGUF, "SmolLM2 cannot be fetched here")
    opens_with_safetensors(SMOL)


def case_files_control():
    """The library must be able to refuse: a header that claims one byte more than the file has."""
    shard = [s for s in shards(HYBRID) if s.startswith("mla_factors")][0]
    copy = f"{WORK}/cut.safetensors"
    with open(f"{HYBRID}/{shard}", "rb") as f, open(copy, "wb") as g:
        g.write(f.read()[:-1])
    try:
        safe_open(copy, framework="pt").keys()
    except Exception:
        return
    raise AssertionError("a file cut by one byte was accepted: this test cannot fail")


def case_factors_match_config():
    for folder in [HYBRID] + ([SMOL] if GGUF else []):
        config = read_json(f"{folder}/config.json")
        mla = config.get("text_config", config)["mla"]
        with safe_open(f"{folder}/{mla['factors_file']}", framework="pt") as f:
            shapes = {k: tuple(f.get_slice(k).get_shape()) for k in f.keys()}
            kinds = {str(f.get_slice(k).get_dtype()) for k in f.keys() if k.endswith(("encoder", "decoder"))}
        for layer, rank in enumerate(mla["ranks"]):
            here = [s for k, s in shapes.items() if f".layers.{layer}." in k]
            assert bool(here) == (rank > 0), f"{folder}: layer {layer} has {len(here)} factor tensors at rank {rank}"
            assert rank == 0 or any(rank // mla["groups"] in s for s in here), f"{folder}: no factor of layer {layer} has {rank} as a size"
        assert kinds <= {"BF16", "F32"}, f"{folder}: factor dtypes {kinds}"


def case_base_config():
    from transformers import AutoConfig

    base, ours = AutoConfig.from_pretrained(BASE), read_json(f"{HYBRID}/config.json")
    text, theirs = ours["text_config"], base.get_text_config()
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "layer_types",
                "rms_norm_eps", "linear_num_value_heads", "linear_key_head_dim"):
        assert getattr(theirs, key) == text[key], f"{key}: {getattr(theirs, key)} in the base, {text[key]} in the retrofit"


def case_retrofit_config():
    """A retrofit's config.json, its name and mla section apart, is still one of the base's kind for the library."""
    from transformers import AutoConfig

    for folder in [HYBRID] + ([SMOL] if GGUF else []):
        config = AutoConfig.from_pretrained(folder)
        section = getattr(config.get_text_config(), "mla", None)
        assert section and section["format"] == "mla-factors/1", f"{folder}: the mla section did not come through"


def same_ids(model, tokenizer_json):
    texts = calib_texts()
    tokenizer = Tokenizer.from_file(tokenizer_json)
    ours = our_ids(model, texts)
    assert len(ours) == len(texts), f"{len(ours)} texts encoded of {len(texts)}"
    for i, text in enumerate(texts):
        want = tokenizer.encode(text, add_special_tokens=False).ids
        assert ours[i] == want, f"text {i} {text[:40]!r}: {ours[i][:12]} here, {want[:12]} in the library"
    print(f"  {tokenizer_json}: {len(texts)} texts, {sum(map(len, ours))} ids equal")


def case_tokenizer_hybrid():
    same_ids(HYBRID, f"{HYBRID}/tokenizer.json")


def case_tokenizer_from_gguf():
    """tokenizer.json is written from the GGUF vocabulary: the library must read it and agree with ours on the GGUF."""
    need(GGUF, "SmolLM2 cannot be fetched here")
    same_ids(GGUF, f"{SMOL}/tokenizer.json")


def hybrid_ids():
    with safe_open(f"{FIXTURES}/references/tiny-hybrid.tensors.safetensors", framework="pt") as f:
        return f.get_tensor("input_ids").flatten(), f.get_tensor("logits").reshape(-1, 2048)


def case_hybrid_logits():
    """The hybrid base in transformers (the recorded logits of the same library where the class is missing), and a
    control: the same comparison must notice one norm gain off by a percent."""
    ids, recorded = hybrid_ids()
    ours = our_logits(BASE, ids, recorded.shape[-1])
    same_logits(ours, recorded, "tiny-hybrid against the recorded logits")
    try:
        from transformers import Qwen3_5ForConditionalGeneration as Model
    except ImportError:
        print("  tiny-hybrid: this transformers has no Qwen3.5, only the recorded logits were compared")
        return
    model = Model.from_pretrained(BASE, dtype=torch.float32).eval()
    with torch.inference_mode():
        same_logits(ours, model(input_ids=ids[None]).logits[0], "tiny-hybrid against transformers")
        gain = [p for n, p in model.named_parameters() if n.endswith("layers.3.post_attention_layernorm.weight")][0]
        gain += 0.01
        far, _ = distance(ours, model(input_ids=ids[None]).logits[0])
    assert far > NEAR, f"a changed norm gain moves log-probabilities by {far:.3g} only: this test cannot fail"


def case_gguf_as_llama():
    """The folder that a build makes of a GGUF, read back by transformers as a plain Llama with its q, k and v."""
    need(GGUF, "SmolLM2 cannot be fetched here")
    from transformers import AutoConfig, LlamaForCausalLM

    plain = f"{WORK}/plain-llama"
    shutil.rmtree(plain, ignore_errors=True)
    os.makedirs(plain)
    config = read_json(f"{SMOL}/config.json")
    config["architectures"] = ["LlamaForCausalLM"]
    mla = config.pop("mla")
    with open(f"{plain}/config.json", "w") as f:
        json.dump(config, f)
    base = [s for s in shards(SMOL) if s != mla["factors_file"]]
    assert base == ["model.safetensors"], f"base shards {base}"
    os.symlink(os.path.abspath(f"{SMOL}/model.safetensors"), f"{plain}/model.safetensors")
    assert AutoConfig.from_pretrained(plain).model_type == "llama"
    model, info = LlamaForCausalLM.from_pretrained(plain, dtype=torch.float32, output_loading_info=True)
    missing = [k for k in info["missing_keys"] if k != "lm_head.weight"]
    assert not missing and not info["unexpected_keys"], f"missing {missing}, unexpected {list(info['unexpected_keys'])}"
    ids = Tokenizer.from_file(f"{SMOL}/tokenizer.json").encode(calib_texts()[0], add_special_tokens=False).ids[:96]
    ours = our_logits(GGUF, ids, config["vocab_size"])
    with torch.inference_mode():
        theirs = model.eval()(input_ids=torch.tensor([ids])).logits[0]
        same_logits(ours, theirs, "SmolLM2 GGUF against the exported folder in transformers")
        model.model.layers[7].input_layernorm.weight += 0.01
        far, _ = distance(ours, model(input_ids=torch.tensor([ids])).logits[0])
    assert far > NEAR, f"a changed norm gain moves log-probabilities by {far:.3g} only: this test cannot fail"


def deepseek(folder):
    """The folder in stock transformers: our logits are its logits; returns its log-probabilities and the ids."""
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(f"{WORK}/{folder}", dtype=torch.float32, output_loading_info=True)
    assert type(model).__name__ == "DeepseekV3ForCausalLM", type(model).__name__
    missing = [k for k in info["missing_keys"] if k != "lm_head.weight"]
    assert not missing and not info["unexpected_keys"], f"missing {missing}, unexpected {list(info['unexpected_keys'])}"
    vocab = model.config.vocab_size
    ids = [(i * i * 7 + i * 3 + 1) % vocab for i in range(96)]
    with torch.inference_mode():
        theirs = model.eval()(input_ids=torch.tensor([ids])).logits[0]
    same_logits(our_logits(f"{WORK}/{folder}", ids, vocab), theirs, f"{folder} as DeepseekV3ForCausalLM")
    return model, ids, theirs


def check_deepseek(kind):
    from transformers import AutoModelForCausalLM

    for width in ("", "-wide"):
        deepseek(f"deepseek{width}-{kind}")
    model, ids, theirs = deepseek(f"deepseek-full-{kind}")
    base = AutoModelForCausalLM.from_pretrained(f"{WORK}/base-{kind}", dtype=torch.float32).eval()
    with torch.inference_mode():
        same_logits(base(input_ids=torch.tensor([ids])).logits[0], theirs, f"{kind} and its lossless export, both in transformers")
        model.model.layers[1].self_attn.kv_a_layernorm.weight[:-1] *= 1.01
        far, _ = distance(theirs, model(input_ids=torch.tensor([ids])).logits[0])
    assert far > NEAR, f"a changed latent norm moves log-probabilities by {far:.3g} only: this test cannot fail"


def case_deepseek_llama():
    """llama3-scaled RoPE, no biases, tied embeddings."""
    check_deepseek("llama")


def case_deepseek_qwen2():
    """Query, key and value biases and YaRN."""
    check_deepseek("qwen2")


def case_deepseek_files():
    for kind in ("llama", "qwen2"):
        opens_with_safetensors(f"{WORK}/deepseek-{kind}")


def case_deepseek_config():
    from transformers import AutoConfig

    for kind in ("llama", "qwen2"):
        base, ours = AutoConfig.from_pretrained(f"{WORK}/base-{kind}"), AutoConfig.from_pretrained(f"{WORK}/deepseek-{kind}")
        assert ours.model_type == "deepseek_v3" and ours.first_k_dense_replace == ours.num_hidden_layers
        for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "rms_norm_eps", "max_position_embeddings"):
            assert getattr(base, key) == getattr(ours, key), key
        assert ours.kv_lora_rank + ours.qk_rope_head_dim == 48, "three quarters of 64 cached values"
        assert ours.rope_parameters["rope_type"] == base.rope_parameters["rope_type"], f"{ours.rope_parameters} of {base.rope_parameters}"


def main():
    passed = failed = skipped = 0
    for name, case in [(n, c) for n, c in globals().items() if n.startswith("case_")]:
        try:
            case()
            passed += 1
        except Skip as e:
            print(f"SKIP {name}: {e}")
            skipped += 1
        except Exception as e:
            print(f"FAIL {name}: {e if isinstance(e, AssertionError) else traceback.format_exc()}")
            failed += 1
    print(f"interop: {passed} passed, {failed} failed, {skipped} skipped")
    return failed > 0


sys.exit(main())
