/* The ggml tensor types whose size is known. Listed even where no decoder exists: sizes are needed to find the rest. */
#include "io/gguf.h"

/* values per block, bytes per block; facts of the format, checked against golden files where there are some */
static const mla_ggml_info TYPE[] = {
    {"F32", MLA_GT_F32, 1, 4},          {"F16", MLA_GT_F16, 1, 2},          {"Q4_0", MLA_GT_Q4_0, 32, 18},
    {"Q4_1", MLA_GT_Q4_1, 32, 20},      {"Q5_0", MLA_GT_Q5_0, 32, 22},      {"Q5_1", MLA_GT_Q5_1, 32, 24},
    {"Q8_0", MLA_GT_Q8_0, 32, 34},      {"Q8_1", MLA_GT_Q8_1, 32, 36},      {"Q2_K", MLA_GT_Q2_K, 256, 84},
    {"Q3_K", MLA_GT_Q3_K, 256, 110},    {"Q4_K", MLA_GT_Q4_K, 256, 144},    {"Q5_K", MLA_GT_Q5_K, 256, 176},
    {"Q6_K", MLA_GT_Q6_K, 256, 210},    {"Q8_K", MLA_GT_Q8_K, 256, 292},    {"IQ2_XXS", MLA_GT_IQ2_XXS, 256, 66},
    {"IQ2_XS", MLA_GT_IQ2_XS, 256, 74}, {"IQ3_XXS", MLA_GT_IQ3_XXS, 256, 98}, {"IQ1_S", MLA_GT_IQ1_S, 256, 50},
    {"IQ4_NL", MLA_GT_IQ4_NL, 32, 18},  {"IQ3_S", MLA_GT_IQ3_S, 256, 110},  {"IQ2_S", MLA_GT_IQ2_S, 256, 82},
    {"IQ4_XS", MLA_GT_IQ4_XS, 256, 136}, {"I8", MLA_GT_I8, 1, 1},           {"I16", MLA_GT_I16, 1, 2},
    {"I32", MLA_GT_I32, 1, 4},          {"I64", MLA_GT_I64, 1, 8},          {"F64", MLA_GT_F64, 1, 8},
    {"IQ1_M", MLA_GT_IQ1_M, 256, 56},   {"BF16", MLA_GT_BF16, 1, 2},        {"TQ1_0", MLA_GT_TQ1_0, 256, 54},
    {"TQ2_0", MLA_GT_TQ2_0, 256, 66},   {"MXFP4", MLA_GT_MXFP4, 32, 17},    {"NVFP4", MLA_GT_NVFP4, 64, 36},
};

const mla_ggml_info *mla_ggml_type_info(uint32_t type)
{
    for (size_t i = 0; i < sizeof TYPE / sizeof *TYPE; i++)
        if (TYPE[i].type == type) return &TYPE[i];
    return NULL;
}
