#!/bin/sh
# The built programs are hardened: position independent, GNU_RELRO with all symbols bound at start, no executable stack,
# stack protector, fortified libc calls, and on x86-64 branch targets marked.
# The same check must name every one of them missing in a program that is built without.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
CC=${CC:-cc}

# missing PROGRAM: one word for each protection that the program lacks
missing() {
    readelf -hW "$1" | grep -q 'Type: *DYN' || echo pie
    readelf -lW "$1" | grep -q GNU_RELRO || echo relro
    readelf -dW "$1" | grep -qE 'BIND_NOW|Flags:.*NOW' || echo now
    readelf -lW "$1" | grep -qE 'GNU_STACK.* RW +0x' || echo noexecstack
    readelf -sW --dyn-syms "$1" | grep -q '__stack_chk_fail' || echo stack-protector
    readelf -sW --dyn-syms "$1" | grep -qE '__(mem|str|sn|vsn)[a-z]*_chk' || echo fortify
    [ "$CF" = no ] || objdump -d --disassemble=main "$1" | grep -q endbr64 || echo cf-protection
}

cat >"$TMP/c.c" <<'C'
#include <stdio.h>
int main(int argc, char **argv) { char b[8]; snprintf(b, sizeof b, "%s", argv[argc - 1]); puts(b); return 0; }
C
CF=yes # x86-64 alone
echo 'int x;' | $CC -fcf-protection -c -x c -o "$TMP/x.o" - 2>/dev/null || CF=no
: >"$TMP/out" && : >"$TMP/err"
for p in mla-retrofit mla-calibrate mla-verify; do
    m=$(missing "$BIN/$p" | tr '\n' ' ')
    if [ -z "$m" ]; then pass; else fail "$p lacks $m"; fi
done
cf=
[ $CF = no ] || cf=-fcf-protection=none
run $CC -O0 -U_FORTIFY_SOURCE -fno-stack-protector -fno-pie -no-pie $cf -Wl,-z,norelro,-z,lazy,-z,execstack -o "$TMP/bare" "$TMP/c.c"
rc_is 0 'a program without protection'
want='pie relro now noexecstack stack-protector fortify'
[ $CF = no ] || want="$want cf-protection"
found=$(missing "$TMP/bare" | tr '\n' ' ')
if [ "$found" = "$want " ]; then pass; else fail "expected the bare program to lack $want, found $found"; fi
finish hardening
