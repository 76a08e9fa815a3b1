/* Rows of all jobs' weights lie in one line, every block takes an equal share of them, cut into tiles of 8 rows and those
 * into stages of KC columns. A copying warp streams stages through a ring, 8 warps multiply them, each every eighth group of
 * 32 columns, by the tensor cores: tokens on 16 rows (8 are used), weight rows on 8 columns.
 *
 * Weights never change, so the ring is filled before grid_wait: the next layer's first bytes arrive while this one ends,
 * and copies do not stop between kernels. Columns are permuted within 32, in weights and tokens alike, so that a thread
 * reads 16 bytes at a time: its words 0, 1 belong to the first step of 16 columns, 2, 3 to the second.
 * A token's result does not depend on how many tokens there are. The warps' sums of a tile are added in warp order. */
#include "cuda/check.cuh"
#include "cuda/linear_few.cuh"
#include "cuda/ptx.cuh"
#include "cuda/rows.cuh"

/* A ring has as many stages as let two kernels' blocks share a multiprocessor (HALF), at least three. */
enum { KC = 1024, WARPS = ROW / 32, THREADS = ROW + 32, STAGES_MIN = 3, STAGES_MAX = 5, PITCH = KC * 2 + 64, STAGE = 8 * PITCH, PART = 2 * WARPS * 32 * 8, BAR_TILE = 1,
       SMEM_ALL = 232448, HALF = 233472 / 2 - 1536 };

/* Shared memory: ring, two places for the warps' sums of a tile, barriers, tokens. */
static inline __host__ __device__ int part_at(int stages) { return stages * STAGE; }
static inline __host__ __device__ int bars_at(int stages) { return part_at(stages) + PART; }
static inline __host__ __device__ int x_at(int stages) { return bars_at(stages) + stages * 16; }
static inline __host__ __device__ int x_pitch(int in) { return in * 2 + (in % 64 ? 0 : 64); } /* 64 modulo 128: no bank conflicts */

#ifdef MLA_HOPPER
static __device__ __forceinline__ void bulk_copy(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(dst), "l"(src),
                 "r"(bytes), "r"(bar), "l"(policy)
                 : "memory");
}
static __device__ __forceinline__ uint4 lds16(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
}
/* d (16 x 8) += a (16 x 16) b (16 x 8) with rows 8..15 of a zero. */
static __device__ __forceinline__ void mma_half(float (&d)[4], uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %5}, {%7, %8}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(0), "r"(a2), "r"(b0), "r"(b1));
}

/* The copying warp: every stage as its slot comes free; lane i has row i of a tile. Little is left in the inner loop: what it
 * costs is what limits the copies. */
static __device__ __forceinline__ void copy_stages(const FewP &p, int r0, int r1, uint32_t ring, uint32_t bars)
{
    const int lane = threadIdx.x & 31;
    const uint64_t policy = evict_first_policy();
    int slot = 0;
    uint32_t phase = 1;
    for (int j = 0; j < p.n; j++) {
        const FewJob &job = p.job[j];
        const int lo = max(r0, job.row0), hi = min(r1, job.row1), in = job.in;
        for (int row = lo; row < hi; row += 8) {
            const int rows = min(8, hi - row), v = row + lane - job.row0;
            const char *w = (const char *)(p.pairs ? (v & 1 ? job.w2 : job.w) + (size_t)(v >> 1) * in : job.w + (size_t)v * in);
            for (int k0 = 0; k0 < in; k0 += KC, w += KC * 2) {
                const uint32_t bytes = (uint32_t)min((int)KC, in - k0) * 2, bar = bars + slot * 16;
                mbar_wait(bar + 8, phase);
                if (lane == 0) mbar_expect(bar, bytes * rows);
                __syncwarp();
                if (lane < rows) bulk_copy(ring + slot * STAGE + lane * PITCH, w, bytes, bar, policy);
                if (++slot == p.stages) slot = 0, phase ^= 1;
            }
        }
    }
}

static __device__ __forceinline__ void put_x(char *to, const float (&v)[8])
{
    uint32_t u[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const __nv_bfloat162 h = __floats2bfloat162_rn(v[2 * j], v[2 * j + 1]);
        u[j] = *(const uint32_t *)&h;
    }
    *(uint4 *)to = make_uint4(u[0], u[1], u[2], u[3]);
}
static __device__ __forceinline__ void norm8(float (&v)[8], float inv, const float (&gain)[8])
{
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = v[j] * inv * gain[j];
}
/* Tokens of one job, normed and rounded, to shared memory. */
static __device__ __forceinline__ void load_x(const FewP &p, const FewJob &job, char *to)
{
    constexpr int KEEP = 3; /* groups of eight that a thread keeps between the norm's two passes */
    for (int t = 0; t < p.T; t++, to += x_pitch(job.in)) {
        const float *x = job.x + t * job.ldx;
        if (p.gain && job.in <= KEEP * ROW * 8) {
            float v[KEEP][8], f[KEEP][8];
#pragma unroll
            for (int n = 0; n < KEEP; n++)
                if (threadIdx.x * 8 + n * ROW * 8 < job.in) load8(v[n], x + threadIdx.x * 8 + n * ROW * 8, true), load8(f[n], p.gain + threadIdx.x * 8 + n * ROW * 8, true);
            double s = 0.0; /* in row_scale's order */
#pragma unroll
            for (int n = 0; n < KEEP; n++)
                if (threadIdx.x * 8 + n * ROW * 8 < job.in) s += square8(v[n]);
            const float inv = inv_rms(s, (size_t)job.in, p.eps);
#pragma unroll
            for (int n = 0; n < KEEP; n++) {
                const int i = threadIdx.x * 8 + n * ROW * 8;
                if (i >= job.in) break;
                norm8(v[n], inv, f[n]);
                put_x(to + i * 2, v[n]);
            }
            continue;
        }
        const float inv = p.gain ? row_scale(x, (size_t)job.in, p.eps) : 1.f;
#pragma unroll 5
        for (int i = threadIdx.x * 8; i < job.in; i += ROW * 8) {
            float v[8];
            load8(v, x + i, true);
            if (p.gain) {
                float f[8];
                load8(f, p.gain + i, true);
                norm8(v, inv, f);
            }
            put_x(to + i * 2, v);
        }
    }
}

/* Sums s0, s1 of this lane's token and two rows of the tile that begins at `row`. */
static __device__ __forceinline__ void put_tile(const FewP &p, const FewJob &job, int row, int hi, float s0, float s1)
{
    const int lane = threadIdx.x & 31, t = lane >> 2, first = row + 2 * (lane & 3);
    if (t >= p.T) return;
    if (p.pairs) {
        if (first < hi) job.y[t * job.ldy + ((first - job.row0) >> 1)] = silu(s0) * s1;
        return;
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        if (first + e >= hi) break;
        const int o = first + e - job.row0;
        float *y = job.y + t * job.ldy + o;
        const float s = e ? s1 : s0, v = job.bias ? s + job.bias[o] : s;
        *y = job.accumulate ? __ldcg(y) + v : v;
    }
}
#endif

static __global__ void __launch_bounds__(THREADS, 1) linear_few(const __grid_constant__ FewP p)
{
#ifdef MLA_HOPPER
    extern __shared__ __align__(128) char smem[];
    const int lane = threadIdx.x & 31, w = threadIdx.x >> 5, g = lane >> 2, c = lane & 3;
    const long long lines = p.pairs ? p.rows / 2 : p.rows, wide = p.pairs ? 2 : 1;
    const int r0 = (int)(lines * blockIdx.x / gridDim.x * wide), r1 = (int)(lines * (blockIdx.x + 1) / gridDim.x * wide);
    const uint32_t ring = smem_u32(smem), bars = ring + bars_at(p.stages);
    grid_release(); /* every kernel waits for the one before, so the one after may come as soon as there is room */
    if (threadIdx.x == 0) {
        for (int i = 0; i < p.stages; i++) {
            mbar_init(bars + i * 16, 1);
            mbar_init(bars + i * 16 + 8, WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (w == WARPS) {
        copy_stages(p, r0, r1, ring, bars);
        grid_wait(); /* nothing of this kernel ends before the one before it */
        return;
    }
    if (p.gain) /* not read before the wait, but near by then */
        for (int i = threadIdx.x * 32; i < p.job[0].in; i += ROW * 32) asm volatile("prefetch.global.L2 [%0];" ::"l"(p.gain + i));
    grid_wait();
    for (int j = 0, seen = -1; j < p.n; j++) {
        if (max(r0, p.job[j].row0) >= min(r1, p.job[j].row1) || p.job[j].xs == seen) continue;
        seen = p.job[j].xs;
        load_x(p, p.job[j], smem + x_at(p.stages) + seen);
    }
    bar_sync(BAR_TILE, ROW);
    int slot = 0, tiles = 0;
    uint32_t phase = 0;
    for (int j = 0; j < p.n; j++) {
        const FewJob &job = p.job[j];
        const int lo = max(r0, job.row0), hi = min(r1, job.row1), in = job.in;
        const uint32_t xs = ring + x_at(p.stages) + job.xs + min(g, p.T - 1) * x_pitch(in) + c * 16;
        for (int row = lo; row < hi; row += 8) {
            float acc[4] = {};
            for (int k0 = 0; k0 < in; k0 += KC) {
                const int groups = min((int)KC, in - k0) / 32;
                const uint32_t ws = ring + slot * STAGE + g * PITCH + c * 16, bar = bars + slot * 16;
                mbar_wait(bar, phase);
#pragma unroll 4
                for (int i = w; i < groups; i += WARPS) {
                    const uint4 b = lds16(ws + i * 64), a = lds16(xs + k0 * 2 + i * 64);
                    mma_half(acc, a.x, a.y, b.x, b.y);
                    mma_half(acc, a.z, a.w, b.z, b.w);
                }
                __syncwarp();
                mbar_arrive_if(bar + 8, lane == 0);
                if (++slot == p.stages) slot = 0, phase ^= 1;
            }
            /* every warp's sums to one of two places, one warp adds them, in turn */
            float2 *part = (float2 *)(smem + part_at(p.stages)) + (tiles & 1) * WARPS * 32 + lane;
            part[w * 32] = make_float2(acc[0], acc[1]);
            bar_sync(BAR_TILE, ROW);
            if (w == tiles % WARPS) {
                float2 s = part[0];
#pragma unroll
                for (int i = 1; i < WARPS; i++) s.x += part[i * 32].x, s.y += part[i * 32].y;
                put_tile(p, job, row, hi, s.x, s.y);
            }
            tiles++;
        }
    }
#endif
}

/* Bytes of x in shared memory; sets rows and places. Jobs with the same x share it. */
static size_t place(FewP *p)
{
    size_t bytes = 0;
    p->rows = 0;
    for (int j = 0; j < p->n; j++) {
        FewJob *a = &p->job[j];
        a->row0 = p->rows;
        p->rows += a->out * (p->pairs ? 2 : 1);
        a->row1 = p->rows;
        if (j && a->x == a[-1].x && a->ldx == a[-1].ldx && a->in == a[-1].in) a->xs = a[-1].xs;
        else a->xs = (int)bytes, bytes += (size_t)p->T * x_pitch(a->in);
    }
    return bytes;
}
bool few_fits(const FewP *p)
{
    FewP q = *p;
    for (int j = 0; j < p->n; j++) {
        const FewJob *a = &p->job[j];
        if (a->in % 32 || (uintptr_t)a->x % 16 || a->ldx % 4 || a->in > 1 << 20 || a->out > 1 << 26) return false;
    }
    return p->n > 0 && p->n <= FEW_JOBS && p->T > 0 && p->T <= FEW_TOKENS && x_at(STAGES_MIN) + place(&q) + 1024 <= SMEM_ALL && q.rows < 1 << 27;
}
mla_status few_run(FewP *p, int sms, cudaStream_t stream, mla_err *err)
{
    const int x = (int)place(p), room = (HALF - x_at(0) - x) / (STAGE + 16);
    p->stages = room < STAGES_MIN ? STAGES_MIN : room > STAGES_MAX ? STAGES_MAX : room;
    const int bytes = x_at(p->stages) + x;
    const mla_status st = cu_ok(cudaFuncSetAttribute(linear_few, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_ALL - 1024), "linear bf16: shared memory", err);
    if (st) return st;
    const int blocks = p->rows / (p->pairs ? 2 : 1) < sms ? p->rows / (p->pairs ? 2 : 1) : sms;
    return cu_early("linear bf16", err, linear_few, dim3((unsigned)blocks), dim3(THREADS), (size_t)bytes, stream, *p);
}
