/* EXL3 with up to 8 tokens: the codebook's f16 numbers go from their rings straight into mma.m16n8k16, exactly (trellis_few.cuh). A lane
 * of a tile has the eight steps 8 l .. 8 l + 7 of its ring, which are the fragment that a product's A needs: outputs on 16 rows, inputs
 * along k. A number comes twice in its word, and an input, transformed and brought to one power of two for a token and part, as two f16
 * numbers: each product takes every other input of a tile. */
#include "cuda/trellis_few.cuh"

/* A block of 128 inputs a warp, a part a block: H (su x). */
static __global__ void __launch_bounds__(PART * 32) few_in(uint32_t *xh, float *size, const float *x, size_t ldx, int in, int blocks, const float *su)
{
    __shared__ uint32_t top[PART];
    const int part = blockIdx.x, t = blockIdx.y, T = gridDim.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = part * PART + warp, k0 = block * SIDE + lane * 4;
    float v[4] = {};
    grid_release(); /* before the wait: what comes next reads nothing that others write until it has waited for this */
    if (block < blocks) *(float4 *)v = *(const float4 *)(su + k0);
    grid_wait();
    for (int k = 0; k < 4; k++) v[k] = k0 + k < in ? __ldcg(x + t * ldx + k0 + k) * v[k] : 0.f;
    hadamard(v);
    /* numbers that are not negative have the order of their bits */
    const uint32_t most = __reduce_max_sync(~0u, __float_as_uint(fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])))));
    if (lane == 0) top[warp] = most;
    __syncthreads();
    uint32_t all = top[0];
    for (int i = 1; i < PART; i++) all = max(all, top[i]);
    const int e = (int)(all >> 23); /* to below 2^8: two f16 numbers keep 22 bits of what is down to 2^-11 of the largest, and 2^-32 of that */
    const float f = __uint_as_float((uint32_t)(e < 10 ? 2 : e > 250 ? 243 : e - 7) << 23), by = 1.f / f;
    if (threadIdx.x == 0) size[part * T + t] = f;
    if (block >= blocks) return;
    const int row = warp % SLAB * 8 + lane / 4; /* of tiles, of the slab */
    uint32_t *to = xh + (((size_t)((block / SLAB * SHARES + row % SHARES) * ROWS + row / SHARES) * T + t) * 4 + (lane & 1) * 2) * 4 + (lane >> 1 & 1);
    for (int k = 0; k < 4; k++) {
        const float u = v[k] * by;
        const __half high = __float2half_rn(u);
        to[k / 2 * 4 + k % 2 * 2] = bits(__halves2half2(high, __float2half_rn(u - __half2float(high))));
    }
}

static int parts_of(const Trellis *t) { return (t->in128 / SIDE + PART - 1) / PART; }
bool trellis_few_fits(const mla_cuda *c, const Trellis *t, size_t T)
{
    return T <= TOKENS && t->twice_k >= 2 && t->twice_k <= 16 && (t->twice_k % 2 == 0 || t->codebook == 2) && t->in128 < 1 << 22 && (long long)t->out128 / SIDE * parts_of(t) < 1 << 30 &&
           smem_of(t->twice_k, (int)T) <= c->shared;
}
size_t trellis_few_room(const Trellis *t, size_t T)
{
    const size_t n = T * parts_of(t);
    return pad256(n * PART * SIDE * 4) + pad256(n * 4) + n * t->out128 * 4;
}

mla_status trellis_few(mla_cuda *c, const mla_weight *w, const mla_linear_args *a, char *room, mla_err *err)
{
    static void (*const KERNEL[][2])(FewTrellis) = {
        {trellis_mma<2, false>, trellis_mma<2, true>},   {NULL, trellis_mma<3, true>},  {trellis_mma<4, false>, trellis_mma<4, true>},   {NULL, trellis_mma<5, true>},
        {trellis_mma<6, false>, trellis_mma<6, true>},   {NULL, trellis_mma<7, true>},  {trellis_mma<8, false>, trellis_mma<8, true>},   {NULL, trellis_mma<9, true>},
        {trellis_mma<10, false>, trellis_mma<10, true>}, {NULL, trellis_mma<11, true>}, {trellis_mma<12, false>, trellis_mma<12, true>}, {NULL, trellis_mma<13, true>},
        {trellis_mma<14, false>, trellis_mma<14, true>}, {NULL, trellis_mma<15, true>}, {trellis_mma<16, false>, trellis_mma<16, true>}};
    static const uint32_t MUL[] = {89226354u, 0xcbac1fedu, 0x83dcd12du}, ADD[] = {64248484u, 0, 0};
    const Trellis *t = w->trellis;
    const char *what = "packed EXL3";
    const int T = (int)a->T, parts = parts_of(t), groups = t->out128 / SIDE, pieces = groups * parts, smem = smem_of(t->twice_k, T);
    const auto kernel = KERNEL[t->twice_k - 2][t->codebook == 2];
    uint32_t *x = (uint32_t *)room;
    float *size = (float *)(room + pad256(a->T * parts * PART * SIDE * 4)), *y = (float *)((char *)size + pad256(a->T * parts * 4));
    const FewTrellis p = {t->tiles, (const uint4 *)x, size, y, MUL[t->codebook], ADD[t->codebook], T, t->in128 / SIDE, groups, parts};
    int fit = 0;
    mla_status st = cu_ok(cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem), what, err);
    if (!st) st = cu_ok(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel, THREADS, (size_t)smem), what, err);
    if (!st) st = cu_launch(c, what, err, few_in, dim3((unsigned)parts, (unsigned)T), dim3(PART * 32), x, size, cf32p(a->x), a->ldx, (int)w->in, t->in128 / SIDE, t->su);
    const int most = c->sms * (fit < 1 ? 1 : fit < BLOCKS ? fit : BLOCKS);
    if (!st) st = cu_early(what, err, kernel, dim3((unsigned)(pieces < most ? pieces : most)), dim3(THREADS), (size_t)smem, c->stream, p);
    return st ? st : trellis_out(c, w, a, y, (size_t)parts, err);
}
