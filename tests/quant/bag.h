/* A module's stored tensors as a test holds them: copies that may be renamed, reshaped, corrupted and read as a source. */
#ifndef TESTS_QUANT_BAG_H
#define TESTS_QUANT_BAG_H
#include <check.h>

#include "io/json.h"
#include "io/safetensors.h"
#include "quant/qconfig.h"
#include "quant/quant.h"

#define BAG_MAX 16

typedef struct {
    mla_tensor t[BAG_MAX]; /* names and data are the bag's own */
    size_t n;
    mla_qsource src; /* points at the bag: do not copy it */
    float *want;     /* m.dequantized */
    size_t out, in;
    mla_json *json;  /* the case's JSON; its quantization_config is a case's config */
} bag;

/* golden-quant/CASE.safetensors and .json; every tensor but m.dequantized. Free with bag_free. */
void bag_open(bag *b, const char *name);
void bag_empty(bag *b); /* an empty one, for bag_add */
void bag_free(bag *b);
mla_tensor *bag_find(bag *b, const char *name); /* fails the test when absent */
void *bag_data(bag *b, const char *name);       /* writable */
void bag_drop(bag *b, const char *name);
void bag_rename(bag *b, const char *from, const char *to);
/* Adds a copy of data; shape of ndim dims. */
void bag_add(bag *b, const char *name, mla_dtype t, size_t ndim, size_t d0, size_t d1, const void *data);
/* The case's config, parsed; caller frees. */
mla_qconfig *bag_config(const bag *b);
/* A config from JSON text in which ' stands for "; caller frees. */
mla_qconfig *config_of(const char *text);
/* Config text with ' for ": the status of reading it. */
mla_status read_config(mla_qconfig **out, const char *text, mla_err *err);

/* Opens module m with cfg and compares every row bit for bit with want [out, in]: all at once and in odd runs. */
void bag_decodes_to(bag *b, const mla_qconfig *cfg, const float *want);
#endif
