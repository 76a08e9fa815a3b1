/* Generated text: usage lines, option lists wrapped at 80 columns, --version; and the "did you mean" search. */
#include <string.h>

#include "base/version.h"
#include "cli.h"

#define WIDTH 80
#define COLUMN 28

size_t cli_common_options(cli *c, unsigned common, cli_option *out, bool *help)
{
    static const char *const G = "common options";
    size_t n = 0;
    if (common & CLI_JSON)
        out[n++] = (cli_option){"json", 0, CLI_FLAG, &c->json, NULL, "print one JSON document on stdout", NULL, G};
    out[n++] = (cli_option){"quiet", 'q', CLI_FLAG, &c->quiet, NULL, "print warnings and errors only", NULL, G};
    if (common & (CLI_THREADS | CLI_DEVICE))
        out[n++] = (cli_option){"threads", 't', CLI_SIZE, &c->threads, "N", "worker threads", "one per online CPU", G};
    if (common & CLI_DEVICE) {
        out[n++] = (cli_option){"device", 0, CLI_STR, &c->device, "cpu|cuda:N", "where to compute", "cpu", G};
        out[n++] = (cli_option){"isa", 0, CLI_CHOICE, &c->isa, "auto|ref|avx2|avx512|avx512bf16",
                                "CPU code path; ref is portable C, the oracle", "auto", G};
    }
    out[n++] = (cli_option){"help", 'h', CLI_FLAG, help, NULL, "print this text", NULL, G};
    return n;
}

/* Appends words of s, wrapped so that lines start at column `indent`; `col` is where the cursor stands. */
static void wrap(mla_str *out, const char *s, size_t indent, size_t col)
{
    bool fresh = true;
    for (const char *p = s; *p;) {
        if (*p == '\n') {
            mla_str_printf(out, "\n%*s", (int)indent, "");
            col = indent;
            fresh = true;
            p++;
            continue;
        }
        size_t n = strcspn(p, " \n");
        if (!fresh && col + 1 + n > WIDTH) {
            mla_str_printf(out, "\n%*s", (int)indent, "");
            col = indent;
            fresh = true;
        }
        if (!fresh) {
            mla_str_put(out, " ");
            col++;
        }
        mla_str_putn(out, p, n);
        col += n;
        fresh = false;
        p += n;
        if (*p == ' ') p++;
    }
    mla_str_put(out, "\n");
}

static void put_option(mla_str *out, const cli_option *o)
{
    size_t start = out->len;
    if (o->letter)
        mla_str_printf(out, "  -%c, --%s", o->letter, o->name);
    else
        mla_str_printf(out, "      --%s", o->name);
    if (o->metavar) mla_str_printf(out, " %s", o->metavar);
    size_t col = out->len - start;
    if (col + 2 > COLUMN)
        mla_str_printf(out, "\n%*s", COLUMN, "");
    else
        mla_str_printf(out, "%*s", (int)(COLUMN - col), "");
    mla_str help = MLA_STR_MAX(4096);
    mla_str_printf(&help, "%s", o->help);
    if (o->kind == CLI_LIST) mla_str_put(&help, "; may be given several times");
    if (o->def) mla_str_printf(&help, " (default: %s)", o->def);
    wrap(out, mla_str_c(&help), COLUMN, COLUMN);
    mla_str_free(&help);
}

static const char *group_of(const cli_option *o) { return o->group ? o->group : "options"; }

/* Options under their headings, headings in the order of their first option. */
static void put_options(mla_str *out, const cli_option *opt, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool seen = false;
        for (size_t j = 0; j < i; j++) seen = seen || !strcmp(group_of(&opt[i]), group_of(&opt[j]));
        if (seen) continue;
        mla_str_printf(out, "\n%s:\n", group_of(&opt[i]));
        for (size_t j = i; j < n; j++)
            if (!strcmp(group_of(&opt[i]), group_of(&opt[j]))) put_option(out, &opt[j]);
    }
}

static void put_exit_codes(mla_str *out)
{
    mla_str_put(out, "\nexit codes:\n"
                     "  0  done, or compared and passed\n"
                     "  1  compared and differs: the gate failed\n"
                     "  2  wrong usage\n"
                     "  3  could not judge: unreadable or bad input, not enough evidence, internal\n");
}

void cli_help_command(mla_str *out, const cli *c, const cli_spec *spec)
{
    cli copy = *c;
    bool help;
    cli_option common[8];
    size_t n = cli_common_options(&copy, spec->common, common, &help);
    size_t start = out->len;
    mla_str_printf(out, "usage: %s %s", c->program, c->command);
    size_t col = out->len - start;
    mla_str_put(out, " ");
    wrap(out, spec->args, col + 1, col + 1);
    mla_str_put(out, "\n");
    wrap(out, c->summary, 0, 0);
    if (spec->about) {
        mla_str_put(out, "\n");
        wrap(out, spec->about, 0, 0);
    }
    put_options(out, spec->opt, spec->nopt);
    put_options(out, common, n);
    put_exit_codes(out);
}

void cli_help_program(mla_str *out, const cli_program *p)
{
    mla_str_printf(out, "usage: %s COMMAND ...\n\n", p->name);
    wrap(out, p->about, 0, 0);
    mla_str_put(out, "\ncommands:\n");
    for (const cli_command *c = p->command; c->name; c++) {
        mla_str_printf(out, "  %-12s ", c->name);
        wrap(out, c->summary, 15, 15);
    }
    mla_str_printf(out, "\n%s COMMAND --help explains a command; %s --version prints the build.\n", p->name, p->name);
    put_exit_codes(out);
}

void cli_version(mla_str *out, const cli_program *p)
{
    mla_str_printf(out, "%s (%s) %s\n", p->name, MLA_TOOL, MLA_VERSION);
#if defined(__clang__)
    mla_str_printf(out, "compiler: clang %d.%d.%d, C%ld\n", __clang_major__, __clang_minor__, __clang_patchlevel__,
                   __STDC_VERSION__ / 100 % 100);
#elif defined(__GNUC__)
    mla_str_printf(out, "compiler: gcc %d.%d.%d, C%ld\n", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__,
                   __STDC_VERSION__ / 100 % 100);
#endif
    mla_str_printf(out, "isa: %s\n", mla_isa_name());
    static const char *const DEVICE[] = {"cpu", "cuda:0"};
    for (size_t i = 0; i < sizeof DEVICE / sizeof *DEVICE; i++) {
        mla_err err = {0};
        mla_backend *be = NULL;
        if (mla_backend_open(&be, &(mla_backend_opts){.device = DEVICE[i]}, &err) == MLA_OK)
            mla_str_printf(out, "%s: %s\n", DEVICE[i], be->ops->describe(be));
        else
            mla_str_printf(out, "%s: absent (%s)\n", DEVICE[i], err.msg);
        mla_backend_close(be);
    }
}

/* Edit distance with transpositions counted as two; words longer than the table never match. */
static size_t distance(const char *a, const char *b)
{
    enum { MAX = 40 };
    size_t n = strlen(a), m = strlen(b), row[MAX + 1];
    if (n > MAX || m > MAX) return MAX;
    for (size_t j = 0; j <= m; j++) row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diag = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = diag + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diag = row[j];
            row[j] = best;
        }
    }
    return row[m];
}

const char *cli_nearest(const char *word, const char *(*name)(const void *ctx, size_t i), const void *ctx, size_t n)
{
    const char *best = NULL;
    size_t least = 3; /* at most two edits, and fewer than the word is long */
    for (size_t i = 0; i < n; i++) {
        size_t d = distance(word, name(ctx, i));
        if (d < least && d < strlen(word)) {
            least = d;
            best = name(ctx, i);
        }
    }
    return best;
}
