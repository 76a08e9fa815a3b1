# Everything but compiling: dependencies, checks, demo, benchmarks, install.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
DEBS := gcc make pkg-config libopenblas-dev liblapacke-dev libssl-dev libcjson-dev libzstd-dev libpcre2-dev libutf8proc-dev check zstd

.PHONY: deps check unit asan layers clean
deps:
	@scripts/deps.sh $(DEBS)

layers:
	@scripts/check-layers.sh

unit: $(TEST_BIN)
	@scripts/run-tests.sh $(TEST_BIN)

check: deps
	@$(MAKE) --no-print-directory -j$$(nproc) all check-now

.PHONY: check-now
check-now: layers $(TEST_BIN) all
	@scripts/run-tests.sh $(TEST_BIN) $(wildcard tests/e2e/*.sh)

ASAN_FLAGS := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
asan:
	@$(MAKE) --no-print-directory -j$$(nproc) BUILD=$(BUILD)/asan OPT='-O1 -g' CFLAGS='$(ASAN_FLAGS)' LDFLAGS='$(ASAN_FLAGS)' unit

clean:
	rm -rf $(BUILD)
-include mk/cuda.mk

-include mk/bench.mk
