/* How far an attention output moved: a warp per (token, head), lanes over its values, one fixed tree over all. */
#include "cuda/be.cuh"

enum { BLOCKS = 1024, THREADS = 256, WARPS = THREADS / 32 };

static __device__ double block_tree(double x) /* in thread 0 */
{
    __shared__ double part[THREADS];
    part[threadIdx.x] = x;
    for (int o = THREADS / 2; o; o >>= 1) {
        __syncthreads();
        if ((int)threadIdx.x < o) part[threadIdx.x] += part[threadIdx.x + o];
    }
    return part[0];
}
static __global__ void __launch_bounds__(THREADS) change_parts(double *part, const float *a, const float *b, const float *gate, size_t ld, size_t head, size_t T, size_t H, size_t d)
{
    double s = 0.0;
    for (size_t r = blockIdx.x * (size_t)WARPS + threadIdx.x / 32; r < T * H; r += (size_t)BLOCKS * WARPS)
        for (size_t j = threadIdx.x % 32; j < d; j += 32) {
            double e = (double)b[r * d + j] - a[r * d + j];
            if (gate) e /= 1.0 + exp(-(double)gate[r / H * ld + r % H * head + j]);
            s += e * e;
        }
    s = block_tree(s);
    if (threadIdx.x == 0) part[blockIdx.x] = s;
}
static __global__ void __launch_bounds__(THREADS) change_total(double *sum, const double *part)
{
    double s = 0.0;
    for (int i = threadIdx.x; i < BLOCKS; i += THREADS) s += part[i];
    s = block_tree(s);
    if (threadIdx.x == 0) *sum += s;
}

mla_status cu_gated_change(mla_backend *be, const mla_change_args *a, mla_err *err)
{
    mla_cuda *c = cu_of(be);
    char *part;
    mla_status st = cu_scratch(c, BLOCKS * sizeof(double), "change", &part, err);
    if (st) return st;
    change_parts<<<BLOCKS, THREADS, 0, c->stream>>>((double *)part, cf32p(a->a), cf32p(a->b), a->gate ? cf32p(a->gate) : NULL, a->gate_ld, a->gate_h, a->T, a->H, a->d);
    change_total<<<1, THREADS, 0, c->stream>>>(f64p(a->sum), (const double *)part);
    return launched("change", err);
}
