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

// MaxCode is the most source text a request may have, in bytes; Node itself
// refuses strings of 512 MiB.
const MaxCode = 64 << 20

// Request is the code and what it asks for. Zero values mean the default.
//
// It goes to JSON and back: a record holds it in that form, and a replay is made of it.
// Durations are whole milliseconds there. Secrets go by their names; their values never
// do, and are "" in what comes back.
type Request struct {
	// Code is the source text. Whether it is an ES module, CommonJS or
	// TypeScript follows Node's rules: the extension of Path, the nearest
	// package.json's type (PackageType), and the syntax.
	Code string `json:"code,omitempty"`
	// Path is the code's file inside the guest; a relative one is taken from
	// Dir. "" is code and the language's extension. Extensions: .js .cjs .mjs .ts .cts .mts .tsx .jsx,
	// .py, .ipynb, .sql, .sh .bash; where Language is Python or shell any.
	Path string `json:"path,omitempty"`
	// Neighbours are small files beside the code, in its folder and below, which it may import:
	// 100 of them, and 4 MiB together, at most.
	Neighbours []Neighbour `json:"neighbours,omitempty"`
	// PackageType is "module" or "commonjs" when a package.json beside the code
	// says so, else "".
	PackageType string `json:"packageType,omitempty"`
	// Language is that of the code (Languages); "" is what Image has, or the extension of Path
	// says, and JavaScript where there is none.
	Language string `json:"language,omitempty"`
	// Image is the one that the machine boots (Images), or the reference of a container's image; "" is
	// the language's.
	Image string `json:"image,omitempty"`
	// Packages are what the code may import beside what the image has: "pip:requests==2.32.3",
	// "npm:zod@4", in the code's language. They are fetched from the registry that this host's pip or
	// npm is configured for and built once, in a machine of their own, then kept in the home.
	Packages []string `json:"packages,omitempty"`
	// Exec runs a command of a container's image: Image is its reference, and Args the command, or what
	// follows the image's entry point; none is the image's own. There is no Code then.
	Exec bool `json:"exec,omitempty"`
	// Args follow the file's name in process.argv.
	Args []string `json:"args,omitempty"`
	// NodeArgs are Node's own arguments, as --expose-gc. Those that Node can't take while
	// it runs, and variables that it reads at its start (NODE_OPTIONS), need a fresh
	// process, and so the linux kernel.
	NodeArgs []string `json:"nodeArgs,omitempty"`
	// Env is added to the guest's environment, which holds PATH and HOME only.
	Env map[string]string `json:"env,omitempty"`
	// Secrets are added to the guest's environment by their names, each of 6 bytes or
	// more, 32 KiB together. They are kept out of the record, and redacted, in their common
	// encodings, from everything that the run says (record.Redactor). A run that has some can't be
	// captured: the capture would hold them.
	Secrets map[string]string `json:"secrets,omitempty"`
	// SecretHosts binds secrets, by their names, to hosts: names or *.DOMAIN, which the network
	// must allow, too. Such a secret's value, of 8 bytes or more, goes into the headers of HTTPS
	// requests to these hosts and never enters the machine, where the code has a placeholder of
	// the same length. HOST:PLACE+PLACE names other places (policy.ParseSecret). In JSON it is
	// NAME@HOST,HOST among the secrets.
	SecretHosts map[string][]string `json:"-"`
	// Dir is the working directory inside the guest, absolute; "" is /work.
	Dir string `json:"dir,omitempty"`

	// Files and Dirs are the host's, which the code may read and not write. What is not
	// a regular file, a folder or a link that stays inside is refused.
	Files []Mount `json:"files,omitempty"`
	Dirs  []Mount `json:"dirs,omitempty"`
	// DirMax bounds the bytes that one of Dirs brings; 0 is DefaultDirMax.
	DirMax int64 `json:"dirMax,omitempty"`

	Kernel Kernel `json:"kernel,omitempty"` // "" is the best there is: nanos where its kernel is vendored, else linux
	// KernelRetry has a run whose Kernel is left open made again on linux when the code asks for
	// something that nanos lacks, and nothing has left the machine: it has no network and
	// no standard input, and has printed nothing.
	KernelRetry bool `json:"kernelRetry,omitempty"`
	Arch        Arch `json:"arch,omitempty"`     // "" is the host's; another one is translated
	MemoryMB    int  `json:"memoryMb,omitempty"` // of the machine, MiB; 0 is 512
	// CPUs are the processors of the machine; 0 is 1. More than one wants the linux kernel, and a
	// fraction a control group (Linux, cgroup v2), without which nothing runs.
	CPUs        float64       `json:"cpus,omitempty"`
	Timeout     time.Duration `json:"timeoutMs,omitempty"`   // of the code, from its first line on; 0 is 60 s
	OutputBytes int64         `json:"outputBytes,omitempty"` // kept of each of stdout and stderr; 0 is 16 MiB

	// Check has the code's syntax checked, and nothing of it run: by node --check (and what removes
	// TypeScript's types), py_compile, bash -n or gofmt -e, which print what they find and exit with 1 or 2.
	// That is granted files and folders, but neither network nor secrets; arguments, environment and
	// standard input are not read. It runs on the linux kernel.
	Check bool `json:"check,omitempty"`
	// Cold boots the machine for this run, also where there is a template to
	// clone it from.
	Cold bool `json:"cold,omitempty"`
	// FreshProcess clones a machine in which Node has not been started yet, so that
	// the run shares no address layout and no hash seed with others. It needs the
	// linux kernel, and takes longer than a clone that has Node waiting.
	FreshProcess bool `json:"freshProcess,omitempty"`

	// AllowNet are hosts that the code may speak HTTP and TLS to: "example.com",
	// "*.example.com" (any depth, not the apex), "example.com:8443", an address.
	// Ports 80 and 443 if none is given. None is no network.
	AllowNet []string `json:"allowNet,omitempty"`
	// AllowNetAny allows every public host on ports 80 and 443.
	AllowNetAny bool `json:"allowNetAny,omitempty"`
	// Ask are hosts as AllowNet has them. A connection to one that AllowNet does not allow waits,
	// and the machine stands still, until IO.Approve or Runtime.Approve says what becomes of it.
	Ask []string `json:"ask,omitempty"`
	// AllowTCP are HOST:PORT that the code may speak anything to, private
	// addresses included. The host's own loopback is reached inside at the same
	// 127.0.0.1:PORT.
	AllowTCP []string `json:"allowTcp,omitempty"`
	// AllowHTTP are rules by method and path, "GET api.example.com/v1/*", for hosts that the network
	// must allow, too: a host that one is about is sent no other requests. METHOD is * for all; a
	// * in a path stands for text within one segment, /** at its end for all below. "deny " before
	// a rule forbids what it is about, "audit " has it only logged.
	AllowHTTP []string `json:"allowHttp,omitempty"`
	// CA is PEM of certificates that the code's TLS clients trust beside Node's
	// own.
	CA string `json:"ca,omitempty"`
	// Bounds of the network; 0 is 128 connections at once, 1 GiB up, 8 GiB down.
	MaxConnections int   `json:"maxConnections,omitempty"`
	MaxUpload      int64 `json:"maxUploadBytes,omitempty"`
	MaxDownload    int64 `json:"maxDownloadBytes,omitempty"`

	// MaxArtifacts bounds the bytes that come back of what the code leaves in /out; 0
	// is 64 MiB, -1 is none.
	MaxArtifacts int64 `json:"maxArtifactBytes,omitempty"`
	// Debug is set by Runtime.Debug; without a debugger it changes nothing.
	Debug bool `json:"debug,omitempty"`
	// RequireJail are layers and limits of QEMU's jail, by their names in the record and in
	// `unitask doctor`, without which nothing runs (JailError).
	RequireJail []string `json:"requireJail,omitempty"`
	// RequireHardware says that nothing runs without hardware virtualization.
	RequireHardware bool `json:"requireHardware,omitempty"`
	// Audit says that nothing runs whose audit entries can't be written.
	Audit bool `json:"audit,omitempty"`
}

// CheckOnly is what of a request its check needs: no more than that is asked for.
func (req Request) CheckOnly() Request {
	req.Args, req.NodeArgs, req.Env, req.Secrets, req.SecretHosts = nil, nil, nil, nil, nil
	req.AllowNet, req.AllowNetAny, req.Ask, req.AllowHTTP, req.AllowTCP, req.CA, req.Packages = nil, false, nil, nil, nil, "", nil
	return req
}

// MarshalJSON gives the wire form.
func (req Request) MarshalJSON() ([]byte, error) {
	type plain Request
	return json.Marshal(struct {
		plain
		Timeout policy.Millis `json:"timeoutMs,omitempty"`
		Secrets []string      `json:"secrets,omitempty"`
	}{plain(req), policy.Millis(req.Timeout), req.SecretNames()})
}

// UnmarshalJSON reads the wire form. Keys must be exact; unknown ones are errors.
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

// SecretNames are the request's secrets as the policy reads them: NAME, or NAME@HOST,HOST.
func (req Request) SecretNames() []string {
	list := slices.Sorted(maps.Keys(req.Secrets))
	for i, name := range list {
		if hosts, bound := req.SecretHosts[name]; bound {
			list[i] += "@" + strings.Join(hosts, ",")
		}
	}
	return list
}

// Exposed is how many secrets the code itself is to get.
func (req Request) Exposed() int {
	n := 0
	for name := range req.Secrets {
		if _, bound := req.SecretHosts[name]; !bound {
			n++
		}
	}
	return n
}

// GrantedOnly is the request, with what was granted in place of what was asked for.
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

// Mount is a file or folder of the host that the code may read. In a request a relative
// Host is taken from the working directory, Guest "" is the same path as Host's, and a
// Real that is not "" is what Host must lead to.
type Mount = policy.Mount

// ParseMount takes PATH, or PATH:/GUESTPATH.
func ParseMount(s string) Mount {
	if i := strings.LastIndex(s, ":/"); i > 0 {
		return Mount{Host: s[:i], Guest: s[i+1:]}
	}
	return Mount{Host: s}
}

// DefaultDirMax is the default of Request.DirMax, in bytes.
const DefaultDirMax = hostfiles.DefaultDirMax

// Neighbour is a small file that a request brings beside its code, which may import it. What is
// large, or no text, comes by Request.Files and Dirs.
type Neighbour struct {
	// Name is its path below the folder of the code, with slashes.
	Name string `json:"name"`
	// Content is its text. A record keeps it in a file of its own.
	Content string `json:"content,omitempty"`
}

// Bounds of a request's neighbours.
const (
	MaxNeighbours     = 100
	MaxNeighbourBytes = 4 << 20 // of all of them
)
