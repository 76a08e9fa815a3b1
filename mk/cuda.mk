# The CUDA backend: built only by the targets below and only where nvcc is found; nothing else depends on it.
NVCC      ?= $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc))
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
# Hopper's own instructions live in the sm_90a build of the decode kernels; the rest also runs on the other targets.
CUDA_ARCH ?= 80 100 120
NVCC_GENERIC := -gencode=arch=compute_90a,code=sm_90a $(foreach a,$(CUDA_ARCH),-gencode=arch=compute_$(a),code=sm_$(a))
NVCC_FLAGS = -std=c++17 -O3 -lineinfo -I. -Ilib -Xcompiler -Wall,-Wextra,-ffp-contract=off -MMD -MP $(NVCCFLAGS)
CUDA_LIBS = -L$(CUDA_HOME)/lib64 -lcudart -lcublasLt -lcusolver -lcublas

CUDA_SRC := $(wildcard cuda/*.cu)
CUDA_OBJ := $(patsubst %.cu,$(BUILD)/obj/%.o,$(CUDA_SRC))
CUDA_TESTS := $(patsubst tests/cuda/%.cu,$(BUILD)/tests/cuda_%,$(wildcard tests/cuda/test_*.cu)) $(patsubst %,$(BUILD)/tests/cuda_%,steps codes packed moments layouts refine)
CUDA_BENCH := $(patsubst tests/bench/%.cu,$(BUILD)/bench/%,$(wildcard tests/bench/cuda_*.cu))

$(BUILD)/obj/cuda/%.o: cuda/%.cu
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) $(NVCC_GENERIC) -c -o $@ $<

$(BUILD)/libmla-cuda.a: $(CUDA_OBJ)
	@rm -f $@
	ar rcs $@ $^

# The CPU reference the operations are compared with, and what it stands on; -u: the open function is a weak reference.
CUDA_CPU := $(foreach l,base tensor io linalg backend,$(call obj_of,$(l)))
CUDA_PULL := -Xlinker -u -Xlinker mla_cuda_open
CUDA_CPU_LIBS := $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lm -lpthread

$(BUILD)/tests/cuda_test_%: tests/cuda/test_%.cu $(wildcard tests/cuda/*.h) $(BUILD)/libmla-cuda.a $(CUDA_CPU)
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) $(NVCC_GENERIC) -Itests/cuda $(CUDA_PULL) -o $@ $(filter %.cu %.o,$^) $(BUILD)/libmla-cuda.a $(CUDA_LIBS) $(CUDA_CPU_LIBS)

# Toys with random weights on disk are the runtime suite's.
$(BUILD)/tests/cuda_layouts: tests/runtime/naive.c tests/harness.c
$(BUILD)/tests/cuda_layouts: CUDA_TEST_LIBS = -Itests $(CHECK_LIBS)

# What goes through the runtime needs all layers and no CUDA of its own.
$(BUILD)/tests/cuda_%: tests/cuda/test_%.c $(wildcard tests/cuda/*.h) $(BUILD)/libmla.a $(BUILD)/libmla-cuda.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -Wl,-u,mla_cuda_open -o $@ $(filter %.c,$^) $(filter %.a,$^) $(CUDA_TEST_LIBS) $(CUDA_LIBS) -lstdc++ $(LDLIBS_ALL)

$(BUILD)/bench/cuda_%: tests/bench/cuda_%.cu $(wildcard tests/cuda/*.h tests/bench/cuda_*.h) $(BUILD)/libmla-cuda.a $(CUDA_CPU)
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) $(NVCC_GENERIC) -Itests/cuda -Itests/bench $(CUDA_PULL) -o $@ $(filter %.cu %.o,$^) $(BUILD)/libmla-cuda.a $(CUDA_LIBS) $(CUDA_CPU_LIBS)

# The programs with the CUDA backend linked in.
$(BUILD)/cuda-bin/%: $(BUILD)/obj/cmd/%.o $(CMD_COMMON) $(BUILD)/libmla.a $(BUILD)/libmla-cuda.a
	@mkdir -p $(@D)
	$(CC) -Wl,-u,mla_cuda_open -o $@ $^ $(CUDA_LIBS) -lstdc++ $(LDLIBS_ALL)

.PHONY: cuda check-cuda bench-cuda cuda-found
cuda-found:
	@[ -n "$(NVCC)" ] || { echo 'cuda: nvcc not found; install the CUDA toolkit or set NVCC=/path/to/nvcc'; exit 1; }
cuda: cuda-found $(BUILD)/libmla-cuda.a $(patsubst cmd/%.c,$(BUILD)/cuda-bin/%,$(wildcard $(PROGS:%=cmd/%.c)))
check-cuda: cuda $(CUDA_TESTS)
	@scripts/run-tests.sh $(CUDA_TESTS) tests/cuda/device.sh
# Then what else does the same work on this GPU, where python3 has torch and Triton.
bench-cuda: cuda-found $(CUDA_BENCH)
	@rm -f $(BUILD)/bench/cuda.txt
	@bash -o pipefail -c 'for b in $(CUDA_BENCH); do $$b | tee -a $(BUILD)/bench/cuda.txt || exit 1; done'
	@python3 tests/bench/anchor_gpu.py $(BUILD)/bench/cuda.txt || [ $$? = 3 ]
-include $(CUDA_OBJ:.o=.d)
