# Static analysis (docs/reliability.md): clean; an exception stands, explained, at its place in the source.
LINT_SRC  := $(wildcard lib/*/*.c lib/*/*/*.c cmd/*.c)

.PHONY: lint
lint:
	@scripts/deps.sh cppcheck
	@cppcheck --quiet --std=c11 --language=c --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
	    --suppress=missingIncludeSystem -D__x86_64__ -D__GNUC__=12 -U__CUDACC__ -Ilib -Icmd -j$$(nproc) $(LINT_SRC)
	@$(MAKE) --no-print-directory -j$$(nproc) analyze
	@echo 'lint: clean'

# gcc's own analyzer over the layers that read files. tests/lint/known.h tells it what lies in other files.
ANALYZED := $(filter-out lib/base/err.c lib/io/msg.c,$(foreach l,base io text quant,$(call src_of,$(l))))
.PHONY: analyze
analyze: $(ANALYZED:%.c=$(BUILD)/analyzed/%)
$(BUILD)/analyzed/%: %.c tests/lint/known.h $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,ANALYZE $<)
	$(Q)$(CC) $(filter-out -MMD -MP -O2,$(CFLAGS_ALL)) -O1 $(call isa_flags,$<) -include tests/lint/known.h -fanalyzer -c -o /dev/null $<
	@touch $@

# memcheck over the suites that read files and do plain numerics: an invalid access, a use of what was never set or a leak fails. The kernels it cannot
# run (AVX-512) are chosen by nobody under it; the other suites run under the sanitizers (make asan).
VALGRIND_TESTS := base tensor io quant linalg
.PHONY: valgrind
valgrind: $(VALGRIND_TESTS:%=$(BUILD)/tests/test_%)
	@scripts/deps.sh valgrind
	@scripts/run-tests.sh $(VALGRIND_TESTS:%=$(BUILD)/valgrind/%)
# OPENBLAS_CORETYPE: kernels for the CPU that valgrind shows, and no second start, which valgrind would not follow
$(BUILD)/valgrind/%: $(BUILD)/tests/test_%
	@mkdir -p $(@D)
	@printf '#!/bin/sh\nOPENBLAS_CORETYPE=Haswell exec valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite %s\n' $< >$@ && chmod +x $@
valgrind: $(VALGRIND_TESTS:%=$(BUILD)/valgrind/%)
