# Benchmarks: programs that print ratios against ceilings measured in the same process.
# make bench: the whole table of ratios. Every anchor runs in the same minutes; tests/bench/bench.sh says how.
BENCH_PROGS := $(patsubst tests/bench/%.c,$(BUILD)/bench/%,$(wildcard tests/bench/bench_*.c))
$(BENCH_PROGS): $(BUILD)/bench/%: tests/bench/%.c tests/bench/lab.c tests/bench/lab.h $(BUILD)/libmla.a
	@mkdir -p $(@D)
	$(CC) $(filter-out -MMD -MP,$(CFLAGS_ALL)) -Itests/bench -o $@ $(filter %.c %.a,$^) $(LDLIBS_ALL)

# A checkpoint of any configuration's true shapes, filled from a seed.
$(BUILD)/bench/synthetic_checkpoint: tests/bench/synthetic_checkpoint.c tests/model/build.c tests/harness.c tests/xml.c $(BUILD)/libmla.a
	@mkdir -p $(@D)
	$(CC) $(filter-out -MMD -MP,$(CFLAGS_ALL)) -Itests -o $@ $(filter %.c %.a,$^) $(CHECK_LIBS) $(LDLIBS_ALL)

$(BUILD)/bench/child: tests/bench/child.c
	@mkdir -p $(@D)
	$(CC) $(filter-out -MMD -MP,$(CFLAGS_ALL)) -o $@ $<

.PHONY: bench-backend
bench-backend: $(BUILD)/bench/bench_backend
	@$<

.PHONY: bench
bench: deps
	@scripts/deps.sh python3 python3-venv python3-pip unzip openssl
	@$(MAKE) --no-print-directory -j$$(nproc) all $(BENCH_PROGS) $(BUILD)/bench/child
	@BUILD=$(BUILD) tests/bench/bench.sh

# make interop: the same formats read by other people's libraries.
$(BUILD)/interop/dump: tests/interop/dump.c $(BUILD)/libmla.a
	@mkdir -p $(@D)
	$(CC) $(filter-out -MMD -MP,$(CFLAGS_ALL)) -o $@ $(filter %.c %.a,$^) $(LDLIBS_ALL)

.PHONY: interop
interop: deps
	@scripts/deps.sh python3 python3-venv python3-pip unzip
	@$(MAKE) --no-print-directory -j$$(nproc) all $(BUILD)/interop/dump $(TEST_TOOLS)
	@BUILD=$(BUILD) tests/interop/run.sh

# make bench-quality: KLD, agreement and perplexity of published factorizations and of ours, stage by stage (docs/quality.md).
.PHONY: bench-quality
bench-quality: deps
	@$(MAKE) --no-print-directory -j$$(nproc) all $(BUILD)/bench/bench_quality $(BUILD)/bench/bench_ablation $(BUILD)/bench/bench_chart
	@BUILD=$(BUILD) tests/bench/bench_quality.sh
