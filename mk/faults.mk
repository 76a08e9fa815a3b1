# Planted faults (tests/e2e/faults.sh): a program that edits finished folders, and an mla-verify whose linker puts
# tests/faults/doors.c in front of two functions of the runtime. Neither is installed; the programs know nothing of them.
FAULT_BIN := $(BUILD)/faults/mla-verify $(BUILD)/faults/mutate
FAULT_WRAP := -Wl,--wrap=mla_backend_open,--wrap=mla_seq_fork

$(BUILD)/faults/mla-verify: tests/faults/doors.c $(BUILD)/obj/cmd/mla-verify.o $(CMD_COMMON) $(BUILD)/libmla.a
	@mkdir -p $(@D)
	$(call say,LD $@)
	$(Q)$(CC) $(filter-out -MMD -MP,$(CFLAGS_ALL)) -o $@ $^ $(FAULT_WRAP) $(LDLIBS_ALL)

$(BUILD)/faults/mutate: tests/faults/mutate.c $(BUILD)/libmla.a
	@mkdir -p $(@D)
	$(call say,LD $@)
	$(Q)$(CC) $(filter-out -MMD -MP,$(CFLAGS_ALL)) -o $@ $(filter %.c %.a,$^) $(LDLIBS_ALL)

.PHONY: faults
faults: all $(FAULT_BIN)
	@scripts/run-tests.sh tests/e2e/faults.sh

# The shipped policies on the bundled model, contexts up to 8k: minutes, so not part of make check.
.PHONY: check-gate
check-gate: all $(BUILD)/tests/tools/encode_model
	@BUILD=$(BUILD) scripts/check-gate.sh $(or $(OUT),out)/gate
