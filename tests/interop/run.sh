#!/bin/sh
# make interop: what this toolkit writes and computes, judged by the Python libraries of the same formats, in a virtual
# environment of its own. Ends with "interop: N passed, N failed, N skipped".
set -eu
build=${BUILD:-build}
dir=$build/interop-data venv=$build/interop-venv gguf=$dir/SmolLM2-135M-Instruct.Q4_1.gguf
failed=0
mkdir -p "$dir"
if ! tests/bench/venv.sh "$venv" torch==2.15.0 numpy==2.4.6 transformers==5.24.0 safetensors==0.8.0 tokenizers==0.23.3 \
    compressed-tensors==0.20.1 accelerate==1.15.0 marisa-trie==1.4.1; then
    echo "SKIP interop: the Python libraries cannot be installed here"
    echo "interop: 0 passed, 0 failed, 25 skipped"
    exit 0
fi
scripts/fetch-smollm2.sh "$dir" >"$dir/fetch.log" 2>&1 || gguf=
retrofit() { # BASE OUT OPTIONS...
    base=$1 out=$2
    shift 2
    rm -rf "$out" "$out.partial"
    "$build/bin/mla-retrofit" build "$base" "$out" --quiet --fast --calibration-tokens 4096 "$@" >"$dir/build.log" 2>&1 ||
        { echo "interop: cannot build $out: $(tail -n 1 "$dir/build.log")" >&2; exit 1; }
}
retrofit tests/fixtures/tiny-hybrid "$dir/hybrid" --keep 0.5
[ -z "$gguf" ] || retrofit "$gguf" "$dir/smollm2" --keep 1
for kind in llama qwen2; do
    scaling='{"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":64}}'
    [ $kind = llama ] || scaling='{"rope_scaling":{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":512}}'
    "$venv/bin/python" tests/e2e/make_llama.py "$dir/base-$kind" $kind "$scaling"
    cp tests/fixtures/tiny-hybrid/tokenizer.json "$dir/base-$kind"
    retrofit "$dir/base-$kind" "$dir/deepseek-$kind" --layout deepseek --keep 0.75 --row-tokens 128
    retrofit "$dir/base-$kind" "$dir/deepseek-wide-$kind" --layout deepseek --rank 24 --rotary-width 16 --freq-fold 2 --row-tokens 128
    retrofit "$dir/base-$kind" "$dir/deepseek-full-$kind" --layout deepseek --rank 33 --rotary-width 32
done
# A real server: llama.cpp's, from its wheel, answering one position a request. Its products round activations to 8 bits: confident
# positions agree all the same, others need not.
probe_llama() {
    if [ -z "$gguf" ] || ! tests/bench/venv.sh "$build/llama-venv" xllamacpp==2026.10.11549; then
        echo "SKIP probe of a llama.cpp server: the wheel or the model cannot be fetched here (1)"
        return 0
    fi
    "$venv/bin/python" -c 'import json, sys
r = json.load(open("tests/fixtures/references/smollm2-135m-instruct-q4_1.json"))
r["cases"] = [c for c in r["cases"] if c["name"].startswith("greedy") or c["name"] in ("forced-00", "forced-03")]
json.dump(r, open(sys.argv[1], "w"))' "$dir/probe.json"
    rm -f "$dir/url"
    "$build/llama-venv/bin/python" tests/interop/serve_llama.py "$gguf" "$dir/url" 4096 >"$dir/serve.log" 2>&1 &
    pid=$!
    i=0
    while [ ! -s "$dir/url" ] && [ $i -lt 120 ]; do sleep 0.5; i=$((i + 1)); done
    rc=0
    "$build/bin/mla-verify" probe "$(cat "$dir/url")" --reference "$dir/probe.json" --wait 60 --min-agreement 0.985 --quiet >"$dir/probe.log" 2>&1 || rc=$?
    kill $pid 2>/dev/null
    wait $pid 2>/dev/null || true
    grep -E '^(all|confident|free)' "$dir/probe.log" | sed 's/^/  llama.cpp server: /'
    if [ $rc -eq 0 ]; then echo "probe of a llama.cpp server: pass"; else echo "FAIL probe of a llama.cpp server (exit $rc): $(tail -n 1 "$dir/probe.log")"; failed=1; fi
}
probe_llama

TQDM_DISABLE=1 HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$venv/bin/python" tests/interop/interop.py "$build/interop/dump" "$dir" "$gguf" || failed=1

# shared-rotary files by the loader of the plugin that serves them
if "$venv/bin/python" -m pip download -q --disable-pip-version-check --no-deps -d "$dir" sabi-mla-vllm==0.2.0 >"$dir/pip.log" 2>&1; then
    unzip -qo "$dir/sabi_mla_vllm-0.2.0-py3-none-any.whl" -d "$dir/sabi"
    retrofit tests/fixtures/tiny-hybrid "$dir/shared" --layout shared-rotary --keep 0.5 --refine-steps 2
    retrofit tests/fixtures/tiny-hybrid "$dir/shared-2" --layout shared-rotary --keep 0.5 --rotary-keys 2 --refine-steps 0
    HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$venv/bin/python" tests/interop/shared.py "$build/interop/dump" "$dir" \
        "$dir/sabi/sabi_mla_vllm/_vendor/kv_quant/shared_mla_native_artifact.py" || failed=1
else
    echo "SKIP interop-shared: sabi-mla-vllm 0.2.0 cannot be fetched here"
    echo "interop-shared: 0 passed, 0 failed, 4 skipped"
fi

# grafts onto quantized bases, by the formats' own libraries. gptqmodel is built from source against the installed torch; exllamav3 is only
# read, its kernels need a GPU.
"$venv/bin/python" -c 'import gptqmodel' >/dev/null 2>&1 ||
    "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-build-isolation gptqmodel==7.7.0 torch==2.15.0 numpy==2.4.6 transformers==5.24.0 \
        >"$dir/gptqmodel.log" 2>&1 || true
exl3=
if "$venv/bin/python" -m pip download -q --disable-pip-version-check --no-deps -d "$dir" exllamav3==1.6.5 >"$dir/pip.log" 2>&1; then
    exl3=$dir/exllamav3
    unzip -qo "$dir/exllamav3-1.6.5-py3-none-any.whl" -d "$exl3"
fi
q=$dir/quantized
rm -rf "$q"
mkdir "$q"
quiet() { "$@" >"$dir/build.log" 2>&1 || { echo "interop: $1 $2 failed: $(tail -n 1 "$dir/build.log")" >&2; exit 1; }; }
quiet "$build/bin/mla-retrofit" stats tests/fixtures/tiny-hybrid "$q/base.mlastats" --calibration-tokens 2560 --quiet
quiet "$build/bin/mla-retrofit" solve tests/fixtures/tiny-hybrid "$q/half.safetensors" "$q/base.mlastats" --keep 0.5 --quiet
for f in fp8 ct-fp8 int8 int4 int4-asym awq gptq gptq-v2 nvfp4 mxfp4; do
    quiet "$build/tests/tools/encode_model" tests/fixtures/tiny-hybrid "$q/$f" "$f"
    quiet "$build/bin/mla-retrofit" graft "$q/$f" "$q/half.safetensors" "$q/$f-mla" --quiet
done
TQDM_DISABLE=1 HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error "$venv/bin/python" -W ignore tests/interop/quantized.py "$build/interop/dump" "$q" "$exl3" \
    2>"$dir/quantized.log" | grep -E '^(  [a-z]|FAIL|SKIP|interop)' >"$dir/quantized.out" || true
cat "$dir/quantized.out"
grep -q ' 0 failed' "$dir/quantized.out" || failed=1

# the hybrid model as a qwen35 GGUF, by llama.cpp
if tests/bench/venv.sh "$build/llama-venv" xllamacpp==2026.10.11549; then
    quiet "$build/tests/tools/write_gguf" tests/fixtures/tiny-hybrid "$dir/tiny-hybrid.gguf"
    "$venv/bin/python" tests/interop/llama.py "$build/interop/dump" "$dir" "$build/llama-venv/bin/python" || failed=1
else
    echo "SKIP interop-llama: the wheel cannot be fetched here"
    echo "interop-llama: 0 passed, 0 failed, 4 skipped"
fi
exit $failed
