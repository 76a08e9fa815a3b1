/* rope: tables against their definition, 3-D positions against the written-out frequency lists. */
#include <math.h>
#include <string.h>

#include "runtime/rt.h"
#include "suites.h"

START_TEST(plain_table)
{
    mla_config c = {.rope = {.rot = 8, .attention_factor = 1.25}};
    double inv[4] = {1, 0.1, 0.01, 0.001};
    int32_t pos[6] = {0, 0, 0, 4095, 4095, 4095};
    float cs[8], sn[8];
    rt_rope_rows(&c, inv, pos, 2, cs, sn);
    for (int i = 0; i < 4; i++) {
        ck_assert(cs[i] == 1.25f && sn[i] == 0);
        ck_assert(fabs(cs[4 + i] - 1.25 * cos(4095 * inv[i])) < 1e-7 && fabs(sn[4 + i] - 1.25 * sin(4095 * inv[i])) < 1e-7);
    }
}
END_TEST

/* What statistics and refinement rotate by: the runtime's own numbers at the positions of a text. */
START_TEST(table_by_position)
{
    enum { N = 70 };
    mla_config c = {.rope = {.rot = 8, .attention_factor = 1.25}};
    double inv[4] = {1, 0.1, 0.01, 0.001};
    int32_t pos[3 * N];
    float cs[4 * N], sn[4 * N], cs2[4 * N], sn2[4 * N];
    for (int i = 0; i < 3 * N; i++) pos[i] = i / 3;
    rt_rope_rows(&c, inv, pos, N, cs, sn);
    mla_rope_table(inv, 4, N, 1.25, cs2, sn2);
    ck_assert(!memcmp(cs, cs2, sizeof cs) && !memcmp(sn, sn2, sizeof sn));
}
END_TEST

/* sections 11 11 10 over 32 frequencies: H at 1 4 .. 31, W at 2 5 .. 29, T at all others */
START_TEST(interleaved_sections)
{
    mla_config c = {.rope = {.rot = 64, .attention_factor = 1, .mrope_section = {11, 11, 10}, .mrope_interleaved = true}};
    double inv[32];
    float cs[32], sn[32];
    int32_t pos[3] = {1, 2, 3};
    for (int i = 0; i < 32; i++) inv[i] = 0.25;
    rt_rope_rows(&c, inv, pos, 1, cs, sn);
    size_t n[3] = {0};
    for (int i = 0; i < 32; i++) {
        int p = i % 3 == 1 ? 2 : i % 3 == 2 && i <= 29 ? 3 : 1;
        ck_assert_msg(sn[i] == (float)sin(0.25 * p), "frequency %d", i);
        n[p - 1]++;
    }
    ck_assert(n[0] == 11 && n[1] == 11 && n[2] == 10);
    c.rope.mrope_interleaved = false;
    rt_rope_rows(&c, inv, pos, 1, cs, sn);
    for (int i = 0; i < 32; i++) ck_assert(sn[i] == (float)sin(0.25 * (i < 11 ? 1 : i < 22 ? 2 : 3)));
}
END_TEST

Suite *rope_suite(void)
{
    Suite *s = suite_create("rope");
    TCase *t = tcase_create("rope");
    tcase_add_test(t, plain_table);
    tcase_add_test(t, table_by_position);
    tcase_add_test(t, interleaved_sections);
    suite_add_tcase(s, t);
    return s;
}
