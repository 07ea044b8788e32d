package main

import (
	"bytes"
	"context"
	"embed"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/vmm"
)

// The suite of programs: 1 to 30 lines, as models write them. Each runs from a clone, from the pool, and by node on the
// host, in one loop. Stdout and exit code must be the host's.

//go:embed programs
var programFiles embed.FS

// Limits of the programs' ratios (issue 17).
const (
	poolMedian, poolWorst   = 2.5, 6.0 // of node on the host
	cloneMedian, cloneWorst = 2.0, 4.0 // of hello's clone
	typescriptTarget        = 1.3      // of the same program as JavaScript, in a clone
)

// program is one program of the suite, and its requirements.
type program struct {
	name   string
	code   []byte
	stdin  string
	net    bool // it speaks to the server
	tls    bool // with its certificate
	folder bool // it has /data
	clone  time.Duration
	pooled time.Duration
	host   time.Duration
}

// processes are what Nanos lacks.
const processes = "child.js"

func programs(kernel image.Kernel, only string) (list []*program, err error) {
	entries, err := programFiles.ReadDir("programs")
	for _, e := range entries {
		if e.IsDir() || !strings.Contains(e.Name(), only) || kernel == image.Nanos && e.Name() == processes {
			continue
		}
		p := &program{name: e.Name()}
		if p.code, err = programFiles.ReadFile(path.Join("programs", p.name)); err != nil {
			return nil, err
		}
		p.tls = bytes.Contains(p.code, []byte("env.HTTPS"))
		p.net = p.tls || bytes.Contains(p.code, []byte("env.HTTP"))
		p.folder = bytes.Contains(p.code, []byte("/data/"))
		if bytes.Contains(p.code, []byte("stdin")) {
			p.stdin = strings.Repeat("some words on a line\n", 1000)
		}
		list = append(list, p)
	}
	return list, err
}

// origin is a server on loopback for the programs.
type origin struct {
	plain, secure *httptest.Server
	ca            []byte // PEM
}

func newOrigin() *origin {
	handler := http.NewServeMux()
	handler.HandleFunc("/items", func(w http.ResponseWriter,
		_ *http.Request) {
		fmt.Fprint(w, `[{"name":"pen"},{"name":"book"}]`)
	})
	handler.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		_,
			_ = io.Copy(w, http.MaxBytesReader(w, r.Body, 1<<20))
	})
	o := &origin{plain: httptest.NewServer(handler), secure: httptest.NewUnstartedServer(handler)}
	o.secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	o.secure.StartTLS()
	o.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: o.secure.Certificate().Raw})
	return o
}

func (o *origin) close() { o.plain.Close(); o.secure.Close() }

// request returns the program as a run.
func (s *suite) request(p *program, kernel image.Kernel, o *origin) unitask.Request {
	req := unitask.Request{Code: string(p.code), Path: "/work/" + p.name, Kernel: kernel, Env: map[string]string{}}
	if p.net {
		req.Env["HTTP"], req.Env["HTTPS"] = o.plain.URL, o.secure.URL
		req.AllowTCP = []string{o.plain.Listener.Addr().String(), o.secure.Listener.Addr().String()}
	}
	if p.tls {
		req.CA = string(o.ca)
	}
	if p.folder {
		req.Dirs = []unitask.Mount{{Host: filepath.Join(s.dir, "programs", "data"), Guest: "/data"}}
	}
	return req
}

// once runs the program, and returns its time, output and exit code.
func (p *program) once(ctx context.Context, rt *unitask.Runtime, req unitask.Request, pooled bool) (took time.Duration,
	out string, err error) {
	var streams unitask.IO
	if p.stdin != "" {
		streams.Stdin = strings.NewReader(p.stdin)
	}
	var res *unitask.Result
	took, err = timed(func() (err error) { res, err = rt.Run(ctx, req, streams); return err })
	if err != nil {
		return 0, "", err
	}
	if !res.Cloned || res.Pooled != pooled {
		return 0, "", fmt.Errorf("%s: cloned %v, pooled %v", p.name, res.Cloned, res.Pooled)
	}
	return took, fmt.Sprintf("%s\nexit %d", res.Stdout, res.ExitCode), nil
}

// onHost runs the program with the same node as a process of the host.
func (p *program) onHost(ctx context.Context, s *suite, req unitask.Request) (took time.Duration, out string,
	err error) {
	cmd := exec.CommandContext(ctx, s.node, filepath.Join(s.dir, "programs", p.name))
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/", "NODE_EXTRA_CA_CERTS=" + filepath.Join(s.dir, "programs", "ca.pem")}
	if !p.tls {
		cmd.Env = cmd.Env[:2]
	}
	for k, v := range req.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	if p.stdin != "" {
		cmd.Stdin = strings.NewReader(p.stdin)
	}
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	took, err = timed(cmd.Run)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = nil
	}
	return took, fmt.Sprintf("%s\nexit %d", stdout.Bytes(), cmd.ProcessState.ExitCode()), err
}

// write writes the programs into a folder of the host; /data there is the folder that they get.
func (s *suite) write(list []*program, ca []byte) error {
	dir := filepath.Join(s.dir, "programs")
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o755); err != nil {
		return err
	}
	schema, err := programFiles.ReadFile("programs/data/schema.js")
	if err != nil {
		return err
	}
	files := map[string][]byte{"ca.pem": ca, "data/schema.js": schema}
	for _, p := range list {
		files[p.name] = bytes.ReplaceAll(p.code, []byte("'/data/"), []byte("'"+dir+"/data/"))
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// programs measures all programs on a kernel, and prints the table.
func (s *suite) programs(kernel image.Kernel, only string, rounds int) (ok bool, err error) {
	list, err := programs(kernel, only)
	if err != nil {
		return false, err
	}
	o := newOrigin()
	defer o.close()
	if err := s.write(list, o.ca); err != nil {
		return false, err
	}
	class := unitask.MachineClass{Kernel: kernel}
	if _, err := s.rt.MakeTemplate(s.ctx, class); err != nil {
		return false, err
	}
	pool, err := unitask.Open(unitask.Options{Accel: vmm.TCG,
		Machines: unitask.Pool(unitask.PoolSize{Min: 1, Max: 1}, class)})
	if err != nil {
		return false, err
	}
	defer pool.Close()
	for _, p := range list {
		req := s.request(p, kernel, o)
		if err := s.measure(p, req, pool, rounds); err != nil {
			return false, err
		}
	}
	return summary(kernel, list), nil
}

// measure runs a program in all three places in turns.
func (s *suite) measure(p *program, req unitask.Request, pool *unitask.Runtime, rounds int) error {
	var clones, pooled, hosts []time.Duration
	for i := range rounds + 1 {
		host, want, err := p.onHost(s.ctx, s, req)
		if err != nil {
			return fmt.Errorf("%s on the host: %w", p.name, err)
		}
		clone, got, err := p.once(s.ctx, s.rt, req, false)
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%s: %q in place of %q", p.name, got, want)
		}
		if err := full(pool.Pool, 1); err != nil {
			return err
		}
		from, got, err := p.once(s.ctx, pool, req, true)
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%s from the pool: %q in place of %q", p.name, got, want)
		}
		if err := full(pool.Pool, 1); err != nil { // not during the next measurement
			return err
		}
		if i > 0 { // the page cache is now warm
			clones, pooled, hosts = append(clones, clone), append(pooled, from), append(hosts, host)
		}
	}
	p.clone, p.pooled, p.host = quantile(clones, 50), quantile(pooled, 50), quantile(hosts, 50)
	return nil
}

// summary prints the table, the medians and the worst ratios, and whether all targets were met.
func summary(kernel image.Kernel, list []*program) (ok bool) {
	byName := map[string]*program{}
	for _, p := range list {
		byName[p.name] = p
	}
	hello := byName["hello.js"]
	if hello == nil {
		hello = list[0]
	}
	var clones, pools []float64
	fmt.Printf(
		"| %s: program | node on the host | a clone | the pool | clone / %s's clone | pool / host |\n| --- | --- | --- | "+
			"--- | --- | --- |\n", kernel, hello.name)
	for _, p := range list {
		clone, pool := ratio(p.clone, hello.clone), ratio(p.pooled, p.host)
		fmt.Printf("| %s | %s | %s | %s | %.2f | %.2f |\n", p.name, ms(p.host), ms(p.clone), ms(p.pooled), clone, pool)
		clones, pools = append(clones, clone), append(pools, pool)
	}
	slices.Sort(clones)
	slices.Sort(pools)
	ok = true
	say := func(what string, is, target float64) {
		fmt.Printf("| %s: %s | | | | %.2f of at most %.2f | |\n", kernel, what, is, target)
		ok = ok && is <= target
	}
	say("clones, the median", clones[len(clones)/2], cloneMedian)
	say("clones, the worst", clones[len(clones)-1], cloneWorst)
	say("the pool, the median", pools[len(pools)/2], poolMedian)
	say("the pool, the worst", pools[len(pools)-1], poolWorst)
	if ts, js := byName["typescript.ts"], byName["typescript-as-javascript.js"]; ts != nil && js != nil {
		say("TypeScript, of the same as JavaScript", ratio(ts.clone, js.clone), typescriptTarget)
	}
	return ok
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }
