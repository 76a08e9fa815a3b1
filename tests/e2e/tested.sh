#!/bin/sh
# The table of tested combinations: a recorded one passes, another is refused by name, the override is said, kernels can be forced.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
unset MLA_ALLOW_UNTESTED
V=$BIN/mla-verify
mkdir -p "$TMP/data/manifests"
cp -r "$ROOT/calib" "$TMP/data/calib"
T=$TMP/data/manifests/tested.json
check() { run env MLA_DATA="$TMP/data" "$@" "$V" selfcheck --near --quiet --isa ref; }
run "$V" selfcheck --near --quiet --isa ref --record "$T"
rc_is 0 'recording'
cp "$T" "$TMP/first"
run "$V" selfcheck --near --quiet --isa ref --record "$T"
run cmp "$T" "$TMP/first"
rc_is 0 'recording again changes nothing'
check
rc_is 0 'a tested combination'
has out 'cpu ref on' 'a tested combination'
printf '{"schema": "mla-tested/1", "combinations": ["cpu abacus on x86_64"]}' >"$T"
check
rc_is 3 'an untested combination'
has err 'cpu ref on' 'an untested combination'
has err 'MLA_ALLOW_UNTESTED=1' 'an untested combination'
check MLA_ALLOW_UNTESTED=0
rc_is 3 'an override that says no'
check MLA_ALLOW_UNTESTED=1
rc_is 0 'the override'
has out 'untested, and allowed' 'the override'
run "$V" selfcheck --near --quiet --isa ref --record "$T"
rc_is 0 'recording beside others'
check
rc_is 0 'recorded beside others'
printf '{}' >"$T"
check
rc_is 3 'no table'
has err 'mla-tested/1' 'no table'
# ranks of a tensor-parallel server are a combination of their own, with the shapes of one rank
printf '{"schema": "mla-tested/1", "combinations": []}' >"$T"
run "$V" selfcheck --near --quiet --isa ref --record "$T"
ranks() { run env MLA_DATA="$TMP/data" "$V" selfcheck "$ROOT/tests/fixtures/tiny-hybrid" --near --quiet --isa ref --tensor-parallel "$@"; }
ranks 2
rc_is 3 'two ranks, untested'
has err ', tensor-parallel 2 is not among' 'two ranks, untested'
ranks 2 --record "$T"
rc_is 0 'two ranks, recording'
ranks 2 --slots 3728270 --json
rc_is 0 'two ranks, recorded, a cache of 3,728,270 slots'
for t in '"gqa, 6 heads, a cache of 3728270 slots"' '"slots": 3728272' '"heads": 6'; do has out "$t" 'two ranks'; done
ranks 5
rc_is 2 'five ranks of twelve heads'
has err 'tensor-parallel size 5' 'five ranks of twelve heads'
run "$V" selfcheck --near --quiet --isa ref --slots 100
rc_is 2 'too small a cache'
one_line 'too small a cache'
# the gate asks, too
printf '{"schema": "mla-tested/1", "combinations": []}' >"$T"
printf '{"schema": "mla-policy/1", "name": "kernels", "selfcheck": {}}' >"$TMP/policy.json"
run env MLA_DATA="$TMP/data" "$V" gate "$TMP/policy.json" "$ROOT/tests/fixtures/tiny-hybrid" --isa ref --quiet
rc_is 3 'the gate on an untested combination'
has err 'not among the tested combinations' 'the gate on an untested combination'
run "$V" selfcheck --near --isa abacus
rc_is 2 'kernels that are none'
one_line 'kernels that are none'
finish tested
