/* Cached rows: rounding and saturation, scattered pages, and slots whose byte offsets pass 2^31 and 2^32. */
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "lab.h"
#include "tensor/fp.h"

static void check_rounding(mla_backend *be, mla_isa isa)
{
    mla_err err = {0};
    const float x[] = {0, 1, -1.0625f, 448, 449, -1e30f, 0.0009765625f, 0.00195f, 3.4e38f, 17.3f, -0.0f, 1.00390625f};
    enum { N = sizeof x / sizeof *x };
    float y[N];
    (void)isa;
    static const struct {
        mla_dtype t;
        float scale;
    } KINDS[] = {{MLA_F32, 1}, {MLA_BF16, 1}, {MLA_F8_E4M3, 1}, {MLA_F8_E4M3, 0.3f}, {MLA_F8_E4M3, 7}};
    for (size_t k = 0; k < 5; k++) {
        char st[4 * (N + 3)];
        memset(st, 0xff, sizeof st);
        mla_kv_view v = {.data = dev(st), .row_elems = N + 3, .col = 2, .dtype = KINDS[k].t, .scale = KINDS[k].scale};
        ck_ok(be->ops->kv_write(be, &(mla_kv_write_args){.to = v, .x = dev(x), .ldx = N, .T = 1, .width = N}, &err));
        ck_ok(be->ops->kv_read(be, &(mla_kv_read_args){.from = v, .y = dev(y), .ldy = N, .n = 1, .width = N}, &err));
        for (size_t i = 0; i < N; i++) {
            float want = k == 0 ? x[i] : k == 1 ? mla_bf16_f32(mla_f32_bf16(x[i])) : mla_e4m3_f32(mla_f32_e4m3(x[i] / v.scale)) * v.scale;
            ck_assert_msg(mla_f32_bits(y[i]) == mla_f32_bits(want), "%zu %zu: %g, want %g", k, i, (double)y[i], (double)want);
        }
        size_t es = k == 0 ? 4 : k == 1 ? 2 : 1;
        for (size_t i = 0; i < 2 * es; i++) ck_assert((unsigned char)st[i] == 0xff); /* before col */
        for (size_t i = (N + 2) * es; i < (N + 3) * es; i++) ck_assert((unsigned char)st[i] == 0xff);
    }
    mla_kv_view bad = {.data = dev(y), .row_elems = 4, .dtype = MLA_F16, .scale = 1};
    ck_refused(be->ops->kv_write(be, &(mla_kv_write_args){.to = bad}, &err), MLA_EUNSUPPORTED, "F16");
    bad.dtype = MLA_F8_E4M3, bad.scale = NAN;
    ck_refused(be->ops->kv_read(be, &(mla_kv_read_args){.from = bad}, &err), MLA_EINVAL, "scale");
    bad.scale = 0;
    ck_refused(be->ops->kv_write(be, &(mla_kv_write_args){.to = bad}, &err), MLA_EINVAL, "scale");
}

START_TEST(rounding_and_saturation) { lab_each_isa("cache rounding", 2, check_rounding); }
END_TEST

/* All 256 codes read back exactly, in every position of a row. */
static void check_codes(mla_backend *be, mla_isa isa)
{
    mla_err err = {0};
    uint8_t st[300];
    float y[300];
    (void)isa;
    for (size_t i = 0; i < 300; i++) st[i] = (uint8_t)i;
    for (size_t width = 1; width <= 300; width += 23) {
        mla_kv_view v = {.data = dev(st), .row_elems = 300, .dtype = MLA_F8_E4M3, .scale = 0.5f};
        ck_ok(be->ops->kv_read(be, &(mla_kv_read_args){.from = v, .y = dev(y), .ldy = width, .n = 1, .width = width}, &err));
        for (size_t i = 0; i < width; i++) {
            float want = mla_e4m3_f32(st[i]) * 0.5f;
            ck_assert(isnan(want) ? isnan(y[i]) : mla_f32_bits(y[i]) == mla_f32_bits(want));
        }
    }
}

START_TEST(every_e4m3_code) { lab_each_isa("e4m3 codes", 1, check_codes); }
END_TEST

/* A latent cache of 576 e4m3 bytes a row: slot 3,728,271 starts past 2^31, slot 7,456,541 past 2^32. Address space is
 * reserved, touched pages only are real. A product in 32 bits would land near the start, which must stay zero. */
static void check_far(mla_backend *be, mla_isa isa)
{
    const size_t width = 576, bytes = (size_t)6 << 30;
    mla_err err = {0};
    char *area = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_msg(area != MAP_FAILED, "cannot reserve address space");
    const int32_t far_pages[] = {58254, 116510, 162000, 3}; /* pages of 64 around 2^31 / 576, 2^32 / 576 and beyond */
    const size_t T = 4 * 64 - 5;
    float *x = lab_normals(T * width, 1, 1), *y = lab_poisoned(T * width), *o = lab_poisoned(2 * 512), *o2 = lab_poisoned(2 * 512);
    (void)isa;
    mla_kv_view v = {.data = dev(area), .pages = far_pages, .page_tokens = 64, .row_elems = width, .dtype = MLA_F8_E4M3, .scale = 0.02f};
    ck_ok(be->ops->kv_write(be, &(mla_kv_write_args){.to = v, .x = dev(x), .ldx = width, .T = T, .width = width}, &err));
    ck_ok(be->ops->kv_read(be, &(mla_kv_read_args){.from = v, .y = dev(y), .ldy = width, .n = T, .width = width}, &err));
    for (size_t i = 0; i < T * width; i++) ck_assert(y[i] == mla_e4m3_f32(mla_f32_e4m3(x[i] / 0.02f)) * 0.02f);
    ck_assert((unsigned char)area[((size_t)162000 * 64 + 1) * width + 5] == mla_f32_e4m3(x[129 * width + 5] / 0.02f));
    for (size_t i = 0; i < 3 * 64 * width; i++) ck_assert_msg(area[i] == 0, "byte %zu written: an offset wrapped", i);
    /* attention over the same far rows = attention over their dense copy */
    mla_kv_view dense = {.data = dev(y), .row_elems = width, .dtype = MLA_F32, .scale = 1};
    mla_attn_args a = {.o = dev(o), .ldo = 1024, .q = dev(x), .ldq = 1152, .qh_stride = 576, .q2 = dev(x + 512), .ldq2 = 1152,
                       .q2h_stride = 576, .k = v, .k2 = v, .v = v, .kh = 1, .k2h = 1, .vh = 1, .T = 1, .H = 2, .dk = 512, .dk2 = 64,
                       .dv = 512, .pos0 = T - 1, .scale = 0.04f};
    a.k2.col = 512;
    ck_ok(be->ops->attention(be, &a, &err));
    a.k = a.k2 = a.v = dense, a.k2.col = 512, a.o = dev(o2);
    ck_ok(be->ops->attention(be, &a, &err));
    ck_assert(lab_same_bits("far attention", o, o2, 1024));
    munmap(area, bytes);
    mla_free(x), mla_free(y), mla_free(o), mla_free(o2);
}

START_TEST(slots_beyond_32_bits) { lab_each_isa("far slots", 2, check_far); }
END_TEST

Suite *suite_cache(void)
{
    Suite *s = suite_create("cache");
    TCase *t = tcase_create("cache");
    tcase_add_test(t, rounding_and_saturation);
    tcase_add_test(t, every_e4m3_code);
    tcase_add_test(t, slots_beyond_32_bits);
    suite_add_tcase(s, t);
    return s;
}
