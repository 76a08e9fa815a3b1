/* Growing byte strings and the three families of hostile files. */
#ifndef MLA_TESTS_IO_BAD_PARTS_H
#define MLA_TESTS_IO_BAD_PARTS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    unsigned char *p;
    size_t n, cap;
} bytes;

void put(bytes *b, const void *p, size_t n);
void put_text(bytes *b, const char *s);
void put_u32(bytes *b, uint32_t v);
void put_u64(bytes *b, uint64_t v);
void put_fill(bytes *b, int c, size_t n);
void drop(bytes *b);
bool save(const char *path, bytes *b); /* drops b */
/* The same, with the file then grown with zeros to n bytes without taking disk space. */
bool save_sparse(const char *path, bytes *b, uint64_t n);

size_t bad_st_count(void);
bool bad_st_write(size_t i, const char *path, const char **name, const char **expect); /* path NULL: names only */
size_t bad_gguf_count(void);
bool bad_gguf_write(size_t i, const char *path, const char **name, const char **expect);
size_t bad_dir_count(void);
bool bad_dir_write(size_t i, const char *path, const char **name, const char **expect);

void good_st(bytes *b, const char *a, const char *c); /* two U8[4] tensors of these names */
void good_gguf(bytes *b);
bool good_dir(const char *path);
#endif
