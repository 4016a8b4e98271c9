# muster: `make` lists the targets. After `make deps` every one of them works without a network.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VERSION ?= $(shell scripts/version.sh)
FUZZTIME ?= 20s
PREFIX ?= /usr/local
# What is the same for all checkouts of one machine lives here: virtual environments, built tools.
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/muster-dev
TORCH := $(CACHE)/torch-$(shell sed -n 's/^torch==//p' scripts/requirements.txt)
SPARK := $(CACHE)/spark-$(shell sed -n 's/^peer spark //p' scripts/peers/spark.sh)

# Tools are built outside the module, so that their dependencies never enter go.sum; a linter must be as new as the Go
# that it reads, hence the Go version in the name.
GOLANGCI_VERSION := v2.15.0
GOVULNCHECK_VERSION := v1.9.0
GOFUMPT_VERSION := v0.12.0
GOTESTSUM_VERSION := v1.13.0
TOOLS := $(CACHE)/tools-$(shell go env GOVERSION)
GOLANGCI := $(TOOLS)/golangci-lint-$(GOLANGCI_VERSION)
GOVULNCHECK := $(TOOLS)/govulncheck-$(GOVULNCHECK_VERSION)
GOFUMPT := $(TOOLS)/gofumpt-$(GOFUMPT_VERSION)
GOTESTSUM := $(TOOLS)/gotestsum-$(GOTESTSUM_VERSION)
ACTIONLINT_VERSION := v1.7.12
ACTIONLINT := $(TOOLS)/actionlint-$(ACTIONLINT_VERSION)

# Without the path of the checkout in what is compiled, a new checkout finds all of it in Go's cache: it needs 1 s of processor time in place
# of 100 to 150 s, and the same once more for the race detector.
export GOFLAGS := $(filter-out -trimpath,$(GOFLAGS)) -trimpath

# go-nvml calls functions that are deprecated; its cgo files would say so thirty times.
export CGO_CFLAGS ?= -O2 -g0 -Wno-deprecated-declarations
ARCH = $(shell go env GOARCH)

# grpcnotrace: without gRPC's traces, which nobody sees here. They bring templates, which call methods by name: the linker
# then keeps every method of every type, 3.5 MB of them. `-ldflags -dumpdep` shows who does so (ReflectMethod).
TAGS = grpcnotrace
GOBUILD = CGO_ENABLED=0 go build -tags $(TAGS) -ldflags '-s -w -X main.version=$(VERSION)'

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r t d; do printf '  %-11s %s\n' "$$t" "$$d"; done

.PHONY: build
build: ## bin/muster for this machine
	$(GOBUILD) -o bin/muster ./cmd/muster

NVPROBE = CGO_ENABLED=1 go build -ldflags '-s -w -linkmode external -extldflags "-Wl,-z,lazy"'

.PHONY: nvprobe
nvprobe: ## bin/nvprobe, which asks the NVIDIA driver about its GPUs (gcc); put it beside muster
	$(NVPROBE) -o bin/nvprobe ./cmd/nvprobe

.PHONY: release
release: TAGS = grpcnotrace,nvprobe_embed
release: ## build/release/muster-linux-ARCH for this architecture, static, with the NVML probe inside (gcc)
	scripts/nvprobe.sh internal/accel/probe/blob/nvprobe-$(ARCH)
	gzip -9nf internal/accel/probe/blob/nvprobe-$(ARCH)
	$(GOBUILD) -o build/release/muster-linux-$(ARCH) ./cmd/muster
	go run ./scripts/elfcheck build/release/muster-linux-$(ARCH)
	build/release/muster-linux-$(ARCH) --version | grep 'NVML probe: [0-9]* bytes inside'
	scripts/size.sh build/release/muster-linux-$(ARCH)
	install -m 644 "$$(go list -m -f '{{.Dir}}' github.com/NVIDIA/go-nvml)/LICENSE" build/release/LICENSE.go-nvml

.PHONY: dist
dist: ## build/dist: binaries, wheels, Debian packages, images, lists of parts, checksums; the NVML probe goes in where make release left one
	GO_TAGS=grpcnotrace VERSION=$(VERSION) scripts/dist.sh build/dist

.PHONY: install
install: build ## bin/muster, its man pages and completions below $(PREFIX) (PREFIX=/usr/local)
	install -D -m 755 bin/muster $(DESTDIR)$(PREFIX)/bin/muster
	rm -rf build/man && go run -tags man ./cmd/muster man build/man
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 build/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	bin/muster completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/muster
	bin/muster completion zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_muster
	bin/muster completion fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/muster.fish

.PHONY: static
static: ## build/muster-linux-{amd64,arm64}; fails unless both are static
	GOOS=linux GOARCH=amd64 $(GOBUILD) -o build/muster-linux-amd64 ./cmd/muster
	GOOS=linux GOARCH=arm64 $(GOBUILD) -o build/muster-linux-arm64 ./cmd/muster
	go run ./scripts/elfcheck build/muster-linux-amd64 build/muster-linux-arm64

.PHONY: deps
deps: test-deps $(GOLANGCI) $(GOFUMPT) $(GOTESTSUM) $(ACTIONLINT) ## all that the other targets need: PyTorch in a virtual environment, Debian packages (root), modules, tools
	@cd cmd/manifest/manifesttest && go mod download # for make soak and make lint

# Modules of their own, whose tests need what muster's go.sum is not to have.
NESTED = rendezvous/etcdstore/etcdtest cmd/manifest/manifesttest

.PHONY: test-deps
test-deps:
	@scripts/deps.sh all
	@go mod download
	@cd rendezvous/etcdstore/etcdtest && go mod download

# The time of each test lies in build/test; `make slowest` shows the slowest ones of the last run.
# Of thousands of tests that wait for processes on two busy processors, one now and then fails for want of a processor. A few that have
# failed run once more by themselves, and all that were run again are named at the end: `make flakes` shows how often they fail. A data race, or
# a failure that comes again, counts at once.
AGAIN = --rerun-fails=1 --rerun-fails-max-failures=6 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race \
	--rerun-fails-report=$(CURDIR)/build/test/$(1).again
TIMED = $(GOTESTSUM) --format standard-quiet --jsonfile $(CURDIR)/build/test/$(1).json $(AGAIN) --packages="$(2)" --

# Test binaries are linked without DWARF, which takes 0.5 s of processor time in place of 1.8 s, with the race detector 1.3 s in place of 1.9 s;
# stack traces need none of it.
LINK = -ldflags=-w

# The race detector is on where goroutines are the subject: a package that gets some belongs here. It costs two to ten times the processor
# time, and each test binary more to link; `make soak` has it everywhere. rendezvous/membership runs with it and without, as its simulations
# have fewer worlds with it.
# Without it run, for their cost, rendezvous/c10d and mixed (simulations of many agents), launch/checks, launch/evidence/gather, bench,
# internal/testutil, cmd/console and cmd/muster: their goroutines hand on what a few channels bring. make soak is to run each night for them.
RACE = $(addprefix ./,checkpointd $(addprefix horovod/,elastic kv notify) $(addprefix internal/,admission logtext peertls preempt proc) \
	launch $(addprefix launch/,control control/history control/ranks control/relay control/web devices hosts node output progress trace warm) \
	netcheck netcheck/netprobe $(addprefix rendezvous/,etcdstore membership memstore tcpstore) sshexec)

# Two lanes run beside each other: the tests that drive muster (DRIVEN), half of whose time is waiting, package after package, and
# everything else, two packages at a time: three take as long, and what measures a network fails for want of a processor. LATE of DRIVEN
# runs at the end of the second lane, two packages at a time, so that both lanes end at about the same time and wait little there. The
# examples' own tests, in Python, run beside the first packages, while there is much to compile. All parts run, also behind one that
# failed: who waited for the first wants to hear of the others, too. `make lint` vets; a test binary needs no second look. A process under
# the race detector lingers for a second when it ends, unless GORACE says otherwise.
# Packages whose tests start the whole program again and again.
DRIVEN = ./cmd/muster ./test/...
LATE = ./test/meet ./test/jobs ./test/kill ./test/report
# Of the other packages these wait longest. They begin first, so that nobody waits for them alone at the end.
FIRST = ./netcheck/devicecheck ./rendezvous/c10d

.PHONY: test
test: test-deps $(GOTESTSUM) ## everything, with the real PyTorch; nothing may skip
	@mkdir -p build/test; rm -f build/test/*.again; export MUSTER_TEST_REQUIRE=1 CGO_ENABLED=1 GORACE=atexit_sleep_ms=0; failed=; \
	set -xm; $(call TIMED,muster,$$(go list $(DRIVEN) | grep -vxFf <(go list $(LATE)) | tr '\n' ' ')) -vet=off $(LINK) -shuffle=on -p 1 -parallel 6 -timeout 45m </dev/null & \
	muster=$$!; PYTHONPATH=test/testdata/torch $(TORCH)/bin/python -c \
		'import uncompiled, unittest; unittest.main(None, argv=["", "discover", "-s", "examples/digits"])' </dev/null & digits=$$!; \
	$(SPARK)/bin/python -m unittest discover -s examples/spark-preprocess </dev/null & spark=$$!; \
	set +m; trap "kill -- -$$muster -$$digits -$$spark 2>/dev/null" EXIT; \
	$(call TIMED,race,$(RACE)) -vet=off $(LINK) -race -shuffle=on -p 2 -parallel 4 -timeout 30m || failed+=" race"; \
	wait $$digits || failed+=" examples/digits"; wait $$spark || failed+=" examples/spark-preprocess"; \
	trap "kill -- -$$muster 2>/dev/null" EXIT; \
	$(call TIMED,packages,$(FIRST) $$(go list ./... | grep -vxFf <(go list $(DRIVEN) $(RACE) $(FIRST)) | tr '\n' ' ') ./rendezvous/membership) \
		-vet=off $(LINK) -shuffle=on -p 2 -parallel 4 -timeout 30m || failed+=" packages"; \
	(cd rendezvous/etcdstore/etcdtest && $(call TIMED,etcd,./...) -vet=off $(LINK) -shuffle=on) || failed+=" etcdtest"; \
	$(call TIMED,late,$(LATE)) -vet=off $(LINK) -shuffle=on -p 2 -parallel 6 -timeout 30m || failed+=" $(LATE)"; \
	wait $$muster || failed+=" muster"; trap - EXIT; \
	{ set +x; } 2>/dev/null; grep -hs . build/test/*.again | sed 's/^/make test: run again: /' >&2 || true; \
	[ -z "$$failed" ] || { echo "make test: failed:$$failed" >&2; exit 1; }

.PHONY: slowest
slowest: $(GOTESTSUM) ## the 40 slowest tests of the last `make test`
	@cat build/test/*.json | $(GOTESTSUM) tool slowest --threshold 1s --num 40

PKGS ?= ./launch
.PHONY: flakes
flakes: ## the tests TESTS of packages PKGS N times (20) while LOAD processes (8) keep the processors busy: which ones fail now and then?
	@RACE="$(RACE)" TESTS='$(value TESTS)' N=$(or $(N),20) LOAD=$(or $(LOAD),8) scripts/flakes.sh $(PKGS)

# Two processors have 90 s of processor time in 45 s. To compile is not counted, and done first; to link is. Go keeps the result of a
# package whose files and imports are as they were, so that after a change only what it reaches is linked and run: hence no -shuffle, which
# keeps no result. Of DRIVEN the scripts and the pages of cmd/muster run. SHORT_FIRST takes longest, and begins first.
SHORT_LIMIT ?= 90
SHORT_FIRST = ./checkpointd ./rendezvous/tcpstore ./rendezvous/dlrover ./netcheck/devicecheck ./internal/proc ./internal/testutil
SHORT_MUSTER = ^(TestScripts|TestReferencePages|TestSiteHasAllPages|TestPagesNameWhatThereIs|TestPagesNameFiles|TestPagesLinesStart|TestPagesLinksLead)$$

.PHONY: short
short: ## the fast part of the tests, 45 s on two processors; tells their processor time
	@go list -export -test ./... >/dev/null
	@mkdir -p build; failed=; set -m; \
	go test -short -vet=off $(LINK) -parallel 6 -timeout 5m -run '$(SHORT_MUSTER)' ./cmd/muster </dev/null & muster=$$!; \
	set +m; trap "kill -- -$$muster 2>/dev/null" EXIT; \
	go test -short -vet=off $(LINK) -p 6 -parallel 12 -timeout 5m $(SHORT_FIRST) $$(go list ./... | grep -vxFf <(go list $(DRIVEN))) || \
		failed+=" packages"; \
	wait $$muster || failed+=" cmd/muster"; trap - EXIT; times >build/short; \
	awk -F '[ms ]+' -v limit=$(SHORT_LIMIT) 'NR == 2 { s = $$1 * 60 + $$2 + $$3 * 60 + $$4; \
		print "make short: " s " s of processor time, which should be " limit " s at most" }' build/short; \
	[ -z "$$failed" ] || { echo "make short: failed:$$failed" >&2; exit 1; }

.PHONY: soak
soak: build test-deps ## the tests with their full random counts, 100 crash runs, and training with many failures (hours)
	MUSTER_SOAK=1 MUSTER_TEST_REQUIRE=1 CGO_ENABLED=1 go test $(LINK) -race -shuffle=on -count=1 -timeout 4h ./...
	cd cmd/manifest/manifesttest && go test -count=1 ./...
	$(TORCH)/bin/python -m unittest discover -s examples/digits
	MUSTER_SOAK=1 MUSTER_TEST_REQUIRE=1 $(SPARK)/bin/python -m unittest discover -s examples/spark-preprocess
	go run ./bench -muster bin/muster -torch $(TORCH) -only survival,goodput -jobs 100 -json build/soak.json

.PHONY: gpu
gpu: ## what only a machine with an NVIDIA GPU shows, with a muster that make release or make build has left (PyTorch for CUDA in python3)
	scripts/gpu-checks.sh

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (20s) each
	scripts/fuzz.sh $(FUZZTIME)

# The packages that were named on the command line, or in the environment.
NAMED = $(if $(filter file,$(origin PKGS)),,$(PKGS))

# Tests, and each muster that they start, leave what they have run: the former in one file, the latter in a directory, which all users of
# this machine may write to. A block counts that either has run.
COVERED = $(or $(NAMED),./...)

.PHONY: cover
cover: test-deps ## build/cover.html and the total, of all packages or of the tests of PKGS
	@rm -rf build/cover; mkdir -p build; mkdir -m 777 build/cover; rc=0; \
	MUSTER_COVER=$(CURDIR)/build/cover go test $(LINK) -count=1 -timeout 90m -coverpkg ./... -coverprofile build/cover.out $(COVERED) || rc=$$?; \
	if compgen -G 'build/cover/*' >/dev/null; then go tool covdata textfmt -i=build/cover -o=build/cover.driven; \
		tail -n +2 build/cover.driven >>build/cover.out; fi; \
	go tool cover -html build/cover.out -o build/cover.html; go tool cover -func build/cover.out | tail -n 1; exit $$rc

.PHONY: lint
lint: $(GOLANGCI) $(ACTIONLINT) ## go vet, golangci-lint, formatting, the workflows of a release and of an example; or the packages PKGS alone
ifeq ($(NAMED),)
	for dir in . $(NESTED); do (cd $$dir && go vet ./... && $(GOLANGCI) run ./...); done
	$(ACTIONLINT)
	$(ACTIONLINT) examples/ci-smoke-test/workflow.yml
else
	go vet $(NAMED)
	$(GOLANGCI) run $(NAMED)
endif

.PHONY: vuln
vuln: $(GOVULNCHECK) ## known holes in what muster calls of its modules and of Go; needs Go's vulnerability database, by network or GOVULNDB
	$(GOVULNCHECK) $(if $(GOVULNDB),-db $(GOVULNDB)) ./...

.PHONY: fmt
fmt: $(GOLANGCI) $(GOFUMPT) ## format the Go sources
	$(GOFUMPT) -w .
	for dir in . $(NESTED); do (cd $$dir && $(GOLANGCI) fmt ./...); done

.PHONY: tidy
tidy: ## go mod tidy; fails if it changed something
	@for dir in . $(NESTED); do \
		(cd $$dir && go mod tidy -diff) || { (cd $$dir && go mod tidy); echo "go.mod and go.sum in $$dir are tidy now: commit them" >&2; exit 1; }; \
	done

.PHONY: golden
golden: test-deps ## rewrite the golden files of every package that has an -update flag; review the diff
	packages=$$(grep -rlE --include='*_test.go' 'flag\.Bool\("update"' . | xargs -r dirname | sort -u | grep -v cmd/muster); \
	go test $$packages -update
	go test ./cmd/muster -run 'TestReferencePages$$' -update

.PHONY: bench
bench: build test-deps ## our figures beside torchrun's, with budgets; JSON in build/bench.json (20 minutes, run it alone)
	CGO_ENABLED=0 go build -o build/storebench ./rendezvous/tcpstore/storebench
	@mkdir -p build/bench
	if command -v gcc >/dev/null; then $(NVPROBE) -o build/bench/nvprobe ./cmd/nvprobe && \
		gcc -shared -fPIC -O1 -w -o build/bench/libnvidia-ml.so.1 internal/accel/probe/testdata/fakenvml.c; fi
	go run ./bench -muster bin/muster -torch $(TORCH) -storebench build/storebench -json build/bench.json

.PHONY: bench-scale
bench-scale: build test-deps ## the same with thousands of clients and agents; JSON in build/bench-scale.json (minutes, run it alone)
	CGO_ENABLED=0 go build -o build/storebench ./rendezvous/tcpstore/storebench
	CGO_ENABLED=0 go build -o build/meetbench ./rendezvous/membership/meetbench
	go run ./bench -scale -muster bin/muster -torch $(TORCH) -storebench build/storebench -meetbench build/meetbench -json build/bench-scale.json

.PHONY: size
size: static ## bytes and linked modules against the committed baseline
	scripts/size.sh build/muster-linux-amd64 scripts/size-baseline.txt

.PHONY: demo
demo: build ## train on two workers, kill one, recover (sets up PyTorch at first: 5.6 GB)
	@examples/digits/demo.sh bin/muster

.PHONY: picture
picture: test-deps ## docs/terminal.svg anew, the picture in README, from a real run
	MUSTER_PICTURE=write go test ./cmd/muster -count=1 -run 'TestReadmePicture$$'

.PHONY: docs
docs: build ## man pages and shell completions into build/
	@mkdir -p build/man build/completion
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct 2>/dev/null || echo 0) go run -tags man -ldflags "-X main.version=$(VERSION)" ./cmd/muster man build/man
	for shell in bash zsh fish; do bin/muster completion $$shell > build/completion/muster.$$shell; done

SITE = $(CACHE)/site-$(shell sed -n 's/^mkdocs-material==//p' scripts/site/requirements.txt)

.PHONY: site
site: ## build/site: all pages as a web site, links checked; installs mkdocs-material once
	scripts/site/build.sh $(SITE)

.PHONY: clean
clean: ## remove bin/ and build/; the cache folder stays
	rm -rf bin build internal/accel/probe/blob

# Built beside its final name, then renamed: an interrupted build leaves nothing that looks finished.
define install
	@mkdir -p $(@D)
	@tmp=$$(mktemp -d $(@D)/build.XXXXXX); trap "rm -rf $$tmp" EXIT; \
	GOBIN=$$tmp CGO_ENABLED=0 go install $(1); mv $$tmp/* $@
endef

$(GOLANGCI):
	@echo "building golangci-lint $(GOLANGCI_VERSION) (some minutes, once per machine)"
	$(call install,github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION))

$(GOFUMPT):
	$(call install,mvdan.cc/gofumpt@$(GOFUMPT_VERSION))

$(GOTESTSUM):
	$(call install,gotest.tools/gotestsum@$(GOTESTSUM_VERSION))

$(ACTIONLINT):
	$(call install,github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT_VERSION))

$(GOVULNCHECK):
	$(call install,golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION))
