/* Part of test_linear.cu: bf16 weights that cross as they are stored. */
#include <mutex>
#include <set>

static mla_status stored_row(const mla_coded *c, size_t row, const mla_coded_row *to, mla_err *)
{
    memcpy(to->code, (const uint16_t *)c->ctx + row * c->in, c->in * 2);
    return MLA_OK;
}
static mla_status stored_bytes(const mla_coded *c, size_t at, size_t n, void *room, const void **from, mla_err *)
{
    *from = (char *)room + MLA_CODED_ROOM / 2 + 6; /* as bytes of a file stand somewhere in a page */
    memcpy((char *)room + MLA_CODED_ROOM / 2 + 6, c->stored + at, n);
    return MLA_OK;
}
static bool in_memory(const mla_coded *) { return true; }
static bool in_file(const mla_coded *) { return false; }
/* Stored bf16 numbers sent as they are, row by row or as a file's bytes in small and in large pieces, give the bits of decoded rows; one
 * weight after the other goes round the ring of buffers. */
static void stored_weights(void)
{
    const size_t shapes[][2] = {{9, 37}, {70, 512}, {5000, 8192}}, T = 3;
    for (auto &s : shapes) {
        const size_t out = s[0], in = s[1];
        std::vector<uint16_t> bits(out * in);
        Vec w(out * in), y[4];
        for (size_t i = 0; i < w.size(); i++) {
            const __nv_bfloat16 v = __float2bfloat16_rn(cut_normal(30, i));
            memcpy(&bits[i], &v, 2);
            w[i] = __bfloat162float(v);
        }
        Mem X(gpu, normals(T * in, 31)), Y(gpu, Vec(T * out, POISON));
        std::pair<const Vec *, size_t> ctx(&w, in);
        mla_coded c = {};
        c.out = out, c.in = c.group = in, c.code = MLA_CODE_BF16, c.fill = stored_row, c.ctx = bits.data(), c.stored = (const unsigned char *)bits.data();
        for (int stored = 0; stored < 4; stored++) {
            c.read = stored > 1 ? stored_bytes : NULL;
            c.near = stored > 2 ? in_file : in_memory;
            mla_weight_desc d = {out, in, MLA_PREC_BF16, dense_rows, &ctx, stored ? &c : NULL, false};
            mla_weight *W = NULL;
            OK(gpu->ops->weight_new(gpu, &W, &d, &err));
            mla_linear_args a = {Y, out, X, in, T, NULL, false};
            OK(gpu->ops->linear(gpu, W, &a, &err));
            y[stored] = Y.get();
            gpu->ops->weight_free(gpu, W);
        }
        for (int k = 1; k < 4; k++) cut_check(!memcmp(y[0].data(), y[k].data(), y[0].size() * 4) && isfinite(y[0][0]), "stored weights differ from decoded ones");
        bits[out * in - 1] = 0xff80;
        mla_weight_desc d = {out, in, MLA_PREC_BF16, dense_rows, &ctx, &c, false};
        mla_weight *W = NULL, *V = NULL;
        c.name = "w";
        c.read = NULL;
        cut_check(gpu->ops->weight_new(gpu, &W, &d, &err) == MLA_EFORMAT && !W, "an infinite stored weight");
        c.read = stored_bytes; /* read after weight_new: whoever waits for weights is told, as long as it is there */
        for (auto near : {in_memory, in_file}) {
            c.near = near;
            bits[out * in - 1] = 0xff80;
            OK(gpu->ops->weight_new(gpu, &W, &d, &err));
            cut_check(gpu->ops->sync(gpu, &err) == MLA_EFORMAT && strstr(err.msg, "w: weight"), "an infinite weight from a file");
            bits[out * in - 1] = 0;
            OK(gpu->ops->weight_new(gpu, &V, &d, &err)); /* queued behind one that failed: not read */
            mla_linear_args a = {Y, out, X, in, T, NULL, false};
            cut_check(gpu->ops->linear(gpu, V, &a, &err) == MLA_EFORMAT, "use of weights after one has failed");
            gpu->ops->weight_free(gpu, W);
            cut_check(gpu->ops->sync(gpu, &err) == MLA_EFORMAT, "a weight that was not read");
            gpu->ops->weight_free(gpu, V);
            OK(gpu->ops->weight_new(gpu, &W, &d, &err));
            gpu->ops->weight_free(gpu, W); /* while it is read, or before */
            OK(gpu->ops->weight_new(gpu, &V, &d, &err));
            OK(gpu->ops->linear(gpu, V, &a, &err));
            const Vec last = Y.get();
            cut_check(!memcmp(last.data(), y[0].data(), (out - 1) * 4) && isfinite(last[out - 1]), "a weight behind one that was freed unread");
            gpu->ops->weight_free(gpu, V);
        }
    }
}
/* One number a row, read faster than a buffer's bytes can leave it: who does not wait for them sends the next piece's. */
static mla_status quick_bytes(const mla_coded *c, size_t at, size_t n, void *room, const void **from, mla_err *)
{
    static std::mutex turn;
    static std::set<std::pair<void *, size_t>> clean; /* rooms that hold nothing but these numbers, and how far */
    turn.lock();
    const bool fresh = clean.insert({room, n}).second;
    turn.unlock();
    if (fresh) memset(room, 0, n);
    for (size_t i = 0; i < n; i += c->in * 2) memcpy((char *)room + i, (const uint16_t *)c->ctx + (at + i) / (c->in * 2), 2);
    *from = room;
    return MLA_OK;
}
static void quick_reads(void)
{
    const size_t out = 20000, in = 8192;
    std::vector<uint16_t> bits(out);
    std::vector<__nv_bfloat16> w(out);
    for (size_t i = 0; i < out; i++) w[i] = __float2bfloat16_rn(cut_normal(32, i)), memcpy(&bits[i], &w[i], 2);
    const Vec x = normals(in, 33);
    Mem X(gpu, x), Y(gpu, Vec(out, POISON));
    mla_coded c = {};
    c.out = out, c.in = c.group = in, c.code = MLA_CODE_BF16, c.ctx = bits.data(), c.stored = (const unsigned char *)bits.data(), c.read = quick_bytes;
    for (auto near : {in_memory, in_file}) {
        c.near = near;
        mla_weight_desc d = {out, in, MLA_PREC_BF16, dense_rows, NULL, &c, false};
        mla_weight *W = NULL;
        OK(gpu->ops->weight_new(gpu, &W, &d, &err));
        mla_linear_args a = {Y, out, X, in, 1, NULL, false};
        OK(gpu->ops->linear(gpu, W, &a, &err));
        const Vec y = Y.get();
        size_t wrong = 0;
        for (size_t i = 0; i < out; i++) wrong += y[i] != __bfloat162float(w[i]) * __bfloat162float(__float2bfloat16_rn(x[0]));
        cut_check(!wrong, "rows of a buffer that was filled again too early");
        gpu->ops->weight_free(gpu, W);
    }
}
