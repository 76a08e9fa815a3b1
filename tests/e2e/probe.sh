#!/bin/sh
# mla-verify probe against a server that answers from the record, in every dialect and with every fault.
set -u
# shellcheck source=tests/e2e/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
V=$BIN/mla-verify
SERVER=$BUILD/tests/tools/probe_server
REF=$ROOT/tests/fixtures/references/tiny-hybrid.json
PID=
stop() { [ -z "$PID" ] || { kill "$PID" 2>/dev/null; wait "$PID" 2>/dev/null; PID=; }; }
trap 'stop; rm -rf "$TMP"' EXIT
# serve DIALECT FAULT [KEY]: URL of a fresh server in $URL
serve() {
    stop
    rm -f "$TMP/port"
    "$SERVER" "$REF" "$TMP/port" "$@" &
    PID=$!
    i=0
    while [ ! -s "$TMP/port" ] && [ $i -lt 200 ]; do sleep 0.02; i=$((i + 1)); done
    URL=http://127.0.0.1:$(cat "$TMP/port")
}
probe() { run "$V" probe "$URL" --reference "$REF" --model tiny "$@" --quiet; }

for d in vllm echo step; do
    serve $d none
    probe --junit "$TMP/j.xml" --markdown "$TMP/m.md" --json
    rc_is 0 "$d: a server that answers right"
    has out "\"dialect\": \"$d\"" "$d: found by asking"
    has out '"verdict": "pass"' "$d"
    has out '"agree": 3817' "$d: every position"
    lacks out 127.0.0.1 "$d: the address stays out of the report"
    serve $d wrong
    probe --on-fail "echo stopped >'$TMP/stopped'"
    rc_is 1 "$d: wrong answers"
    if [ "$(cat "$TMP/stopped" 2>/dev/null)" = stopped ]; then pass; else fail "$d: --on-fail was not run"; fi
    rm -f "$TMP/stopped"
    serve $d no-logprobs
    probe --on-fail "touch '$TMP/stopped'"
    rc_is 3 "$d: no log-probabilities"
    one_line "$d: no log-probabilities"
    if [ -e "$TMP/stopped" ]; then fail "$d: --on-fail was run without a comparison"; else pass; fi
done
serve vllm none
run "$V" probe "$URL/v1/" --reference "$REF" --quiet --dialect vllm
rc_is 0 'the first model that is listed, a URL that ends in /v1'
serve vllm decode
probe
rc_is 1 'decode parts from the forced pass'
has out 'decode' 'decode parts from the forced pass'
serve text none # token texts that are no ids: compared with the completion's own token
probe
rc_is 0 'tokens told as texts'
serve echo wrong-ids
probe --dialect echo
rc_is 3 'another token than was sent'
has err 'was sent' 'another token than was sent'
serve vllm wrong-ids
probe --dialect vllm
rc_is 3 'the sent token is not told'
serve vllm positive
probe --dialect vllm
rc_is 3 'no log-probability'
for f in short truncated cut 500 redirect; do
    serve vllm $f
    probe --dialect vllm
    rc_is 3 "$f"
    one_line "$f"
done
serve vllm slow
probe --timeout 0.5
rc_is 3 slow
has err 'within 0.5 s' slow
serve vllm huge
probe
rc_is 3 huge
has err 'an answer of more than' huge
serve vllm chunked
probe
rc_is 0 'chunked encoding'
serve vllm boot
probe --wait 20
rc_is 0 'a server that boots'

# a server that is not there yet
stop
run "$V" probe "$URL" --reference "$REF" --model tiny --quiet
rc_is 3 'no server'
one_line 'no server'
# keys: from a file or a variable, never shown
serve vllm none s3cret-key
probe
rc_is 3 'no key'
has err '401' 'no key'
printf 's3cret-key\n' >"$TMP/key"
probe --key-file "$TMP/key" --dialect vllm
rc_is 0 'a key from a file'
PROBE_KEY=s3cret-key
export PROBE_KEY
probe --key-env PROBE_KEY --dialect vllm
rc_is 0 'a key from a variable'
printf 'wr0ng-key\n' >"$TMP/key"
probe --key-file "$TMP/key"
rc_is 3 'a wrong key'
lacks err wr0ng-key 'the key is never printed'
for u in ftp://127.0.0.1/ 127.0.0.1 http:// http://me:secret@127.0.0.1/ 'http://127.0.0.1/?q=1'; do
    run "$V" probe "$u" --reference "$REF"
    rc_is 2 "refused: $u"
    lacks err secret "refused: $u"
done
# TLS: an unknown certificate is refused, also when the server would answer
if command -v openssl >/dev/null; then
    stop
    openssl req -x509 -newkey rsa:2048 -nodes -keyout "$TMP/k.pem" -out "$TMP/c.pem" -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost 2>/dev/null
    openssl s_server -accept 0 -naccept 9 -key "$TMP/k.pem" -cert "$TMP/c.pem" -www >"$TMP/tls" 2>&1 &
    PID=$!
    i=0
    while ! grep -q ACCEPT "$TMP/tls" && [ $i -lt 200 ]; do sleep 0.02; i=$((i + 1)); done
    URL=https://localhost:$(sed -n 's/^ACCEPT.*://p' "$TMP/tls" | head -n 1)
    probe
    rc_is 3 'an unknown certificate'
    has err 'certificate' 'an unknown certificate'
    probe --ca-file "$TMP/c.pem" --timeout 3
    rc_is 3 'a trusted certificate, a server of another kind'
    lacks err 'certificate' 'a trusted certificate'
else
    skip TLS 'no openssl program'
fi
finish probe
