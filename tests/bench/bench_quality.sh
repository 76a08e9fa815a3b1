#!/bin/sh
# make bench-quality: published factorizations and ours, stage by stage, on the same model, calibration tokens and evaluation text.
# docs/quality.md explains the columns and holds a run of it.
#
# Every piece (statistics, factors, figures) is kept in QUALITY_DIR and used again; remove the folder to start over.
#   QUALITY_MODELS  "tiny-hybrid smollm2"      QUALITY_KEEP   "0.75 0.5 0.375 0.25"   QUALITY_DIR  $BUILD/quality
#   QUALITY_STAGES  tests/bench/quality_stages QUALITY_STUDY  "16384 65536 131072"    calibration tokens of the second table
#   QUALITY_SWITCHES tests/bench/quality_switches   of the ablation, tiny hybrid; empty: none
#   QUALITY_ROWS    8 rows of 1024 tokens      BENCH_THREADS  all CPUs                SMOLLM2      a .gguf that is there already
set -eu
build=${BUILD:-build} dir=${QUALITY_DIR:-$build/quality} threads=${BENCH_THREADS:-$(nproc)} rows=${QUALITY_ROWS:-8}
models=${QUALITY_MODELS:-tiny-hybrid smollm2} keeps=${QUALITY_KEEP:-0.75 0.5 0.375 0.25} study=${QUALITY_STUDY-16384 65536 131072}
stages=${QUALITY_STAGES:-tests/bench/quality_stages} published="svd joint-svd cov-separate balanced-pca"
switches=${QUALITY_SWITCHES-tests/bench/quality_switches}
rf=$build/bin/mla-retrofit eval=calib/evaluation.jsonl corpus=calib/calibration.jsonl tune=calib/tune.jsonl
mkdir -p "$dir"

slug() { printf '%s' "$1" | tr -c 'A-Za-z0-9.\n' '_'; }
stage_names() { sed -n 's/^\([^#|][^|]*[^ |]\) *|.*/\1/p' "${1:-$stages}"; }
stage_options() { cat "$stages" ${switches:+"$switches"} | awk -F'|' -v n="$1" '{k = $1; sub(/ +$/, "", k)} k == n {print $2; exit}'; }
# figure FIELD FILE: 2 KLD, 3 top-1, 4 perplexity ratio, 5 base perplexity; empty when not measured
figure() { awk -v f="$2" -v n="$1" '$1 == f {print $n; exit}' "$dir/figures"; }
touch "$dir/figures"

collect() { # MODEL BASE KIND TOKENS: the statistics file, collected once
    out=$dir/$1.$3.$4.mlastats
    [ -f "$out" ] || $rf stats "$2" "$out" --quiet --threads "$threads" --calibration-tokens "$4" --corpus $corpus --held-out $tune --force \
        --objective "$([ "$3" = plain ] && echo svd || echo ours)" --layout "$([ "$3" = whole ] && echo absorbed-rope || echo auto)"
}

solve_published() { # MODEL BASE OBJECTIVE KEEP TOKENS
    out=$dir/$1.$3.$4.$5.safetensors
    [ -f "$out" ] || $rf solve "$2" "$out" "$dir/$1.plain.$5.mlastats" --quiet --objective "$3" --keep "$4" --factors-dtype float32 >"$out.txt"
}

build_stage() { # MODEL BASE NAME KEEP TOKENS: only the factors of the folder are kept
    factors=$dir/$1.$(slug "$3").$4.$5.safetensors
    [ -f "$factors" ] && return 0
    rm -rf "$dir/work"
    case $(stage_options "$3") in *absorbed-rope*) kind=whole ;; *) kind=attention ;; esac
    collect "$1" "$2" $kind "$5"
    # shellcheck disable=SC2046  # options are several words
    $rf build "$2" "$dir/work" --quiet --threads "$threads" --stats "$dir/$1.$kind.$5.mlastats" --keep "$4" --corpus $corpus --held-out $tune \
        --calibration-tokens "$5" --force $(stage_options "$3") >"$factors.txt"
    mv "$dir/work/mla_factors-00001-of-00001.safetensors" "$factors"
    rm -rf "$dir/work"
}

measure() { # FILE...: figures of the files that have none yet, $base run once for all of them
    n=$#
    while [ "$n" -gt 0 ]; do
        f=$1
        shift
        [ -n "$(figure 2 "$f")" ] || set -- "$@" "$f"
        n=$((n - 1))
    done
    [ $# -eq 0 ] || "$build/bench/bench_quality" "$base" $eval "$threads" "$rows" 1024 "$@" >"$dir/figures.new" 2>"$dir/progress"
    [ ! -f "$dir/figures.new" ] || { cat "$dir/figures.new" >>"$dir/figures"; rm "$dir/figures.new"; }
}

columns() { for o in $published; do echo "$o"; done; stage_names; }
file_of() { # MODEL COLUMN KEEP TOKENS
    case " $published " in *" $2 "*) echo "$dir/$1.$2.$3.$4.safetensors" ;; *) echo "$dir/$1.$(slug "$2").$3.$4.safetensors" ;; esac
}

table() { # MODEL TITLE TOKENS
    {
        printf '**%s**, %s calibration tokens. KLD / top-1 / perplexity ratio; the base has perplexity %.4f.\n\n' "$2" "$3" \
            "$(figure 5 "$(file_of "$1" svd "${keeps%% *}" "$3")")"
        printf '| keep |'
        columns | while IFS= read -r c; do printf ' %s |' "$c"; done
        printf ' last / best published |\n|---|'
        columns | while IFS= read -r c; do printf -- '---|'; done
        printf -- '---|\n'
        for k in $keeps; do
            best='' last=''
            printf '| %s |' "$k"
            columns >"$dir/columns"
            while IFS= read -r c; do
                f=$(file_of "$1" "$c" "$k" "$3")
                last=$(figure 2 "$f")
                case " $published " in *" $c "*) best=$(awk "BEGIN {b = \"$best\"; print (b == \"\" || $last < b) ? $last : b}") ;; esac
                printf ' %s / %s / %s |' "$(printf %.5f "$last")" "$(printf %.4f "$(figure 3 "$f")")" "$(printf %.4f "$(figure 4 "$f")")"
            done <"$dir/columns"
            printf ' %s |\n' "$(awk "BEGIN {printf \"%.3f\", $last / $best}")"
        done
        printf '\n'
    } | tee -a "$dir/quality.md"
    for k in $keeps; do
        columns | while IFS= read -r c; do printf '%s\t%s\t%s\n' "$c" "$k" "$(figure 2 "$(file_of "$1" "$c" "$k" "$3")")"; done
    done | "$build/bench/bench_chart" "$dir/$1.svg" "$2: divergence from the base" "cached values kept" "mean KLD, nats"
}

full_tokens() { case $1 in smollm2) echo 49152 ;; *) echo 131072 ;; esac; }

run_model() { # $model $base $title
    tokens=$(full_tokens "$model")
    collect "$model" "$base" attention "$tokens"
    collect "$model" "$base" plain "$tokens"
    for k in $keeps; do
        for o in $published; do solve_published "$model" "$base" "$o" "$k" "$tokens"; done
        stage_names >"$dir/stages"
        while IFS= read -r s; do build_stage "$model" "$base" "$s" "$k" "$tokens" </dev/null; done <"$dir/stages"
    done
    for k in $keeps; do # a keep at a time: an interrupted run loses little
        set --
        columns >"$dir/columns"
        while IFS= read -r c; do set -- "$@" "$(file_of "$model" "$c" "$k" "$tokens")"; done <"$dir/columns"
        measure "$@"
    done
    table "$model" "$title" "$tokens"
}

# One part of the objective taken away at a time (bench_ablation), then one switch of the recipe at a time. KLD at every budget.
keep_columns() { # the rest of a table's head: a column for every budget
    for k in $keeps; do printf ' keep %s |' "$k"; done
    printf '\n|---|'
    for k in $keeps; do printf -- '---|'; done
    printf '\n'
}

run_ablation() {
    [ -n "$switches" ] || return 0
    for k in $keeps; do
        at=$dir/$model.without.$k.$tokens
        if [ ! -f "$at.names" ]; then
            "$build/bench/bench_ablation" "$base" "$dir/$model.attention.$tokens.mlastats" "$dir/$model.plain.$tokens.mlastats" "$k" "$at" >"$at.names.new"
            mv "$at.names.new" "$at.names"
        fi
        stage_names "$switches" >"$dir/switched"
        while IFS= read -r s; do build_stage "$model" "$base" "$s" "$k" "$tokens" </dev/null; done <"$dir/switched"
        set --
        while read -r name _; do set -- "$@" "$at.$name.safetensors"; done <"$at.names"
        while IFS= read -r s; do set -- "$@" "$(file_of "$model" "$s" "$k" "$tokens")"; done <"$dir/switched"
        measure "$@"
    done
    {
        printf '**%s**, one part or switch at a time beside the closed form at one rank, %s calibration tokens, KLD.\n\n| |' "$title" "$tokens"
        keep_columns
        while read -r name what; do
            printf '| %s |' "$what"
            for k in $keeps; do printf ' %s |' "$(printf %.5f "$(figure 2 "$dir/$model.without.$k.$tokens.$name.safetensors")")"; done
            printf '\n'
        done <"$dir/$model.without.${keeps%% *}.$tokens.names"
        while IFS= read -r s; do
            printf '| %s |' "$s"
            for k in $keeps; do printf ' %s |' "$(printf %.5f "$(figure 2 "$(file_of "$model" "$s" "$k" "$tokens")")")"; done
            printf '\n'
        done <"$dir/switched"
        printf '\n'
    } | tee -a "$dir/quality.md"
}

run_study() { # the last stage over calibration tokens, beside the published kind that does best most of the time
    [ -n "$study" ] || return 0
    stage_names | tail -n 1 >"$dir/stages"
    last=$(cat "$dir/stages")
    for t in $study; do
        collect "$model" "$base" attention "$t"
        collect "$model" "$base" plain "$t"
        for k in $keeps; do
            solve_published "$model" "$base" balanced-pca "$k" "$t"
            build_stage "$model" "$base" "$last" "$k" "$t" </dev/null
        done
        set --
        for k in $keeps; do set -- "$@" "$(file_of "$model" balanced-pca "$k" "$t")" "$(file_of "$model" "$last" "$k" "$t")"; done
        measure "$@"
    done
    {
        printf '**%s**, KLD by calibration tokens: balanced-pca, then %s.\n\n| tokens |' "$title" "$last"
        keep_columns
        for t in $study; do
            printf '| %s |' "$t"
            for k in $keeps; do
                printf ' %s, %s |' "$(printf %.5f "$(figure 2 "$(file_of "$model" balanced-pca "$k" "$t")")")" \
                    "$(printf %.5f "$(figure 2 "$(file_of "$model" "$last" "$k" "$t")")")"
            done
            printf '\n'
        done
        printf '\n'
    } | tee -a "$dir/quality.md"
}

: >"$dir/quality.md"
{
    "$rf" --version | sed 's/^/    /'
    printf '    CPU: %s; evaluation: %s rows of 1024 tokens of %s, f32 cache, reference path\n\n' \
        "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" "$rows" "$eval"
} | tee -a "$dir/quality.md"
for model in $models; do
    case $model in
    tiny-hybrid) base=tests/fixtures/tiny-hybrid title="Tiny hybrid, layout n" ;;
    smollm2)
        base=${SMOLLM2:-$dir/SmolLM2-135M-Instruct.Q4_1.gguf} title="SmolLM2-135M-Instruct, layout rebuild"
        [ -f "$base" ] || scripts/fetch-smollm2.sh "$dir" >"$dir/fetch.log" 2>&1 ||
            { echo "SmolLM2 cannot be fetched here ($(tail -n 1 "$dir/fetch.log")): left out"; continue; }
        ;;
    *) echo "bench_quality: unknown model $model (tiny-hybrid, smollm2)" >&2; exit 2 ;;
    esac
    run_model
    [ "$model" != tiny-hybrid ] || run_ablation
    run_study
done
echo "table and charts: $dir/quality.md, $dir/*.svg"
