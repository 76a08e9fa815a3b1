/* The tokens of linear_few.cu: from global memory, normed if asked, rounded, to shared memory, where every block has all of them. */
#ifndef MLA_CUDA_LINEAR_FEW_X_CUH
#define MLA_CUDA_LINEAR_FEW_X_CUH
#include "cuda/linear_few.cuh"
#include "cuda/rows.cuh"

/* Bytes from one token to the next in shared memory. */
static inline __host__ __device__ int x_pitch(int in) { return in * 2 + (in % 64 ? 0 : 64); } /* 64 modulo 128: no bank conflicts */

static __device__ __forceinline__ void put_x(char *to, const float (&v)[8])
{
    uint32_t u[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const __nv_bfloat162 h = __floats2bfloat162_rn(v[2 * j], v[2 * j + 1]);
        u[j] = *(const uint32_t *)&h;
    }
    *(uint4 *)to = make_uint4(u[0], u[2], u[1], u[3]); /* in the order of linear_few_mul.cuh */
}
static __device__ __forceinline__ void norm8(float (&v)[8], float inv, const float (&gain)[8])
{
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = v[j] * inv * gain[j];
}
enum { KEEP = 3 }; /* groups of eight that a thread keeps between a norm's two passes */
static __device__ __forceinline__ void load_gain(float (&f)[8], const float *x)
{
    const float4 a = ((const float4 *)x)[0], b = ((const float4 *)x)[1];
    f[0] = a.x, f[1] = a.y, f[2] = a.z, f[3] = a.w, f[4] = b.x, f[5] = b.y, f[6] = b.z, f[7] = b.w;
}
/* Tokens of one job, normed and rounded, to shared memory. */
static __device__ __forceinline__ void load_x(const FewPhase &p, const FewJob &job, char *to)
{
    for (int t = 0; t < p.T; t++, to += x_pitch(job.in)) {
        const float *x = job.x + t * job.ldx;
        if (job.xh) {
#pragma unroll 5
            for (int i = threadIdx.x * 8; i < job.in; i += ROW * 8) {
                const uint4 u = __ldcg((const uint4 *)(job.xh + t * job.ldx + i));
                *(uint4 *)(to + i * 2) = make_uint4(u.x, u.z, u.y, u.w);
            }
        } else if (p.gain && job.in <= KEEP * ROW * 8) {
            float v[KEEP][8];
#pragma unroll
            for (int n = 0; n < KEEP; n++)
                if (threadIdx.x * 8 + n * ROW * 8 < job.in) load8(v[n], x + threadIdx.x * 8 + n * ROW * 8, true);
            double s = 0.0; /* in row_scale's order */
#pragma unroll
            for (int n = 0; n < KEEP; n++)
                if (threadIdx.x * 8 + n * ROW * 8 < job.in) s += square8(v[n]);
            const float inv = inv_rms(s, (size_t)job.in, p.eps);
#pragma unroll
            for (int n = 0; n < KEEP; n++) {
                const int i = threadIdx.x * 8 + n * ROW * 8;
                float f[8];
                if (i >= job.in) break;
                load_gain(f, p.gain + i);
                norm8(v[n], inv, f);
                put_x(to + i * 2, v[n]);
            }
        } else if (p.gain) {
            const float inv = row_scale(x, (size_t)job.in, p.eps);
            for (int i = threadIdx.x * 8; i < job.in; i += ROW * 8) {
                float v[8], f[8];
                load8(v, x + i, true), load_gain(f, p.gain + i);
                norm8(v, inv, f);
                put_x(to + i * 2, v);
            }
        } else
#pragma unroll 4
            for (int i = threadIdx.x * 8; i < job.in; i += ROW * 8) {
                float v[8];
                load8(v, x + i, true);
                put_x(to + i * 2, v);
            }
    }
}
#endif
