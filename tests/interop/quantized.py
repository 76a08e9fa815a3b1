"""Grafts onto quantized bases, judged by the libraries of the formats: the config still says which modules are quantized, and the
library's own dequantization of every quantized module equals ours.

usage: quantized.py DUMP_PROGRAM WORK_FOLDER [EXLLAMAV3_FOLDER]
tests/interop/run.sh writes WORK_FOLDER/FORMAT, WORK_FOLDER/FORMAT-mla (tests/tools/encode_model) and the one factors file half.safetensors.
The last line is "interop-quantized: N passed, N failed, N skipped"."""
import copy
import json
import os
import shutil
import subprocess
import sys
import traceback

import torch
from safetensors import safe_open

DUMP, WORK, EXL3 = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""
CT = ("ct-fp8", "int8", "int4", "int4-asym", "nvfp4", "mxfp4")
GPTQ = ("gptq", "gptq-v2")
FIXTURES = "tests/fixtures"
CODES = (".weight_packed", ".weight_scale", ".weight_scale_inv", ".qweight", ".trellis")


class Skip(Exception):
    pass


def read_json(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f)


def graft(kind):
    return f"{WORK}/{kind}-mla"


def tensors(path):
    with safe_open(path, framework="pt") as f:
        return {k: f.get_tensor(k) for k in f.keys()}


def quantized_modules(kind):
    """Names of modules that the checkpoint stores in codes."""
    with safe_open(f"{graft(kind)}/model.safetensors", framework="pt") as f:
        found = {k[: -len(c)] for k in f.keys() for c in CODES if k.endswith(c)}
    assert len(found) == 52, f"{kind}: {len(found)} quantized modules"
    return found


def added_modules(kind):
    config = read_json(f"{graft(kind)}/config.json")
    ranks = config["text_config"]["mla"]["ranks"]
    return {f"model.language_model.layers.{i}.self_attn.mla.{p}" for i, r in enumerate(ranks) if r for p in ("encoder", "decoder")}


def tree(kind):
    """The model class of transformers without values, with the factors as the Linear modules that a loader of them would make."""
    from transformers import AutoConfig, Qwen3_5ForConditionalGeneration

    config = AutoConfig.from_pretrained(graft(kind))
    with torch.device("meta"):
        model = Qwen3_5ForConditionalGeneration(config)
        for name in added_modules(kind):
            parent, _, child = name.rpartition(".")
            attention = model.get_submodule(parent.removesuffix(".mla"))
            if not hasattr(attention, "mla"):
                attention.mla = torch.nn.Module()
            attention.mla.add_module(child, torch.nn.Linear(96, 256, bias=False))
    return model


def section(kind):
    return copy.deepcopy(read_json(f"{graft(kind)}/config.json")["quantization_config"])


def our_matrices(folder):
    out = f"{WORK}/matrices.safetensors"
    subprocess.run([DUMP, "matrices", folder, "-", out], check=True)
    return {k.rsplit(".", 1)[0]: v for k, v in tensors(out).items()}


def same_values(kind, theirs):
    """theirs: module -> matrix as its library dequantizes it."""
    ours = our_matrices(graft(kind))
    modules = quantized_modules(kind)
    assert modules <= set(theirs) and modules <= set(ours)
    for name in sorted(modules):
        a, b = ours[name], theirs[name].float()
        if kind in ("nvfp4", "mxfp4"):  # the library unpacks four-bit floats into bf16
            a = a.bfloat16().float()
        assert a.shape == b.shape, f"{kind}: {name}: {tuple(a.shape)}, the library has {tuple(b.shape)}"
        assert torch.equal(a, b), f"{kind}: {name}: {(a != b).sum().item()} of {a.numel()} values differ, by up to {(a - b).abs().max().item():.3g}"
    return sum(ours[m].numel() for m in modules)


def loaded(kind, **more):
    """The folder in transformers: (model, loading info). It must leave nothing out, and find nothing but the factors too many."""
    from transformers import Qwen3_5ForConditionalGeneration

    folder = f"{WORK}/renamed"  # a lone model.safetensors would be read without the index
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for name in os.listdir(graft(kind)):
        os.symlink(os.path.abspath(f"{graft(kind)}/{name}"), f"{folder}/{'base.safetensors' if name == 'model.safetensors' else name}")
    index = read_json(f"{graft(kind)}/model.safetensors.index.json")
    index["weight_map"] = {k: "base.safetensors" if v == "model.safetensors" else v for k, v in index["weight_map"].items()}
    os.remove(f"{folder}/model.safetensors.index.json")
    write_json(f"{folder}/model.safetensors.index.json", index)
    if more:  # of the quantization config
        config = read_json(f"{folder}/config.json")
        config["quantization_config"] |= more
        os.remove(f"{folder}/config.json")
        write_json(f"{folder}/config.json", config)
    model, info = Qwen3_5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True)
    factors = set(tensors(f"{graft(kind)}/mla_factors-00001-of-00001.safetensors"))
    assert not info["missing_keys"], f"{kind}: missing {sorted(info['missing_keys'])[:4]}"
    # compressed-tensors 0.20.1 forgets to pack zero points in the modules it prepares; their values are given by hand below
    odd = {key for key, *_ in info["mismatched_keys"] if kind != "int4-asym" or not key.endswith(".weight_zero_point")}
    assert not odd, f"{kind}: other shapes than the library expects: {sorted(odd)[:4]}"
    assert set(info["unexpected_keys"]) == factors, f"{kind}: unexpected {sorted(set(info['unexpected_keys']) ^ factors)[:4]}"
    shutil.rmtree(folder)
    return model.eval()


def weights(model):
    return {n: m.weight.detach() for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}


def ct_modules(model, config):
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

    apply_quantization_config(model, QuantizationConfig.model_validate(config), show_progress=False)
    return {n for n, m in model.named_modules() if hasattr(m, "quantization_scheme")}


def case_compressed_tensors_configs():
    for kind in CT:
        config, added = section(kind), added_modules(kind)
        assert ct_modules(tree(kind), config) == quantized_modules(kind), f"{kind}: the library would quantize other modules"
        config["ignore"] = [x for x in config["ignore"] if x not in added]
        assert ct_modules(tree(kind), config) == quantized_modules(kind) | added, f"{kind}: without our entries nothing changes: this test cannot fail"
    config["no_such_key"] = 1
    config["config_groups"]["group_0"]["weights"]["no_such_key"] = 1
    try:
        ct_modules(tree(kind), config)
    except ValueError:
        return
    raise AssertionError("an unknown argument was accepted: this test cannot fail")


def case_compressed_tensors_values():
    from compressed_tensors.compressors import decompress_module

    for kind in CT:
        model, stored = loaded(kind), tensors(f"{graft(kind)}/model.safetensors")
        for name, module in model.named_modules():
            if not hasattr(module, "quantization_scheme"):
                continue
            for part, value in list(module.named_parameters(recurse=False)):
                if part == "weight_zero_point" and value.shape != stored[f"{name}.{part}"].shape:
                    module.weight_zero_point = torch.nn.Parameter(stored[f"{name}.{part}"], requires_grad=False)
                if value.dtype == torch.bfloat16:  # the library multiplies in the scales' type: in f32 no product is rounded twice
                    setattr(module, part, torch.nn.Parameter(value.float(), requires_grad=False))
            decompress_module(module)
        print(f"  {kind}: {same_values(kind, weights(model))} values as compressed-tensors decompresses them")


def hf_modules(kind, config):
    """Modules that transformers' own quantizer of this method replaces."""
    from transformers.quantizers.auto import AutoHfQuantizer

    model = tree(kind)
    before = {n: type(m) for n, m in model.named_modules()}
    quantizer = AutoHfQuantizer.from_config(config, pre_quantized=True)
    quantizer._process_model_before_weight_loading(model)
    return {n for n, m in model.named_modules() if n in before and type(m) is not before[n]}


def excluded_by_name(kind, **more):  # more: of the quantization config
    config, added = section(kind) | more, added_modules(kind)
    other = hf_modules(kind, config) ^ quantized_modules(kind)
    assert not other, f"{kind}: transformers would quantize other modules: {sorted(other)[:4]} ({len(other)})"
    config["modules_to_not_convert"] = [x for x in config["modules_to_not_convert"] if x not in added]
    try:
        without = hf_modules(kind, config)
    except NotImplementedError:  # the library would quantize the factors, and its kernels do not take their shapes
        return
    assert without == quantized_modules(kind) | added, f"{kind}: without our entries nothing changes: this test cannot fail"


def case_fp8_config():
    excluded_by_name("fp8")


def case_fp8_values():
    n = same_values("fp8", weights(loaded("fp8")))  # without a GPU transformers dequantizes while it loads
    print(f"  fp8: {n} values as transformers dequantizes them")


def need_gptqmodel():
    try:
        import gptqmodel  # noqa: F401
    except ImportError as e:
        raise Skip(f"gptqmodel is not here ({e})")


def case_awq_config():
    need_gptqmodel()
    excluded_by_name("awq", backend="torch_awq")  # the kernel for every CPU and shape


def case_awq_values():
    need_gptqmodel()
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm

    model = loaded("awq", backend="torch_awq")
    theirs = {n: dequantize_gemm(m.qweight, m.qzeros, m.scales.float(), 4, 128).T for n, m in model.named_modules() if hasattr(m, "qweight")}
    print(f"  awq: {same_values('awq', theirs)} values as gptqmodel dequantizes the modules that transformers loads")


def case_gptq_configs():
    """gptqmodel's own reading of the config: our `dynamic` entry leaves the factors alone and no stored module."""
    need_gptqmodel()
    from gptqmodel.quantization.config import QuantizeConfig

    for kind in GPTQ:
        config, added = section(kind), added_modules(kind)
        read = QuantizeConfig.from_quant_config(copy.deepcopy(config))
        excluded = {n for n in quantized_modules(kind) | added if read.dynamic_get(n) is False}
        assert excluded == added, f"{kind}: the library would leave out {sorted(excluded ^ added)[:4]}"
        config.pop("dynamic")
        read = QuantizeConfig.from_quant_config(config)
        assert not any(read.dynamic_get(n) is False for n in added), f"{kind}: without our entry nothing changes: this test cannot fail"


def case_gptq_values():
    """transformers hands GPTQ to optimum, which replaces every Linear of a block and knows no plain ones: modules of the library itself."""
    need_gptqmodel()
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module

    for kind in GPTQ:
        stored, theirs = tensors(f"{graft(kind)}/model.safetensors"), {}
        for name in quantized_modules(kind):
            words, scales = stored[f"{name}.qweight"], stored[f"{name}.scales"]
            m = TorchLinear(bits=4, group_size=128, sym=False, desc_act=False, in_features=8 * words.shape[0], out_features=words.shape[1])
            m.qweight, m.qzeros, m.g_idx, m.scales = words, stored[f"{name}.qzeros"].clone(), stored[f"{name}.g_idx"], scales
            if kind == "gptq":
                convert_gptq_v1_to_v2_format_module(m, bits=4, pack_dtype=torch.int32)
            m.post_init()
            m.scales = scales.float()  # in f32 no product is rounded twice
            theirs[name] = m.dequantize_weight().T
        print(f"  {kind}: {same_values(kind, theirs)} values as gptqmodel's own modules dequantize them")


def exllamav3():
    """The library's own Python without its CUDA extension: enough to read configs and list tensors, not to run."""
    if not EXL3:
        raise Skip("exllamav3 cannot be fetched here")
    import types
    from unittest.mock import MagicMock

    sys.path.insert(0, EXL3)
    stub = types.ModuleType("exllamav3.ext")
    stub.exllamav3_ext = MagicMock()
    sys.modules.setdefault("exllamav3.ext", stub)
    from exllamav3.conversion.quant_config import create_quantization_config_json

    def describe(folder):
        """quantization_config.json of a folder, written by the library; but for the codebook's multiplier, which it reads with its extension."""
        create_quantization_config_json(folder)
        q = read_json(f"{folder}/quantization_config.json")
        for module in q["tensor_storage"].values():
            module.pop("mul1_multiplier", None)
        write_json(f"{folder}/quantization_config.json", q)
        return q

    return describe


def case_exl3_configs():
    describe = exllamav3()
    base, ours = f"{WORK}/exl3", f"{WORK}/exl3-mla"
    for folder in (base, ours):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(f"{FIXTURES}/golden-quant/tiny-hybrid-exl3", base)
    shutil.copy(f"{FIXTURES}/tiny-hybrid/tokenizer.json", base)
    config = read_json(f"{base}/config.json")
    config["vision_config"]["deepstack_visual_indexes"] = []  # the library asks for it and for the image processor
    write_json(f"{base}/config.json", config)
    write_json(f"{base}/preprocessor_config.json", dict(size=dict(shortest_edge=65536, longest_edge=16777216), patch_size=16, temporal_patch_size=2,
               merge_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3, image_processor_type="Qwen2VLImageProcessorFast"))
    before = describe(base)
    subprocess.run([f"{os.path.dirname(DUMP)}/../bin/mla-retrofit", "graft", base, f"{WORK}/half.safetensors", ours, "--quiet"], check=True)
    assert before["tensor_storage"] and before["quant_method"] == "exl3"
    assert read_json(f"{ours}/quantization_config.json") == before, "quantization_config.json is not the base's"
    plain = {k: v for k, v in before.items() if k != "tensor_storage"}
    assert read_json(f"{ours}/config.json")["quantization_config"] == plain, "config.json tells of another quantization"
    folder = f"{WORK}/exl3-described"  # described again from the tensors of the graft, under the class the library knows
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for name in os.listdir(ours):
        if name not in ("config.json", "quantization_config.json"):
            os.symlink(os.path.abspath(f"{ours}/{name}"), f"{folder}/{name}")
    config = read_json(f"{ours}/config.json")
    config["architectures"] = read_json(f"{base}/config.json")["architectures"]
    write_json(f"{folder}/config.json", config)
    again = describe(folder)
    assert again == before, f"the library describes the graft differently in {sorted(k for k in again if again[k] != before.get(k))}"
    print(f"  exl3: exllamav3 describes {len(again['tensor_storage'])} modules of the graft as it does the base's")


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
    print(f"interop-quantized: {passed} passed, {failed} failed, {skipped} skipped")
    return failed > 0


sys.exit(main())
