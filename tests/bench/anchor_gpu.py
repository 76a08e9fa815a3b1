"""What serves or could serve the same work on the same GPU: a split-KV MLA decode kernel in Triton, and cuDNN's fused attention.

usage: anchor_gpu.py [OURS]     OURS: what build/bench/cuda_mla_decode and cuda_attention printed, for the ratios
Every figure is the best of the settings tried, a median of rounds, after a comparison with fp64. bf16, random values, cache pages
of 64 tokens in a shuffled order, 24 heads on one shared latent, rotary part 64, as in cuda_mla_decode. Exit code 3 without torch, Triton or a GPU."""
import sys

try:
    import torch
    import triton
    import triton.language as tl
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as e:
    sys.exit(print(f"SKIP anchor_gpu: {e}") or 3)
if not torch.cuda.is_available():
    sys.exit(print("SKIP anchor_gpu: no GPU") or 3)

HEADS, PADDED, PAGE, ROPE = 24, 32, 64, 64


@triton.jit
def decode_part(q, cache, table, lens, po, plse, scale, table_stride, splits,
                A: tl.constexpr, B: tl.constexpr, R: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, P: tl.constexpr, N: tl.constexpr):
    """A part of a sequence for all heads: the latent is A + B wide (powers of two, B may be 0), keys have R more."""
    b, s = tl.program_id(0), tl.program_id(1)
    ROW: tl.constexpr = A + B + R
    n = tl.load(lens + b)
    each = tl.cdiv(tl.cdiv(n, splits), N) * N
    begin, end = s * each, tl.minimum(n, (s + 1) * each)
    h, a, r = tl.arange(0, HP), tl.arange(0, A), tl.arange(0, R)
    qrow = q + (b * H + h)[:, None] * ROW
    has = (h < H)[:, None]
    qa = tl.load(qrow + a[None, :], mask=has, other=0.0)
    qr = tl.load(qrow + A + B + r[None, :], mask=has, other=0.0)
    oa = tl.zeros([HP, A], tl.float32)
    if B:
        bb = tl.arange(0, B)
        qb = tl.load(qrow + A + bb[None, :], mask=has, other=0.0)
        ob = tl.zeros([HP, B], tl.float32)
    m = tl.full([HP], float("-inf"), tl.float32)
    l = tl.zeros([HP], tl.float32)
    for at in range(begin, end, N):
        tok = at + tl.arange(0, N)
        in_ = tok < end
        page = tl.load(table + b * table_stride + tok // P, mask=in_, other=0)
        row = cache + (page.to(tl.int64) * P + tok % P)[:, None] * ROW
        ka = tl.load(row + a[None, :], mask=in_[:, None], other=0.0)
        x = tl.dot(qa, tl.trans(ka))
        if B:
            kb = tl.load(row + A + bb[None, :], mask=in_[:, None], other=0.0)
            x += tl.dot(qb, tl.trans(kb))
        kr = tl.load(row + A + B + r[None, :], mask=in_[:, None], other=0.0)
        x += tl.dot(qr, tl.trans(kr))
        x = tl.where(in_[None, :], x * scale, float("-inf"))
        mx = tl.maximum(m, tl.max(x, 1))
        f = tl.exp2(m - mx)
        p = tl.exp2(x - mx[:, None])
        l = l * f + tl.sum(p, 1)
        m = mx
        p = p.to(tl.bfloat16)
        oa = oa * f[:, None] + tl.dot(p, ka)
        if B:
            ob = ob * f[:, None] + tl.dot(p, kb)
    if begin < end:
        to = po + ((b * splits + s) * H + h)[:, None] * (A + B)
        tl.store(to + a[None, :], oa / l[:, None], mask=has)
        if B:
            tl.store(to + A + bb[None, :], ob / l[:, None], mask=has)
    lse = tl.where(begin < end, m + tl.log2(l), float("-inf"))
    tl.store(plse + (b * splits + s) * H + h, lse, mask=h < H)


@triton.jit
def merge_parts(po, plse, out, splits, S: tl.constexpr, H: tl.constexpr, LAT: tl.constexpr, L: tl.constexpr):
    b, h, c = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    s, l = tl.arange(0, S), c * L + tl.arange(0, L)
    e = tl.load(plse + (b * splits + s) * H + h, mask=s < splits, other=float("-inf"))
    w = tl.exp2(e - tl.max(e, 0))
    part = po + ((b * splits + s) * H + h)[:, None] * LAT + l[None, :]
    y = tl.load(part, mask=(w > 0)[:, None], other=0.0)
    tl.store(out + (b * H + h) * LAT + l, (tl.sum(y * w[:, None], 0) / tl.sum(w, 0)).to(tl.bfloat16))


class Case:
    def __init__(self, B, tokens, lat):
        pages = (tokens + PAGE - 1) // PAGE
        self.B, self.tokens, self.lat, g = B, tokens, lat, torch.Generator("cuda").manual_seed(7)
        row = lat + ROPE
        self.cache = torch.empty(B * pages * PAGE, row, dtype=torch.bfloat16, device="cuda").normal_(generator=g)
        self.q = torch.empty(B, HEADS, row, dtype=torch.bfloat16, device="cuda").normal_(generator=g)
        self.table = torch.randperm(B * pages, generator=g, device="cuda").to(torch.int32).view(B, pages)
        self.lens = torch.full((B,), tokens, dtype=torch.int32, device="cuda")
        self.out = torch.empty(B, HEADS, lat, dtype=torch.bfloat16, device="cuda")
        self.scale = 1.0 / row**0.5

    def room(self, splits):
        self.po = torch.empty(self.B, splits, HEADS, self.lat, dtype=torch.float32, device="cuda")
        self.plse = torch.empty(self.B, splits, HEADS, dtype=torch.float32, device="cuda")

    def run(self, splits, N, warps, stages):
        a = 1 << (self.lat.bit_length() - 1)
        decode_part[(self.B, splits)](self.q, self.cache, self.table, self.lens, self.po, self.plse, self.scale * 1.4426950408889634, self.table.stride(0), splits,
                                      A=a, B=self.lat - a, R=ROPE, H=HEADS, HP=PADDED, P=PAGE, N=N, num_warps=warps, num_stages=stages)
        merge_parts[(self.B, HEADS, self.lat // 128)](self.po, self.plse, self.out, splits, S=triton.next_power_of_2(splits), H=HEADS, LAT=self.lat, L=128, num_warps=4)

    def error(self):
        worst = 0.0
        for b in {0, self.B - 1}:
            k = self.cache.view(-1, PAGE, self.lat + ROPE)[self.table[b].long()].reshape(-1, self.lat + ROPE)[: self.tokens].double()
            want = torch.softmax(self.q[b].double() @ k.T * self.scale, -1) @ k[:, : self.lat]
            worst = max(worst, ((self.out[b].double() - want).norm() / want.norm()).item())
        return worst


def median_us(f, rounds=3, launches=4):
    f()
    times = []
    for _ in range(rounds):
        e = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        f()
        e[0].record()
        for _ in range(launches):
            f()
        e[1].record()
        e[1].synchronize()
        times.append(e[0].elapsed_time(e[1]) * 1000 / launches)
    return sorted(times)[rounds // 2]


def decode(name, B, tokens, lat):
    """The best of the settings that the kernel is compiled for, and of how finely sequences are cut."""
    c, best = Case(B, tokens, lat), None
    for N, warps, stages in ((64, 4, 2), (64, 8, 2), (32, 4, 2), (32, 8, 3)):
        for per_sm in (1, 2, 4):
            splits = max(1, 132 * per_sm // B)
            c.room(splits)
            try:
                us = median_us(lambda: c.run(splits, N, warps, stages))
            except triton.runtime.errors.OutOfResources:
                continue
            if best is None or us < best[0]:
                c.out.fill_(float("nan"))
                c.run(splits, N, warps, stages)
                err = c.error()
                if not err < 2**-7:
                    sys.exit(f"anchor_gpu: {name} latent {lat}: off by {err} of its norm")
                best = us, f"{N} tokens, {warps} warps, {stages} stages, {splits} parts, off by {err:.1e}"
    return best


def sdpa(tokens):
    g = torch.Generator("cuda").manual_seed(8)
    q, k, v = (torch.empty(1, h, tokens, 256, dtype=torch.bfloat16, device="cuda").normal_(generator=g) for h in (24, 4, 4))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        us = median_us(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
    return us, 2 * 24 * tokens * tokens * 256 / us / 1e6


def ours(path):
    """(case, latent) of bf16 with one token -> us; (tokens) of prefill -> us"""
    got = {}
    for f in (l.split() for l in open(path)):
        if len(f) > 6 and f[1] == "bf16" and f[4] == "1" and f[3] == "24":
            got[f[0], int(f[2])] = float(f[5])
        if len(f) > 4 and f[1:3] == ["after", "0"]:
            got[int(f[0])] = float(f[3]) * 1000
    return got


us_of = ours(sys.argv[1]) if len(sys.argv) > 1 else {}
print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}; medians of 3 rounds")
print(f"{'anchor':<34} {'us':>9} {'ours us':>9} {'ratio':>6}")


def line(what, us, key, note):
    mine = us_of.get(key)
    print(f"{what:<34} {us:9.1f} {mine or float('nan'):9.1f} {us / mine if mine else float('nan'):6.2f}  {note}", flush=True)


with torch.inference_mode():
    for name, B, tokens, lat in (("8x64k", 8, 65536, 512), ("1x256k", 1, 262144, 512), ("32x32k", 32, 32768, 512), ("128x8k", 128, 8192, 512),
                                 ("8x64k", 8, 65536, 256), ("8x64k", 8, 65536, 768)):
        us, note = decode(name, B, tokens, lat)
        line(f"Triton MLA decode {name} bf16 {lat}", us, (name, lat), note)
    for tokens in (4096, 16384, 32768):
        us, tf = sdpa(tokens)
        line(f"cuDNN attention, {tokens} causal", us, tokens, f"{tf:.0f} TFLOP/s")
