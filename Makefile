# Two commands do everything on a fresh machine: `make demo` and `make test`.
.PHONY: agent all demo test long matrix race umask attack fidelity fidelity-python fidelity-data fidelity-packages packages e2b api adapters cover soak check build worker-claude vendor image setup bench compare picture screenshots dist install clean

export CGO_ENABLED = 0
# A distribution's Go may be older than go.mod's; it fetches that, though Debian's is set not to.
export GOTOOLCHAIN ?= auto
GO ?= go
GOTEST ?= $(GO) test
STATICCHECK = bin/staticcheck
# Two modules: unitask, and the tools of its developers. clients/claude is a third one, outside of the workspace.
ALL = ./... ./hack/...
TESTFLAGS ?=
OTHER_ARCH = $(if $(filter x86_64,$(shell uname -m)),arm64,amd64)

all: build

# Installs missing requirements, vendors the payloads, builds, and runs real code in a
# real machine. It skips completed steps.
demo: image
	bin/unitask run --code 'console.log("hello from", process.platform, process.arch, "pid", process.pid)'

# All tests, including end-to-end tests with real machines; one machine has the other architecture. Two packages are
# tested at a time: a machine under emulation uses one processor. `make check` has the vet that go test would repeat.
test: image
	@hack/setup --test
	bin/unitask image vendor --arch $(OTHER_ARCH)
	bin/unitask image vendor --image python
	bin/unitask image vendor --image data
	bin/unitask image vendor --image shell
	bin/unitask image vendor --image go
	bin/unitask image vendor --image python@3.11
	bin/unitask image vendor --image web
	$(GOTEST) -p 2 -vet=off -timeout 60m $(TESTFLAGS) $(ALL)

# The tests that `make test` leaves out to save minutes. They are: most cold boots of the egress rules and of the ways
# in which code ends; three quarters of the differential scripts; half of the ways in which Python ends with modules
# imported ahead; four fifths of the other languages' scripts; all of Go's, the longest of data's, and data's on Nanos.
# They compare more clones. They install packages in a machine, run steps of images, and copy folders by another tar. They
# run code that attacks its own session, a session's questions, and an agent's steps. They also cover a template's
# successor, all of a packed disk, servers of a fleet that find each other by routes, the files of a release, packages in
# an older Python, programs in the languages that are built on first use, the images of templates, MCP servers of npm and
# PyPI, Codex, OpenCode, Claude Code, and clients of Jupyter.
long: image
	UNITASK_TEST_LONG=1 $(GOTEST) -p 1 -count=1 -timeout 60m -run '^(TestRuns|TestEgress|TestEgressCAInChildren|TestImportedAheadEnds|TestDifferential|TestDifferentialLanguages|TestClonesDiffer|TestPackages|TestPackagesAttacked|TestPackagesBuilt|TestPackagesCompiled|TestAddonCompiled|TestCompilersMissing|TestOwnImagePackages|TestOwnImageNpm|TestOwnLayers|TestOwnDebianContainer|TestOwnPackagesContainer|TestGoAttacked|TestGoCompiledBefore|TestGoCached|TestDataScripts|TestDataScriptsNanos|TestSessionFolders|TestSessionHostile|TestAttackSessionAsk|TestSessionAgent|TestBundle|TestCloneMemory|TestFleetSession|TestFleetPackages|TestSessionLost|TestRoutes|TestTemplateSuccession|TestPackedDisk|TestOlderPython|TestDeclaredLanguages|TestTemplateImages|TestMCPWrapServers|TestToolsWrapped|TestCodex|TestCodexExec|TestOpenCode|TestClaudeCode|TestKernelClients)$$' . ./cli ./mcp ./machine ./fleet ./fleet/embedded

# The race detector, which needs a C compiler. It covers the short tests of all packages, and real runs
# that use each goroutine of a run once. These are streams, network, clones, a pool and a server. The
# short tests run under a umask that excludes others, so files for another user need an explicit mode.
RACE_RUNS = ^(TestCloseWaits|TestCancel|TestWarm|TestPoolUnderLoad|TestEgress)$$/^linux$$/^clone$$
# The detector slows some tests thirty times and finds nothing in them: those of the tree, of the words of commands, and
# of large input. They are left out; make test has them.
RACE_SKIP = ^(TestHelp|TestFitsTerminal|TestDidYouMean|TestJSONEverywhere|TestTextsNameCommands|TestCutOutput|TestAttackLargeArtifact|TestAttackResumableStreams|TestOldWords|TestDocsGo|TestDocsExitCodes|TestArchitectureNames|TestBudgets|TestLongIsRun|TestTroubleshootingIsComplete|TestKallsymsHostile|TestAttackWorkerSays)$$
race: image
	umask 077 && CGO_ENABLED=1 $(GOTEST) -race -vet=off -short -timeout 15m -skip '$(RACE_SKIP)' $(ALL)
	CGO_ENABLED=1 $(GOTEST) -race -vet=off -count=1 -timeout 15m -run '$(RACE_RUNS)' .

# The short tests and real runs under other umasks, as the calling user. Call it as root, and as a user.
UMASK_RUNS = ^(TestRuns|TestSession|TestSessionPause|TestSessionFork|TestSessionFolders|TestSessionBrings|TestOwnImage|TestContainers|TestLanguages|TestPool|TestAttackJailOfMachine|TestAttackOut)$$
umask: image
	for mask in 000 027 077; do (umask $$mask && $(GOTEST) -short -count=1 $(ALL) && $(GOTEST) -count=1 -run '$(UMASK_RUNS)' .) || exit 1; done

# Bare releases of Debian; then other releases than this machine's, and a host without apt, in chroots.
matrix: setup
	hack/bare
	hack/matrix

# The attack suites of all packages, as one table: attack, expected, seen.
attack: image
	$(GO) run ./hack/attack $(TESTFLAGS)

# The coverage, by the short tests, of the packages that read hostile data. It fails below a minimum.
cover:
	$(GO) run ./hack/cover

# Runs while their processes are killed, the disk is full, or memory is short. It then checks what
# is left. SOAK="-n 10000" takes hours.
SOAK ?= -n 200
soak: image
	$(GO) run ./hack/soak $(SOAK)

# Node's own tests on the host and on both kernels; NODE_TESTS is Node's folder test/, and
# FIDELITYFLAGS are more flags of hack/fidelity. The results are kept in fidelity.jsonl.
fidelity: image
	$(GO) run ./hack/fidelity -tests "$(NODE_TESTS)" -seed 16 $(FIDELITYFLAGS)

# CPython's own tests with Debian's Python on the host and in a machine. PYTHON_TESTS is a folder with its
# complete package test (libpython3.11-testsuite).
fidelity-python: image
	$(GO) run ./hack/fidelity -python "$(PYTHON_TESTS)" -seed 19 -n 120 $(FIDELITYFLAGS)

# numpy's and pandas' own tests by pytest, on the host and in the image data. The host needs Debian's
# python3-numpy, -pandas, -pytest and -hypothesis (and -scipy, -matplotlib, -lxml, -openpyxl).
fidelity-data: image
	$(GO) run ./hack/fidelity -data /usr/lib/python3/dist-packages -seed 19 -n 40 $(FIDELITYFLAGS)

# Installs packages of the registry and does real work with them. The result must be the same on the
# host and on both kernels.
fidelity-packages: image
	$(GO) run ./hack/fidelity -packages $(FIDELITYFLAGS)

# Installs and imports packages of PyPI and npm in machines. The results are kept in packages.jsonl.
# PACKAGESFLAGS="-at-most 20m -only 'pip:'" does a part.
packages: image
	$(GO) run ./hack/packages $(PACKAGESFLAGS)

# E2B's own tests on `unitask serve`, with E2B's published SDKs, and tasks of frameworks on top of them. E2B and CODE are
# your checkouts of e2b-dev/E2B and e2b-dev/code-interpreter; without them only the tasks run. The host needs Python with
# venv, npm, and PyPI.
e2b: image
	$(GO) run ./hack/e2b -tasks -e2b "$(E2B)" -code "$(CODE)"

# Schemathesis on the HTTP API of `unitask serve`: requests made from its document, also wrong ones. The host needs
# Python with venv, and PyPI. APIFLAGS="-examples 100 -seed 2" asks more.
api: image
	$(GO) run ./hack/api $(APIFLAGS)

# The client libraries' adapters, with published frameworks for agents and real machines. The host needs Python with
# venv, and PyPI. ADAPTERSFLAGS="-only inspect_ai" tests one.
adapters: image
	$(GO) run ./hack/adapters $(ADAPTERSFLAGS)

# The client libraries: their generated parts, types, style, and tests with real machines. make test has it, too.
clients: image
	$(GO) test -count=1 ./clients

# A reviewer's manual steps.
check: $(STATICCHECK)
	test -z "$$(gofmt -l .)"
	$(GO) mod tidy -diff && cd hack && $(GO) mod tidy -diff
	$(GO) vet $(ALL)
	$(STATICCHECK) $(ALL)
	cd clients/claude && export GOWORK=off && $(GO) mod tidy -diff && $(GO) vet . && ../../$(STATICCHECK) .
	GOOS=darwin GOARCH=arm64 $(GO) build $(ALL) && GOOS=darwin GOARCH=arm64 $(GO) vet $(ALL) && GOOS=darwin GOARCH=arm64 $(STATICCHECK) $(ALL)
	GOOS=linux GOARCH=arm64 $(GO) build $(ALL) && GOOS=linux GOARCH=arm64 $(GO) vet $(ALL) && GOOS=linux GOARCH=arm64 $(STATICCHECK) $(ALL)

$(STATICCHECK):
	GOBIN=$(CURDIR)/bin $(GO) install honnef.co/go/tools/cmd/staticcheck@v0.8.2

setup:
	@hack/setup

build: setup
	$(GO) build -o bin/unitask ./cli/unitask

# The program of `unitask worker claude`. It is a module of its own, since the platform's library is large.
worker-claude: setup
	cd clients/claude && GOWORK=off $(GO) build -o ../../bin/unitask-worker-claude .

vendor: build
	bin/unitask image vendor

image: vendor
	bin/unitask image build --kernel linux

# A long agent session: steps, failures, time limits, edits, pauses, forks and ends of the process, compared with
# interpreters on the host.
agent: image
	UNITASK_TEST_LONG=1 UNITASK_AGENT_STEPS=$(or $(STEPS),300) $(GOTEST) -v -run '^TestSessionAgent$$' .

# The same jobs on unitask and on other ways to run code, as a table. COMPAREFLAGS="-n 3 -only unitask" runs a part.
compare: image
	$(GO) run ./hack/compare $(COMPAREFLAGS)

# The table in the README: each way to start a run, compared with its reference.
bench: image
	$(GO) run ./hack/bench
	$(GO) run ./hack/bench -suite programs -n 5
	$(GO) run ./hack/bench -suite languages -n 5
	$(GO) run ./hack/bench -suite sessions -n 5
	$(GO) run ./hack/bench -suite sandboxes -n 100
	$(GO) run ./hack/bench -suite images
	$(GOTEST) -run '^$$' -bench '^BenchmarkEgressBody$$' -benchtime 3x .

# Records the terminal picture in the README again.
picture: image
	$(GO) run ./hack/picture

# Takes the pictures of docs/ui.md again, in a real browser.
screenshots: image
	UNITASK_TEST_SCREENSHOTS=$(CURDIR)/docs $(GO) test -count=1 -run '^TestConsole$$' ./hack/browser

# The files of a release: archives with manual pages and completions, bundles for MCP
# clients, the registry's entry, bills of materials, checksums. The bytes are the same each time.
# Packages for pip, npm, apt and dnf. Bundles of the guest's parts for hosts without apt come first; PARTS= omits
# them. QEMU=dist/qemu puts the QEMU that hack/qemu has built into the packages of parts for pip and npm.
VERSION ?= 0.1.0
PARTS ?= -parts
dist:
	$(GO) run ./hack/dist -version $(VERSION) $(PARTS) $(if $(QEMU),-qemu $(QEMU)) $(if $(SIGN),-sign $(SIGN))

# The program, its manual pages and completions below a folder: make install PREFIX=/usr/local (DESTDIR comes before it).
PREFIX ?= /usr/local
install: setup
	DESTDIR="$(DESTDIR)" $(GO) run ./hack/dist -version $(VERSION) -install "$(PREFIX)"

clean:
	rm -rf bin dist
