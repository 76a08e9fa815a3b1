/* A warp has a tile of 8 rows of a layer and four of its tokens. Its weights are in registers before the kernel before this one ends; tokens
 * come from L2 straight into the operands, in the order of linear_few_mul.cuh, and sums are added as its eight warps would add them. Row operations
 * have blocks of their own. */
#include "cuda/check.cuh"
#include "cuda/heads.cuh"
#include "cuda/rows.cuh"

enum { WARPS = HEADS_BLOCK / 32, ROLES = 8 /* warps of linear_few: each has two neighbouring groups of 32 columns */, AT_ONCE = 8 };

#ifdef MLA_HOPPER
static __device__ __forceinline__ uint32_t two(float2 x)
{
    const __nv_bfloat162 h = __floats2bfloat162_rn(x.x, x.y);
    return *(const uint32_t *)&h;
}
static __device__ __forceinline__ void mma_first(float (&d)[4], const uint4 &a, const uint2 &b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "f"(0.f));
}
/* One task of layers of at most 64 PAIRS inputs. */
template <int PAIRS> static __device__ __forceinline__ void product(const HeadsP &p, int task)
{
    const int lane = threadIdx.x & 31, g = lane >> 2, c = lane & 3;
    int j = 0;
    while (j + 1 < p.jobs && task >= p.job[j + 1].task0) j++;
    const HeadsJob &job = p.job[j];
    const int sets = (job.T + HEADS_SET - 1) / HEADS_SET, row = (task - job.task0) / sets * HEADS_TILE + g, t0 = (task - job.task0) % sets * HEADS_SET, in = job.in;
    const uint4 *w = (const uint4 *)(job.w + (size_t)min(row, job.out - 1) * in) + c;
    uint4 a[2 * PAIRS];
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; i++) a[i] = i * 32 < in ? __ldg(w + 4 * i) : make_uint4(0, 0, 0, 0);
    const float bias = job.bias ? job.bias[min(row, job.out - 1)] : 0.f;
    grid_wait();
    const float *x = job.x + min(t0 + (g & 3), job.T - 1) * job.ldx + c * 8 + (g >> 2) * 2;
    uint2 b[2 * PAIRS];
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; i++) {
        float2 lo = make_float2(0.f, 0.f), hi = lo;
        if (i * 32 < in) lo = __ldcg((const float2 *)(x + i * 32)), hi = __ldcg((const float2 *)(x + i * 32 + 4));
        b[i] = make_uint2(two(lo), two(hi));
    }
    const int t = t0 + 2 * c; /* the lanes c < 2 have the sums of two tokens */
    const bool has[2] = {c < 2 && row < job.out && t < job.T, c < 2 && row < job.out && t + 1 < job.T};
    float gate[2] = {};
#pragma unroll
    for (int e = 0; e < 2; e++)
        if (p.gate && has[e]) gate[e] = __ldcg(p.gate + (job.y + (t + e) * job.ldy - p.gated) / p.gd * p.ldg + row);
    float sum[2];
#pragma unroll
    for (int r = 0; r < PAIRS; r++) {
        float d[2][4], v[4];
        mma_first(d[0], a[2 * r], b[2 * r]), mma_first(d[1], a[2 * r + 1], b[2 * r + 1]);
#pragma unroll
        for (int e = 0; e < 4; e++) v[e] = (d[0][e] + d[1][e]) + 0.f; /* linear_few's other two sums are of columns beyond HEADS_IN */
        const float s0 = c < 2 ? v[0] : v[2], s1 = c < 2 ? v[1] : v[3], both0 = s0 + __shfl_xor_sync(~0u, s0, 2), both1 = s1 + __shfl_xor_sync(~0u, s1, 2);
        sum[0] = r ? sum[0] + both0 : both0, sum[1] = r ? sum[1] + both1 : both1;
    }
    if (PAIRS < ROLES) sum[0] += 0.f, sum[1] += 0.f; /* of warps that have nothing */
#pragma unroll
    for (int e = 0; e < 2; e++) {
        if (!has[e]) continue;
        const long long at = (t + e) * job.ldy + row;
        float v = job.bias ? sum[e] + bias : sum[e];
        if (p.gate) v = gated(v, gate[e]);
        job.y[at] = v;
        if (job.half) job.half[at] = __float2bfloat16_rn(v);
    }
}

/* A row of a copy or a cache write, by `threads` threads of which this is the i-th: loads first, then stores. */
static __device__ __forceinline__ void put_row(const HeadsOp &op, unsigned row, unsigned i, unsigned threads)
{
    const bool cache = op.kind == HEADS_KV_WRITE;
    const unsigned d = (unsigned)(cache ? op.kv.width : op.copy.d);
    const float *x = cache ? op.kv.x + row * op.kv.ldx : op.copy.x + row * op.copy.ldx;
    const size_t at = cache ? kv_row(op.kv, row) : row * op.copy.ldy;
    for (; i < d; i += threads * AT_ONCE) {
        float v[AT_ONCE];
#pragma unroll
        for (unsigned k = 0; k < AT_ONCE; k++)
            if (const unsigned e = i + k * threads; e < d) v[k] = __ldcg(x + e);
#pragma unroll
        for (unsigned k = 0; k < AT_ONCE; k++)
            if (const unsigned e = i + k * threads; e < d) {
                if (cache) kv_store(op.kv.v, at + e, v[k]);
                else op.copy.y[at + e] = v[k];
            }
    }
}
static __device__ __forceinline__ void row_ops(const HeadsP &p)
{
    for (int n = 0; n < p.ops; n++) {
        const HeadsOp &op = p.op[n];
        const unsigned block = blockIdx.x - op.block0;
        if (block >= (unsigned)op.blocks) continue;
        if (op.kind == HEADS_ROPE) {
            const unsigned half = (unsigned)op.rope.half, heads = (unsigned)op.rope.heads;
            for (unsigned i = block * HEADS_BLOCK + threadIdx.x; i < op.items; i += op.blocks * HEADS_BLOCK) rope_item(op.rope, i / half / heads, i / half % heads, i % half);
        } else {
            const unsigned rows = op.items / op.blocks < WARPS ? 1 : WARPS, threads = HEADS_BLOCK / rows; /* a block has at once */
            for (unsigned row = block * rows + threadIdx.x / threads; row < op.items; row += op.blocks * rows) put_row(op, row, threadIdx.x % threads, threads);
        }
        __syncthreads();
    }
}
#endif

template <int PAIRS> static __global__ void __launch_bounds__(HEADS_BLOCK) heads(const __grid_constant__ HeadsP p)
{
#ifdef MLA_HOPPER
    grid_release();
    if ((int)blockIdx.x < p.op_blocks) {
        grid_wait();
        row_ops(p);
        return;
    }
    const int task = (int)(blockIdx.x - p.op_blocks) * WARPS + (int)(threadIdx.x >> 5);
    if (task < p.tasks) product<PAIRS>(p, task);
    else grid_wait();
#endif
}

mla_status heads_run(HeadsP *p, cudaStream_t stream, mla_err *err)
{
    int most = 0;
    p->tasks = 0;
    for (int j = 0; j < p->jobs; j++) {
        HeadsJob *a = &p->job[j];
        a->task0 = p->tasks, p->tasks += (a->out + HEADS_TILE - 1) / HEADS_TILE * ((a->T + HEADS_SET - 1) / HEADS_SET);
        most = a->in > most ? a->in : most;
    }
    const dim3 grid((unsigned)(p->op_blocks + (p->tasks + WARPS - 1) / WARPS));
    return cu_early("heads", err, most <= 64 * 4 ? heads<4> : heads<8>, grid, dim3(HEADS_BLOCK), 0, stream, *p);
}
