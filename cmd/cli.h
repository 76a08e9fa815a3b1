/* The command-line kit of the three programs: an option table per subcommand, from which parsing and --help come.
 *
 * A program is a table of subcommands (cli_program); a subcommand is one function that declares its options in a
 * cli_option table, calls cli_parse, and returns a status. cli_main turns the status into the exit code (0 pass,
 * 1 compared and differs, 2 usage, 3 could not judge) and prints the one error line.
 *
 *     mla_status cmd_verify_inspect(cli *c, int argc, char **argv, mla_err *err)
 *     {
 *         bool all = false;
 *         const cli_option opts[] = {{.name = "all", .kind = CLI_FLAG, .target = &all, .help = "list every tensor"}};
 *         const cli_spec spec = {.args = "PATH", .min_args = 1, .max_args = 1, .opt = opts, .nopt = 1, .common = CLI_JSON};
 *         if (!cli_parse(c, &spec, argc, argv, err)) return err->status;
 *         ... c->arg[0], c->json, c->log ...
 *     }
 *
 * What answers the command goes to stdout (a table, or with --json one JSON document); people's text goes to stderr. */
#ifndef MLA_CMD_CLI_H
#define MLA_CMD_CLI_H
#include <stdbool.h>
#include <stddef.h>

#include "backend/backend.h"
#include "base/err.h"
#include "base/log.h"
#include "base/par.h"
#include "base/str.h"
#include "io/json.h"

typedef enum {
    CLI_FLAG,   /* bool *: set to true; takes no value */
    CLI_STR,    /* const char **: borrowed from argv */
    CLI_CHOICE, /* const char **: one of the alternatives that metavar lists, "f32|bf16|fp8" */
    CLI_SIZE,   /* size_t *: decimal */
    CLI_BYTES,  /* double *: "96GB", "24GiB", "1000" */
    CLI_DOUBLE, /* double *: finite */
    CLI_LIST    /* cli_list *: may be given several times */
} cli_kind;

typedef struct {
    const char **v; /* borrowed strings; the array is the list's */
    size_t n;
} cli_list;
void cli_list_free(cli_list *l);

typedef struct {
    const char *name;    /* long name without "--" */
    char letter;         /* short name, 0 for none */
    cli_kind kind;
    void *target;        /* holds the default before parsing; kept when the option is not given */
    const char *metavar; /* "FILE"; NULL for flags */
    const char *help;    /* one sentence or two, no final stop */
    const char *def;     /* default as text, NULL when there is none to speak of */
    const char *group;   /* heading in --help; NULL: "options" */
} cli_option;

enum { /* which common options a subcommand takes, beside --quiet and --help that all have */
    CLI_JSON = 1,    /* --json */
    CLI_THREADS = 2, /* --threads */
    CLI_DEVICE = 4   /* --threads, --device, --isa */
};

typedef struct {
    const char *args;  /* positional arguments as shown in the usage line: "MODEL --reference FILE" */
    const char *about; /* a paragraph, or several separated by newlines */
    const cli_option *opt;
    size_t nopt;
    size_t min_args, max_args;
    unsigned common;   /* CLI_JSON | ... */
} cli_spec;

typedef struct cli {
    const char *program, *command;
    const char *summary;       /* of the command's table row */
    bool json, quiet;
    size_t threads;            /* 0 = online CPUs */
    const char *device, *isa;  /* as given; NULL = the default */
    mla_log log;               /* ready after cli_parse */
    const char **arg;          /* positional arguments */
    size_t nargs;
} cli;

/* Parses argv[0..argc) (after the subcommand's name). False when the command is over: --help was printed (err->status
 * MLA_OK) or the usage is wrong (MLA_EINVAL, message with a hint). */
bool cli_parse(cli *c, const cli_spec *spec, int argc, char **argv, mla_err *err);

typedef struct {
    const char *name, *summary;
    mla_status (*run)(cli *c, int argc, char **argv, mla_err *err);
} cli_command;

typedef struct {
    const char *name, *about;
    const cli_command *command; /* ends with a row of NULLs */
} cli_program;
int cli_main(const cli_program *p, int argc, char **argv);

/* What --device, --isa and --threads asked for; an unknown ISA name is MLA_EINVAL. */
MLA_CHECKED mla_status cli_backend_opts(const cli *c, mla_backend_opts *out, mla_err *err);
MLA_CHECKED mla_status cli_backend_open(const cli *c, mla_backend **out, mla_err *err);

/* Writing the answer to stdout; a full disk or a closed pipe is MLA_EIO. */
MLA_CHECKED mla_status cli_print(const mla_str *text, mla_err *err);
MLA_CHECKED mla_status cli_print_json(const mla_jv *v, mla_err *err);
/* `what` as people read it, or as one JSON object where --json was given: one of the two functions is called. */
typedef void (*cli_text_fn)(const void *what, mla_str *out);
typedef void (*cli_json_fn)(const void *what, mla_jv *doc);
MLA_CHECKED mla_status cli_answer(const cli *c, cli_text_fn text, cli_json_fn json, const void *what, mla_err *err);

/* The path of a file that comes with the toolkit ("calib/evaluation.jsonl"): looked for in $MLA_DATA, beside the
 * build folder that holds the program, and in <prefix>/share/mla-toolkit. MLA_EIO naming the places when absent.
 * Caller frees *out with mla_free. */
MLA_CHECKED mla_status cli_data_file(char **out, const char *name, mla_err *err);

/* The last part of a path, for reports that must not name folders of this machine; never empty. Caller frees. */
char *cli_base_name(const char *path);

/* Private to the kit: cli_help.c */
void cli_help_command(mla_str *out, const cli *c, const cli_spec *spec);
void cli_help_program(mla_str *out, const cli_program *p);
void cli_version(mla_str *out, const cli_program *p);
size_t cli_common_options(cli *c, unsigned common, cli_option *out /* >= 8 */, bool *help);
/* The closest of n names by edit distance, NULL when none is near. name(ctx, i) gives name i. */
const char *cli_nearest(const char *word, const char *(*name)(const void *ctx, size_t i), const void *ctx, size_t n);
#endif
