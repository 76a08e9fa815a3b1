# shellcheck shell=sh disable=SC2034  # used by the scripts that source this
# What the end-to-end scripts share: running a program, checking exit code and text, counting. Sourced, not run.
BUILD=${BUILD:-build}
ROOT=${MLA_ROOT:-$(pwd)}
BIN=$BUILD/bin
MLA_ALLOW_UNTESTED=1 # scripts run on any machine; tested.sh looks at the refusal
export MLA_ALLOW_UNTESTED
TMP=$(mktemp -d "${TMPDIR:-/tmp}/mla-e2e-XXXXXX")
trap 'rm -rf "$TMP"' EXIT
PASSED=0
FAILED=0
SKIPPED=0

# run COMMAND...: stdout in $TMP/out, stderr in $TMP/err, exit code in $RC
run() {
    RC=0
    "$@" >"$TMP/out" 2>"$TMP/err" || RC=$?
}

pass() { PASSED=$((PASSED + 1)); }

fail() { # text; shows what the last run printed
    FAILED=$((FAILED + 1))
    echo "FAIL: $*"
    sed 's/^/    out: /' "$TMP/out" | head -n 20
    sed 's/^/    err: /' "$TMP/err" | head -n 20
}

# rc_is CODE what
rc_is() {
    if [ "$RC" -eq "$1" ]; then pass; else fail "$2: expected exit $1, found $RC"; fi
}

# has out|err TEXT what: fixed text
has() {
    if grep -qF -- "$2" "$TMP/$1"; then pass; else fail "$3: std$1 lacks \"$2\""; fi
}

# lacks out|err TEXT what
lacks() {
    if grep -qF -- "$2" "$TMP/$1"; then fail "$3: std$1 has \"$2\""; else pass; fi
}

# one_line what: stderr is exactly one line and stdout is empty
one_line() {
    if [ "$(wc -l <"$TMP/err")" -eq 1 ] && [ ! -s "$TMP/out" ]; then pass; else fail "$1: expected one line on stderr and nothing on stdout"; fi
}

skip() { # what why
    echo "SKIP $1: $2 (1)"
    SKIPPED=$((SKIPPED + 1))
    if [ "${MLA_STRICT:-0}" = 1 ]; then FAILED=$((FAILED + 1)); fi
}

# finish NAME: the result line and the exit status
finish() {
    echo "$1: $PASSED passed, $FAILED failed, $SKIPPED skipped"
    [ "$FAILED" -eq 0 ]
    exit $?
}
