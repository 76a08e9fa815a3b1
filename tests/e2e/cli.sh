#!/bin/sh
# Every program and subcommand: --help, --version, and the exit code and single line of each usage error.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"

for prog in mla-retrofit mla-calibrate mla-verify; do
    p=$BIN/$prog
    run "$p"
    rc_is 2 "$prog alone"
    one_line "$prog alone"
    run "$p" --help
    rc_is 0 "$prog --help"
    has out "usage: $prog COMMAND" "$prog --help"
    has out "exit codes:" "$prog --help"
    commands=$(sed -n '/^commands:/,/^$/s/^  \([a-z][a-z0-9-]*\) .*/\1/p' "$TMP/out")
    run "$p" --version
    rc_is 0 "$prog --version"
    has out "$prog (mla-toolkit) " "$prog --version"
    has out "isa: " "$prog --version"
    has out "cpu: " "$prog --version"
    has out "cuda:0: " "$prog --version"
    if grep -q 'OpenBLAS.*DYNAMIC_ARCH' "$TMP/out" && grep -qw avx2 /proc/cpuinfo; then # its own choice can be far below a recent CPU
        if grep -qE '(Haswell|Zen|Excavator|SkylakeX|Cooperlake|SapphireRapids) MAX_THREADS' "$TMP/out"; then pass; else fail "$prog --version: OpenBLAS without AVX2 kernels: $(cat "$TMP/out")"; fi
        run env OPENBLAS_CORETYPE=Nehalem "$p" --version
        has out " Nehalem " "$prog --version obeys OPENBLAS_CORETYPE"
    fi
    run "$p" no-such-command
    rc_is 2 "$prog no-such-command"
    one_line "$prog no-such-command"
    run sh -c "'$p' --help >/dev/full"
    rc_is 3 "$prog --help on a full disk"
    for c in $commands; do
        run "$p" "$c" --help
        rc_is 0 "$prog $c --help"
        has out "usage: $prog $c" "$prog $c --help"
        has out "common options:" "$prog $c --help"
        optional=$(grep "^usage: $prog $c \\[" "$TMP/out")
        run "$p" help "$c"
        rc_is 0 "$prog help $c"
        has out "usage: $prog $c" "$prog help $c"
        run "$p" "$c" --no-such-option
        rc_is 2 "$prog $c --no-such-option"
        one_line "$prog $c --no-such-option"
        has err "$prog $c: unknown option --no-such-option; " "$prog $c --no-such-option"
        if [ -z "$optional" ]; then
            run "$p" "$c"
            rc_is 2 "$prog $c without arguments"
            one_line "$prog $c without arguments"
        fi
        run "$p" "$c" /no/a /no/b /no/c /no/d /no/e /no/f
        if [ "$RC" -eq 2 ] || [ "$RC" -eq 3 ]; then pass; else fail "$prog $c with absent files: expected exit 2 or 3, found $RC"; fi
        one_line "$prog $c with absent files"
        run "$p" "$c" --quie
        rc_is 2 "$prog $c --quie"
        has err "did you mean --quiet?" "$prog $c --quie"
    done
done

v=$BIN/mla-verify
run "$v" inspct x
has err 'did you mean "inspect"?' "misspelt command"
run "$v" inspect --json=yes x
rc_is 2 "flag with a value"
has err '--json takes no value' "flag with a value"
run "$v" inspect -- --json
rc_is 3 "a file called --json"
has err '--json' "a file called --json"
run "$v" inspect -Z x
rc_is 2 "unknown letter"
one_line "unknown letter"

finish cli
