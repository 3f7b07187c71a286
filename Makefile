# Two commands matter: make demo, make test.
SHELL := /bin/bash
GO ?= go
BIN := bin
RACE := ./internal/clocksync ./internal/coordinator ./internal/agentapi/... ./internal/ibsample ./internal/ibagent ./internal/pki ./internal/schedule ./internal/probe ./internal/sighting/... ./internal/unix ./exporters/... ./analyzer ./analyzer/evidence ./analyzer/paths ./analyzer/publish
GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
# Programs that the demo and the tests run, as program:Debian package.
DEMO_TOOLS := ip:iproute2 iptables:iptables
TEST_TOOLS := $(DEMO_TOOLS) python3:python3 chromium:chromium tcpdump:tcpdump chronyd:chrony opensm:opensm ibsim:ibsim-utils ibtracert:infiniband-diags

.PHONY: build collector demo test test-short bench peers clocks lint clean demo-tools test-tools table

build:
	@echo "building graylink, graylink-node, graylink-switch and graylink-coordinator (the first time downloads and compiles for a minute or two)"
	@mkdir -p $(BIN)
	$(GO) build -o $(BIN)/graylink ./cmd/graylink
	$(GO) build -o $(BIN)/graylink-node ./cmd/graylink-node
	$(GO) build -o $(BIN)/graylink-switch ./cmd/graylink-switch
	$(GO) build -o $(BIN)/graylink-coordinator ./cmd/graylink-coordinator

# The Collector with Graylink's receivers: a build of its own, since the Collector
# takes longer to compile than all the rest.
collector:
	$(call need,opensm:opensm ibsim:ibsim-utils prometheus:prometheus,)
	@echo "building otelcol-graylink (the first time compiles for a minute or two), and a real Prometheus scrapes it"
	@mkdir -p $(BIN)
	$(GO) build -tags collector -o $(BIN)/otelcol-graylink ./cmd/otelcol-graylink
	$(GO) vet -tags collector ./cmd/otelcol-graylink
	$(GO) test -tags collector -count 1 ./cmd/otelcol-graylink

demo: demo-tools build
	$(BIN)/graylink demo

# Everything, slow suites included: one package after the other, since several
# build fabrics and measure time. Race detection covers what needs no fabric.
test: test-tools build
	@echo "race detector over the concurrent packages"
	$(GO) test -race -short -timeout 10m $(RACE)
	@echo "all tests: real namespaces, real sockets, real Prometheus, real browser (about ten minutes)"
	$(GO) test -p 1 -count 1 -timeout 20m ./...

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

lint:
	@test -x $(BIN)/tools/golangci-lint || { echo "building golangci-lint (a few minutes, once)"; GOBIN=$(CURDIR)/$(BIN)/tools $(GO) install $(GOLANGCI); }
	$(BIN)/tools/golangci-lint run ./...

clean:
	@for l in $$($(BIN)/graylink lab list 2>/dev/null); do echo "taking down lab $$l"; $(BIN)/graylink lab --name $$l down; done
	rm -rf $(BIN)

# need TOOLS: installs what is missing when root, else says how.
define need
	@missing=""; for t in $(1); do command -v $${t%%:*} >/dev/null 2>&1 || missing="$$missing $${t##*:}"; done; \
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
