/* Parsing by option table, dispatch to subcommands, exit codes. */
#include "cli.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "linalg/gemm.h"

#define COMMON_MAX 8

/* One subcommand's options while parsing: its own, then the common ones. */
typedef struct {
    const cli_option *own, *common;
    size_t nown, ncommon;
} table;

static const cli_option *at(const table *t, size_t i) { return i < t->nown ? &t->own[i] : &t->common[i - t->nown]; }

static const char *option_name(const void *ctx, size_t i) { return at(ctx, i)->name; }

static const cli_option *find_long(const table *t, const char *s, size_t n)
{
    for (size_t i = 0; i < t->nown + t->ncommon; i++)
        if (strlen(at(t, i)->name) == n && !strncmp(at(t, i)->name, s, n)) return at(t, i);
    return NULL;
}

static const cli_option *find_letter(const table *t, char c)
{
    for (size_t i = 0; c && i < t->nown + t->ncommon; i++)
        if (at(t, i)->letter == c) return at(t, i);
    return NULL;
}

static bool in_choices(const char *choices, const char *v)
{
    size_t n = strlen(v);
    for (const char *p = choices; n && *p;) {
        size_t m = strcspn(p, "|");
        if (m == n && !strncmp(p, v, n)) return true;
        p += m + (p[m] == '|');
    }
    return false;
}

static mla_status list_add(cli_list *l, const char *v, mla_err *err)
{
    const char **p = mla_realloc(l->v, l->n + 1, sizeof *p);
    if (!p) return mla_fail(err, MLA_ENOMEM, "argument list");
    l->v = p;
    l->v[l->n++] = v;
    return MLA_OK;
}

void cli_list_free(cli_list *l)
{
    mla_free(l->v);
    *l = (cli_list){0};
}

static mla_status store(const cli_option *o, const char *v, mla_err *err)
{
    const char *want = NULL;
    switch (o->kind) {
    case CLI_FLAG: *(bool *)o->target = true; break;
    case CLI_STR: *(const char **)o->target = v; break;
    case CLI_LIST: return list_add(o->target, v, err);
    case CLI_CHOICE:
        if (!in_choices(o->metavar, v))
            return mla_fail(err, MLA_EINVAL, "--%s: expected one of %s, found \"%s\"", o->name, o->metavar, v);
        *(const char **)o->target = v;
        break;
    case CLI_SIZE:
        if (!mla_parse_size(v, o->target)) want = "a whole number";
        break;
    case CLI_BYTES:
        if (!mla_parse_bytes(v, o->target)) want = "a size such as 96GB, 24GiB or 1000";
        break;
    case CLI_DOUBLE:
        if (!mla_parse_double(v, o->target)) want = "a number";
        break;
    }
    if (want) return mla_fail(err, MLA_EINVAL, "--%s: expected %s, found \"%s\"", o->name, want, v);
    return MLA_OK;
}

static mla_status unknown_option(const cli *c, const table *t, const char *word, size_t n, mla_err *err)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(n < 63 ? n : 63), word);
    const char *near = cli_nearest(name, option_name, t, t->nown + t->ncommon);
    if (near) return mla_fail(err, MLA_EINVAL, "unknown option --%s; did you mean --%s?", name, near);
    return mla_fail(err, MLA_EINVAL, "unknown option --%s; see %s %s --help", name, c->program, c->command);
}

/* argv[*i] is an option; takes its value from the same word, or from the next one. */
static mla_status parse_option(const cli *c, const table *t, int argc, char **argv, int *i, mla_err *err)
{
    const char *w = argv[*i], *value = NULL;
    const cli_option *o;
    if (w[1] == '-') {
        size_t n = strcspn(w + 2, "=");
        o = find_long(t, w + 2, n);
        if (!o) return unknown_option(c, t, w + 2, n, err);
        if (w[2 + n] == '=') value = w + 3 + n;
    } else {
        o = find_letter(t, w[1]);
        if (!o) return mla_fail(err, MLA_EINVAL, "unknown option %.40s; see %s %s --help", w, c->program, c->command);
        if (w[2]) value = w + 2;
    }
    if (o->kind == CLI_FLAG) {
        if (value) return mla_fail(err, MLA_EINVAL, "--%s takes no value, found \"%s\"", o->name, value);
        return store(o, NULL, err);
    }
    if (!value) {
        if (*i + 1 >= argc) return mla_fail(err, MLA_EINVAL, "--%s needs a value: %s", o->name, o->metavar);
        value = argv[++*i];
    }
    return store(o, value, err);
}

static mla_status parse_words(cli *c, const table *t, int argc, char **argv, mla_err *err)
{
    bool words_only = false;
    for (int i = 0; i < argc; i++) {
        if (!words_only && !strcmp(argv[i], "--")) {
            words_only = true;
        } else if (!words_only && argv[i][0] == '-' && argv[i][1]) {
            if (parse_option(c, t, argc, argv, &i, err) != MLA_OK) return err->status;
        } else {
            cli_list l = {c->arg, c->nargs};
            if (list_add(&l, argv[i], err) != MLA_OK) return err->status;
            c->arg = l.v;
            c->nargs = l.n;
        }
    }
    return MLA_OK;
}

static mla_status check_count(const cli *c, const cli_spec *spec, mla_err *err)
{
    if (c->nargs > spec->max_args)
        return mla_fail(err, MLA_EINVAL, "unexpected argument \"%s\"; usage: %s %s %s", c->arg[spec->max_args], c->program,
                        c->command, spec->args);
    if (c->nargs < spec->min_args)
        return mla_fail(err, MLA_EINVAL, "missing argument; usage: %s %s %s", c->program, c->command, spec->args);
    return MLA_OK;
}

bool cli_parse(cli *c, const cli_spec *spec, int argc, char **argv, mla_err *err)
{
    cli_option common[COMMON_MAX];
    bool help = false;
    table t = {.own = spec->opt, .nown = spec->nopt, .common = common};
    t.ncommon = cli_common_options(c, spec->common, common, &help);
    /* --help wins over everything else that is wrong with the line */
    for (int i = 0; i < argc && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) help = true;
    if (help) {
        mla_str text = MLA_STR_MAX(1 << 16);
        cli_help_command(&text, c, spec);
        if (cli_print(&text, err) == MLA_OK) err->status = MLA_OK;
        mla_str_free(&text);
        return false;
    }
    if (parse_words(c, &t, argc, argv, err) != MLA_OK) return false;
    if (check_count(c, spec, err) != MLA_OK) return false;
    c->log = mla_log_stderr(c->quiet);
    return true;
}

static const char *command_name(const void *ctx, size_t i) { return ((const cli_command *)ctx)[i].name; }

static const cli_command *find_command(const cli_program *p, const char *word, mla_err *err)
{
    size_t n = 0;
    for (; p->command[n].name; n++)
        if (!strcmp(p->command[n].name, word)) return &p->command[n];
    const char *near = cli_nearest(word, command_name, p->command, n);
    if (near)
        (void)mla_fail(err, MLA_EINVAL, "unknown command \"%.40s\"; did you mean \"%s\"?", word, near);
    else
        (void)mla_fail(err, MLA_EINVAL, "unknown command \"%.40s\"; see %s --help", word, p->name);
    return NULL;
}

/* One line on stderr, whatever bytes a hostile file put into a name that the message quotes. */
static int finish(const char *program, const char *command, const mla_err *err)
{
    if (err->status == MLA_OK) return 0;
    char msg[sizeof err->msg];
    size_t n = 0;
    for (; err->msg[n]; n++) {
        unsigned char b = (unsigned char)err->msg[n];
        msg[n] = b < 0x20 || b == 0x7f ? '?' : err->msg[n];
    }
    msg[n] = '\0';
    fflush(stdout);
    fprintf(stderr, "%s%s%s: %s\n", program, command ? " " : "", command ? command : "", msg);
    return mla_exit_code(err->status);
}

static int print_and_exit(const cli_program *p, void (*fill)(mla_str *, const cli_program *))
{
    mla_err err = {0};
    mla_str text = MLA_STR_MAX(1 << 16);
    fill(&text, p);
    err.status = cli_print(&text, &err);
    mla_str_free(&text);
    return finish(p->name, NULL, &err);
}

int cli_main(const cli_program *p, int argc, char **argv)
{
    mla_err err = {0};
    const char *word = argc > 1 ? argv[1] : NULL;
    mla_blas_settle(argv);
    if (!word) {
        (void)mla_fail(&err, MLA_EINVAL, "missing command; see %s --help", p->name);
        return finish(p->name, NULL, &err);
    }
    if (!strcmp(word, "--version") || !strcmp(word, "-V") || !strcmp(word, "version")) return print_and_exit(p, cli_version);
    bool ask = !strcmp(word, "help");
    if (!strcmp(word, "--help") || !strcmp(word, "-h") || (ask && argc == 2)) return print_and_exit(p, cli_help_program);
    const cli_command *cmd = find_command(p, ask ? argv[2] : word, &err);
    if (!cmd) return finish(p->name, NULL, &err);

    cli c = {.program = p->name, .command = cmd->name, .summary = cmd->summary};
    char flag[] = "--help", *help_argv[] = {flag, NULL};
    mla_status st = ask ? cmd->run(&c, 1, help_argv, &err) : cmd->run(&c, argc - 2, argv + 2, &err);
    mla_free(c.arg);
    if (st == MLA_OK) return 0;
    if (err.status != st) (void)mla_fail(&err, st, "%s", err.msg[0] ? err.msg : mla_status_name(st));
    return finish(p->name, cmd->name, &err);
}
