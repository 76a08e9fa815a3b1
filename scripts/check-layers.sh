#!/bin/sh
# Proves the include direction (a layer includes only itself and what stands before it) and that each third-party
# header has one home. Run from the repository root; prints every violation.
set -eu
bad=0
allow() { # layer: the layers it may include
    case $1 in
    base) echo base ;;
    tensor) echo tensor base ;;
    io) echo io tensor base ;;
    quant) echo quant io tensor base ;;
    text) echo text io tensor base ;;
    linalg) echo linalg tensor base ;;
    backend) echo backend linalg tensor base ;;
    model) echo model quant text io tensor base ;;
    runtime) echo runtime backend model quant text io linalg tensor base ;;
    retrofit) echo retrofit runtime backend model quant text io linalg tensor base ;;
    calibrate) echo calibrate runtime backend model quant text io linalg tensor base ;;
    verify) echo verify runtime backend model quant text io linalg tensor base ;;
    cuda) echo cuda backend tensor base ;;
    esac
}
for dir in lib/* cuda; do
    layer=${dir##*/}
    [ -d "$dir" ] || continue
    ok=$(allow "$layer")
    if [ -z "$ok" ]; then echo "layers: unknown folder $dir"; bad=1; continue; fi
    for f in $(find "$dir" -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh'); do
        for inc in $(sed -nE 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*"([a-z]+)\/.*/\1/p' "$f"); do
            case " $ok " in
            *" $inc "*) ;;
            *) echo "layers: $f includes $inc/: $layer may include only: $ok"; bad=1 ;;
            esac
        done
    done
done
home() { # header regex, allowed file regex
    hits=$(grep -rlE "#[[:space:]]*include[[:space:]]*[<\"]($1)" lib cmd cuda 2>/dev/null | grep -vE "^($2)$" || true)
    for h in $hits; do echo "homes: $h includes $1, whose home is $2"; bad=1; done
}
home '(cjson/)?cJSON\.h' 'lib/io/json\.c'
home 'openssl/' 'lib/io/sha256\.c'
home 'curl/' 'lib/verify/probe/http\.c'
home 'zstd\.h' 'lib/io/zst\.c'
home 'pcre2\.h' 'lib/text/[a-z_]+\.c'
home 'utf8proc\.h' 'lib/text/[a-z_]+\.c'
home '(lapacke|cblas)\.h' 'lib/linalg/[a-z_]+\.c'
home '(cuda|cublas|cusolver|nccl)[A-Za-z_]*\.h' 'cuda/.*'
home 'mpi\.h' 'lib/base/mpi\.c'
long=$(find lib cmd cuda tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | xargs wc -l | awk '$2 != "total" && $1 > 600 {print $2 ": " $1 " lines, at most 600"}')
[ -z "$long" ] || { echo "$long"; bad=1; }
[ $bad -eq 0 ] && echo 'layers: ok'
exit $bad
