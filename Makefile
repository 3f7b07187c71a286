# Two commands matter: make demo, make test.
SHELL := /bin/bash
GO ?= go
BIN := bin
# Without paths of this machine in it, what one checkout has compiled serves the next one as well.
export GOFLAGS := $(GOFLAGS) -trimpath
GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
# Programs that the demo and the tests run, as program:Debian package.
DEMO_TOOLS := ip:iproute2 iptables:iptables
# Virtual machines with soft-RoCE: docs/testbed.md. Kernel and tools of the machines are fetched by the tests.
VM_TOOLS := ip:iproute2 qemu-system-x86_64:qemu-system-x86 gcc:gcc
# C compilers for graylink-node-rdma, for both architectures.
RDMA_TOOLS := gcc:gcc aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu
# vtysh stands for FRR, whose daemons Debian puts into a directory that is not in PATH.
TEST_TOOLS := $(DEMO_TOOLS) $(VM_TOOLS) vtysh:frr ping:iputils-ping python3:python3 chromium:chromium npm:npm tcpdump:tcpdump systemd-analyze:systemd chronyd:chrony lldpd:lldpd opensm:opensm ibsim:ibsim-utils ibtracert:infiniband-diags prometheus:prometheus prometheus-alertmanager:prometheus-alertmanager mkdocs:mkdocs-material
# Debian's Open MPI, for TestOpenMPI of make test-all.
MPI_TOOLS := gcc:gcc mpirun:openmpi-bin mpicc:libopenmpi-dev
# COIN-OR's solver, which computes the optima of plans again in make test-all.
PLAN_TOOLS := clp:coinor-clp

# What --version prints: the file VERSION, and the commit where git knows it.
COMMON := github.com/prometheus/common/version
LINK_VERSION := -X $(COMMON).Version=$(shell cat VERSION) -X $(COMMON).Revision=$(shell git rev-parse --short HEAD 2>/dev/null || echo unknown) -X $(COMMON).Branch=$(shell git rev-parse --abbrev-ref HEAD 2>/dev/null || echo unknown)

.PHONY: build bench-plan build-rdma nccl-plugin alerts silence chaos soak collector demo test test-all test-short fuzz mutate test-rdma bench peers clocks bench-localize bench-evidence test-scale beside dist test-chart test-packaging test-kubernetes test-slurm test-distributed site lint clean demo-tools test-tools table

build:
	@echo "building graylink, graylink-node, graylink-switch, graylink-coordinator and graylink-analyzer (the first time downloads and compiles for a minute or two)"
	@mkdir -p $(BIN)
	$(GO) build -ldflags '$(LINK_VERSION)' -o $(BIN)/graylink ./cmd/graylink
	$(GO) build -ldflags '$(LINK_VERSION)' -o $(BIN)/graylink-node ./cmd/graylink-node
	$(GO) build -ldflags '$(LINK_VERSION)' -o $(BIN)/graylink-switch ./cmd/graylink-switch
	$(GO) build -ldflags '$(LINK_VERSION)' -o $(BIN)/graylink-coordinator ./cmd/graylink-coordinator
	$(GO) build -ldflags '$(LINK_VERSION)' -o $(BIN)/graylink-analyzer ./cmd/graylink-analyzer

# graylink-node with probes by RDMA, as releases have it (docs/rdma.md). The C compiler and the headers of libibverbs are
# needed here. ARCH=arm64 needs the compiler of that architecture.
ARCH ?= $(shell $(GO) env GOHOSTARCH)
build-rdma:
	@mkdir -p $(BIN)
	GO="$(GO)" LDFLAGS='$(LINK_VERSION)' tools/rdma/go $(ARCH) build -o $(BIN)/graylink-node-rdma ./cmd/graylink-node
	$(GO) vet -tags rdma ./internal/rdma/... ./internal/probe ./cmd/graylink-node

# The profiler plugin for NCCL (deploy/nccl/README.md). It needs a C compiler, and nothing of NCCL.
CC ?= gcc
nccl-plugin:
	@mkdir -p $(BIN)
	$(CC) -std=c11 -O2 -Wall -Wextra -Werror -pthread -fPIC -fvisibility=hidden -shared -o $(BIN)/libnccl-profiler-graylink.so deploy/nccl/plugin.c deploy/nccl/writer.c

# The Collector with Graylink's receivers: a build of its own, since the Collector
# takes longer to compile than all the rest.
collector:
	$(call need,opensm:opensm ibsim:ibsim-utils prometheus:prometheus,)
	@echo "building otelcol-graylink (the first time compiles for a minute or two), and a real Prometheus scrapes it"
	@mkdir -p $(BIN)
	$(GO) build -tags collector -ldflags '$(LINK_VERSION)' -o $(BIN)/otelcol-graylink ./cmd/otelcol-graylink
	$(GO) vet -tags collector ./cmd/otelcol-graylink
	$(GO) test -tags collector -count 1 ./cmd/otelcol-graylink

# Without root the fabric is simulated, which takes no tools.
demo: $(if $(filter 0,$(shell id -u)),demo-tools) build
	$(BIN)/graylink demo --job --delay 30ms

# What CI runs, in 16 minutes on two cores, and more on a new machine. docs/testing.md has what is in make test-all only.
test: test-tools build
	@echo "building otelcol-graylink, which one of the tests runs (the first time compiles for a minute or two)"
	$(GO) build -tags collector -ldflags '$(LINK_VERSION)' -o $(BIN)/otelcol-graylink ./cmd/otelcol-graylink
	GO="$(GO)" test/run

# Everything: more faults and topologies in the kernel, longer spans, a Prometheus that fails (34 minutes).
test-all: test-tools build
	$(call need,$(MPI_TOOLS) $(PLAN_TOOLS),)
	$(GO) build -tags collector -ldflags '$(LINK_VERSION)' -o $(BIN)/otelcol-graylink ./cmd/otelcol-graylink
	GO="$(GO)" test/run all

# Every fuzz target in turn, for FUZZTIME each, with a line for each.
FUZZTIME ?= 10s
fuzz:
	GO="$(GO)" test/fuzz $(FUZZTIME)

# Operators and constants of packages, changed one by one: which changes no test notices. docs/testing.md has examples.
PKG ?= ./internal/judge
mutate:
	$(GO) run ./test/mutate $(MUTATE_FLAGS) $(PKG)

# Virtual machines with soft-RoCE: NIC health, and probes by RDMA (five minutes): docs/testbed.md.
test-rdma:
	$(call need,$(VM_TOOLS) prometheus:prometheus,)
	$(GO) test -tags alone -count 1 -v -timeout 20m ./test/vm/...

# Without the suites that build fabrics.
test-short:
	$(GO) test -short ./...

# The table of docs/first-light.md: every fault with ten seeds.
table: demo-tools build
	$(BIN)/graylink demo --fault delay,loss,blackhole,nic-slow,switch-slow,link-down --seeds 1..10 --format json

bench:
	$(GO) test -run '^$$' -bench . -benchmem ./...

# What a probe costs beside irtt, smokeping_prober and a bare loop (about ten
# minutes, on a machine that does nothing else): test/peers/README.md.
peers: build
	$(call need,$(DEMO_TOOLS) irtt:irtt prometheus-smokeping-prober:prometheus-smokeping-prober,)
	$(GO) run ./test/peers --node $(BIN)/graylink-node $(PEERS_FLAGS)

# Clocks of a lab beside chrony and ptp4l in the same minutes (six minutes), and
# simulated clocks with the truth known (hours): docs/clocksync.md.
clocks: build
	$(call need,$(DEMO_TOOLS) chronyd:chrony ptp4l:linuxptp,)
	$(GO) test ./test/e2e -run 'TestClocks$$' -v -count 1 -clocks.peers -clocks.span 60s
	$(BIN)/graylink clocksim --table --clocks 64 --seeds 1..20 --duration 90s --warm-up 60s
	$(BIN)/graylink clocksim --table --clocks 1024 --seeds 1..5 --duration 24s

# From a fault to the webhook, by a real Prometheus and Alertmanager with the files of
# deploy/ and rules/ (docs/alerts.md): 20 s, and 40 s for each fault. For the table:
# make alerts ALERTS="-alerts.kinds=delay,loss -alerts.seeds=1..10 -alerts.table"
ALERTS ?= -alerts.kinds=delay,blackhole
alerts: build
	$(call need,$(DEMO_TOOLS) prometheus:prometheus prometheus-alertmanager:prometheus-alertmanager,)
	$(GO) test ./test/e2e -run 'TestAlerts$$/^faults$$' -v -count 1 -timeout 3h $(ALERTS)

# An hour of the same lab with nothing broken, and agents, scrapes and analyzers disturbed:
# nobody is told of the fabric. It says how far it is; make silence SPAN=5m is shorter.
SPAN ?= 1h
silence: build
	$(call need,$(DEMO_TOOLS) prometheus:prometheus prometheus-alertmanager:prometheus-alertmanager,)
	$(GO) test ./test/e2e -run 'TestAlerts$$/^silence$$' -v -count 1 -timeout 25h -silence.span $(SPAN)

# The same lab for 45 minutes with nothing disturbed: what verdicts, lost probes, memory, open files and goroutines do, by
# readings of the kernel (docs/soak.md).
soak: build
	$(call need,$(DEMO_TOOLS) prometheus:prometheus prometheus-alertmanager:prometheus-alertmanager,)
	GRAYLINK_PROGRAMS=$(CURDIR)/$(BIN) $(GO) test -tags all ./test/e2e -run 'TestSoak$$' -v -count 1 -timeout 25h -soak.span $(if $(filter command line environment,$(origin SPAN)),$(SPAN),45m)

# Programs are killed, stopped and out of memory, disks are full, certificates expire, coordinators are cut off, while the fabric
# has faults: every fault is named, nothing else is, and no probe is lost by us (docs/soak.md). make chaos SEED=7 SPAN=5m,
# SEED=1..20, or REPLAY=FILE, a schedule that it printed.
SEED ?= 1
chaos: build
	$(call need,$(DEMO_TOOLS) prometheus:prometheus prometheus-alertmanager:prometheus-alertmanager,)
	GRAYLINK_PROGRAMS=$(CURDIR)/$(BIN) $(GO) test -tags all ./test/e2e -run 'TestChaos$$' -v -count 1 -timeout 25h -chaos.seeds $(SEED) -chaos.span $(if $(filter command line environment,$(origin SPAN)),$(SPAN),2m) $(if $(REPLAY),-chaos.replay $(abspath $(REPLAY)))

# The figures of docs/planner.md: C4's test bed, random fabrics, and a fabric of 16,384 NICs.
bench-plan:
	$(call need,$(PLAN_TOOLS),)
	$(GO) test ./internal/plan ./test/plancheck -tags all -count 1 -v -timeout 1h

# How well faults are found, beside the methods of three papers, on generated
# cases (docs/localization.md).
bench-localize:
	$(GO) run ./test/localize $(LOCALIZE_FLAGS)

# The analyzer beside a Prometheus server gives the demo's verdicts; and when the server
# stands still, dies, is slow, incomplete or a minute ahead, none that is wrong (20 minutes;
# make beside BESIDE="-beside.outage 20s -beside.trouble 20s" takes 12).
beside:
	$(call need,prometheus:prometheus,)
	$(GO) test ./cmd/graylink/demo -tags beside -run 'Beside|PrometheusFails' -count 1 -v -timeout 1h $(BESIDE)

# What a cycle's questions cost a real Prometheus and the analyzer (minutes): ADR 12.
bench-evidence:
	$(call need,prometheus:prometheus,)
	$(GO) test ./analyzer -run 'TestTwoStepsSayWhatEverythingSays|TestShardsSayWhatTheWholeSays|TestPodShardsSayWhatTheWholeSays|TestGroupShardsSayWhatTheWholeSays|TestWhatAPodShardReads' -asking.seeds 1 -timeout 30m -count 1
	$(GO) test ./analyzer -tags scale -run 'TestScale$$' -count 1 -v -timeout 1h -scale.edges 100000

# 2,048 simulated nodes of 8 NICs beside a real Prometheus: what a cycle takes, and how soon faults are named (30 minutes), and
# what both profiles cost Prometheus. SCALE="-scale.second 1s" does not stretch time, where there are more than two cores, and
# SCALE="-scale.prometheus PROGRAM" takes a Prometheus of version 3.9 or later.
test-scale:
	$(call need,prometheus:prometheus,)
	$(GO) test ./exporters/node -tags scale -run TestReceiverOfProfiles -count 1 -v -timeout 20m
	$(GO) test ./test/scale -tags scale -run 'TestFleet$$' -count 1 -v -timeout 1h $(SCALE)

# A release in dist/: docs/release.md. DIST_KEY is the key that signs the checksums.
dist:
	$(call need,$(RDMA_TOOLS),)
	@test -n "$(VERSION)" || { echo "VERSION is missing; for example: make dist VERSION=v0.1.0" >&2; exit 1; }
	$(GO) build -C tools -o ../$(BIN)/dist ./dist
	$(BIN)/dist -version $(VERSION) $(if $(DIST_KEY),-key $(DIST_KEY)) $(DIST_FLAGS)

# The chart, by Helm and kubeconform, and the manifests for Kustomize, as CI runs them (the first time compiles for two
# minutes; then one minute).
test-chart: build
	$(GO) test -tags packaging -count 1 -v -timeout 20m -run 'Test(Manifest|Chart|WrongValues|Kustomize)' ./test/packaging

# The chart, by Helm and kubeconform, the manifests for Kustomize, and the packages, which are built, installed in a root of
# their own, and started on three virtual machines as docs/start-slurm.md has it (on a machine that does nothing else).
test-packaging: build
	$(call need,$(VM_TOOLS) $(RDMA_TOOLS) qemu-aarch64:qemu-user mmdebstrap:mmdebstrap lintian:lintian rpm:rpm cpio:cpio,)
	$(GO) test -tags packaging -count 1 -v -timeout 1h ./test/packaging

# The chart with every right that it gives, and the enrollment of nodes, with a real API server of Kubernetes and its
# etcd (the first time compiles for three minutes; then two minutes).
test-kubernetes: build
	$(GO) test -tags kubernetes -count 1 -v -timeout 30m ./test/kubernetes

# The analyzer's source of jobs with a real Slurm (15 s).
test-slurm:
	$(call need,slurmctld:slurmctld slurmd:slurmd squeue:slurm-client munged:munge,)
	$(GO) test -tags slurm -count 1 -v -timeout 10m ./test/slurm

# The lab beside two Prometheus and a distributed engine, first Thanos and then Mimir: eleven faults, parts of the engine that
# are killed, and limits of a tenant that are too low (the first time compiles for ten minutes; then 35 minutes, on a machine
# that does nothing else): docs/distributed.md. ENGINES='TestMimir$$' runs one of both.
# DISTRIBUTED="-engine.kinds=delay,loss -engine.seeds=1..3" chooses faults.
ENGINES ?= Test(Distributed|Mimir)$$
test-distributed: build
	$(call need,$(DEMO_TOOLS) prometheus-alertmanager:prometheus-alertmanager,)
	GRAYLINK_PROGRAMS=$(CURDIR)/$(BIN) $(GO) test -tags distributed -count 1 -v -timeout 2h -run '$(ENGINES)' ./test/e2e $(DISTRIBUTED)

# The site of the documentation, in dist/site.
site:
	$(call need,mkdocs:mkdocs-material,)
	mkdocs build --strict --quiet

lint:
	@echo "golangci-lint (the first time compiles for a few minutes; the build cache keeps the program)"
	$(GO) run $(GOLANGCI) run ./...

clean:
	@for l in $$($(BIN)/graylink lab list 2>/dev/null); do echo "taking down lab $$l"; $(BIN)/graylink lab --name $$l down; done
	rm -rf $(BIN)

# need TOOLS: installs what is missing when root, else says how.
define need
	@missing=""; for t in $(1); do command -v $${t%%:*} >/dev/null 2>&1 || missing="$$missing $${t##*:}"; done; \
	case "$(1)" in *gcc:gcc*) test -f /usr/include/infiniband/verbs.h || missing="$$missing libc6-dev libibverbs-dev";; esac; \
	case "$(1)" in *aarch64-linux-gnu-gcc*) test -d /usr/aarch64-linux-gnu/include || missing="$$missing libc6-dev-arm64-cross";; esac; \
	if [ -n "$(2)" ]; then /usr/bin/python3 -c 'import scapy.contrib.stamp' 2>/dev/null || missing="$$missing python3-scapy"; fi; \
	if [ -n "$$missing" ]; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing Debian packages:$$missing"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	  else echo "missing; install them and try again: apt-get install$$missing" >&2; exit 1; fi; fi
endef

demo-tools:
	$(call need,$(DEMO_TOOLS),)

test-tools:
	$(call need,$(TEST_TOOLS),scapy)
