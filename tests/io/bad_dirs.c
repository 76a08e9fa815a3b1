/* Hostile checkpoint folders: index and shards that disagree, leave the folder or are not there. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/bad_parts.h"

#define S1 "model-00001-of-00002.safetensors"
#define S2 "model-00002-of-00002.safetensors"
#define INDEX "model.safetensors.index.json"
#define MAP "\"a\":\"" S1 "\",\"b\":\"" S1 "\",\"c\":\"" S2 "\",\"d\":\"" S2 "\""

typedef struct {
    const char *name, *expect;
    const char *map;   /* inside weight_map's braces; NULL: no index */
    const char *index; /* the whole index text instead */
    bool (*change)(const char *dir); /* after the good folder was made */
} bad_dir;

static const char *in(const char *dir, const char *name)
{
    static char path[1200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static bool two_tensors(const char *dir, const char *name, const char *a, const char *b)
{
    bytes f = {0};
    good_st(&f, a, b);
    return save(in(dir, name), &f);
}

static bool text_file(const char *dir, const char *name, const char *text)
{
    bytes f = {0};
    put_text(&f, text);
    return save(in(dir, name), &f);
}

static bool lose_shard(const char *dir) { return unlink(in(dir, S2)) == 0; }
static bool empty_shard(const char *dir) { return text_file(dir, S2, ""); }
static bool cut_shard(const char *dir) { return truncate(in(dir, S2), 100) == 0; }
static bool folder_shard(const char *dir) { return lose_shard(dir) && mkdir(in(dir, S2), 0777) == 0; }
static bool dangling_shard(const char *dir) { return lose_shard(dir) && symlink("blobs/gone", in(dir, S2)) == 0; }
static bool other_shard(const char *dir) { return two_tensors(dir, S2, "c", "x"); }
static bool both_shards(const char *dir) { return two_tensors(dir, S2, "a", "c"); }
static bool twin_shard(const char *dir) { return lose_shard(dir) && symlink(S1, in(dir, S2)) == 0; }
static bool html_shard(const char *dir) { return text_file(dir, S2, "<!DOCTYPE html><html>404 Not Found</html>"); }
static bool pointer_shard(const char *dir)
{
    return text_file(dir, S2, "version https://git-lfs.github.com/spec/v1\noid sha256:0000\nsize 1234\n");
}
static bool dangling_index(const char *dir)
{
    return two_tensors(dir, "model.safetensors", "a", "b") && symlink("blobs/gone", in(dir, INDEX)) == 0;
}
static bool no_weights(const char *dir) { return lose_shard(dir) && unlink(in(dir, S1)) == 0; }

static const bad_dir CASE[] = {
    {"index-shard-missing", "names " S2 ", which is absent", MAP, NULL, lose_shard},
    {"index-shard-link-broken", "names " S2 ", which is absent", MAP, NULL, dangling_shard},
    {"index-shard-empty", S2 ": 0 bytes", MAP, NULL, empty_shard},
    {"index-shard-cut", S2 ": a header of", MAP, NULL, cut_shard},
    {"index-shard-is-a-folder", S2 ": expected a file, found a folder", MAP, NULL, folder_shard},
    {"index-shard-is-html", S2 ": a header of", MAP, NULL, html_shard},
    {"index-shard-is-an-lfs-pointer", S2 ": a header of", MAP, NULL, pointer_shard},
    {"index-header-lacks-tensor", "maps tensor \"d\" to " S2 ", whose header lacks it", MAP, NULL, other_shard},
    {"index-maps-to-the-wrong-shard", "maps tensor \"c\" to " S1 ", whose header lacks it (it is in " S2 ")",
     "\"a\":\"" S1 "\",\"b\":\"" S1 "\",\"c\":\"" S1 "\",\"d\":\"" S2 "\"", NULL, NULL},
    {"index-stale-tensor-not-mapped", "tensor \"d\" is in " S2 ", but the index does not map it", "\"a\":\"" S1 "\",\"b\":\"" S1 "\",\"c\":\"" S2 "\"", NULL, NULL},
    {"index-tensor-in-two-shards", "tensor \"a\" is in two shards", MAP, NULL, both_shards},
    {"index-two-names-one-file", "tensor \"a\" is in two shards", MAP, NULL, twin_shard},
    {"index-path-parent", "\"../" S1 "\", which is no path within", "\"a\":\"../" S1 "\"", NULL, NULL},
    {"index-path-parent-inside", "which is no path within", "\"a\":\"x/../" S1 "\"", NULL, NULL},
    {"index-path-absolute", "\"/etc/passwd\", which is no path within", "\"a\":\"/etc/passwd\"", NULL, NULL},
    {"index-path-backslash", "which is no path within", "\"a\":\"..\\\\" S1 "\"", NULL, NULL},
    {"index-path-empty", "which is no path within", "\"a\":\"\"", NULL, NULL},
    {"index-path-control-character", "which is no path within", "\"a\":\"x\\ny\"", NULL, NULL},
    {"index-path-number", "tensor \"a\" is mapped to number", "\"a\":1", NULL, NULL},
    {"index-map-empty", "weight_map is empty", "", NULL, NULL},
    {"index-map-duplicate", "duplicate key \"a\"", MAP ",\"a\":\"" S2 "\"", NULL, NULL},
    {"index-map-missing", "weight_map is absent", NULL, "{\"metadata\":{\"total_size\":16}}", NULL},
    {"index-map-list", "weight_map is array", NULL, "{\"weight_map\":[]}", NULL},
    {"index-is-a-list", "weight_map is absent", NULL, "[]", NULL},
    {"index-empty-file", "expected a value", NULL, "", NULL},
    {"index-cut", "ends early", NULL, "{\"weight_map\":{\"a\":\"" S1, NULL},
    {"index-link-broken", INDEX ": cannot open", NULL, NULL, dangling_index},
    {"no-weights", "holds neither model.safetensors nor", NULL, NULL, no_weights},
    {"no-index-for-shards", "2 *.safetensors files and no", NULL, NULL, NULL},
};

size_t bad_dir_count(void) { return sizeof CASE / sizeof *CASE; }

static bool make(const char *dir, const char *map, const char *index)
{
    bytes f = {0};
    if (mkdir(dir, 0777) != 0 || !two_tensors(dir, S1, "a", "b") || !two_tensors(dir, S2, "c", "d")) return false;
    if (index) return text_file(dir, INDEX, index);
    if (!map) return true;
    put_text(&f, "{\"metadata\":{\"total_size\":16},\"weight_map\":{");
    put_text(&f, map);
    put_text(&f, "}}");
    return save(in(dir, INDEX), &f);
}

bool good_dir(const char *path) { return make(path, MAP, NULL); }

bool bad_dir_write(size_t i, const char *path, const char **name, const char **expect)
{
    const bad_dir *c = &CASE[i];
    *name = c->name;
    *expect = c->expect;
    if (!path) return true;
    return make(path, c->map, c->index) && (!c->change || c->change(path));
}
