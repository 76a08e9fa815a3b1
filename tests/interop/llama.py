"""The bundled hybrid model as the qwen35 GGUF that the tests write (tests/tools/write_gguf), judged by llama.cpp's own reader and graph.

usage: llama.py DUMP_PROGRAM WORK_FOLDER LLAMA_PYTHON      (tests/interop/run.sh writes WORK_FOLDER/tiny-hybrid.gguf)
Every value of the file is f32 and so is the server's cache: what is left is llama.cpp's own arithmetic, 0.007 nats at most when this
was written, against which a broken convention stands out by two orders. The last line is "interop-llama: N passed, N failed, N skipped"."""
import json
import os
import struct
import subprocess
import sys
import time
import traceback
import urllib.request

import numpy as np

DUMP, WORK, PYTHON = sys.argv[1:4]
BASE, GGUF, VOCAB, TOP = "tests/fixtures/tiny-hybrid", f"{WORK}/tiny-hybrid.gguf", 2048, 20
NEAR = 0.02  # nats, of tokens within 12 nats of the best


class Server:
    def __init__(self, model):
        port = f"{WORK}/llama.url"
        if os.path.exists(port):
            os.remove(port)
        self.log = open(f"{WORK}/llama.log", "w")
        self.process = subprocess.Popen([PYTHON, "tests/interop/serve_llama.py", model, port, "1024", "f32"], stdout=self.log, stderr=self.log)
        for _ in range(240):
            if os.path.exists(port) or self.process.poll() is not None:
                break
            time.sleep(0.5)
        assert os.path.exists(port), f"llama.cpp does not open {model}: see {self.log.name}"
        with open(port, encoding="utf-8") as f:
            self.url = f.read()

    def ask(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()


def our_logprobs(model, ids):
    source, out = f"{WORK}/ids.txt", f"{WORK}/logits.f32"
    with open(source, "w") as f:
        f.write("\n".join(map(str, ids)))
    subprocess.run([DUMP, "logits", model, source, out], check=True)
    x = np.fromfile(out, dtype="<f4").reshape(len(ids), VOCAB).astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def greedy_cases():
    with open("tests/fixtures/references/tiny-hybrid.json", encoding="utf-8") as f:
        return [c for c in json.load(f)["cases"] if c["kind"] == "greedy"]


def compare(server, cases):
    """Cases that leave the reference's greedy ids where it is no near-tie, ids in common, the largest distance of the server's top
    log-probabilities from ours (infinite where it gives none) and how many were compared."""
    other, same, far, n = [], 0, 0.0, 0
    for case in cases:
        prompt, want = case["prompt_ids"], case["completion_ids"]
        answer = server.ask("/completion", {"prompt": prompt, "n_predict": len(want), "temperature": 0, "n_probs": TOP, "cache_prompt": False})
        positions = answer["completion_probabilities"]
        got = [p["id"] for p in positions]
        leaves = [i for i, (a, b) in enumerate(zip(got, want)) if a != b][:1]
        same += leaves[0] if leaves else len(got)
        if len(got) != len(want) or (leaves and case["margin"][leaves[0]] > 2 * NEAR):
            other.append(case["name"])
        ours = our_logprobs(BASE, prompt + got)[len(prompt) - 1 : -1]
        for row, position in zip(ours, positions):
            assert len(position["top_logprobs"]) == TOP
            for t in position["top_logprobs"]:
                if row[t["id"]] > row.max() - 12:
                    far, n = max(far, np.inf if t["logprob"] is None else abs(row[t["id"]] - t["logprob"])), n + 1
    return other, same, far, n


def case_answers_alike(server):
    other, same, far, n = compare(server, greedy_cases())
    assert not other, f"llama.cpp says otherwise in {other}, {far:.3g} nats apart"
    assert far <= NEAR, f"log-probabilities {far:.3g} nats apart, at most {NEAR} expected"
    print(f"  tiny-hybrid as qwen35 GGUF in llama.cpp: {same} greedy ids of the reference, {n} log-probabilities at most {far:.2g} nats apart")


def case_same_ids_of_text(server):
    texts = []
    with open("calib/evaluation.jsonl", encoding="utf-8") as f:
        texts = [json.loads(line)["text"] for line in f if line.strip()][:24] + ["<|im_start|>user\nHi there, it's 2026.<|im_end|>\n"]
    with open(f"{WORK}/texts.bin", "wb") as f:
        f.write(b"".join(t.encode() + b"\0" for t in texts))
    subprocess.run([DUMP, "encode", GGUF, f"{WORK}/texts.bin", f"{WORK}/encoded.txt"], check=True)
    with open(f"{WORK}/encoded.txt") as f:
        ours = [[int(x) for x in line.split()] for line in f]
    assert len(ours) == len(texts)
    for text, mine in zip(texts, ours):
        theirs = server.ask("/tokenize", {"content": text, "parse_special": True})["tokens"]
        assert mine == theirs, f"{text[:40]!r}: {mine[:12]} here, {theirs[:12]} in llama.cpp"
    print(f"  qwen35 vocabulary: {len(texts)} texts, {sum(map(len, ours))} ids equal")


def case_every_tensor_is_known(server):
    """Names that llama.cpp does not ask for are reported as unused: the MTP head alone, which it keeps for drafting."""
    with open(f"{WORK}/llama.log", encoding="utf-8", errors="replace") as f:
        unused = {line.split("unused tensor ")[1].split()[0] for line in f if "unused tensor " in line}
    strangers = sorted(n for n in unused if not n.startswith("blk.8."))
    assert not strangers, f"llama.cpp does not use {strangers}"


def controls():
    """One broken convention each: (what, offsets of a file's tensor, change of its values)."""
    def untile(x):  # heads in the folder's order instead of tiled
        return x.reshape(2, 4, -1).transpose(1, 0, 2).reshape(-1)

    return [("norms without their 1", "blk.1.attn_norm.weight", lambda x: x - 1), ("A_log instead of -exp(A_log)", "blk.0.ssm_a", lambda x: np.log(-x)),
            ("value heads in the folder's order", "blk.2.attn_gate.weight", untile)]


def tensors(path):
    """name -> (byte offset, values) of a GGUF file of f32 tensors, found by its tensor infos."""
    with open(path, "rb") as f:
        data = f.read()
    at = [8]

    def take(fmt):
        v = struct.unpack_from("<" + fmt, data, at[0])
        at[0] += struct.calcsize("<" + fmt)
        return v[0]

    def string():
        n = take("Q")
        at[0] += n
        return data[at[0] - n : at[0]].decode()

    def value(kind):
        if kind == 8:
            string()
        elif kind == 9:
            item, n = take("I"), take("Q")
            for _ in range(n):
                value(item)
        else:
            at[0] += {0: 1, 1: 1, 2: 2, 3: 2, 7: 1, 10: 8, 11: 8, 12: 8}.get(kind, 4)

    count, keys = take("Q"), take("Q")
    for _ in range(keys):
        string()
        value(take("I"))
    infos = {}
    for _ in range(count):
        name = string()
        dims = [take("Q") for _ in range(take("I"))]
        assert take("I") == 0
        infos[name] = (take("Q"), int(np.prod(dims)))
    start = (at[0] + 31) // 32 * 32
    return data, {n: (start + o, size) for n, (o, size) in infos.items()}


def case_each_convention_counts(server):
    data, infos = tensors(GGUF)
    for what, name, change in controls():
        bent, (at, n) = bytearray(data), infos[name]
        x = np.frombuffer(data, "<f4", n, at).astype(np.float64)
        bent[at : at + 4 * n] = change(x).astype("<f4").tobytes()
        with open(f"{WORK}/bent.gguf", "wb") as f:
            f.write(bent)
        other = Server(f"{WORK}/bent.gguf")
        try:
            _, _, far, _ = compare(other, greedy_cases()[:1])
        finally:
            other.close()
        print(f"  {what}: {far:.3g} nats apart")
        assert far > 5 * NEAR, f"{what}: moves log-probabilities by {far:.3g} only: this test cannot fail"
    os.remove(f"{WORK}/bent.gguf")


def main():
    passed = failed = 0
    server = Server(GGUF)
    for name, case in [(n, c) for n, c in globals().items() if n.startswith("case_")]:
        try:
            case(server)
            passed += 1
        except Exception as e:
            print(f"FAIL {name}: {e if isinstance(e, AssertionError) else traceback.format_exc()}")
            failed += 1
    server.close()
    print(f"interop-llama: {passed} passed, {failed} failed, 0 skipped")
    return failed > 0


sys.exit(main())
