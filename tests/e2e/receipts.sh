#!/bin/sh
# A small build, its receipt, and everything that can go wrong with the finished folder.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
v=$BIN/mla-verify
m=$ROOT/tests/fixtures/tiny-hybrid

run "$v" receipts "$m"
rc_is 3 'a folder without receipt'
one_line 'a folder without receipt'

if ! "$BIN/mla-retrofit" --help | grep -q '^  build'; then
    skip 'receipts of a build' 'mla-retrofit build is not there'
    finish receipts
fi
run "$BIN/mla-retrofit" build "$m" "$TMP/built" --keep 0.5 --corpus "$ROOT/calib/tune.jsonl" --calibration-tokens 2560 --quiet --fast
rc_is 0 build
if [ "$RC" -ne 0 ]; then finish receipts; fi

run "$v" receipts "$TMP/built" --junit "$TMP/j.xml" --markdown "$TMP/m.md"
rc_is 0 'a finished build'
has out 'verdict: pass' 'a finished build'
run "$v" receipts "$TMP/built" --base "$m" --json
rc_is 0 'with its base'
has out '"schema": "mla-receipts/1"' 'with its base'
lacks out "$TMP" 'with its base'

# damaged DESCRIPTION TEXT: findings name TEXT, exit 1
damaged() {
    run "$v" receipts "$TMP/bad" --quiet
    rc_is 1 "$1"
    has out "$2" "$1"
    rm -rf "$TMP/bad"
}
copy() { cp -rL "$TMP/built" "$TMP/bad" && chmod -R u+w "$TMP/bad"; }

for f in "$TMP/built"/*; do
    name=$(basename "$f")
    size=$(wc -c <"$f")
    copy
    # one bit of the middle byte
    at=$((size / 2))
    byte=$(od -An -tu1 -j "$at" -N 1 "$f" | tr -d ' ')
    # shellcheck disable=SC2059  # the format is the byte
    printf "\\$(printf %03o $(((byte + 16) % 256)))" | dd of="$TMP/bad/$name" bs=1 seek="$at" conv=notrunc 2>/dev/null
    damaged "a flip in $name" "$name"
done
copy
rm "$TMP/bad/tokenizer.json"
damaged 'a missing file' 'tokenizer.json: recorded, but absent'
copy
echo x >"$TMP/bad/extra.txt"
damaged 'an extra file' 'extra.txt: present, but not recorded'
copy
sed 's/"groups": 1/"groups": 2/' "$TMP/built/config.json" >"$TMP/bad/config.json"
damaged 'other groups in config.json' 'config '
copy
sed 's/"hidden_size": 256/"hidden_size": 320/' "$TMP/built/config.json" >"$TMP/bad/config.json"
damaged 'another width in config.json' '[2048, 256]'
copy
sed 's/"rank": /"rank": 1/' "$TMP/built/mla_receipt.json" >"$TMP/bad/mla_receipt.json"
damaged 'other ranks in the receipt' 'rank'

finish receipts
