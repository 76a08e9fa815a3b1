# Fuzzing: one libFuzzer entry point per file of tests/fuzz/targets; docs/reliability.md says what each promises.
FUZZ_SECONDS ?= 60
FUZZ_SEED    ?= 1
FUZZ_NAMES   := $(patsubst tests/fuzz/targets/%.c,%,$(wildcard tests/fuzz/targets/*.c))
FUZZ_TARGETS ?= $(FUZZ_NAMES)

# tests/test_fuzz, part of `make check` and `make asan`: every kept input again, without libFuzzer.
$(BUILD)/obj/fuzz/%.o: tests/fuzz/targets/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC $<)
	$(Q)$(CC) $(CFLAGS_ALL) -Itests/fuzz -DLLVMFuzzerTestOneInput=fuzz_target_$* -c -o $@ $<
FUZZ_OBJ := $(FUZZ_NAMES:%=$(BUILD)/obj/fuzz/%.o)
$(BUILD)/tests/test_fuzz: tests/fuzz/driver.c tests/fuzz/fuzz.c tests/fuzz/fuzz.h $(FUZZ_OBJ) $(BUILD)/libmla.a
	@mkdir -p $(@D)
	$(call say,LD $@)
	$(Q)$(CC) $(filter-out -MMD -MP,$(CFLAGS_ALL)) -Itests/fuzz '-DFUZZ_TARGETS=$(foreach t,$(FUZZ_NAMES),X($(t)))' -o $@ \
	    $(filter %.c %.o %.a,$^) $(LDLIBS_ALL)
TEST_BIN += $(BUILD)/tests/test_fuzz

# libfuzzer/<target>: built by `make fuzz` with clang, in a build folder of its own.
$(BUILD)/libfuzzer/%: tests/fuzz/targets/%.c tests/fuzz/fuzz.c tests/fuzz/fuzz.h $(BUILD)/libmla.a
	@mkdir -p $(@D)
	$(call say,LD $@)
	$(Q)$(CC) $(filter-out -MMD -MP,$(CFLAGS_ALL)) -Itests/fuzz -fsanitize=fuzzer -o $@ $(filter %.c %.a,$^) $(LDLIBS_ALL)

# make fuzz: FUZZ_SECONDS for each of FUZZ_TARGETS; with clang's libFuzzer where there is one, else by the driver's own mutations.
FUZZ_CC    ?= clang
ifdef FUZZING # no reader gets to the kernels, and clang takes many minutes to instrument them
$(BUILD)/obj/backend/cpu/kern_%.o $(BUILD)/obj/backend/cpu/rows_%.o: CFLAGS_ALL := $(filter-out -fsanitize%,$(CFLAGS_ALL))
endif
FUZZ_FLAGS := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
.PHONY: fuzz fuzz-corpus fuzz-build
fuzz-build:
	@$(MAKE) --no-print-directory -j$$(nproc) FUZZING=1 BUILD=$(BUILD)/fuzz CC='$(FUZZ_CC)' OPT='-O1 -g' CFLAGS='$(FUZZ_FLAGS)' LDFLAGS='$(FUZZ_FLAGS)' \
	    $(FUZZ_TARGETS:%=$(BUILD)/fuzz/libfuzzer/%)
fuzz: deps
	@if echo 'int LLVMFuzzerTestOneInput(void); int LLVMFuzzerTestOneInput(void){return 0;}' | $(FUZZ_CC) -fsanitize=fuzzer -x c -o /dev/null - 2>/dev/null; then \
	    $(MAKE) --no-print-directory fuzz-build && scripts/fuzz.sh run $(BUILD)/fuzz $(FUZZ_SECONDS) $(FUZZ_SEED) $(FUZZ_TARGETS); \
	else \
	    echo 'fuzz: $(FUZZ_CC) has no libFuzzer; mutations of the kept inputs instead'; \
	    $(MAKE) --no-print-directory -j$$(nproc) BUILD=$(BUILD)/asan OPT='$(ASAN_OPT)' CFLAGS='$(ASAN_FLAGS)' LDFLAGS='$(ASAN_FLAGS)' $(BUILD)/asan/tests/test_fuzz && \
	    $(BUILD)/asan/tests/test_fuzz $(FUZZ_SECONDS) $(FUZZ_SEED); \
	fi
# make fuzz-corpus: what `make fuzz` found, minimised into tests/fuzz/corpus.
fuzz-corpus: fuzz-build
	@scripts/fuzz.sh keep $(BUILD)/fuzz 0 0 $(FUZZ_TARGETS)
-include $(FUZZ_OBJ:.o=.d)
