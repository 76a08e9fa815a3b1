#!/bin/sh
# Layouts for models that rotate whole heads: absorbed-rope and the DeepSeek-style export, on small random models of the
# llama family. Full width is exact; the export is the same model as the absorbed-rope folder of the same factors.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
RF=$BIN/mla-retrofit
MV=$BIN/mla-verify
FEW="--corpus $ROOT/calib/tune.jsonl --calibration-tokens 2560 --row-tokens 128"
command -v python3 >/dev/null || { skip 'the whole script' 'no python3'; finish rope; }

make_model() { # folder kind [config keys]
    python3 "$ROOT/tests/e2e/make_llama.py" "$@" || fail "$1 could not be made"
    cp "$ROOT/tests/fixtures/tiny-hybrid/tokenizer.json" "$1"
}
kld() { # model against: mean KL divergence of 256 positions, f32 caches
    $MV parity "$1" --against "$2" --rows 1 --row-tokens 256 --kv-dtype f32 --no-decode --min-agreement 0.001 --json --quiet >"$TMP/kld" 2>/dev/null
    sed -n '/"kld": {/,/}/p' "$TMP/kld" | sed -n 's/^ *"mean": \([-0-9.e+]*\),*$/\1/p' | head -n 1
}
near() { # value bound what
    if [ -n "$1" ] && awk "BEGIN{exit !($1 >= -1e-12 && $1 <= $2)}"; then pass; else fail "$3: KLD \"$1\", at most $2 expected"; fi
}
apart() { # value bound what
    if [ -n "$1" ] && awk "BEGIN{exit !($1 > $2)}"; then pass; else fail "$3: KLD \"$1\", more than $2 expected"; fi
}

YARN='{"rope_scaling":{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":512}}'
LLAMA3='{"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":64}}'
make_model "$TMP/llama" llama "$LLAMA3"
make_model "$TMP/qwen2" qwen2 "$YARN"
make_model "$TMP/qwen3" qwen3

# lossless: every key rotary, all values latent; log-probabilities of 1e-4 apart at most (fp32) are a KLD below 1e-8
for m in llama qwen2 qwen3; do
    run $RF build "$TMP/$m" "$TMP/a1" --layout absorbed-rope --keep 1
    rc_is 0 "lossless absorbed-rope of $m"
    near "$(kld "$TMP/a1" "$TMP/$m")" 1e-8 "lossless absorbed-rope of $m"
    rm -rf "$TMP/a1"
done
for m in llama qwen2; do
    run $RF build "$TMP/$m" "$TMP/d1" --layout deepseek --rank 33 --rotary-width 32
    rc_is 0 "lossless deepseek of $m"
    near "$(kld "$TMP/d1" "$TMP/$m")" 1e-8 "lossless deepseek of $m"
    run $MV receipts "$TMP/d1"
    rc_is 0 "receipts of the export of $m"
    rm -rf "$TMP/d1"
done

# with a loss: the export equals the folder that keeps the base and the same factors beside it; base files stay
# shellcheck disable=SC2086  # $FEW is several words
run $RF stats "$TMP/qwen2" "$TMP/x.mlastats" $FEW
rc_is 0 stats
run $RF build "$TMP/qwen2" "$TMP/ds" --layout deepseek --keep 0.75 --stats "$TMP/x.mlastats" --refine-steps 0
rc_is 0 "deepseek from the statistics of layout rebuild"
run $RF solve "$TMP/qwen2" "$TMP/f.safetensors" "$TMP/x.mlastats" --layout deepseek --keep 0.75
rc_is 0 "solve"
run $RF graft "$TMP/qwen2" "$TMP/f.safetensors" "$TMP/ds2"
rc_is 0 "graft of factors solved for the export"
if cmp -s "$TMP/ds/model.safetensors" "$TMP/ds2/model.safetensors"; then pass; else fail "graft and build of the export differ"; fi
run $RF graft "$TMP/qwen3" "$TMP/f.safetensors" "$TMP/ds3"
rc_is 2 "export of a model with QK-norm"
has err "normalises queries and keys" "export of a model with QK-norm"
python3 - "$TMP/f.safetensors" "$TMP/f2.safetensors" <<'P'
import json, struct, sys
b = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", b[:8])[0]
h = json.loads(b[8:8 + n])
assert h.pop("__metadata__")["mla_layout"] == "deepseek"
t = json.dumps(h).encode()
t += b" " * (-len(t) % 8)
open(sys.argv[2], "wb").write(struct.pack("<Q", len(t)) + t + b[8 + n:])
P
run $RF graft "$TMP/qwen2" "$TMP/f2.safetensors" "$TMP/ab"
rc_is 0 "graft of the same factors beside the base"
near "$(kld "$TMP/ds" "$TMP/ab")" 1e-8 "export against its own factors beside the base"
apart "$(kld "$TMP/ds" "$TMP/qwen2")" 1e-3 "export against the base"
if cmp -s "$TMP/qwen2/model.safetensors" "$TMP/ab/model.safetensors"; then pass; else fail "the graft changed the base's weights"; fi
run $MV receipts "$TMP/ab"
rc_is 0 "receipts of the graft"
run $MV capacity "$TMP/ab"
rc_is 0 "capacity of the graft"

# the layouts side by side before one is chosen; a model with QK-norm is told why not
run $RF plan "$TMP/qwen2" --compare-layouts --keep 0.75 --stats "$TMP/x.mlastats" --row-tokens 128 --corpus "$ROOT/calib/tune.jsonl" --json
rc_is 0 "plan --compare-layouts"
if python3 - "$TMP/out" <<'P'; then pass; else fail "layouts compared"; fi
import json, sys
rows = {r["layout"]: r for r in json.load(open(sys.argv[1]))["layouts"]}
assert all(rows[n]["latent_values"] + rows[n].get("rotary_values", 0) == 48 for n in rows), rows
assert 0 < rows["rebuild"]["kld"] < rows["absorbed-rope"]["kld"] <= rows["deepseek"]["kld"], rows
P
# shellcheck disable=SC2086
run $RF plan "$TMP/qwen3" --compare-layouts $FEW
rc_is 0 "plan --compare-layouts of a model with QK-norm"
has out "refused: layout deepseek: this model normalises" "plan --compare-layouts"
run $RF plan "$ROOT/tests/fixtures/tiny-hybrid" --compare-layouts
rc_is 2 "plan --compare-layouts of a partial RoPE"

# same bytes whatever the threads; folding, in the config and at work
# shellcheck disable=SC2086
run $RF build "$TMP/llama" "$TMP/t1" --layout absorbed-rope --keep 0.75 --fast --threads 1 $FEW
rc_is 0 "absorbed-rope with one thread"
# shellcheck disable=SC2086
run $RF build "$TMP/llama" "$TMP/t2" --layout absorbed-rope --keep 0.75 --fast --threads 2 $FEW
if cmp -s "$TMP/t1/mla_factors-00001-of-00001.safetensors" "$TMP/t2/mla_factors-00001-of-00001.safetensors"; then pass; else fail "factors differ by threads"; fi
# shellcheck disable=SC2086
run $RF build "$TMP/llama" "$TMP/fold" --layout absorbed-rope --keep 0.75 --fast --freq-fold 2 --rotary-width 16 $FEW
rc_is 0 "absorbed-rope with folded frequencies"
if grep -q '"freq_fold": 2' "$TMP/fold/config.json" && grep -q '"rotary_width": 16' "$TMP/fold/config.json"; then pass; else fail "folding is not in config.json"; fi
apart "$(kld "$TMP/fold" "$TMP/llama")" 1e-3 "folded frequencies"

# partial RoPE: shared rotary keys beside the latent of layout n; all of them are exact, and a layer may have its own number
HYBRID=$ROOT/tests/fixtures/tiny-hybrid
run $RF plan "$HYBRID" --layout n --rotary-keys 2 --keep 0.5
has out "112, per token and layer; no rank is lossless here" "plan with two shared keys"
run $RF plan "$HYBRID" --recipe "$ROOT/configs/mla-shared-keys-keep25.json"
has out "shares its values between latent and rotary keys" "plan with shares by layer"
run $RF build "$HYBRID" "$TMP/h1" --layout n --rotary-keys 4 --keep 1
rc_is 0 "lossless slots of a partial RoPE"
near "$(kld "$TMP/h1" "$HYBRID")" 1e-8 "lossless slots of a partial RoPE"
# shellcheck disable=SC2086
run $RF build "$HYBRID" "$TMP/h2" --layout n --rotary-keys 2 --keep 0.5 --fast $FEW --calibration-tokens 3072
rc_is 0 "two shared rotary keys per frequency"
if grep -q '"rotary_width": 16' "$TMP/h2/config.json"; then pass; else fail "two keys of 8 rotated dims are 16 values"; fi
for t in 1 2; do
    # shellcheck disable=SC2086
    run $RF build "$HYBRID" "$TMP/s$t" --layout absorbed-rope --keep 0.4 --allocation spectrum --refine-steps 2 --threads $t $FEW --calibration-tokens 3072
    rc_is 0 "shares by layer, $t threads"
done
if cmp -s "$TMP/s1/mla_factors-00001-of-00001.safetensors" "$TMP/s2/mla_factors-00001-of-00001.safetensors"; then pass; else fail "shares differ by threads"; fi
if python3 - "$TMP/s1/config.json" <<'P'; then pass; else fail "shares in config.json"; fi
import json, sys
c = json.load(open(sys.argv[1]))
m = c.get("text_config", c).get("mla")
w, r = m["rotary_widths"], m["ranks"]
assert len(set(x for x in w if x)) > 1 and max(w) == m["rotary_width"], w
assert sum(w) + sum(r) <= 4 * 102, (w, r)
P
run $MV receipts "$TMP/s1"
rc_is 0 "receipts of shares by layer"
run $MV capacity "$TMP/s1"
rc_is 0 "capacity of shares by layer"
run $MV parity "$TMP/s1" --against "$HYBRID" --rows 1 --row-tokens 200 --min-agreement 0.001
rc_is 0 "chunks and single steps of shares by layer"

# refused by name, leaving nothing
no_build() { # base text options...
    base=$1 text=$2
    shift 2
    run $RF build "$base" "$TMP/no" --keep 0.5 "$@"
    rc_is 2 "$text"
    has err "$text" "refusal"
    if [ -e "$TMP/no" ]; then fail "a refused build left a folder"; else pass; fi
}
no_build "$TMP/qwen3" "normalises queries and keys" --layout deepseek
no_build "$ROOT/tests/fixtures/tiny-hybrid" "image tokens" --layout absorbed-rope --freq-fold 2
no_build "$ROOT/tests/fixtures/tiny-hybrid" "use layout n or absorbed-rope" --layout deepseek
no_build "$ROOT/tests/fixtures/tiny-hybrid" "at most one per KV head" --layout n --rotary-keys 5
no_build "$TMP/llama" "multiple of 16" --layout deepseek --rotary-width 20
finish rope
