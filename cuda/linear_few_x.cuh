/* The tokens of linear_few.cu: from global memory, normed if asked, rounded, to shared memory, where every block has all of them. */
#ifndef MLA_CUDA_LINEAR_FEW_X_CUH
#define MLA_CUDA_LINEAR_FEW_X_CUH
#include "cuda/linear_few.cuh"
#include "cuda/rows.cuh"

enum { KEEP = 3 }; /* groups of eight that a thread keeps between a norm's two passes */
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
static __device__ __forceinline__ void load_gain(float (&f)[8], const float *x)
{
    const float4 a = ((const float4 *)x)[0], b = ((const float4 *)x)[1];
    f[0] = a.x, f[1] = a.y, f[2] = a.z, f[3] = a.w, f[4] = b.x, f[5] = b.y, f[6] = b.z, f[7] = b.w;
}
/* Results that the next phase's blocks take one by one as they come: no meeting. */
struct FewLink {
    unsigned long long *to; /* NULL: not */
    uint32_t tag;
};
static __device__ __forceinline__ uint32_t link_tag(uint32_t launch, int f) { return launch * FEW_PHASES + (uint32_t)f; }
static __device__ __forceinline__ void put_link(const FewLink &l, int i, float x)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(l.to + i), "l"((unsigned long long)l.tag << 32 | __float_as_uint(x)) : "memory");
}
/* KEEP groups of eight of them, all asked for at once until all are there. */
static __device__ __forceinline__ void take_links(float (&v)[KEEP][8], const unsigned long long *from, uint32_t tag, int in, int tid)
{
    bool all;
    do {
        all = true;
#pragma unroll
        for (int n = 0; n < KEEP; n++)
            if (tid * 8 + n * ROW * 8 < in)
#pragma unroll
                for (int k = 0; k < 8; k += 2) {
                    unsigned long long a, b;
                    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(from + tid * 8 + n * ROW * 8 + k) : "memory");
                    all = all && (uint32_t)(a >> 32) == tag && (uint32_t)(b >> 32) == tag;
                    v[n][k] = __uint_as_float((uint32_t)a), v[n][k + 1] = __uint_as_float((uint32_t)b);
                }
    } while (!all);
}
/* Tokens of one job, normed and rounded, to shared memory; link: not from x. */
static __device__ __forceinline__ void load_x(const FewPhase &p, const FewJob &job, char *to, const unsigned long long *link, uint32_t tag)
{
    int tid = threadIdx.x;
    asm volatile("" : "+r"(tid)); /* addresses are not to be kept from phase to phase */
    for (int t = 0; t < p.T; t++, to += x_pitch(job.in)) {
        const float *x = job.x + t * job.ldx;
        if (job.xh) {
#pragma unroll 5
            for (int i = tid * 8; i < job.in; i += ROW * 8) {
                const uint4 u = __ldcg((const uint4 *)(job.xh + t * job.ldx + i));
                *(uint4 *)(to + i * 2) = make_uint4(u.x, u.z, u.y, u.w);
            }
        } else if (p.gain && job.in <= KEEP * ROW * 8) {
            float v[KEEP][8];
            if (link) take_links(v, link, tag, job.in, tid);
#pragma unroll
            for (int n = 0; n < KEEP && !link; n++)
                if (tid * 8 + n * ROW * 8 < job.in) load8(v[n], x + tid * 8 + n * ROW * 8, true);
            double s = 0.0; /* in row_scale's order */
#pragma unroll
            for (int n = 0; n < KEEP; n++)
                if (tid * 8 + n * ROW * 8 < job.in) s += square8(v[n]);
            const float inv = inv_rms(s, (size_t)job.in, p.eps);
#pragma unroll
            for (int n = 0; n < KEEP; n++) {
                const int i = tid * 8 + n * ROW * 8;
                float f[8];
                if (i >= job.in) break;
                load_gain(f, p.gain + i);
                norm8(v[n], inv, f);
                put_x(to + i * 2, v[n]);
            }
        } else if (p.gain) {
            const float inv = row_scale(x, (size_t)job.in, p.eps);
            for (int i = tid * 8; i < job.in; i += ROW * 8) {
                float v[8], f[8];
                load8(v, x + i, true), load_gain(f, p.gain + i);
                norm8(v, inv, f);
                put_x(to + i * 2, v);
            }
        } else
#pragma unroll 4
            for (int i = tid * 8; i < job.in; i += ROW * 8) {
                float v[8];
                load8(v, x + i, true);
                put_x(to + i * 2, v);
            }
    }
}
#endif
