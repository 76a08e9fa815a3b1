#!/bin/sh
# make bench: every figure and its anchor in one run, printed as ratios beside the goals. docs/benchmarks.md explains the rows.
#
# Engines alternate for BENCH_ROUNDS rounds and repeat BENCH_REPS times within each; medians are printed. Nothing here
# fails on a slow figure: a ratio is information, the tests are elsewhere.
#   BENCH_THREADS (all CPUs)   BENCH_ROUNDS (3)   BENCH_REPS (3)   BENCH_ONLY (any of: a b c d e f q)
#   MLA_BENCH_VARIANT: kernels of another instruction set (ref avx2 avxvnni avx512 avx512vnni avx512bf16 avx512fp16) in (a) and (q)
#   BENCH_QUICK=1: tiny sizes, to see that everything runs   MLA_BENCH_CLOCK=cpu: CPU time, for one thread on a busy machine
set -eu
build=${BUILD:-build} threads=${BENCH_THREADS:-$(nproc)} rounds=${BENCH_ROUNDS:-3} reps=${BENCH_REPS:-3}
dir=$build/bench-data bin=$build/bench res=$dir/results only=${BENCH_ONLY:-a b c d e f q}
venv=$build/bench-venv corpus=calib/evaluation.jsonl hybrid=tests/fixtures/tiny-hybrid
gguf=$dir/SmolLM2-135M-Instruct.Q4_1.gguf
prefill=512 decode=64 sweep=1280 sha_mib=512 stat_rows=4 row=512 m=2048 n=5120 rank=512 build_tokens=16384 pack_mib=256 layers=30
if [ "${BENCH_QUICK:-0}" = 1 ]; then
    rounds=1 reps=1 prefill=64 decode=8 sweep=128 sha_mib=16 stat_rows=2 row=128 m=256 n=640 rank=64 build_tokens=3840 pack_mib=16 layers=2
fi
# shellcheck disable=SC2046  # package names
set -- torch==2.15.0 numpy==2.4.6 gguf==0.19.0 xllamacpp==2026.10.11549
mkdir -p "$dir"
: >"$res"

want() { case " $only " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }
note() { printf '  %s\n' "$*"; }
# take PREFIX COMMAND...: keeps the "key value" lines it prints, keys prefixed
take() { p=$1; shift; "$@" 2>"$dir/stderr" | sed "s/^/$p/" >>"$res.new"; cat "$res.new" >>"$res"; [ -s "$res.new" ] || { rm -f "$res.new"; return 1; }; rm -f "$res.new"; }
# med KEY: the median of what was kept, empty when nothing was
med() { awk -v k="$1" '$1 == k {print $2}' "$res" | sort -g | awk '{v[NR] = $1} END {if (NR) printf "%.9g", NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }
spread() { awk -v k="$1" '$1 == k {print $2}' "$res" | sort -g | awk '{v[NR] = $1} END {if (NR > 1 && v[1] > 0) printf "%.2f", v[NR] / v[1]; else printf "-"}'; }
calc() { awk "BEGIN {printf \"%.9g\", ($1)}"; }
# row TEXT VALUE ge|le MIN AIM DETAIL: MIN or AIM may be "-"
row() {
    awk -v t="$1" -v v="$2" -v c="$3" -v lo="$4" -v aim="$5" -v d="$6" 'BEGIN {
        ok = "info"; if (lo != "-") ok = (c == "ge" ? v >= lo : v <= lo) ? "reached" : "MISSED"
        if (aim != "-" && (c == "ge" ? v >= aim : v <= aim)) ok = (lo == "-" ? "" : "reached, ") "aim reached"; else if (lo == "-" && aim != "-") ok = "aim missed"
        sym = c == "ge" ? ">=" : "<="
        printf "  %-70s %8.4g  %-8s %-8s %-22s %s\n", t, v, lo == "-" ? "-" : sym lo, aim == "-" ? "-" : sym aim, ok, d }'
}
head_row() { printf '  %-70s %8s  %-8s %-8s %-22s %s\n' "$1" value goal aim verdict detail; }

fetch() { scripts/fetch-smollm2.sh "$dir" >"$dir/fetch.log" 2>&1 || { note "SmolLM2 cannot be fetched here ($(tail -n 1 "$dir/fetch.log")): its rows are left out"; return 1; }; }
smollm2=0
if want a || want c || want e; then fetch && smollm2=1; fi
python=0
if want a && [ $smollm2 = 1 ]; then
    if tests/bench/venv.sh "$venv" "$@"; then python=1; else note "PyTorch and llama.cpp cannot be installed here: their rows are left out"; fi
fi

printf 'mla-toolkit benchmarks\n'
"$build/bin/mla-retrofit" --version | sed 's/^/  /'
note "CPU: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) CPUs online, $threads threads used by every engine; compiler: $(${CC:-gcc} --version | head -n 1)"
note "load at start: $(cut -d' ' -f1-3 /proc/loadavg)$(awk '{if ($1 > 0.3) print " - OTHERS ARE USING THIS MACHINE: figures below are noise"}' /proc/loadavg); clock: ${MLA_BENCH_CLOCK:-wall}; $rounds rounds of $reps"
[ "${BENCH_QUICK:-0}" != 1 ] || note "BENCH_QUICK: tiny sizes; the figures mean nothing"

section_a() {
    i=0
    while [ $i -lt "$rounds" ]; do
        take '' "$bin/bench_runtime" "$gguf" "$corpus" "$dir/ids" "$threads" $prefill $decode "$reps" $sweep || { note "bench_runtime failed: $(tail -n 1 "$dir/stderr")"; return 1; }
        if [ $python = 1 ]; then
            for p in f32 bf16; do take '' "$venv/bin/python" tests/bench/anchor_torch.py "$gguf" "$dir/ids" "$threads" $decode "$reps" $p || note "PyTorch $p failed: $(tail -n 1 "$dir/stderr")"; done
            take '' "$venv/bin/python" tests/bench/anchor_llama.py "$gguf" "$dir/ids" "$threads" $decode "$reps" || note "llama.cpp failed: $(tail -n 1 "$dir/stderr")"
        fi
        i=$((i + 1))
    done
    head_row "(a) SmolLM2-135M, $prefill tokens in, $decode out"
    sw=$(med sweep)
    t32=$(med torch_f32_prefill) t16=$(med torch_bf16_prefill) lp=$(med llama_prefill) ld=$(med llama_decode)
    r16=$(calc "$(med bf16_decode) * $(med bf16_bytes) / $sw") r32=$(calc "$(med f32_decode) * $(med f32_bytes) / $sw")
    if [ -n "$t32" ]; then
        best=$t32; [ -z "$t16" ] || best=$(calc "$t16 > $t32 ? $t16 : $t32")
        row "prefill, fast (bf16) / PyTorch, the faster of f32 and bf16" "$(calc "$(med bf16_prefill) / $best")" ge 1.0 - "$(med bf16_prefill) against f32 $t32, bf16 ${t16:--} tokens/s"
        row "prefill, reference (f32) / PyTorch f32" "$(calc "$(med f32_prefill) / $t32")" ge 1.0 - "$(med f32_prefill) against $t32 tokens/s"
    fi
    [ -z "$lp" ] || row "prefill, fast (bf16) / llama.cpp Q4_1" "$(calc "$(med bf16_prefill) / $lp")" ge - - "against $lp tokens/s"
    row "decode, fast (bf16): bytes/s of the read-only sweep" "$r16" ge 0.70 0.85 "$(med bf16_decode) tokens/s; sweep $(calc "$sw / 1e9") GB/s, $(calc "$(med bf16_bytes) / 1e6") MB a token"
    row "decode, reference (f32): bytes/s of the read-only sweep" "$r32" ge - - "$(med f32_decode) tokens/s"
    [ -z "$ld" ] || row "decode, fast (bf16) / llama.cpp Q4_1" "$(calc "$(med bf16_decode) / $ld")" ge - 1.0 "against $ld tokens/s"
    [ -z "$(med torch_bf16_decode)" ] || row "decode, fast (bf16) / PyTorch bf16" "$(calc "$(med bf16_decode) / $(med torch_bf16_decode)")" ge - 1.0 "against $(med torch_bf16_decode) tokens/s; PyTorch f32 $(med torch_f32_decode)"
    if [ -n "$ld" ]; then
        row "prefill, Q4_1 as stored (f32 arithmetic) / llama.cpp Q4_1" "$(calc "$(med packed_prefill) / $lp")" ge 1.5 - "$(med packed_prefill) against $lp tokens/s"
        row "decode, Q4_1 as stored, fast path (16-bit integers) / llama.cpp Q4_1" "$(calc "$(med packed16_decode) / $ld")" ge 1.2 2.0 "$(med packed16_decode) against $ld tokens/s"
        row "decode, Q4_1 as stored, reference path (f32) / llama.cpp Q4_1" "$(calc "$(med packed_decode) / $ld")" ge - 1.2 "$(med packed_decode) tokens/s"
    fi
    row "decode, Q4_1 as stored, fast path: bytes/s of the read-only sweep" "$(calc "$(med packed16_decode) * $(med packed16_bytes) / $sw")" ge - 0.5 "$(calc "$(med packed16_bytes) / 1e6") MB a token"
    row "memory, Q4_1 as stored: weights, cache, activations / stored bytes" "$(calc "$(med packed_memory) / $(med stored)")" le - 1.15 "$(calc "$(med packed_memory) / 1e6") MB; decoded to bf16 $(calc "$(med bf16_memory) / 1e6") MB, to f32 $(calc "$(med f32_memory) / 1e6")"
    note "spread of rounds (largest / smallest): ours packed $(spread packed_prefill) and $(spread packed_decode), bf16 $(spread bf16_prefill) and $(spread bf16_decode), f32 $(spread f32_prefill) and $(spread f32_decode), PyTorch f32 $(spread torch_f32_prefill) and $(spread torch_f32_decode), llama.cpp $(spread llama_prefill) and $(spread llama_decode), sweep $(spread sweep)"
    note "greedy token after the prompt: ours $(med packed_next) (as stored), $(med f32_next) (f32), $(med bf16_next) (bf16); PyTorch $(med torch_f32_next), $(med torch_bf16_next); llama.cpp $(med llama_next)"
    note "versions: PyTorch $(awk '$1 == "torch_version" {print $2; exit}' "$res"), $(awk '$1 == "llama_version" {print $2, $3; exit}' "$res")"
}

section_b() {
    for f in one two; do [ "$(stat -c %s "$dir/$f" 2>/dev/null)" = $((sha_mib << 20)) ] || head -c $((sha_mib << 20)) /dev/urandom >"$dir/$f"; done
    cat "$dir/one" "$dir/two" >/dev/null # into the page cache
    i=0
    while [ $i -lt "$((rounds * reps))" ]; do
        "$bin/child" "$dir/child" openssl dgst -sha256 -r "$dir/one" "$dir/two" >"$dir/digests"
        sed 's/^/openssl_/' "$dir/child" >>"$res"
        take sha1_ "$bin/bench_sha256" 1 1 "$dir/one" "$dir/two" && take shaN_ "$bin/bench_sha256" "$threads" 1 "$dir/one" "$dir/two" ||
            { note "bench_sha256 failed: $(tail -n 1 "$dir/stderr")"; return 1; }
        i=$((i + 1))
    done
    o=$(med "openssl_$([ "${MLA_BENCH_CLOCK:-wall}" = cpu ] && echo cpu || echo seconds)")
    head_row "(b) sha256 of two files of $sha_mib MiB, in the page cache"
    row "openssl dgst, both in turn / ours, $threads threads" "$(calc "$o / $(med shaN_seconds)")" ge 1.5 - "$(calc "2 * $sha_mib / 1024 / $o") GiB/s against $(calc "2 * $sha_mib / 1024 / $(med shaN_seconds)")"
    row "openssl dgst, both in turn / ours, 1 thread" "$(calc "$o / $(med sha1_seconds)")" ge 1.6 1.8 "$(calc "2 * $sha_mib / 1024 / $(med sha1_seconds)") GiB/s; $(openssl version | cut -d' ' -f1,2)"
    if [ "$(awk '$1 == "sha1_digest" {print $2; exit}' "$res")" = "$(cut -d' ' -f1 "$dir/digests" | head -n 1)" ]; then note "digests agree"
    else note "DIGESTS DIFFER"; failed=1; fi
    rm -f "$dir/one" "$dir/two"
}

stats_rows() { # NAME MODEL PREFIX
    i=0
    while [ $i -lt "$rounds" ]; do
        take "$3" "$bin/bench_stats" "$2" "$corpus" "$threads" $stat_rows $row "$reps" || { note "$1: $(tail -n 1 "$dir/stderr")"; return 0; }
        i=$((i + 1))
    done
    p=$(med "$3plain") tok=$((stat_rows * row))
    row "$1: covariance, query and gate moments / plain forward" "$(calc "$(med "$3light") / $p")" le 1.15 - "$(calc "$tok / $p") tokens/s plain"
    row "$1: with attention-weighted moments / plain forward" "$(calc "$(med "$3full") / $p")" le 3 - "$(calc "$tok / $(med "$3full")") tokens/s"
    note "   mla_gather of the same rows, opening and gate pass included: $(med "$3gather") s, of which opening about $(med "$3open") s"
}
section_c() {
    head_row "(c) statistics pass, rows of $row tokens, reference path"
    stats_rows "tiny-hybrid" "$hybrid" hy_
    [ $smollm2 = 0 ] || stats_rows "SmolLM2" "$gguf" sm_
    note "   the library has no pass without the attention-weighted moments: the first of each pair is put together by the benchmark"
}

section_d() {
    take '' "$bin/bench_factor" $m $n $rank "$([ "$reps" -gt 2 ] && echo 2 || echo 1)" || { note "bench_factor failed: $(tail -n 1 "$dir/stderr")"; return 1; }
    ours=$(calc "$(med gram) + $(med eigh)")
    head_row "(d) factoring one layer ($m, $n) to rank $rank, one thread"
    row "dgesdd of the whitened matrix alone / eigenproblem route" "$(calc "$(med gesdd) / $ours")" ge - 1.7 "$(med gesdd) s against $(med gram) + $(med eigh) s (with its proof)"
    row "whitening and dgesdd / eigenproblem route" "$(calc "($(med whiten) + $(med gesdd)) / $ours")" ge 1.7 - "whitening $(med whiten) s"
    row "relative difference of the two losses" "$(med difference)" le 1e-9 - "losses $(med loss_eigh) and $(med loss_gesdd) of the energy"
    note "the whole mla_solve_layer of $m features (metric, two eigenproblems, factors of every rank): $(med solve_layer) s; $(sed -n 's/^blas //p' "$res" | head -n 1)"
}

section_f() {
    take '' "$bin/bench_pack" "$hybrid/model.safetensors" $pack_mib "$reps" || { note "bench_pack failed: $(tail -n 1 "$dir/stderr")"; return 1; }
    head_row "(f) packing $pack_mib MiB of the hybrid's bf16 weights, one thread"
    row "ratio" "$(med pack_ratio)" ge 1.47 - "plain zstd -1: $(med zstd1_ratio)"
    row "ratio / plain zstd -1" "$(calc "$(med pack_ratio) / $(med zstd1_ratio)")" ge 1.15 - "$(med zstd1_gbs) GB/s with plain zstd -1"
    row "in, GB/s a core" "$(med pack_gbs)" ge 1.0 - "$(calc "$(med pack_gbs) / $(med zstd1_gbs)") of plain zstd -1's rate"
    row "out, GB/s a core" "$(med unpack_gbs)" ge 1.5 - "checksums tested"
}

peak_build() {
    rm -rf "$dir/built" "$dir/built.partial"
    "$bin/child" "$dir/child" "$build/bin/mla-retrofit" build "$gguf" "$dir/built" --keep 0.5 --threads "$threads" --fast --calibration-tokens $build_tokens --quiet >/dev/null 2>"$dir/stderr" ||
        { note "build failed: $(tail -n 1 "$dir/stderr")"; return 0; }
    row "mla-retrofit build of SmolLM2, peak MB" "$(calc "$(awk '$1 == "kib" {print $2}' "$dir/child") * 1.024e-3")" le 1500 - "$build_tokens calibration tokens, $(awk '$1 == "seconds" {printf "%.1f", $2}' "$dir/child") s"
    rm -rf "$dir/built"
}
peak_inspect() { # NAME PATH
    "$bin/child" "$dir/child" "$build/bin/mla-verify" inspect "$2" >/dev/null 2>"$dir/stderr" || { note "inspect failed: $(tail -n 1 "$dir/stderr")"; return 0; }
    row "mla-verify inspect of $1, peak MB" "$(calc "$(awk '$1 == "kib" {print $2}' "$dir/child") * 1.024e-3")" le 50 - "$(awk '$1 == "seconds" {printf "%.0f", 1000 * $2}' "$dir/child") ms"
}
# of bf16's speed, in proportion to bytes: 1 = as many bytes per second
codes_row() { # NAME TEXT
    v=$(calc "$(med "codes_$1") * $(med "codes_$1_bytes") / ($(med codes_bf16) * $(med codes_bf16_bytes))")
    r=$(calc "$(med "reference_$1") * $(med "codes_$1_bytes") / ($(med codes_bf16) * $(med codes_bf16_bytes))")
    row "$2 / bf16, speeds in proportion to bytes" "$v" ge 0.6 1.0 "reference path $r; $(calc "$(med "codes_$1") / $(med codes_bf16)") times bf16 at $(calc "$(med "codes_$1_bytes") / $(med codes_bf16_bytes)") of its bytes"
}
section_q() {
    i=0
    while [ $i -lt "$rounds" ]; do
        take '' "$bin/bench_codes" "$threads" "$((reps * 3))" $layers || { note "bench_codes failed: $(tail -n 1 "$dir/stderr")"; return 1; }
        i=$((i + 1))
    done
    head_row "(q) one token through $layers layers of SmolLM2's linear shapes, weights as stored, fast path"
    codes_row int4 "int4, groups of 64 with zero points"
    codes_row q4_1 "GGUF Q4_1"
    codes_row q4_k "GGUF Q4_K"
    codes_row q6_k "GGUF Q6_K"
    codes_row q8_0 "GGUF Q8_0"
    codes_row nvfp4 "NVFP4"
    codes_row fp8 "FP8, groups of 128"
    for c in mul1 mcg 3inst; do
        row "EXL3 4 bits, $c / bf16, speeds" "$(calc "$(med codes_exl3_$c) / $(med codes_bf16)")" ge 1.0 - "$(calc "$(med codes_exl3_$c)") against $(calc "$(med codes_bf16)") passes/s; reference path $(calc "$(med reference_exl3_$c)")"
    done
    note "decoded bf16: $(calc "$(med codes_bf16) * $(med codes_bf16_bytes) / 1e9") GB/s; f32 $(calc "$(med codes_f32) * $(med codes_f32_bytes) / 1e9"); spread of rounds: bf16 $(spread codes_bf16), int4 $(spread codes_int4)"
}
section_e() {
    head_row "(e) memory"
    [ $smollm2 = 0 ] || peak_build
    [ $smollm2 = 0 ] || peak_inspect "the SmolLM2 GGUF" "$gguf"
    peak_inspect "tiny-hybrid" "$hybrid"
}

for s in $only; do
    case $s in [abcdefq]) ;; *) echo "bench: BENCH_ONLY has \"$s\", known are a b c d e f q" >&2; exit 2 ;; esac
done
[ $smollm2 = 1 ] || only=$(echo "$only" | sed 's/a//')
for s in $only; do "section_$s" || failed=1; done
note "load at end: $(cut -d' ' -f1-3 /proc/loadavg)"
note "operations against register and bandwidth ceilings: make bench-backend"
[ -z "${failed:-}" ] # a program that broke is a failure; a slow one is not
