# Short names for what CI and people run; nothing here is needed to build or test.

# What CI runs on a clean clone.
ci:
    .ci/run

# The tests, as the README says.
test:
    cargo test --workspace

# Format and lints, warnings as errors.
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings

# The README's first command.
demo:
    cargo run --release -- demo

# Make the fixtures anew from fixtures/parquet/good.parquet.
fixtures:
    BARQUE_WRITE_FIXTURES=1 cargo test -p barque-tests --lib

# Prove that tests can fail: each patch of tests/mutants/ must be found by the test it names.
mutants *NAMES:
    tests/mutants/run {{NAMES}}

# One process test by name: just process sp_02
process NAME:
    cargo test -p barque --test process -- {{NAME}}
