/* What brings weights to the device: buffers and streams of weights.cu, and the queue of what is read from a file (far.cu). */
#ifndef MLA_CUDA_LOAD_CUH
#define MLA_CUDA_LOAD_CUH
#include <string.h>

#include "base/par.h"
#include "cuda/be.cuh"

/* Bytes of a buffer; threads at most, buffers of each. */
enum { PIECE = 4 << 20, FILLERS = 16, SLOTS = 2, BUFFERS = FILLERS * SLOTS };

struct CuFar;
struct CuLoader {
    cudaStream_t stream;
    char *host;               /* BUFFERS pinned ones, `stride` apart */
    char *dev[SLOTS];         /* of `bytes` on the device, for rows that are converted there: one filler */
    cudaEvent_t used[BUFFERS], loaded; /* the buffer's last copy, the weight's last operation is done */
    size_t bytes, stride;     /* of a buffer; with room for pages that a piece shares with its neighbours */
    size_t next[FILLERS];
    int *bad;
    mla_pool *pool;           /* who fills */
    CuFar *far;               /* NULL: nothing has been read from a file yet */
};

/* What rows of a weight are while they cross: row_bytes each as they stand on the device (stored bf16 numbers: but for the
 * padding), or 0: decoded f32. */
struct Sent {
    size_t rows, row_bytes;
};

/* Whether n bf16 numbers are all finite; whoever reads them as rows names the one that is not. An exponent of ones carries into the
 * sign's place, no other does. */
static inline bool finite_bf16(const void *p, size_t n)
{
    uint64_t x, bad = 0;
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        memcpy(&x, (const char *)p + 2 * i, 8);
        bad |= (x & 0x7f807f807f807f80u) + 0x0080008000800080u;
    }
    x = 0;
    memcpy(&x, (const char *)p + 2 * i, 2 * (n - i));
    bad |= (x & 0x7f807f807f807f80u) + 0x0080008000800080u;
    return !(bad & 0x8000800080008000u);
}
/* n rows of n * row_bytes at `from`, pinned, to row0 of a weight that crosses as it is stored; queued. */
mla_status send_rows(const CuLoader *l, const mla_weight *w, size_t row_bytes, size_t row0, size_t n, const void *from, mla_err *err);

/* Queues w, of which c tells (its file stays mapped until the weight is there or freed): memory is there, its rows are read, checked and
 * sent by threads, in the order in which weights come, with no gap between them. */
mla_status far_add(CuLoader *l, int device, mla_weight *w, const mla_coded *c, Sent s, mla_err *err);
/* Waits until nothing is queued. Once something fails nothing more is read: that error, until all weights it has cost are freed. */
mla_status far_wait(CuLoader *l, mla_err *err);
/* Before w is freed: no more of it is read, and what is on its way has been queued. */
void far_forget(CuLoader *l, const mla_weight *w);
void far_free(CuFar *f); /* waits; NULL is fine */
#endif
