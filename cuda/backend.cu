/* Opening a CUDA device, its memory, and the table of its operations. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/be.cuh"
#include "cuda/fit.cuh"
#include "cuda/gdn.cuh"
#include "cuda/linear_few.cuh"

mla_status cublas_ok(cublasStatus_t s, const char *what, mla_err *err)
{
    if (s == CUBLAS_STATUS_SUCCESS) return MLA_OK;
    return mla_fail(err, s == CUBLAS_STATUS_ALLOC_FAILED ? MLA_ENOMEM : MLA_EINTERNAL, "%s: cuBLAS status %d", what, (int)s);
}

struct CudaKept {
    char *p;
    CudaKept *next;
};
void cu_drop_kept(mla_cuda *c)
{
    while (c->kept) {
        CudaKept *k = c->kept;
        c->kept = k->next;
        cudaFree(k->p);
        free(k);
    }
}

static mla_status scratch(mla_cuda *c, int slot, size_t bytes, const char *what, char **out, mla_err *err)
{
    auto *s = &c->scratch[slot];
    if (bytes > s->bytes) {
        CudaKept *k = NULL;
        char *p = NULL;
        if (c->tapes && s->p && !(k = (CudaKept *)malloc(sizeof *k))) return mla_fail(err, MLA_ENOMEM, "%s: scratch", what);
        if (!c->tapes) {
            mla_status st = cu_ok(cudaStreamSynchronize(c->stream), what, err);
            if (st) return st;
            cudaFree(s->p);
            s->p = NULL, s->bytes = 0;
        }
        if (cudaMalloc((void **)&p, bytes) != cudaSuccess) {
            cudaGetLastError();
            free(k);
            return mla_fail(err, MLA_ENOMEM, "%s: %zu bytes of device scratch", what, bytes);
        }
        if (k) *k = CudaKept{s->p, c->kept}, c->kept = k;
        s->p = p, s->bytes = bytes;
    }
    *out = s->p;
    return MLA_OK;
}
mla_status cu_scratch(mla_cuda *c, size_t bytes, const char *what, char **out, mla_err *err) { return scratch(c, 0, bytes, what, out, err); }
mla_status cu_tile(mla_cuda *c, size_t bytes, const char *what, char **out, mla_err *err) { return scratch(c, 1, bytes, what, out, err); }

mla_status cu_not_recording(const mla_cuda *c, const char *what, mla_err *err)
{
    return c->recording ? mla_fail(err, MLA_EINVAL, "%s while recording: it needs the host", what) : MLA_OK;
}

static __global__ void settle_kernel(void) {}
mla_status cu_settle(mla_cuda *c, const char *what, mla_err *err)
{
    settle_kernel<<<1, 1, 0, c->stream>>>();
    return launched(what, err);
}

mla_status cu_put_i32(mla_cuda *c, char *at, const int32_t *host, size_t n, const char *what, mla_err *err)
{
    mla_status st = cu_not_recording(c, what, err);
    if (!st) st = cu_ok(cudaMemcpyAsync(at, host, n * 4, cudaMemcpyHostToDevice, c->stream), what, err); /* pageable: copied now */
    return st ? st : cu_settle(c, what, err);
}

/* Memory of dropped weights goes back to the device. */
static void trim_pool(mla_cuda *c)
{
    cudaMemPool_t pool;
    cudaStreamSynchronize(c->stream);
    if (cudaDeviceGetDefaultMemPool(&pool, c->device) == cudaSuccess) cudaMemPoolTrimTo(pool, 0);
}
static mla_status cu_alloc(mla_backend *be, mla_mem **out, size_t bytes, mla_err *err)
{
    *out = NULL;
    const mla_status st = cu_not_recording(cu_of(be), "device memory", err);
    if (st) return st;
    for (int i = 0; i < 2; i++) {
        if (cudaMalloc((void **)out, bytes ? bytes : 1) == cudaSuccess) return MLA_OK;
        cudaGetLastError();
        trim_pool(cu_of(be));
    }
    *out = NULL;
    return mla_fail(err, MLA_ENOMEM, "device memory: %zu bytes", bytes);
}
static void cu_free(mla_backend *be, mla_mem *p)
{
    (void)be;
    cudaFree(p);
}
static mla_status cu_download(mla_backend *be, void *dst, const mla_mem *src, size_t bytes, mla_err *err)
{
    mla_status st = cu_not_recording(cu_of(be), "download", err);
    if (!st) st = cu_ok(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, cu_of(be)->stream), "download", err);
    return st ? st : cu_ok(cudaStreamSynchronize(cu_of(be)->stream), "download", err);
}
static mla_status cu_copy(mla_backend *be, mla_mem *dst, const mla_mem *src, size_t bytes, mla_err *err)
{
    const mla_status st = cu_ok(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, cu_of(be)->stream), "copy", err);
    return st ? st : cu_settle(cu_of(be), "copy", err);
}
static mla_status cu_zero(mla_backend *be, mla_mem *dst, size_t bytes, mla_err *err)
{
    const mla_status st = cu_ok(cudaMemsetAsync(dst, 0, bytes, cu_of(be)->stream), "zero", err);
    return st ? st : cu_settle(cu_of(be), "zero", err);
}
static mla_status cu_sync(mla_backend *be, mla_err *err)
{
    mla_status st = cu_not_recording(cu_of(be), "sync", err);
    if (!st) st = cu_arrived(cu_of(be), err);
    return st ? st : cu_ok(cudaStreamSynchronize(cu_of(be)->stream), "sync", err);
}
static const char *cu_describe(mla_backend *be) { return cu_of(be)->text; }

static void cu_destroy(mla_backend *be)
{
    mla_cuda *c = cu_of(be);
    if (!c) return;
    if (c->stream) trim_pool(c);
    cu_loader_free(c->loader);
    cudaFreeHost(c->mail);
    for (cudaEvent_t e : c->mailed)
        if (e) cudaEventDestroy(e);
    if (c->solver) cusolverDnDestroy(c->solver);
    if (c->blas) cublasDestroy(c->blas);
    if (c->lt) cublasLtDestroy(c->lt);
    cudaFree(c->lt_space);
    cudaFree(c->few_sync);
    cudaFree(c->turns);
    free(c->few);
    free(c->mix);
    free(c->heads);
    for (auto &s : c->scratch) cudaFree(s.p);
    cu_drop_kept(c);
    if (c->stream) cudaStreamDestroy(c->stream);
    pthread_mutex_destroy(&c->eigh_turn);
    free(c);
}

static const mla_backend_ops OPS = {
    "cuda",      cu_destroy,    cu_describe,    cu_alloc,       cu_free,      cu_upload,   cu_download, cu_copy,
    cu_zero,     cu_sync,       cu_weight_new,  cu_weight_free, cu_weight_bytes, cu_linear, cu_embed,  cu_rmsnorm,
    cu_gated_norm, cu_rope,     cu_add,         cu_add_rows,    cu_silu_mul,  cu_sigmoid_mul, cu_copy_rows, cu_kv_write,
    cu_kv_read,  cu_attention,  cu_divisor,  cu_conv,        cu_gdn,         cu_gram,      cu_range,    cu_eigh,
    NULL,        true,          true,
    cu_linears,  cu_gated,      cu_record,      cu_record_end,  cu_replay,    cu_tape_free,
    cu_moments,  cu_mlp,        cu_gated_change, &cu_fit,       cu_delta,     false,
};

/* "cuda" or "cuda:N" */
static mla_status ordinal(const char *name, int *out, mla_err *err)
{
    char *end = NULL;
    const long n = name[4] == ':' ? strtol(name + 5, &end, 10) : 0;
    if (strncmp(name, "cuda", 4) || (name[4] && (name[4] != ':' || !name[5] || *end || n < 0 || n > 1023)))
        return mla_fail(err, MLA_EINVAL, "device %s: expected cuda or cuda:N", name);
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        cudaGetLastError();
        count = 0;
    }
    if (n >= count) return mla_fail(err, MLA_EUNSUPPORTED, "device %s: this machine shows %d CUDA devices", name, count);
    *out = (int)n;
    return MLA_OK;
}

static mla_status start(mla_cuda *c, mla_err *err)
{
    cudaDeviceProp p;
    int driver = 0;
    mla_status st = cu_ok(cudaSetDevice(c->device), "device", err);
    if (!st) st = cu_ok(cudaGetDeviceProperties(&p, c->device), "device properties", err);
    if (!st && p.major < 8)
        st = mla_fail(err, MLA_EUNSUPPORTED, "device cuda:%d %s: compute capability %d.%d, at least 8.0", c->device, p.name, p.major, p.minor);
    if (!st) st = cu_ok(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "stream", err);
    if (!st) st = cublas_ok(cublasLtCreate(&c->lt), "cuBLASLt", err);
    if (!st) st = cublas_ok(cublasCreate(&c->blas), "cuBLAS", err);
    if (!st) st = cublas_ok(cublasSetStream(c->blas, c->stream), "cuBLAS stream", err);
    if (!st && (cusolverDnCreate(&c->solver) != CUSOLVER_STATUS_SUCCESS || cusolverDnSetStream(c->solver, c->stream) != CUSOLVER_STATUS_SUCCESS))
        st = mla_fail(err, MLA_EINTERNAL, "cuSOLVER does not start");
    if (!st) st = cu_ok(cudaMalloc(&c->lt_space, LT_SPACE), "cuBLASLt workspace", err);
    if (!st) st = cu_ok(cudaMalloc(&c->few_sync, sizeof *c->few_sync), "counter", err);
    if (!st) st = cu_ok(cudaMemsetAsync(c->few_sync, 0, sizeof *c->few_sync, c->stream), "counter", err);
    if (!st) st = cu_ok(cudaMalloc(&c->turns, GDN_HEADS * sizeof *c->turns), "counters", err);
    if (!st) st = cu_ok(cudaMemsetAsync(c->turns, 0, GDN_HEADS * sizeof *c->turns, c->stream), "counters", err);
    cudaMemPool_t pool;
    uint64_t keep = UINT64_MAX; /* of weights.cu */
    if (!st) st = cu_ok(cudaDeviceGetDefaultMemPool(&pool, c->device), "memory pool", err);
    if (!st) st = cu_ok(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "memory pool", err);
    if (!st) st = cu_ok(cudaMallocHost((void **)&c->mail, (size_t)CU_MAILS * CU_MAIL), "pinned memory", err);
    for (int i = 0; !st && i < CU_MAILS; i++) st = cu_ok(cudaEventCreateWithFlags(&c->mailed[i], cudaEventDisableTiming), "event", err);
    if (st) return st;
    cudaDriverGetVersion(&driver);
    c->sms = p.multiProcessorCount, c->major = p.major, c->shared = (int)p.sharedMemPerBlockOptin;
    snprintf(c->text, sizeof c->text, "cuda:%d %s, compute %d.%d, %d SMs, %zu MiB, driver CUDA %d.%d", c->device, p.name, p.major, p.minor,
             c->sms, p.totalGlobalMem >> 20, driver / 1000, driver % 1000 / 10);
    return MLA_OK;
}

extern "C" mla_status mla_cuda_open(mla_backend **out, const mla_backend_opts *opts, mla_err *err)
{
    int n = 0;
    mla_status st = ordinal(opts && opts->device ? opts->device : "cuda", &n, err);
    if (st) return st;
    mla_cuda *c = (mla_cuda *)calloc(1, sizeof *c);
    if (!c) return mla_fail(err, MLA_ENOMEM, "CUDA backend");
    c->base.ops = &OPS;
    pthread_mutex_init(&c->eigh_turn, NULL);
    c->device = n;
    c->threads = opts ? opts->threads : 0;
    st = start(c, err);
    if (st) {
        cu_destroy(&c->base);
        return st;
    }
    *out = &c->base;
    return MLA_OK;
}
