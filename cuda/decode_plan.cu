/* How the cached tokens are cut over the SMs: pages of all sequences lie in one line, each sequence preceded by empty units (what a
 * piece costs beside its pages: its queries, its output); part p of P takes units [p T / P, (p+1) T / P). Few sequences are also cut
 * by filling one part after the other, where the longest part is shorter then. */
#include <limits.h>

#include "cuda/check.cuh"
#include "cuda/decode_dev.cuh"

enum { PLAN_THREADS = 1024, PLAN_TRIES = 17, PLAN_FILLED = 256 /* sequences */ };

/* Parts filled with `most` pages and pieces each; piece(b, n, own, next, more): of b's n pages `own` go into the part begun last (none: 0),
 * the others into `more` parts from `next` on. Returns how many parts there are. */
template <typename F> static __device__ __forceinline__ int fill_parts(const int32_t *len, int B, int overhead, int most, F piece)
{
    const int each = most - overhead;
    int room = 0, parts = 0;
    for (int b = 0; b < B; b++) {
        const int n = len[b] > 0 ? (len[b] + 63) >> 6 : 0, own = min(n, max(room - overhead, 0)), more = (n - own + each - 1) / each;
        piece(b, n, own, parts, more);
        if (more) room = more * each - (n - own);
        else if (n) room -= overhead + own;
        parts += more;
    }
    return parts;
}

/* prefix (B + 1): first unit of each sequence. One block; chunks of PLAN_THREADS sequences. */
static __global__ void plan_parts(const int32_t *len, int B, int parts, int overhead, long long *prefix, int2 *begin, int2 *split)
{
    __shared__ long long sums[PLAN_THREADS / 32], carry;
    __shared__ int worst[PLAN_TRIES];
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
    if (tid == 0) carry = 0;
    __syncthreads();
    for (int b0 = 0; b0 < B; b0 += PLAN_THREADS) {
        const int b = b0 + tid, n = b < B && len[b] > 0 ? (len[b] + 63) >> 6 : 0;
        const long long own = n ? n + overhead : 0;
        long long x = own;
        for (int o = 1; o < 32; o <<= 1) {
            const long long y = __shfl_up_sync(~0u, x, o);
            if (lane >= o) x += y;
        }
        if (lane == 31) sums[warp] = x;
        __syncthreads();
        long long before = carry;
        for (int i = 0; i < warp; i++) before += sums[i];
        if (b < B) prefix[b] = before + x - own;
        __syncthreads();
        if (tid == PLAN_THREADS - 1) carry = before + x;
        __syncthreads();
    }
    const long long total = carry;
    if (tid == 0) prefix[B] = total;
    if (tid < PLAN_TRIES) worst[tid] = 0;
    __syncthreads();
    auto sequence = [&](long long x) { /* the last with prefix <= x: it has pages, since x lies inside its units */
        int lo = 0, hi = B;
        while (hi - lo > 1) {
            const int mid = (lo + hi) / 2;
            if (prefix[mid] <= x) lo = mid;
            else hi = mid;
        }
        return lo;
    };
    /* Slightly fewer parts may fall on sequences' ends: the least of the longest part, pages and pieces. */
    const int tries = total < parts ? 0 : min(PLAN_TRIES, parts / 8 + 1);
    for (int i = tid; i < tries * parts; i += PLAN_THREADS) {
        const int P = parts - i / parts, p = i % parts;
        if (p >= P) continue;
        const long long x0 = p * total / P, x1 = (p + 1) * total / P, in = x0 - prefix[sequence(x0)],
                        out = x1 < total ? x1 - prefix[sequence(x1)] : overhead + 1;
        const long long load = x1 - x0 + (in < overhead ? in : overhead) - (out <= overhead ? out : 0);
        atomicMax(&worst[i / parts], (int)(load < INT_MAX ? load : INT_MAX));
    }
    __syncthreads();
    int best = 0;
    for (int i = 1; i < tries; i++)
        if (worst[i] < worst[best]) best = i;
    if (B <= (int)PLAN_FILLED && total >= parts) { /* one of these is enough: a part wastes less than two pieces' cost */
        __shared__ int least, parts_then;
        if (tid < 32) {
            const int most = max((int)((total + parts - 1) / parts), overhead + 1) + tid;
            const int then = fill_parts(len, B, overhead, most, [](int, int, int, int, int) {});
            const unsigned fits = __ballot_sync(~0u, then <= parts);
            const int first = __ffs((int)fits) - 1;
            if (tid == first) least = most, parts_then = then;
            if (tid == 0 && !fits) least = INT_MAX, parts_then = parts;
        }
        __syncthreads();
        if (least < worst[best] || (least == worst[best] && parts_then <= parts - parts / 16)) {
            if (tid >= 32) return;
            fill_parts(len, B, overhead, least, [&](int b, int n, int own, int next, int more) {
                for (int i = tid; i < more; i += 32) begin[next + i] = make_int2(b, own + i * (least - overhead));
                if (tid == 0) split[b] = n ? make_int2(own ? next - 1 : next, next + more - 1) : make_int2(1, 0);
            });
            for (int p = parts_then + tid; p <= parts; p += 32) begin[p] = make_int2(B, 0);
            return;
        }
    }
    const long long P = total < parts ? (total ? total : 1) : parts - best;
    for (int p = tid; p <= parts; p += PLAN_THREADS) {
        int2 at = make_int2(B, 0);
        const long long x = p < P ? p * total / P : total;
        if (x < total) {
            const int b = sequence(x);
            const long long page = x - prefix[b] - overhead;
            at = make_int2(b, page > 0 ? (int)page : 0);
        }
        begin[p] = at;
    }
    for (int b = tid; b < B; b += PLAN_THREADS) {
        const long long first = prefix[b] + overhead, last = prefix[b + 1] - 1;
        split[b] = last < first ? make_int2(1, 0)
                                : make_int2((int)(((first + 1) * P - 1) / total), (int)(((last + 1) * P - 1) / total));
    }
}

mla_status decode_cut(const int32_t *len, int B, int parts, int overhead, long long *prefix, int2 *begin, int2 *split, cudaStream_t stream, mla_err *err)
{
    plan_parts<<<1, PLAN_THREADS, 0, stream>>>(len, B, parts, overhead, prefix, begin, split);
    return cu_ok(cudaGetLastError(), "decode: plan", err);
}
