# Benchmarks: programs that print ratios against ceilings measured in the same process.
.PHONY: bench-backend
$(BUILD)/bench/bench_backend: tests/bench/bench_backend.c $(call objs_upto,backend)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -o $@ $(filter %.c %.o,$^) $(LDLIBS_ALL)

bench-backend: $(BUILD)/bench/bench_backend
	@$<
