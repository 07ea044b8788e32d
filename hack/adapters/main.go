// Command adapters tests the adapters of the client libraries, each with its framework's published packages. It prints
// a table with the counts, for docs/agents.md.
//
//	make adapters
//	go run ./hack/adapters -only inspect_ai -args "-k exec"
//
// clients/frameworks.json has the packages and their versions. Each framework has a virtual environment in the cache of
// the home, which stays. The tests start machines with bin/unitask. It exits with 1 if a test fails, or none ran.
package main

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/unitask/unitask/internal/home"
)

// program is what make builds, library the Python client, and list has the frameworks.
const program, library, list = "bin/unitask", "clients/python", "clients/frameworks.json"

// tools are what the tests need beside a framework. The last two build the client's package.
var tools = []string{"pytest==9.2.0", "pytest-asyncio==1.5.0", "mypy==2.4.1", "hatchling==1.33.0", "editables==0.6"}

// framework is an adapter's framework.
type framework struct {
	Name     string   `json:"name"` // of the adapter's module
	Packages []string `json:"packages"`
}

func main() {
	only := flag.String("only", "", "only the frameworks whose name holds this")
	args := flag.String("args", "", "more arguments of pytest")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := test(ctx, *only, strings.Fields(*args))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "adapters:", err)
		os.Exit(1)
	}
}

func test(ctx context.Context, only string, args []string) error {
	var frameworks []framework
	text, err := os.ReadFile(list)
	if err = errors.Join(err, json.Unmarshal(text, &frameworks)); err != nil {
		return err
	}
	base, err := home.Default()
	bin, wrong := filepath.Abs(program)
	if err = errors.Join(err, wrong); err != nil {
		return err
	}
	fmt.Println("| framework | tests | passed | failed | skipped | time |\n| --- | --- | --- | --- | --- | --- |")
	var failed []string
	for _, f := range frameworks {
		if !strings.Contains(f.Name, only) {
			continue
		}
		dir := filepath.Join(home.Dir(base).Cache(), "adapters-"+f.Name)
		if err := f.install(ctx, dir); err != nil {
			return fmt.Errorf("install %s: %w", strings.Join(f.Packages, " "), err)
		}
		began := time.Now()
		names, err := f.run(ctx, dir, bin, args)
		if err != nil {
			return fmt.Errorf("test %s: %w", f.Name, err)
		}
		counts, bad, err := f.read(filepath.Join(dir, "report.xml"))
		if err = errors.Join(err, ctx.Err()); err != nil {
			return fmt.Errorf("the tests of %s left no report: %w", f.Name, err)
		}
		fmt.Printf("| %s | %s | %s |\n", strings.Join(f.Packages, " "), counts, time.Since(began).Round(time.Second))
		failed = append(failed, append(names, bad...)...)
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d failed:\n%s", len(failed), strings.Join(failed, "\n"))
	}
	return nil
}

// install makes a framework's environment, unless it has the packages, and puts the client's source text into it.
func (f framework) install(ctx context.Context, venv string) error {
	packages := slices.Concat(f.Packages, tools)
	done, python := filepath.Join(venv, "done"), filepath.Join(venv, "bin", "python")
	if has, err := os.ReadFile(done); err != nil || string(has) != strings.Join(packages, "\n") {
		pip := append([]string{"-m", "pip", "install", "--quiet", "httpx", "pydantic"}, packages...)
		err := errors.Join(os.RemoveAll(venv), command(ctx, "python3", "-m", "venv", venv).Run())
		if err == nil {
			err = command(ctx, python, pip...).Run()
		}
		if err = errors.Join(err, os.WriteFile(done, []byte(strings.Join(packages, "\n")), 0o600)); err != nil {
			return errors.Join(err, os.RemoveAll(venv))
		}
	}
	// A framework finds an adapter by its entry point, which only an installed package has.
	return command(ctx, python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable",
		library).Run()
}

// run checks an adapter's types and runs its tests, which leave a report.
func (f framework) run(ctx context.Context, venv, bin string, args []string) (failed []string, err error) {
	tests := "tests/adapters/test_" + f.Name + ".py"
	for _, args := range [][]string{
		{"mypy", "--cache-dir", filepath.Join(venv, "mypy"), "--follow-imports=silent",
			"--allow-subclassing-any", "--allow-untyped-decorators",
			"src/unitask/adapters/" + f.Name + ".py", tests},
		append([]string{"pytest", "-q", "-p", "no:cacheprovider", "--junitxml=" + filepath.Join(venv, "report.xml"),
			tests}, args...),
	} {
		cmd := command(ctx, filepath.Join(venv, "bin", "python"), append([]string{"-m"}, args...)...)
		cmd.Dir, cmd.Stdout = library, os.Stderr
		cmd.Env = append(os.Environ(), "UNITASK_BIN="+bin, "PYTHONDONTWRITEBYTECODE=1")
		if err := cmd.Run(); err != nil && args[0] == "mypy" {
			failed = append(failed, f.Name+": mypy")
		}
	}
	return failed, nil
}

// report is pytest's, in JUnit's form.
type report struct {
	Suites []report `xml:"testsuite"`
	Cases  []struct {
		Name  string                       `xml:"name,attr"`
		Ended []struct{ XMLName xml.Name } `xml:",any"`
	} `xml:"testcase"`
}

// read reads and removes a report. It returns a table's cells, and the names of the failed tests.
func (f framework) read(file string) (counts string, failed []string, err error) {
	var all report
	text, err := os.ReadFile(file)
	if err = errors.Join(err, os.Remove(file), xml.Unmarshal(text, &all)); err != nil {
		return "", nil, err
	}
	tests, skipped := 0, 0
	for _, suite := range append(all.Suites, all) {
		for _, one := range suite.Cases {
			tests++
			for _, how := range one.Ended {
				switch how.XMLName.Local {
				case "failure", "error":
					failed = append(failed, f.Name+": "+one.Name)
				case "skipped":
					skipped++
				}
			}
		}
	}
	bad := len(failed)
	if tests == skipped {
		failed = append(failed, f.Name+": no test ran")
	}
	return fmt.Sprintf("%d | %d | %d | %d", tests, tests-bad-skipped, bad, skipped), failed, nil
}

// command returns a command that shows its output on standard error.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd
}
