package policy

import (
	"fmt"
	"slices"
	"time"
)

// Fields lists everything that a policy decides, a line each: its key, its flag on the command line and its kind.
// The kind determines the bounds, the default, and how a ceiling narrows the value. A new field is a line here,
// and a field in Request, Effective and run.Request. Ceiling keys, flags, records, replays and MCP's bounds
// follow from the line.
var Fields = []Field{
	{Key: "timeoutMs", Name: "timeoutSeconds", Flag: "timeout", Help: "time limit of the code: a duration, or seconds",
		kind: number[time.Duration]{least: time.Millisecond, usual: DefaultTimeout, most: MaxTimeout, unit: seconds}},
	{Key: "memoryMb", Flag: "memory", Help: "memory of the machine, in MiB or as 2G",
		kind: number[int]{least: MinMemoryMB, usual: DefaultMemoryMB, most: MaxMemoryMB, unit: mebibytes}},
	{Key: "cpus", Flag: "cpus", Help: "processors of the machine; a fraction of one, as 0.5, wants a control group",
		kind: number[float64]{least: MinCPUs, usual: 1, most: 64, unit: fraction}},
	{Key: "maxProcesses", Flag: "max-processes",
		Help: "processes and threads of the code at once (linux; nanos has one process, and does not limit its threads)",
		kind: number[int]{least: 1, usual: 512, most: 2048}},
	{Key: "allowNet", Flag: "allow-net", Help: "allow HTTP and TLS to HOST, *.DOMAIN, HOST:PORT or an address; repeatable",
		reaches: true, kind: openNets{nets}},
	{Key: "allowNetAny", Flag: "allow-net-any", Help: "allow every public host on ports 80 and 443",
		reaches: true, kind: anyNet{}},
	{Key: "ask", Flag: "ask",
		Help: "allow HTTP and TLS to HOST, *.DOMAIN or HOST:PORT if you say so when the code connects: " +
			"on the terminal, or by unitask approve; repeatable",
		reaches: true, kind: asks{nets}},
	{Key: "allowTcp", Flag: "allow-tcp",
		Help:    "allow TCP to HOST:PORT; the host's own loopback is reached inside at the same 127.0.0.1:PORT; repeatable",
		reaches: true, kind: rules[TCPRule]{parse: ParseTCPRule, meet: TCPRule.intersect}},
	{Key: "allowHttp", Ceiling: "net", Flag: "allow-http",
		Help: "allow only requests like 'GET HOST/PATH/*' to HOST, and HOST itself; " +
			"* is every method, a path's end /** all below; deny before it forbids, audit only logs; repeatable",
		kind: httpRules{}},
	{Key: "maxConnections", Flag: "max-connections", Help: "concurrent network connections",
		kind: number[int]{least: 1, usual: 128, most: 4096}},
	{Key: "maxUploadBytes", Flag: "max-upload", Help: "bytes that the run may send",
		kind: number[int64]{least: 1, usual: 1 << 30, most: maxTransfer, unit: bytesOf}},
	{Key: "maxDownloadBytes", Flag: "max-download", Help: "bytes that the run may receive",
		kind: number[int64]{least: 1, usual: 8 << 30, most: maxTransfer, unit: bytesOf}},
	{Key: "outputBytes", Flag: "output-bytes", Help: "bytes kept of each of stdout and stderr",
		kind: number[int64]{least: 1, usual: DefaultOutputBytes, most: 1 << 30, unit: bytesOf}},
	{Key: "webFetch", kind: fetching{}}, // before image, which depends on it
	{Key: "image", Ceiling: "images", Flag: "image",
		Help: "the image to boot: node, python, data (Python with numpy, pandas, matplotlib, …), shell, go, python@3.11, " +
			"data@3.11 (default the language's first), or a container image's reference, as python:3.12-slim (linux)",
		kind: oneOf{}},
	{Key: "packages", Flag: "with",
		Help: "pip:NAME[==VERSION] or npm:NAME[@VERSION], a package of the registry that this machine's pip or npm uses: " +
			"built once in a machine of its own, then kept for later runs; repeatable",
		kind: rules[PackageRule]{parse: ParsePackage, meet: meetPackages}},
	{Key: "kernel", Flag: "kernel",
		Help: "guest kernel: linux, nanos, or auto (default auto: nanos if its kernel is vendored, else linux)",
		kind: choice{"linux", "nanos", auto}},
	{Key: "secrets", Flag: "secret",
		Help: "NAME[@HOST[:PLACE+…],…], of the environment, or with =@FILE, =keyring:ACCOUNT and others " +
			"(unitask secret). NAME@HOST is the better one: the value goes into HTTPS requests to these hosts " +
			"and never enters the machine, where the code has a placeholder; NAME gives the value to the code. Places: " +
			"header (without any), header.FIELD, query, path, body, sigv4 (AWS' signatures are made with it); " +
			"pass lets a placeholder elsewhere through. Redacted from output and record; repeatable",
		kind: rules[SecretRule]{parse: ParseSecret, meet: SecretRule.intersect, merge: mergeSecrets, table: secretTable}},
	{Key: "files", Ceiling: "filesUnder", Flag: "file",
		Help: "PATH[:/GUESTPATH] of a file that the code may read, inside at the same path unless another is given; " +
			"repeatable", kind: mounts{}},
	{Key: "dirs", Ceiling: "dirsUnder", Flag: "dir",
		Help: "PATH[:/GUESTPATH] of a folder that the code may read; .unitaskignore says what stays out; repeatable",
		kind: mounts{}},
	{Key: "tools", Flag: "tools",
		Help: "NAME of a ceiling's [tools.NAME] table, an MCP server of the host whose tools the code may call; repeatable",
		kind: toolNames{}},
	{Key: "maxArtifactBytes", Flag: "max-artifacts", Help: "bytes that may come back from /out, -1 for none",
		kind: number[int64]{least: 1, usual: 64 << 20, most: 4 << 30, none: -1, unit: bytesOf}},
	{Key: "debug", kind: permission{}},
	{Key: "requireJail", Flag: "require-jail",
		Help: "a layer or limit of QEMU's jail, by its name in unitask doctor, without which nothing runs; repeatable",
		kind: demands{}},
	{Key: "requireHardware", Flag: "require-hardware",
		Help: "run nothing without hardware virtualization: " +
			"QEMU's own policy is that faults of its emulation are none of its security", kind: demand{}},
	{Key: "audit", kind: demand{word: "required"}},
}

// Limits lists the limits of sessions, one line each: keys of a ceiling, and fields of SessionLimits. A limit
// without a default here has a default that depends on the host's memory.
var Limits = []Field{
	{Key: "sessions", kind: number[int]{least: 1, most: 4096, none: -1}},
	{Key: "callerSessions", kind: number[int]{least: 1, most: 4096, none: -1}},
	{Key: "sessionLifeMs", Name: "sessionLifeSeconds",
		kind: number[time.Duration]{least: time.Second, usual: 24 * time.Hour, most: MaxTimeout, unit: seconds}},
	{Key: "sessionIdleMs", Name: "sessionIdleSeconds",
		kind: number[time.Duration]{least: time.Second, usual: 10 * time.Minute, most: MaxTimeout, unit: seconds}},
	{Key: "forwardedPorts", kind: number[int]{least: 1, usual: 8, most: 256, none: -1}},
	{Key: "backgroundCommands", kind: number[int]{least: 1, usual: 8, most: 32, none: -1}},
	{Key: "pausedBytes", kind: number[int64]{least: 1, most: maxTransfer, none: -1, unit: bytesOf}},
}

// tools lists keys of a ceiling about tools that work on the host, or in a caller's program. No request has them.
var tools = []Field{
	{Key: "hostFiles", kind: permission{}},
	{Key: "writeUnder", kind: mounts{}},
	{Key: "webSearch", kind: searching{}},
	{Key: "clientTools", kind: permission{}},
}

// every lists the fields that a ceiling may have.
var every = slices.Concat(Fields, Limits, tools)

// JailNames are the layers and limits of a machine's jail, by their names in package vmm.
var JailNames = []string{
	"network", "pid", "ipc", "uts", "cgroup", "filesystem", "sealed", "groups", "user", "capabilities",
	"no-new-privileges", "landlock", "seccomp",
	"core", "files", "file-size", "address-space", "locked-memory", "message-queue", "processes", "memory", "tasks", "cpu",
	"io",
}

// ImageNames are the bundled images.
var ImageNames = []string{"node", "python", "data", "shell", "go", "python@3.11", "data@3.11"}

// TemplateImages are the images of the templates that the E2B API has by name. unitask builds them on first use.
var TemplateImages = []string{"base", "code-interpreter-v1"}

// WebImage is the image of web_fetch, which the key webFetch grants: images need not list it.
const WebImage = "web"

// Bounds with several uses.
const (
	DefaultMemoryMB    = 512            // memory of a machine, in MiB, without a request
	MinMemoryMB        = 128            // Node needs 96 MiB
	MaxMemoryMB        = 64 << 10       // MiB of a machine, at most
	MinCPUs            = 0.05           // the least part of a processor
	DefaultTimeout     = time.Minute    // time limit of a run without a request
	DefaultOutputBytes = 16 << 20       // bytes kept of a stream without a request
	MaxTimeout         = 24 * time.Hour // the longest time limit of a run
	maxTransfer        = 1 << 40        // a day at 100 Mbit/s
	MaxRules           = 256            // of each list: each rule is compared with each of the ceiling's
)

// Field is one setting that a policy decides.
type Field struct {
	Key     string // in JSON: of requests, grants and records
	Name    string // in errors and denials; "" means Key
	Ceiling string // its key in a ceiling's file; "" means Name
	Flag    string // of the command line; "" means none
	Help    string // of the flag

	reaches bool // a run with it may connect to a host
	kind    kind
}

// Form is the form of a field's values.
type Form int

const (
	Text     Form = iota
	Number        // a whole number; 0 means the default
	Fraction      // a number; 0 means the default
	Duration      // in JSON milliseconds, in ceilings seconds; 0 means the default
	Switch        // a boolean
	List          // of strings
	Names         // of secrets, whose values are set elsewhere
	Mounts        // of Mount
)

// Form returns the form of the field's values.
func (f *Field) Form() Form { return f.kind.form() }

// Usage returns the flag's help, with the default if there is one.
func (f *Field) Usage() string {
	if usual := f.kind.usualText(); usual != "" {
		return f.Help + " (default " + usual + ")"
	}
	return f.Help
}

// Bounds returns the minimum and the maximum of a Number, a Fraction or a Duration (in seconds).
func (f *Field) Bounds() (least, most float64) { return f.kind.bounds() }

// Unit returns how many bytes a 1 means in a size, and 0 for other fields.
func (f *Field) Unit() int64 { return f.kind.size() }

// FieldOf returns the field with a JSON key; it panics if there is none.
func FieldOf(key string) *Field {
	i := slices.IndexFunc(Fields, func(f Field) bool { return f.Key == key })
	return &Fields[i]
}

// FlagOf returns the flag of `unitask run` for a field, by its name or JSON key (--memory); "" if it has none.
func FlagOf(field string) string {
	for _, f := range Fields {
		if f.Flag != "" && (f.name() == field || f.Key == field) {
			return "--" + f.Flag
		}
	}
	return ""
}

func (f *Field) name() string {
	if f.Name == "" {
		return f.Key
	}
	return f.Name
}

func (f *Field) ceiling() string {
	if f.Ceiling == "" {
		return f.name()
	}
	return f.Ceiling
}

func (f *Field) wrong(value any, reason string) error {
	return Bad(f.name(), fmt.Sprint(value), "%s", reason)
}
