// Command api runs Schemathesis on `unitask serve`: requests made from the API's own document, also wrong ones. No
// answer may be a failure of the server, or differ from the document.
//
//	make api
//
// It installs Schemathesis with pip into a temporary folder, or takes that of -venv. Most runs that it asks for are
// refused, and the others take a machine each. Requests about sessions name one that it starts. It exits with 1 if a
// check fails.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
)

// program is what make builds, and version that of Schemathesis.
const program, version = "bin/unitask", "4.32.5"

// checks are those that hold. Not every request that fits the document is accepted: a name in it may mean nothing.
const checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance," +
	"response_schema_conformance,negative_data_rejection,unsupported_method"

// endless matches the paths that are left out: their answers have no end.
const endless = "^/v1/events$|/files/watch$"

func main() {
	venv := flag.String("venv", "", "a virtual environment with Schemathesis")
	examples := flag.Int("examples", 30, "requests for each operation and phase, at most")
	seed := flag.Int("seed", 1, "of the requests")
	only := flag.String("only", "", "the operations whose path matches this expression")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := test(ctx, *venv, *examples, *seed, *only)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "api:", err)
		os.Exit(1)
	}
}

func test(ctx context.Context, venv string, examples, seed int, only string) error {
	dir, err := os.MkdirTemp("", "api-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if venv == "" {
		venv = filepath.Join(dir, "venv")
		if err = command(ctx, "python3", "-m", "venv", venv).Run(); err == nil {
			err = command(ctx, filepath.Join(venv, "bin", "python"), "-m", "pip", "install", "--quiet",
				"schemathesis=="+version).Run()
		}
		if err != nil {
			return fmt.Errorf("install Schemathesis in a venv (Debian's package python3-venv): %w", err)
		}
	}
	server, address, err := serve(dir)
	if err != nil {
		return fmt.Errorf("start %s: %w", program, err)
	}
	defer func() {
		_ = server.Process.Signal(syscall.SIGTERM)
		_ = server.Wait()
	}()
	if err := prepare(dir, address, examples); err != nil {
		return err
	}
	args := []string{"--no-color", "run", address + "/openapi.json", "--checks", checks, "--workers", "1",
		"--seed", strconv.Itoa(seed), "--max-examples", strconv.Itoa(examples), "--request-timeout", "60",
		"--continue-on-failure", "--generation-database", "none", "--exclude-path-regex", endless,
		"--suppress-health-check", "all"}
	if only != "" {
		args = append(args, "--include-path-regex", only)
	}
	tester, err := filepath.Abs(filepath.Join(venv, "bin", "st"))
	if err != nil {
		return err
	}
	cmd := command(ctx, tester, args...)
	cmd.Dir, cmd.Stdout = dir, os.Stdout
	return cmd.Run()
}

// command returns a command that shows its output on standard error.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd
}

var addressLine = regexp.MustCompile(`serving (http://[\d.]+:\d+)`)

// serve starts the server on a free port, in a folder without a ceiling.
func serve(dir string) (server *exec.Cmd, address string, err error) {
	server = exec.Command(program, "serve", "--pool", "0", "--listen", "127.0.0.1:0", "--dir", dir)
	said, err := server.StderrPipe()
	if err = errors.Join(err, server.Start()); err != nil {
		return nil, "", err
	}
	for lines := bufio.NewScanner(said); lines.Scan(); {
		if m := addressLine.FindStringSubmatch(lines.Text()); m != nil {
			go func() { _, _ = io.Copy(io.Discard, said) }()
			return server, m[1], nil
		}
		fmt.Fprintln(os.Stderr, lines.Text())
	}
	return nil, "", errors.Join(errors.New("it did not serve"), server.Wait())
}
