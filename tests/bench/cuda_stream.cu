/* Weights from a file to the device: 4 layers of 27B-shaped matrices in bf16, written once from a seed under $TMPDIR (or /tmp).
 *
 * cold: the file's pages dropped first, every time in a process of its own (cuda_stream --cold FILE), which has to find out how this disk
 * is read best; in turns with reads of the whole file into memory, of which the way with the best median counts: rounds lie seconds apart,
 * since what a disk gives changes by the minute. The median of the rounds' ratios is told. warm: from the page cache, against the rate of
 * copies from pinned memory. streamed: every layer multiplies 32768 tokens while the next one loads, over the same with all layers resident. */
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

#include "backend/backend.h"
#include "cuda_ceilings.h"
#include "io/file.h"

enum { LAYERS = 4, MATS = 5, T = 32768, BLOCK = 16 << 20, ROUNDS = 5, RAW_WAYS = 3 };
static const size_t OUT[MATS] = {17408, 17408, 5120, 10240, 6144}, IN[MATS] = {5120, 5120, 17408, 5120, 5120};

static mla_backend *be;
static mla_err err;
static size_t bytes_of(int i) { return OUT[i] * IN[i] * 2; }
static size_t layer_bytes(void)
{
    size_t n = 0;
    for (int i = 0; i < MATS; i++) n += bytes_of(i);
    return n;
}
static double seconds(const std::function<void()> &f)
{
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    f();
    clock_gettime(CLOCK_MONOTONIC, &b);
    return (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
}

static void write_file(const char *path)
{
    std::vector<uint16_t> block(BLOCK / 2);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) perror(path), exit(3);
    for (size_t i = 0; i < block.size(); i++) { /* about 1/70 in size, as a matrix of 5120 inputs has */
        const __nv_bfloat16 x = __float2bfloat16_rn(cut_normal(1, i) / 70);
        memcpy(&block[i], &x, 2);
    }
    for (size_t left = layer_bytes() * LAYERS; left;) {
        const ssize_t n = write(fd, block.data(), left < BLOCK ? left : (size_t)BLOCK);
        if (n <= 0) perror(path), exit(3);
        left -= (size_t)n;
    }
    if (fsync(fd) || close(fd)) perror(path), exit(3);
}
static void drop(const char *path)
{
    const int fd = open(path, O_RDONLY);
    if (fd < 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED)) perror(path), exit(3);
    close(fd);
}
/* The whole file to pinned memory by some threads that take block after block; 0 when the file system has no direct reads. The last way is
 * for pages in the page cache, through no more memory than caches hold. */
static const struct {
    const char *name;
    bool direct;
    int threads;
    size_t block;
} RAW[RAW_WAYS + 1] = {{"direct, 16 threads, 16 MB", true, 16, 16 << 20},
                       {"direct, 8 threads, 4 MB", true, 8, 4 << 20},
                       {"buffered, 16 threads, 16 MB", false, 16, 16 << 20},
                       {"buffered, 16 threads, 2 MB", false, 16, 2 << 20}};
static double raw_rate(const char *path, int way)
{
    const size_t all = layer_bytes() * LAYERS, block = RAW[way].block;
    const int fd = open(path, O_RDONLY | (RAW[way].direct ? O_DIRECT : 0));
    if (fd < 0) return 0;
    char *buf;
    CU(cudaMallocHost((void **)&buf, RAW[way].threads * block));
    std::atomic<size_t> next(0);
    const double s = seconds([&] {
        std::vector<std::thread> t;
        for (int k = 0; k < RAW[way].threads; k++)
            t.emplace_back([&, k] {
                for (size_t at; (at = next.fetch_add(block)) < all;)
                    if (pread(fd, buf + k * block, block, (off_t)at) <= 0) perror(path), exit(3);
            });
        for (std::thread &x : t) x.join();
    });
    CU(cudaFreeHost(buf));
    close(fd);
    return (double)all / 1e9 / s;
}
static double pinned_rate(void)
{
    char *host, *dev;
    CU(cudaMallocHost((void **)&host, 8 * (size_t)BLOCK));
    CU(cudaMalloc((void **)&dev, 8 * (size_t)BLOCK));
    memset(host, 1, 8 * (size_t)BLOCK);
    const double ms = ms_per_call([&] {
        for (size_t i = 0; i < 8; i++) CU(cudaMemcpyAsync(dev + i * BLOCK, host + i * BLOCK, BLOCK, cudaMemcpyHostToDevice));
    }, 8);
    CU(cudaFreeHost(host));
    CU(cudaFree(dev));
    return 8.0 * BLOCK / 1e6 / ms;
}

static mla_status no_rows(void *, size_t, size_t, float *, mla_err *e) { return mla_fail(e, MLA_EINTERNAL, "asked for decoded rows"); }
static mla_status no_row(const mla_coded *, size_t, const mla_coded_row *, mla_err *e) { return mla_fail(e, MLA_EINTERNAL, "asked for a row"); }
static mla_status read_bytes(const mla_coded *c, size_t at, size_t n, void *room, const void **from, mla_err *e)
{
    return mla_file_bytes((const mla_mapped *)c->file, c->stored + at, n, room, from, e);
}
static bool near_bytes(const mla_coded *c) { return mla_file_cached((const mla_mapped *)c->file, c->stored, c->out * c->in * 2); }
typedef std::vector<mla_weight *> Layer;
static Layer load(const mla_mapped &file, int l)
{
    Layer w(MATS);
    size_t at = layer_bytes() * (size_t)l;
    for (int i = 0; i < MATS; at += bytes_of(i++)) {
        mla_coded c = {};
        c.out = OUT[i], c.in = IN[i], c.code = MLA_CODE_BF16, c.group = IN[i], c.fill = no_row, c.read = read_bytes, c.near = near_bytes, c.file = &file, c.stored = file.data + at;
        const mla_weight_desc d = {OUT[i], IN[i], MLA_PREC_BF16, no_rows, NULL, &c, false};
        OK(be->ops->weight_new(be, &w[i], &d, &err));
    }
    return w;
}
static void unload(Layer &w)
{
    for (mla_weight *x : w) be->ops->weight_free(be, x);
    w.clear();
}
static void want(const mla_mapped &file, int l)
{
    if (l < LAYERS) mla_file_want(&file, (const char *)file.data + layer_bytes() * (size_t)l, layer_bytes());
}
/* All layers to the device: GB/s. */
static double load_rate(const mla_mapped &file)
{
    std::vector<Layer> w(LAYERS);
    const double s = seconds([&] {
        for (int l = 0; l < LAYERS; l++) w[(size_t)l] = load(file, l);
        OK(be->ops->sync(be, &err));
    });
    for (Layer &l : w) unload(l);
    return (double)layer_bytes() * LAYERS / 1e9 / s;
}
/* Prints the rate and the way. */
static int cold(const char *path)
{
    mla_mapped file;
    OK(mla_file_map(&file, path, &err));
    drop(path);
    const double rate = load_rate(file);
    printf("%.4f %s\n", rate, mla_file_way(&file));
    return 0;
}
static double cold_ratio(const char *self, const char *path)
{
    std::vector<double> raw[RAW_WAYS], ours, ratio;
    const std::string command = std::string(self) + " --cold " + path;
    for (int r = 0; r < ROUNDS; r++) {
        for (int w = 0; w < RAW_WAYS; w++) {
            drop(path);
            raw[w].push_back(raw_rate(path, w));
        }
        double rate = 0;
        char way[32] = "";
        FILE *p = popen(command.c_str(), "r");
        if (!p || fscanf(p, "%lf %31s", &rate, way) != 2 || pclose(p)) fprintf(stderr, "%s failed\n", command.c_str()), exit(3);
        ours.push_back(rate);
        printf("round %d, GB/s:", r + 1);
        for (int w = 0; w < RAW_WAYS; w++) printf(" %.2f (%s)", raw[w].back(), RAW[w].name);
        printf("; to the device %.2f (%s)\n", rate, way);
    }
    int best = 0;
    for (int w = 1; w < RAW_WAYS; w++)
        if (median(raw[w]) > median(raw[best])) best = w;
    for (int r = 0; r < ROUNDS; r++) ratio.push_back(ours[(size_t)r] / raw[best][(size_t)r]);
    printf("best: %s, %.2f; to the device %.2f (medians)\n", RAW[best].name, median(raw[best]), median(ours));
    return median(ratio);
}

static mla_mem *x, *y;
static void multiply(const Layer &w)
{
    for (int i = 0; i < MATS; i++) {
        const mla_linear_args a = {y, OUT[i], x, IN[i], T, NULL, false};
        OK(be->ops->linear(be, w[i], &a, &err));
    }
}
static double resident_seconds(const std::vector<Layer> &w)
{
    return seconds([&] {
        for (const Layer &l : w) multiply(l);
        OK(be->ops->sync(be, &err));
    });
}
/* The loop of the runtime's streaming mode. */
static double streamed_seconds(const mla_mapped &file)
{
    Layer now = load(file, 0);
    OK(be->ops->sync(be, &err));
    return seconds([&] {
        for (int l = 0; l < LAYERS; l++) {
            Layer next;
            want(file, l + 1);
            multiply(now);
            if (l + 1 < LAYERS) next = load(file, l + 1);
            OK(be->ops->sync(be, &err));
            unload(now);
            now = next;
        }
    });
}

int main(int argc, char **argv)
{
    if (!cut_has_gpu()) return cut_skip_all("bench_cuda_stream", 1);
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *dir = getenv("TMPDIR");
    const std::string path = std::string(dir ? dir : "/tmp") + "/mla-bench-weights";
    mla_backend_opts o = {"cuda:0", 0, MLA_ISA_AUTO};
    mla_mapped file;
    OK(mla_backend_open(&be, &o, &err));
    if (argc == 3 && !strcmp(argv[1], "--cold")) return cold(argv[2]);
    const double all = (double)layer_bytes() * LAYERS / 1e9;
    printf("%d layers of %.2f GB: written in %.1f s\n", (int)LAYERS, all / LAYERS, seconds([&] { write_file(path.c_str()); }));
    const double ratio = cold_ratio(argv[0], path.c_str());
    raw_rate(path.c_str(), RAW_WAYS - 1); /* direct reads left nothing in the page cache */
    OK(mla_file_map(&file, path.c_str(), &err));
    const double again = load_rate(file), warm = load_rate(file), pinned = pinned_rate(), host = raw_rate(path.c_str(), RAW_WAYS);
    printf("GB/s: pinned copies %.1f; page cache to pinned memory and nothing else (%s) %.1f; to the device warm %.1f (and %.1f)\n", pinned, RAW[RAW_WAYS].name, host, warm, again);
    CU(cudaMalloc((void **)&x, (size_t)T * 17408 * 4));
    CU(cudaMalloc((void **)&y, (size_t)T * 17408 * 4));
    fill_random<<<2048, 256>>>(x, true, (size_t)T * 17408, 2, 1.f);
    CU(cudaDeviceSynchronize());
    std::vector<Layer> w;
    for (int l = 0; l < LAYERS; l++) w.push_back(load(file, l));
    resident_seconds(w);
    const double resident = resident_seconds(w);
    for (Layer &l : w) unload(l);
    const double streamed = streamed_seconds(file);
    printf("%d tokens: resident %.1f ms, streamed %.1f ms (the first layer loaded before)\n", (int)T, resident * 1e3, streamed * 1e3);
    printf("\ngoals: row, measured, least and aimed at\n");
    goal("21", "cold, over the better raw read", ratio, 0.90, 0.90, true);
    goal("21", "warm, over pinned copies", warm / pinned, 0.85, 0.85, true);
    goal("12", "streamed over resident", streamed / resident, 1.03, 1.03, false);
    mla_file_unmap(&file);
    unlink(path.c_str());
    mla_backend_close(be);
    return 0;
}
