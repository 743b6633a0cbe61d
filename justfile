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

# Three nodes and two spokes that run on, with the commands to use them.
cluster:
    cargo run --release -- demo --nodes 3 --keep

# Many nodes in one process under random faults: just soak 1000
soak SEEDS="1000":
    CHAOS_SEEDS={{SEEDS}} cargo test --release -p barque-tests --test chaos -- random_schedules --nocapture

# Make the fixtures anew from fixtures/parquet/good.parquet.
fixtures:
    BARQUE_WRITE_FIXTURES=1 cargo test -p barque-tests --lib
    BARQUE_WRITE_FIXTURES=1 cargo test -p barque-bundle golden

# Prove that tests can fail: each patch of tests/mutants/ must be found by the test it names.
mutants *NAMES:
    tests/mutants/run {{NAMES}}

# Fuzz the verifier and the reader of archives for so long each: just fuzz 600
fuzz SECONDS="600":
    fuzz/run {{SECONDS}}

# Pushes beside rsync, rclone and curl, as docs/BENCHMARKS.md has it; quick unless a WORK is named: just bench, just bench small narrow
bench *WORKS="--quick first small large narrow long cuts":
    cargo build --release -p barque -p barque-tests --bins --examples
    ${CARGO_TARGET_DIR:-target}/release/examples/bench {{WORKS}}

# The same at full size, with what is found written into docs/BENCHMARKS.md: just bench-write small rows
bench-write *WORKS:
    cargo build --release -p barque -p barque-tests --bins --examples
    ${CARGO_TARGET_DIR:-target}/release/examples/bench --write=docs/BENCHMARKS.md {{WORKS}}

# A static program of this machine's kind, for a spoke that has nothing else: below the target folder, TARGET/release/barque.
static:
    RUSTFLAGS="-C target-feature=+crt-static" cargo build --locked --release -p barque --target "$(rustc -vV | sed -n 's/^host: //p')"

# Drives against dd, rsync and bagit, as ratios (needs 45 GiB, rsync, openssl, zstd, and bagit from PyPI).
bench-drive:
    tests/bench/drive

# The cluster, as docs/BENCHMARKS.md has it; a WORK by itself: just bench-cluster kills
bench-cluster *WORKS="manifest acks kills fairness million":
    cargo build --release -p barque -p barque-tests --bins --examples
    ${CARGO_TARGET_DIR:-target}/release/examples/bench {{WORKS}}

# Peak memory at full size: 200,000 files of 4 KiB and 16 uploads of 512 MiB at once (12 GiB of disk), and a drive with 1,000,000 entries (20 GiB).
bench-memory:
    TEST_MEMORY=full cargo test --release -p barque --test process -- memory_stays --nocapture

# The process tests with the spoke's clock elsewhere (needs faketime): just clock '@2038-02-01 00:00:00'
clock AT:
    TEST_SPOKE_CLOCK="{{AT}}" cargo test -p barque --test process -- --skip a_hundred --skip memory_stays --skip a_ping --skip twenty_kills --skip ten_thousand

# One process test by name: just process sp_02
process NAME:
    cargo test -p barque --test process -- {{NAME}}
