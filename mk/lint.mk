# Static analysis (docs/reliability.md): clean; an exception stands, explained, at its place in the source.
LINT_SRC  := $(wildcard lib/*/*.c lib/*/*/*.c cmd/*.c)

.PHONY: lint
lint:
	@scripts/deps.sh cppcheck
	@cppcheck --quiet --std=c11 --language=c --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
	    --suppress=missingIncludeSystem -D__x86_64__ -D__GNUC__=12 -U__CUDACC__ -Ilib -Icmd -j$$(nproc) $(LINT_SRC)
	@echo 'lint: clean'
