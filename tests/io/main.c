/* Runs the suites of the io layer. "test_io --write-bad DIR" instead writes every hostile file below DIR and prints
 * "path <tab> piece of the expected error" for each, for tests of whole programs. */
#include <stdio.h>

#include "bad/bad_files.h"
#include "io/suites.h"

static int write_bad(const char *dir)
{
    char path[1200];
    const char *name, *expect;
    for (size_t i = 0; i < mla_bad_count(); i++) {
        if (mla_bad_write(i, dir, path, sizeof path, &name, &expect) != MLA_OK) {
            fprintf(stderr, "cannot write %s below %s\n", name, dir);
            return 3;
        }
        printf("%s\t%s\n", path, expect);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--write-bad")) return write_bad(argv[2]);
    const mla_suite_fn suites[] = {file_suite, json_suite, safetensors_suite, ckpt_suite, gguf_suite,
                                   sha256_suite, zst_suite, receipt_suite, bad_suite, faults_suite, bundle_suite};
    return mla_test_main("io", suites, sizeof suites / sizeof *suites);
}
