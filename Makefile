# What is done to this code, each from a clean checkout. `make help` lists it.

PACKAGES ?= ./...
VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS  := -X github.com/outbox-relay/outbox-relay/command.version=$(VERSION)
TOOL     := go tool -modfile=tools/go.mod

.DEFAULT_GOAL := help
.PHONY: help build demo demo-keep test chaos bench model lint fmt vuln check

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build ./outbox-relay
	go build -trimpath -ldflags '$(LDFLAGS)' -o outbox-relay .

demo: build ## watch events go through a throwaway PostgreSQL and RabbitMQ, for less than a minute
	scripts/servers -- ./outbox-relay demo

demo-keep: build ## the same, and keep the servers for playing until Ctrl-C
	scripts/servers -- ./outbox-relay demo --keep

test: ## all tests, on throwaway servers or those of DATABASE_URL and AMQP_URL; PACKAGES=./listener/ for some
	go build -o bin/with-servers ./stack/with-servers
	scripts/servers gcc libc6-dev -- bin/with-servers go test -race -p 1 -timeout 14m $(PACKAGES)

chaos: ## hurt relays and servers at random, ten minutes long, then reconcile; CHAOS="-duration 1h" sets its flags
	go build -o bin/chaos ./chaos
	scripts/servers -- bin/chaos $(CHAOS)

bench: build ## measure latency, drain and more against floors of the same run; BENCH="-run latency" sets its flags
	scripts/servers -- go -C bench run . -relay ../outbox-relay $(BENCH)

model: ## check the model of the doorbell with spin, both ways
	scripts/model listener/doorbell.pml

lint: ## golangci-lint, and whether the code is formatted
	$(TOOL) golangci-lint run ./...

fmt: ## format the code
	$(TOOL) gofumpt -l -w .

vuln: ## look for known vulnerabilities
	scripts/vuln

check: lint vuln model test ## everything a change must pass
