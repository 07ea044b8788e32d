// Command e2b runs E2B's own tests, unmodified, with E2B's published SDKs, on `unitask serve`. It prints counts and the
// failed tests in Markdown, for docs/e2b.md.
//
//	make e2b E2B=DIR CODE=DIR
//
// The folders are checkouts of github.com/e2b-dev/E2B and github.com/e2b-dev/code-interpreter. It takes the Python
// SDKs' versions from them, and installs these with pip into a temporary folder. The tests of the JavaScript SDKs
// import the SDK's source text, which comes from the checkout, with what it needs from npm (js.go). It exits with 1 if
// it can't run the tests; failed tests are a result.
package main

import (
	"bufio"
	"context"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// key has the form that the SDKs want, and on loopback any key will do. program is what make builds.
const key, program = "e2b_0000000000000000000000000000000000000000", "bin/unitask"

// suite is one SDK's tests.
type suite struct {
	checkout, folder string // where the SDK is
	sdk, template    string // the package, and the template of its tests
	args             string // more arguments of pytest
	js               bool   // it is a JavaScript SDK
	version          string
}

func main() {
	e2b := flag.String("e2b", "", "a checkout of github.com/e2b-dev/E2B")
	code := flag.String("code", "", "a checkout of github.com/e2b-dev/code-interpreter")
	only := flag.String("only", "", "only the tests of SDKs whose name holds this")
	tasks := flag.Bool("tasks", false, "run the tasks of frameworks on top of the SDKs")
	flag.Parse()
	suites := slices.DeleteFunc([]*suite{
		{checkout: *e2b, folder: "packages/python-sdk", sdk: "e2b", template: "base"},
		{checkout: *code, folder: "python", sdk: "e2b-code-interpreter", template: "code-interpreter-v1",
			args: "--timeout=300"},
		{checkout: *e2b, folder: "packages/js-sdk", sdk: "e2b for JavaScript", template: "base", js: true},
		{checkout: *code, folder: "js", sdk: "e2b-code-interpreter for JavaScript", template: "code-interpreter-v1",
			js: true},
	}, func(s *suite) bool { return s.checkout == "" })
	if flag.NArg() > 0 || len(suites) == 0 && !*tasks {
		fmt.Fprintln(os.Stderr, "e2b: give -e2b DIR, -code DIR or -tasks (make e2b E2B=DIR CODE=DIR)")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := test(ctx, suites, *only, *tasks)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2b:", err)
		os.Exit(1)
	}
}

func test(ctx context.Context, suites []*suite, only string, tasks bool) error {
	dir, err := os.MkdirTemp("", "e2b-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	install := "-m pip install --quiet pytest pytest-asyncio pytest-timeout pytest-dotenv pytest-xdist"
	for _, s := range suites {
		prepare := s.prepare // of all, because the SDKs go together
		if s.js {
			prepare = s.prepareJS
		}
		if err := prepare(ctx, dir); err != nil {
			return err
		}
		if !s.js {
			install += " " + s.sdk + "==" + s.version
		}
	}
	python := filepath.Join(dir, "venv", "bin", "python")
	if err = command(ctx, "python3", "-m", "venv", filepath.Join(dir, "venv")).Run(); err == nil {
		err = command(ctx, python, strings.Fields(install)...).Run()
	}
	if err != nil {
		return fmt.Errorf("install the SDKs in a venv (Debian's package python3-venv): %w", err)
	}
	fmt.Println("| tests of | tests | passed | failed | skipped | time |\n| --- | --- | --- | --- | --- | --- |")
	failed := ""
	for _, s := range suites { // each on a server of its own: tests leave sandboxes and templates behind
		if !strings.Contains(s.sdk, only) {
			continue
		}
		err := onServer(dir, []string{s.template}, func(address string) error {
			names, err := s.run(ctx, dir, python, address)
			failed += names
			return err
		})
		if err != nil {
			return fmt.Errorf("run the tests of %s: %w", s.sdk, err)
		}
	}
	fmt.Print("\nFailed:\n\n", failed)
	if !tasks {
		return nil
	}
	return onServer(dir, []string{"base", "code-interpreter-v1"}, func(address string) error {
		return runTasks(ctx, dir, address)
	})
}

// onServer calls do with the address of a new server, whose templates are built.
func onServer(dir string, templates []string, do func(address string) error) error {
	server, address, err := serve(dir)
	if err != nil {
		return fmt.Errorf("start %s: %w", program, err)
	}
	defer func() {
		_ = server.Process.Signal(syscall.SIGTERM)
		_ = server.Wait()
	}()
	for _, template := range templates {
		if err := warm(address, template); err != nil {
			return fmt.Errorf("make a sandbox of %s: %w", template, err)
		}
	}
	return do(address)
}

// command returns a command that shows its output on standard error.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd
}

var versionLine = regexp.MustCompile(`(?m)^version = "([0-9][\w.]*)"$`)

// prepare reads the SDK's version, and copies the tests without the SDK: they import the published one.
func (s *suite) prepare(ctx context.Context, dir string) error {
	from, to := filepath.Join(s.checkout, s.folder), filepath.Join(dir, s.sdk)
	project, err := os.ReadFile(filepath.Join(from, "pyproject.toml"))
	m := versionLine.FindSubmatch(project)
	if m == nil {
		return errors.Join(fmt.Errorf("%s is no checkout with the SDK %s and its version", s.checkout, s.sdk), err)
	}
	s.version = string(m[1])
	copied := command(ctx, "cp", "-r", from+"/tests", from+"/pytest.ini", to)
	return errors.Join(os.Mkdir(to, 0o700), copied.Run())
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

// warm makes a sandbox, so that the image is built before the tests, whose time is limited.
func warm(address, template string) error {
	answer, err := http.Post(address+"/sandboxes", "application/json",
		strings.NewReader(fmt.Sprintf(`{"templateID": %q, "timeout": 1}`, template)))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if text, _ := io.ReadAll(io.LimitReader(answer.Body, 4096)); answer.StatusCode != http.StatusCreated {
		return fmt.Errorf("%s: %s", answer.Status, text)
	}
	return nil
}

// report is pytest's or vitest's, in JUnit's form.
type report struct {
	Cases []struct {
		Class string                       `xml:"classname,attr"`
		Name  string                       `xml:"name,attr"`
		Ended []struct{ XMLName xml.Name } `xml:",any"`
	} `xml:"testsuite>testcase"`
}

// run runs a suite's tests, prints their counts, and returns a list of the failed ones.
func (s *suite) run(ctx context.Context, dir, python, address string) (failed string, err error) {
	file, began := filepath.Join(dir, s.sdk+".xml"), time.Now()
	cmd := command(ctx, python, strings.Fields("-m pytest -q --tb=line --junitxml="+file+" "+s.args+" tests")...)
	if s.js {
		cmd = command(ctx, "npx", "vitest", "run", "--reporter=junit", "--outputFile="+file)
	}
	cmd.Dir = filepath.Join(dir, s.sdk)
	cmd.Env = environment(address)
	ended := cmd.Run() // also with an error if tests failed
	var all report
	text, err := os.ReadFile(file)
	if err = errors.Join(err, xml.Unmarshal(text, &all), ctx.Err()); err != nil {
		return "", errors.Join(errors.New("they left no report"), ended, err)
	}
	bad, skipped := 0, 0
	for _, c := range all.Cases {
		for _, how := range c.Ended {
			switch how.XMLName.Local {
			case "failure", "error":
				bad++
				failed += fmt.Sprintf("- `%s.%s`\n", c.Class, c.Name)
			case "skipped":
				skipped++
			}
		}
	}
	fmt.Printf("| `%s` %s | %d | %d | %d | %d | %s |\n", s.sdk, s.version, len(all.Cases),
		len(all.Cases)-bad-skipped, bad, skipped, time.Since(began).Round(time.Second))
	return failed, nil
}
