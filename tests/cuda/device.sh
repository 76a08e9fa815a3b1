#!/bin/sh
# The demo's steps on a GPU and on the CPU: the same verdicts, and factors that differ by their bf16 rounding at most.
# BUILD/cuda-bin holds the programs; run by make check-cuda.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/../e2e/lib/common.sh"
bin=$BUILD/cuda-bin dev=${DEVICE:-cuda:0} m=$ROOT/tests/fixtures/tiny-hybrid ref=$ROOT/tests/fixtures/references/tiny-hybrid.json
run "$bin/mla-verify" selfcheck --near --device "$dev"
if [ "$RC" -eq 3 ] && grep -q "$dev" "$TMP/err"; then
    echo "SKIP the demo on $dev: $(tail -n 1 "$TMP/err") (12)"
    echo "device: 0 passed, 0 failed, 12 skipped"
    exit 0
fi
rc_is 0 'selfcheck'
run "$bin/mla-verify" selfcheck --device "$dev"
rc_is 0 'selfcheck beyond 2^31'

g=$TMP/gpu c=$TMP/cpu
run "$bin/mla-retrofit" build "$m" "$g-lossless" --keep 1 --device "$dev" --quiet
rc_is 0 'full rank'
run "$bin/mla-verify" parity "$g-lossless" --reference "$ref" --device "$dev"
rc_is 0 'full rank against its reference'
has out '3817 of   3817 agree' 'full rank against its reference'
for o in "$c" "$g"; do # as make demo, which judges the CPU's build
    d=cpu
    [ "$o" = "$c" ] || d=$dev
    run "$bin/mla-retrofit" build "$m" "$o-keep75" --keep 0.75 --calibration-tokens 32768 --fast --device "$d" --quiet
    rc_is 0 "keep 0.75 on $d"
done
# before scales are written: the two builds against each other
run "$bin/mla-verify" parity "$g-keep75" --against "$c-keep75" --rows 4 --row-tokens 512 --device "$dev"
rc_is 0 'the two builds against each other'
grep '^KLD' "$TMP/out"
run "$bin/mla-calibrate" fp8 "$g-keep75" --tokens 4096 --judge-tokens 1024 --device "$dev" --quiet
rc_is 0 'FP8 scales'
run "$bin/mla-verify" parity "$g-keep75" --reference "$ref" --kv-dtype fp8 --min-agreement 0.97 --device "$dev"
rc_is 0 'keep 0.75, FP8, against its reference'
run "$bin/mla-verify" receipts "$g-keep75"
rc_is 0 'receipts'

# Each side rounds its fp64 factors to bf16, by half a step (2^-9 of the value) at most; as much again is left to the moments, which
# fp32 activations of another summation order move. Hence 2^-7 of the row's largest value.
run python3 - "$c-keep75" "$g-keep75" <<'P'
import json, struct, sys, array
def read(d):
    b = open(d + "/mla_factors-00001-of-00001.safetensors", "rb").read()
    n = struct.unpack("<Q", b[:8])[0]
    out = {}
    for k, t in json.loads(b[8:8 + n]).items():
        if k == "__metadata__": continue
        raw = b[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]
        v = array.array("f", b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2)) if t["dtype"] == "BF16" else raw)
        out[k] = (t["shape"], v)
    return out
a, b = read(sys.argv[1]), read(sys.argv[2])
assert a.keys() == b.keys(), a.keys() ^ b.keys()
worst, same, n = 0.0, 0, 0
for k, (shape, x) in a.items():
    y, w = b[k][1], shape[-1] if shape else 1
    assert shape == b[k][0], k
    for r in range(0, len(x), w):
        top = max(map(abs, x[r:r + w])) or 1.0
        worst = max(worst, max(abs(p - q) for p, q in zip(x[r:r + w], y[r:r + w])) / top)
    same += sum(p == q for p, q in zip(x, y)); n += len(x)
print("factors: %d of %d values equal, largest difference %.3g of its row" % (same, n, worst))
sys.exit(worst > 2 ** -7 or not worst == worst)
P
rc_is 0 'factors of the two devices'
cat "$TMP/out"
finish device
