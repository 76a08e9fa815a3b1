# Faults of the system (docs/reliability.md): the programs with tests/failing/doors.c in front of libc, and what sweeps them.
FAILING_BIN := $(PROGS:%=$(BUILD)/failing/%) $(BUILD)/failing/sweep

$(PROGS:%=$(BUILD)/failing/%): $(BUILD)/failing/%: tests/failing/doors.c $(BUILD)/obj/cmd/%.o $(CMD_COMMON) $(BUILD)/libmla.a
	@mkdir -p $(@D)
	$(call say,LD $@)
	$(Q)$(CC) $(filter-out -MMD -MP -D_FORTIFY_SOURCE%,$(CFLAGS_ALL)) -fno-builtin -Wno-missing-prototypes -Wno-pedantic -o $@ $^ $(LDLIBS_ALL)

$(BUILD)/failing/sweep: tests/failing/sweep.c $(BUILD)/libmla.a
	@mkdir -p $(@D)
	$(call say,LD $@)
	$(Q)$(CC) $(filter-out -MMD -MP,$(CFLAGS_ALL)) -o $@ $(filter %.c %.a,$^) $(LDLIBS_ALL)

.PHONY: check-failing check-kill failing-asan
# Every call in turn: some 40,000 runs of milliseconds. SWEEP: a case and a call, as "build alloc"; STRIDE: every nth call only.
check-failing: all $(FAILING_BIN)
	@OPENBLAS_NUM_THREADS=1 $(BUILD)/failing/sweep $(BUILD)/failing tests/fixtures/mini $(or $(STRIDE),1) $(SWEEP)
check-kill: all
	@n=$${JOBS:-$$(nproc)}; seq 0 $$((n - 1)) | KILLS=$(or $(KILLS),200) PARTS=$$n xargs -P $$n -I '{}' env PART='{}' tests/e2e/kill.sh
# The same sample as in `make check` under the sanitizers: no leak on any way out.
failing-asan:
	@$(MAKE) --no-print-directory -j$$(nproc) BUILD=$(BUILD)/asan OPT='$(ASAN_OPT)' CFLAGS='$(ASAN_FLAGS)' LDFLAGS='$(ASAN_FLAGS)' STRIDE=$(or $(STRIDE),101) check-failing
