# Thin names for the commands people run. Set-up is part of each, and instant once done.
.PHONY: help setup demo up contact-sheet exam test secured chaos cluster failover bench screenshots configuration lint ci goldens clean

# Where infra/setup links nats-server, cargo-nextest, Prometheus and the linters.
export PATH := $(CURDIR)/.fresco/bin:$(PATH)

help:
	@echo "make demo     build, start a small fleet, paint a picture, stop it"
	@echo "make up       the same fleet, until Ctrl-C"
	@echo "make test     all tests"
	@echo "make secured  the end-to-end tests on three brokers with TLS and a credential a role; PROFILE=secured-short some"
	@echo "make exam     600 pictures of the demo model, judged; ten minutes (the tests judge a third)"
	@echo "make chaos    thousands of requests while everything is killed and frozen; SEED=n again"
	@echo "make cluster  the same on three brokers whose leaders are killed and rolled"
	@echo "make failover how long a job is without a worker when its own goes away"
	@echo "make bench    throughput, latency and overhead of fleets that replay; a quarter of an hour"
	@echo "make configuration  the flags in docs/configuration.md, anew"
	@echo "make screenshots  the pictures of the dashboards, anew"
	@echo "make lint     format, spelling, unused dependencies, clippy, docs, licences"
	@echo "make ci       what CI runs: lint and test"
	@echo "make setup    only what the others do first: libtorch and nats-server into the cache"
	@echo "make contact-sheet  the pictures of the README, anew"
	@echo "make goldens  the reference files of tests/data, anew (several GB of Python packages)"
	@echo "make clean    everything but the cache of set-up"

setup:
	@infra/setup/setup

demo: setup
	cargo build --locked --release --bins
	infra/demo.sh

up: setup
	cargo build --locked --release --bins
	infra/demo.sh --stay

contact-sheet: setup
	cargo build --locked --release --bins
	infra/demo.sh --sheet

# The end-to-end tests start the binaries of target/debug. One OpenMP thread: the tiny models are
# ten times slower when two threads spin for the same two cores, and the bits are the same.
test: export OMP_NUM_THREADS = 1
test: setup
	@infra/setup/setup --test
	cargo build --locked --workspace --bins
	cargo nextest run --locked --workspace
	cargo test --locked --workspace --doc

secured: export OMP_NUM_THREADS = 1
secured: export FRESCO_TEST_BROKER = secured-cluster
secured: setup
	cargo build --locked --workspace --bins
	cargo nextest run --locked --workspace --profile $(or $(PROFILE),secured)

exam: export OMP_NUM_THREADS = 1
exam: setup
	cargo build --locked --workspace --bins
	cargo nextest run --locked --workspace --run-ignored only --no-capture -E 'test(every_held_out_caption)'

# Programs of the tests, because they take minutes; they start the binaries beside them. Without SEED, the clock's.
CHAOS = cargo build --locked --workspace --bins && target/debug/chaos $(if $(SEED),--seed $(SEED))

chaos: setup
	$(CHAOS)

cluster: setup
	$(CHAOS) --cluster --requests 1000 --faults 0 --broker-faults 6 --seconds 120

failover: setup
	cargo build --locked --workspace --bins
	target/debug/failover

bench: setup
	cargo build --locked --release --bins
	infra/bench.sh

configuration: setup
	cargo build --locked --workspace --bins
	infra/configuration.sh

screenshots: setup
	@infra/setup/setup --test
	cargo build --locked --workspace --bins
	target/debug/screenshots

lint:
	.ci/run lint

ci:
	.ci/run

goldens: setup
	infra/goldens.sh

clean:
	cargo clean
	rm -rf .fresco
