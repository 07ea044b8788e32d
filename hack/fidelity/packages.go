package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask"
)

// pack is a package of the registry and a program that does real work with it. The program prints the same everywhere.
type pack struct {
	name     string
	install  []string // the packages for npm to install, with versions
	program  string   // CommonJS, or an ES module if it imports; from packages/
	server   *server  // the server that it uses, on PORT
	memoryMB int      // 0 is 512
}

// server is a program on this host.
type server struct {
	binary string // on PATH, or below /usr/lib/postgresql/*/bin
	from   string // the package that contains it
	start  func(ctx context.Context, binary, dir string, port int) (*exec.Cmd, error)
}

//go:embed packages/*.js
var packPrograms embed.FS

// read returns the pack with its program.
func (p pack) read() (pack, error) {
	file := strings.NewReplacer("@", "", "/", "-", ", ", "-").Replace(p.name) + ".js"
	text, err := packPrograms.ReadFile("packages/" + file)
	p.program = string(text)
	return p, err
}

var packs = []pack{
	{name: "lodash", install: []string{"lodash@4.17.21"}},
	{name: "zod", install: []string{"zod@4.1.12"}},
	{name: "ajv", install: []string{"ajv@8.17.1"}},
	{name: "acorn", install: []string{"acorn@8.15.0", "acorn-walk@8.3.4"}},
	{name: "csv-parse", install: []string{"csv-parse@6.1.0", "csv-stringify@6.6.0"}},
	{name: "markdown-it", install: []string{"markdown-it@14.1.0"}},
	{name: "pngjs", install: []string{"pngjs@7.0.0"}},
	{name: "typescript", install: []string{"typescript@5.9.3"}, memoryMB: 1024},
	{name: "@babel/core", install: []string{"@babel/core@7.28.5", "@babel/preset-env@7.28.5"}, memoryMB: 1024},
	{name: "esbuild-wasm", install: []string{"esbuild-wasm@0.25.12"}, memoryMB: 1024},
	{name: "express, ws, undici", install: []string{"express@5.1.0", "ws@8.18.3", "undici@7.16.0"}},
	{name: "sql.js", install: []string{"sql.js@1.13.0"}},
	{name: "sharp", install: []string{"sharp@0.34.5"}, memoryMB: 1024},
	{name: "pdf-lib", install: []string{"pdf-lib@1.17.1"}},
	{name: "exceljs", install: []string{"exceljs@4.4.0"}},
	{name: "d3", install: []string{"d3@7.9.0"}},
	{name: "jimp", install: []string{"jimp@1.6.0"}, memoryMB: 1024},
	{name: "pg", install: []string{"pg@8.16.3"}, server: &postgres},
	{name: "redis", install: []string{"redis@5.9.0"}, server: &redis},
}

var postgres = server{binary: "postgres", from: "postgresql",
	start: func(ctx context.Context, binary, dir string, port int) (*exec.Cmd, error) {
		// The server refuses to run as root.
		as := func(args ...string) *exec.Cmd {
			if os.Getuid() == 0 {
				args = append([]string{"setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"}, args...)
			}
			cmd := exec.CommandContext(ctx, args[0], args[1:]...)
			cmd.Dir = dir
			return cmd
		}
		if err := os.Chmod(dir, 0o777); err != nil {
			return nil, err
		}
		data := filepath.Join(dir, "data")
		if out, err := as(filepath.Join(filepath.Dir(binary), "initdb"), "-D", data, "-U", "postgres", "--auth=trust",
			"--no-sync").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("initdb: %w\n%s", err, out)
		}
		return as(binary, "-D", data, "-p", fmt.Sprint(port), "-h", "127.0.0.1", "-k", "", "-F"), nil
	}}

var redis = server{binary: "redis-server", from: "redis-server",
	start: func(ctx context.Context, binary, dir string, port int) (*exec.Cmd, error) {
		cmd := exec.CommandContext(ctx, binary, "--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--save", "", "--dir", dir)
		return cmd, nil
	}}

// find returns the path of the server's program; "" if it is missing.
func (s *server) find() string {
	if name, err := exec.LookPath(s.binary); err == nil {
		return name
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + s.binary)
	if len(found) == 0 {
		return ""
	}
	return found[len(found)-1]
}

// serverPatience is how long a server may take until it listens.
const serverPatience = 30 * time.Second

// run starts the server on a free port of the loopback; stop ends it.
func (s *server) run(ctx context.Context) (port int, stop func(), err error) {
	binary := s.find()
	if binary == "" {
		return 0, nil, fmt.Errorf("no %s on this machine: apt-get install %s", s.binary, s.from)
	}
	dir, err := os.MkdirTemp("", "unitask-server-")
	if err != nil {
		return 0, nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, nil, err
	}
	port = l.Addr().(*net.TCPAddr).Port
	l.Close()
	ctx, cancel := context.WithCancel(ctx)
	cmd, err := s.start(ctx, binary, dir, port)
	if err == nil {
		err = cmd.Start()
	}
	stop = func() {
		cancel()
		if cmd != nil {
			_ = cmd.Wait()
		}
		os.RemoveAll(dir)
	}
	for deadline := time.Now().Add(serverPatience); err == nil; time.Sleep(50 * time.Millisecond) {
		c, dial := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if dial == nil {
			c.Close()
			return port, stop, nil
		}
		if time.Now().After(deadline) {
			err = fmt.Errorf("%s does not listen: %w", s.binary, dial)
		}
	}
	stop()
	return 0, nil, err
}

// packageLimit is the time limit of one program. Under TCG a guest is about ten times slower, and the host may be busy.
const packageLimit = 5 * time.Minute

// runPackages installs each package, runs its program on the host and on each kernel, and prints a table of the
// results.
func runPackages(ctx context.Context, o options) error {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return errors.New("npm is not on PATH: apt-get install npm")
	}
	base, err := os.MkdirTemp("", "unitask-packages-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base)
	fmt.Print("| package |")
	for _, k := range o.kernels {
		fmt.Printf(" %s |", k)
	}
	fmt.Print("\n| --- |" + strings.Repeat(" --- |", len(o.kernels)) + "\n")
	failed := 0
	for i, p := range packs {
		if !strings.Contains(p.name, o.only) {
			continue
		}
		p, err := p.read()
		if err != nil {
			return err
		}
		dir := filepath.Join(base, fmt.Sprint(i))
		answers, err := p.compare(ctx, o, npm, dir)
		if err != nil {
			answers = slices.Repeat([]string{cut(strings.ReplaceAll(err.Error(), "\n", " "))}, len(o.kernels))
		}
		fmt.Printf("| %s |", p.name)
		for _, a := range answers {
			if a != same {
				failed++
			}
			fmt.Printf(" %s |", a)
		}
		fmt.Println()
		os.RemoveAll(dir)
	}
	if failed > 0 {
		return fmt.Errorf("%d programs did not do what they do on the host", failed)
	}
	return nil
}

// same is the result of a program that printed the same as on the host.
const same = "as on the host"

func (p pack) compare(ctx context.Context, o options, npm, dir string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte("{\"private\":true}\n"), 0o644); err != nil {
		return nil, err
	}
	install := exec.CommandContext(ctx, npm, append([]string{"install", "--no-audit", "--no-fund", "--ignore-scripts",
		"--loglevel=error"}, p.install...)...)
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("npm install: %w: %s", err, out)
	}
	env := map[string]string{}
	var tcp []string
	if p.server != nil {
		port, stop, err := p.server.run(ctx)
		if err != nil {
			return nil, err
		}
		defer stop()
		env["PORT"] = fmt.Sprint(port)
		tcp = []string{"127.0.0.1:" + env["PORT"]}
	}
	main := "main.js"
	if strings.Contains(p.program, "import *") {
		main = "main.mjs"
	}
	if err := os.WriteFile(filepath.Join(dir, main), []byte(p.program), 0o644); err != nil {
		return nil, err
	}
	timed, cancel := context.WithTimeout(ctx, packageLimit)
	defer cancel()
	cmd := exec.CommandContext(timed, o.node, main)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir, "LANG=C.UTF-8", "PORT=" + env["PORT"]}
	var want, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &want, &errs
	if err := cmd.Run(); err != nil || want.Len() == 0 {
		return nil, fmt.Errorf("on the host: %w: %s", err, why(errs.String(), want.String()))
	}
	var answers []string
	for _, k := range o.kernels {
		res, err := o.rt.Run(ctx, unitask.Request{Code: p.program, Path: "/package/" + main, Dir: "/package", Kernel: k,
			MemoryMB: p.memoryMB, Timeout: packageLimit, Env: env, AllowTCP: tcp,
			Dirs: []unitask.Mount{{Host: filepath.Join(dir, "node_modules"), Guest: "/package/node_modules"}}}, unitask.IO{})
		answers = append(answers, p.judge(res, err, want.Bytes()))
	}
	return answers, nil
}

func (p pack) judge(res *unitask.Result, err error, want []byte) string {
	switch {
	case res == nil:
		return cut(err.Error())
	case res.Outcome != unitask.OutcomeExited || res.ExitCode != 0:
		return fmt.Sprintf("%s %d: %s", res.Outcome, res.ExitCode, why(string(res.Stderr), res.Error))
	case !bytes.Equal(res.Stdout, want):
		return "prints something else"
	}
	return same
}
