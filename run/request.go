package run

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/internal/exact"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/policy"
)

// MaxCode is the maximum source text of a request, in bytes; Node itself refuses strings of 512 MiB.
const MaxCode = 64 << 20

// Request is the code and its settings. Zero values are the defaults.
//
// A record stores a Request as JSON, and a replay reads it back. In JSON, durations are whole milliseconds. JSON
// contains the names of secrets but never their values, which are "" after reading.
type Request struct {
	// Code is the source text. Node's rules decide whether it is an ES module, CommonJS or TypeScript: the
	// extension of Path, the nearest package.json's type (PackageType), and the syntax.
	Code string `json:"code,omitempty"`
	// Path is the code's file inside the guest; a relative one begins at Dir. "" means code and the language's
	// extension. Extensions: .js .cjs .mjs .ts .cts .mts .tsx .jsx, .py, .ipynb, .sql, .sh .bash; any if Language
	// is Python or shell.
	Path string `json:"path,omitempty"`
	// InlineFiles are small files in the code's folder and below, which the code may import: at most 100 of them, and 4
	// MiB together.
	InlineFiles []InlineFile `json:"inlineFiles,omitempty"`
	// PackageType is "module" or "commonjs" if a package.json beside the code sets it, else "".
	PackageType string `json:"packageType,omitempty"`
	// Language is the code's language (Languages). "" follows Image, then the extension of Path, and is
	// JavaScript without either.
	Language string `json:"language,omitempty"`
	// Image is the machine's image (Images), or a container image's reference; "" means the language's image.
	Image string `json:"image,omitempty"`
	// Packages are the packages that the code may import in addition to the image's: "pip:requests==2.32.3",
	// "npm:zod@4", in the code's language. unitask fetches them from the registry in this host's pip or npm
	// configuration. It builds them once, in a separate machine, and stores them in the home.
	Packages []string `json:"packages,omitempty"`
	// Exec runs a command of a container image. Image is its reference. Args are the command, or the arguments of the
	// image's entry point; without Args, the image's own command runs. There is no Code then.
	Exec bool `json:"exec,omitempty"`
	// Args follow the file's name in process.argv.
	Args []string `json:"args,omitempty"`
	// NodeArgs are Node's own arguments, like --expose-gc. Some arguments can't be applied while Node runs, and it
	// reads some variables only at its start (NODE_OPTIONS). These need a fresh process, and so the linux kernel.
	NodeArgs []string `json:"nodeArgs,omitempty"`
	// Env is added to the guest's environment, which otherwise has only PATH and HOME.
	Env map[string]string `json:"env,omitempty"`
	// Secrets are added to the guest's environment by their names. Each has at least 6 bytes, all together at
	// most 32 KiB. The record does not contain them, and everything that the run prints is redacted, also in
	// common encodings (record.Redactor). A run with secrets can't be captured: the capture would contain them.
	Secrets map[string]string `json:"secrets,omitempty"`
	// SecretHosts binds secrets, by name, to hosts: names or *.DOMAIN, which the network must also allow. The value of
	// such a secret has at least 8 bytes. It is put into the headers of HTTPS requests to these hosts and never enters
	// the machine. The code there has a placeholder of the same length. HOST:PLACE+PLACE names other places
	// (policy.ParseSecret). In JSON it is NAME@HOST,HOST among the secrets.
	SecretHosts map[string][]string `json:"-"`
	// Dir is the working directory inside the guest, absolute; "" means /work.
	Dir string `json:"dir,omitempty"`

	// Files and Dirs are files and folders of the host that the code may read but not write. unitask refuses anything that
	// is not a regular file, a folder or a link that stays inside.
	Files []Mount `json:"files,omitempty"`
	Dirs  []Mount `json:"dirs,omitempty"`
	// DirMax bounds the bytes of each of Dirs; 0 means DefaultDirMax.
	DirMax int64 `json:"dirMax,omitempty"`

	Kernel Kernel `json:"kernel,omitempty"` // "" means nanos if its kernel is vendored, else linux
	// KernelRetry applies if Kernel is empty and the code asks for something that nanos lacks. The run is then repeated
	// on linux, if no data has left the machine. That means that it has no network and no standard input, and has
	// printed nothing.
	KernelRetry bool `json:"kernelRetry,omitempty"`
	Arch        Arch `json:"arch,omitempty"`     // "" means the host's; QEMU emulates another one
	MemoryMB    int  `json:"memoryMb,omitempty"` // of the machine, MiB; 0 means 512
	// CPUs is the number of processors of the machine; 0 means 1. More than one needs the linux kernel. A
	// fraction needs a control group (Linux, cgroup v2); without one, nothing runs.
	CPUs        float64       `json:"cpus,omitempty"`
	Timeout     time.Duration `json:"timeoutMs,omitempty"`   // of the code, from its first line on; 0 means 60 s
	OutputBytes int64         `json:"outputBytes,omitempty"` // kept of each of stdout and stderr; 0 means 16 MiB

	// MaxProcesses bounds the code's processes and threads at once, on the linux kernel; 0 means 512. A further one is
	// not made (EAGAIN). On nanos the code has one process, and its threads are not bounded.
	MaxProcesses int `json:"maxProcesses,omitempty"`

	// Check checks the code's syntax and runs none of it. It uses node --check (and what removes TypeScript's types),
	// py_compile, bash -n or gofmt -e. They print what they find and exit with 1 or 2. A check is granted files and
	// folders, but neither network nor secrets; it reads no arguments, environment or standard input. It runs on the
	// linux kernel.
	Check bool `json:"check,omitempty"`
	// Cold boots the machine for this run, even if there is a template to clone it from.
	Cold bool `json:"cold,omitempty"`
	// FreshProcess clones a machine in which Node has not started yet, so that the run shares no address layout and no
	// hash seed with others. It needs the linux kernel, and takes longer than a clone with a running Node.
	FreshProcess bool `json:"freshProcess,omitempty"`

	// AllowNet lists hosts that the code may use HTTP and TLS with: "example.com", "*.example.com" (any depth,
	// not the apex), "example.com:8443", an address. Without a port, ports 80 and 443 are allowed. An empty list
	// means no network.
	AllowNet []string `json:"allowNet,omitempty"`
	// AllowNetAny allows every public host on ports 80 and 443.
	AllowNetAny bool `json:"allowNetAny,omitempty"`
	// Ask lists hosts as AllowNet does. A connection to one that AllowNet does not allow waits, and the machine
	// is stopped, until IO.Approve or Runtime.Approve decides.
	Ask []string `json:"ask,omitempty"`
	// AllowTCP lists HOST:PORT that the code may use any protocol with, private addresses included. The host's own
	// loopback has the same 127.0.0.1:PORT inside.
	AllowTCP []string `json:"allowTcp,omitempty"`
	// AllowHTTP lists rules by method and path, "GET api.example.com/v1/*". The network must also allow their
	// hosts, which then receive no other requests. METHOD is * for all. In a path, * matches text within one
	// segment, and /** at the end matches everything below. "deny " before a rule forbids the requests that it
	// matches; "audit " only logs them.
	AllowHTTP []string `json:"allowHttp,omitempty"`
	// CA is PEM of certificates that the code's TLS clients trust in addition to Node's own.
	CA string `json:"ca,omitempty"`
	// Limits of the network; 0 means 128 connections at once, 1 GiB up, 8 GiB down.
	MaxConnections int   `json:"maxConnections,omitempty"`
	MaxUpload      int64 `json:"maxUploadBytes,omitempty"`
	MaxDownload    int64 `json:"maxDownloadBytes,omitempty"`

	// Tools are names of [tools.NAME] tables of the ceiling: MCP servers of the host whose tools the code may call.
	Tools []string `json:"tools,omitempty"`

	// MaxArtifacts bounds the bytes of artifacts in /out; 0 means 64 MiB, -1 means none.
	MaxArtifacts int64 `json:"maxArtifactBytes,omitempty"`
	// Debug is set by Runtime.Debug; without a debugger it changes nothing.
	Debug bool `json:"debug,omitempty"`
	// WebFetch marks the runs of web_fetch and `unitask web fetch`, which a ceiling may forbid. They get the image web.
	WebFetch bool `json:"webFetch,omitempty"`
	// RequireJail names layers and limits of QEMU's jail that must hold; otherwise nothing runs (JailError). The
	// names are those in the record and in `unitask doctor`.
	RequireJail []string `json:"requireJail,omitempty"`
	// RequireHardware requires hardware virtualization: without it nothing runs.
	RequireHardware bool `json:"requireHardware,omitempty"`
	// Audit requires that the run's audit entries can be written: otherwise nothing runs.
	Audit bool `json:"audit,omitempty"`
}

// CheckOnly returns the request without the fields that a check does not need.
func (req Request) CheckOnly() Request {
	req.Args, req.NodeArgs, req.Env, req.Secrets, req.SecretHosts = nil, nil, nil, nil, nil
	req.AllowNet, req.AllowNetAny, req.Ask, req.AllowHTTP, req.AllowTCP, req.CA, req.Packages = nil, false, nil, nil, nil,
		"", nil
	req.Tools = nil
	return req
}

// MarshalJSON returns the wire form.
func (req Request) MarshalJSON() ([]byte, error) {
	type plain Request
	return json.Marshal(struct {
		plain
		Timeout policy.Millis `json:"timeoutMs,omitempty"`
		Secrets []string      `json:"secrets,omitempty"`
	}{plain(req), policy.Millis(req.Timeout), req.SecretNames()})
}

// UnmarshalJSON parses the wire form. Keys must be exact; unknown ones are errors.
func (req *Request) UnmarshalJSON(data []byte) error {
	type plain Request
	var wire struct {
		plain
		Timeout policy.Millis `json:"timeoutMs"`
		Secrets []string      `json:"secrets"`
	}
	if err := errors.Join(exact.Members(data, req), json.Unmarshal(data, &wire)); err != nil {
		return err
	}
	*req = Request(wire.plain)
	req.Timeout = time.Duration(wire.Timeout)
	for _, text := range wire.Secrets {
		name, hosts, bound := strings.Cut(text, "@")
		if req.Secrets == nil {
			req.Secrets, req.SecretHosts = map[string]string{}, map[string][]string{}
		}
		req.Secrets[name] = ""
		if bound {
			req.SecretHosts[name] = strings.Split(hosts, ",")
		}
	}
	return nil
}

// SecretNames returns the request's secrets in the policy's form: NAME, or NAME@HOST,HOST.
func (req Request) SecretNames() []string {
	list := slices.Sorted(maps.Keys(req.Secrets))
	for i, name := range list {
		if hosts, bound := req.SecretHosts[name]; bound {
			list[i] += "@" + strings.Join(hosts, ",")
		}
	}
	return list
}

// Exposed returns the number of secrets that the code itself gets.
func (req Request) Exposed() int {
	n := 0
	for name := range req.Secrets {
		if _, bound := req.SecretHosts[name]; !bound {
			n++
		}
	}
	return n
}

// GrantedOnly returns the request, limited to what was granted.
func (req Request) GrantedOnly(granted policy.Effective) (out Request, err error) {
	asked, given := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	wire, err := json.Marshal(req)
	effective, e := json.Marshal(granted)
	if err = errors.Join(err, e); err != nil {
		return out, err
	}
	if err := errors.Join(json.Unmarshal(wire, &asked), json.Unmarshal(effective, &given)); err != nil {
		return out, err
	}
	for _, f := range policy.Fields {
		asked[f.Key] = given[f.Key]
	}
	if wire, err = json.Marshal(asked); err == nil {
		err = json.Unmarshal(wire, &out)
	}
	for name := range out.Secrets {
		out.Secrets[name] = req.Secrets[name]
	}
	out.Env = maps.Clone(req.Env)
	return out, err
}

// Mount is a file or folder of the host that the code may read. In a request, a relative Host begins at the working
// directory, and Guest "" is the same path as Host's. If Real is not "", Host must lead to it.
type Mount = policy.Mount

// ParseMount parses PATH, or PATH:/GUESTPATH.
func ParseMount(s string) Mount {
	if i := strings.LastIndex(s, ":/"); i > 0 {
		return Mount{Host: s[:i], Guest: s[i+1:]}
	}
	return Mount{Host: s}
}

// DefaultDirMax is the default of Request.DirMax, in bytes.
const DefaultDirMax = hostfiles.DefaultDirMax

// InlineFile is a small text file beside the code, which the code may import. Request.Files and Dirs are for
// large or binary files.
type InlineFile struct {
	// Name is its path below the folder of the code, with slashes.
	Name string `json:"name"`
	// Content is its text. A record stores it in a separate file.
	Content string `json:"content,omitempty"`
}

// Limits of a request's inline files.
const (
	MaxInlineFiles = 100
	MaxInlineBytes = 4 << 20 // of all files together
)
