package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/guest/python"
	"github.com/unitask/unitask/image"
)

// The program that runs one file of tests and reports the outcome of each test.
var (
	//go:embed cpython.py
	cpythonRunner string
	//go:embed pytests.py
	pytestRunner string
)

// The tests' folders in the guest.
const (
	cpythonRoot = "/cpython"
	pytestRoot  = "/suites"
)

// Time limits of one file of tests on the host, and the memory of its machine. Few files of numpy and pandas take
// longer than some seconds. Those few take a guest more than a piece of four minutes.
const (
	cpythonLimit   = time.Minute
	dataLimit      = 20 * time.Second
	pythonMemoryMB = 1024
)

// pytests are pytest and its dependencies, in the version of Debian 12.
var pytests = []string{"pip:pytest==7.2.1", "pip:hypothesis==6.67.1"}

// part is the outcome of one test of a file: pass, fail or skip, and why.
type part struct {
	ID      string `json:"id"`
	Verdict string `json:"verdict"`
	Reason  string `json:"reason,omitempty"`
}

// pythonSuite is a set of tests in Python: of CPython, or of packages.
type pythonSuite struct {
	suite
	what, runner string
	limit        time.Duration              // for a file on the host; a guest has ten times that
	candidates   func() ([]string, error)   // in the order of the draw
	args         func(name string) []string // of the runner, on the host
	request      func(name string) unitask.Request
}

// outside are files of CPython whose tests are in other packages than test.
var outside = []string{"test_ctypes", "test_unittest"}

// cpython are CPython's own tests: the files and folders of its package test.
func cpython(o options) *pythonSuite {
	s := &pythonSuite{suite: suite{options: o, done: map[string]map[string]result{}}, what: "CPython's tests",
		runner: cpythonRunner, limit: cpythonLimit}
	s.args = func(name string) []string { return []string{name} }
	s.request = func(name string) unitask.Request {
		return unitask.Request{Dir: cpythonRoot, Args: []string{name},
			Dirs: []unitask.Mount{{Host: s.tests, Guest: cpythonRoot}}}
	}
	s.candidates = func() (names []string, err error) {
		dir := filepath.Join(s.tests, "test")
		if !exists(filepath.Join(dir, "libregrtest")) || !exists(filepath.Join(dir, "test_grammar.py")) {
			return nil,
				fmt.Errorf(
					"%s does not hold the whole package test: Debian's libpython3.11-testsuite has it; "+
						"copy /usr/lib/python3.11/test into a folder and name that", s.tests)
		}
		entries, err := os.ReadDir(dir)
		for _, e := range entries {
			name, isFile := strings.CutSuffix(e.Name(), ".py")
			if strings.HasPrefix(name, "test_") && (isFile || e.IsDir() && exists(filepath.Join(dir, name, "__init__.py"))) {
				names = append(names, name)
			}
		}
		return slices.DeleteFunc(s.draw(names), func(name string) bool { return slices.Contains(outside, name) }), err
	}
	return s
}

// dataTests returns the test files of numpy and pandas, in turn.
func dataTests(o options) *pythonSuite {
	s := &pythonSuite{suite: suite{options: o, done: map[string]map[string]result{}}, what: "numpy's and pandas' tests",
		runner: pytestRunner, limit: dataLimit}
	s.args = func(name string) []string { return []string{s.tests, name} }
	s.request = func(name string) unitask.Request {
		// The folder of the package's tests, and the files above it that pytest reads.
		folder := name[:strings.Index(name, "/tests/")+len("/tests")]
		req := unitask.Request{Image: "data", Packages: pytests, Dir: "/tmp", Args: []string{pytestRoot, name},
			Dirs: []unitask.Mount{s.mount(pytestRoot, folder)}}
		if conftest := filepath.Join(filepath.Dir(folder), "conftest.py"); exists(filepath.Join(s.tests, conftest)) {
			req.Files = append(req.Files, s.mount(pytestRoot, conftest))
		}
		return req
	}
	s.candidates = func() (names []string, err error) {
		numpy, err := s.files("numpy")
		if err != nil {
			return nil, err
		}
		pandas, err := s.files("pandas/tests")
		if err != nil {
			return nil, err
		}
		for i := range max(len(numpy), len(pandas)) {
			names = append(append(names, numpy[min(i, len(numpy)):min(i+1, len(numpy))]...),
				pandas[min(i, len(pandas)):min(i+1, len(pandas))]...)
		}
		return names, nil
	}
	return s
}

// files returns the files of a package's tests, in the order of the draw.
func (s *pythonSuite) files(from string) (names []string, err error) {
	err = filepath.WalkDir(filepath.Join(s.tests, from), func(name string, d fs.DirEntry, err error) error {
		if ok, _ := filepath.Match("test_*.py", filepath.Base(name)); ok && strings.Contains(name, "/tests/") {
			names = append(names, strings.TrimPrefix(name, s.tests+"/"))
		}
		return err
	})
	if err == nil && len(names) == 0 {
		err = errors.New("there are no tests")
	}
	if err != nil {
		return nil,
			fmt.Errorf(
				"look for tests of %s: %w: name the folder in which Debian's python3-numpy and python3-pandas are, "+
					"/usr/lib/python3/dist-packages", from, err)
	}
	return s.draw(names), nil
}

func (s *pythonSuite) work(ctx context.Context) error {
	names, err := s.candidates()
	if err != nil {
		return err
	}
	if s.only != "" {
		return s.again(ctx, names)
	}
	if err := s.load(); err != nil {
		return err
	}
	defer s.file.Close()
	ctx, cancel := context.WithTimeout(ctx, s.atMost)
	defer cancel()

	// Tests that take the host too long are left out, and listed.
	var sample, slow []string
	for next := 0; len(sample) < s.n && next < len(names); {
		batch := names[next:min(len(names), next+2*s.jobs)]
		next += len(batch)
		s.each(ctx, batch, host, s.onHost)
		for _, name := range batch {
			switch r := s.done[host][name]; {
			case r.Verdict == "timeout":
				slow = append(slow, name)
			case r.Verdict != "" && len(sample) < s.n:
				sample = append(sample, name)
			}
		}
		if s.fault != nil {
			return s.fault
		}
		if ctx.Err() != nil {
			return errUnfinished
		}
	}
	s.each(ctx, sample, string(image.Linux), s.inGuest)
	if s.fault != nil {
		return s.fault
	}
	s.print(sample, slow)
	for _, name := range sample {
		if _, ok := s.done[string(image.Linux)][name]; !ok {
			return errUnfinished
		}
	}
	return nil
}

// again runs the named files even if they have results.
func (s *pythonSuite) again(ctx context.Context, names []string) error {
	for _, name := range names {
		if !slices.Contains(strings.Split(s.only, ","), name) {
			continue
		}
		began := time.Now()
		res, err := s.run(ctx, name)
		if err != nil && res == nil {
			return err
		}
		fmt.Printf("== %s: %s %d (%s) %s\n%s%s", name, res.Outcome, res.ExitCode, time.Since(began).Round(time.Millisecond),
			res.Error, res.Stdout, res.Stderr)
	}
	return nil
}

// program returns the path of Python on the host and in the guest. Both have the same version.
func (s *pythonSuite) program() (string, error) {
	p, err := s.rt.Images().Parts().Get(image.HostArch(), python.Parts[0])
	if err != nil {
		return "", err
	}
	program := image.At(python.Program, p.Version)
	if !exists(program) {
		return "", fmt.Errorf("the images have Python as %s, and this host has none there", program)
	}
	return program, nil
}

// onHost runs a file with the host's Python, which is the same Debian release as the image's. The environment is as
// minimal as the guest's. As root, it runs the file as another user, as in the guest.
func (s *pythonSuite) onHost(ctx context.Context, name string) result {
	program, err := s.program()
	if err != nil {
		return result{Reason: err.Error()}
	}
	dir, err := os.MkdirTemp("", "unitask-fidelity-")
	if err != nil {
		return result{Reason: err.Error()}
	}
	defer os.RemoveAll(dir)
	timed, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	runner := filepath.Join(dir, "run.py")
	if err := errors.Join(os.WriteFile(runner, []byte(s.runner), 0o644),
		os.Chmod(runner, 0o644)); err != nil { // another user reads it
		return result{Reason: err.Error()}
	}
	cmd := exec.CommandContext(timed, program, append([]string{runner}, s.args(name)...)...)
	cmd.Dir = s.tests
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir, "LANG=C.UTF-8", "TMPDIR=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: contract.UserID, Gid: contract.UserID}
		if err := os.Chown(dir, contract.UserID, contract.UserID); err != nil {
			return result{Reason: err.Error()}
		}
	}
	cmd.WaitDelay = time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	r := result{Verdict: "pass", Parts: parts(out.String())}
	switch {
	case timed.Err() != nil:
		r.Verdict = "timeout"
	case err != nil && cmd.ProcessState == nil: // it did not start
		return result{Reason: err.Error()}
	case err != nil:
		r.Verdict, r.Reason = "fail", why(errs.String(), out.String())
	}
	return r
}

func (s *pythonSuite) run(ctx context.Context, name string) (*unitask.Result, error) {
	req := s.request(name)
	req.Language, req.Code, req.Path = "python", s.runner, filepath.Join(req.Dir, "run.py")
	req.Kernel, req.MemoryMB, req.Timeout, req.Env = image.Linux, pythonMemoryMB, 10*s.limit,
		map[string]string{"TMPDIR": "/tmp"}
	return s.rt.Run(ctx, req, unitask.IO{})
}

func (s *pythonSuite) inGuest(ctx context.Context, name string) result {
	res, err := s.run(ctx, name)
	switch {
	case res == nil:
		return result{Reason: err.Error()}
	case res.Outcome == unitask.OutcomeFailed:
		return result{Reason: cmp.Or(res.Error, errorText(err))}
	}
	r := verdict(res, err)
	r.Parts = parts(string(res.Stdout))
	return r
}

// parts reads a runner's output. A test that runs twice has the worse verdict.
func parts(stdout string) []part {
	all := map[string]part{}
	rank := []string{"pass", "skip", "fail"}
	for line := range strings.Lines(stdout) {
		var p part
		if text, ok := strings.CutPrefix(line, "unitask-test "); !ok || json.Unmarshal([]byte(text), &p) != nil {
			continue
		}
		if old, ok := all[p.ID]; !ok || slices.Index(rank, p.Verdict) > slices.Index(rank, old.Verdict) {
			all[p.ID] = p
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b part) int { return cmp.Compare(a.ID, b.ID) })
}

// print prints the table and the differences, in Markdown.
func (s *pythonSuite) print(sample, slow []string) {
	type count struct{ pass, skip, fail, lost int }
	var before, after count
	files, tests, same := 0, 0, 0
	type difference struct{ file, host, guest, reason string }
	tell := map[difference][]string{}
	add := func(c *count, verdict string) {
		switch verdict {
		case "pass":
			c.pass++
		case "skip":
			c.skip++
		case "fail":
			c.fail++
		default:
			c.lost++
		}
	}
	for _, name := range sample {
		guest, ok := s.done[string(image.Linux)][name]
		if !ok {
			continue
		}
		files++
		inside := map[string]part{}
		for _, p := range guest.Parts {
			inside[p.ID] = p
		}
		for _, p := range s.done[host][name].Parts {
			tests++
			in, ok := inside[p.ID]
			delete(inside, p.ID)
			if !ok {
				in = part{Verdict: "lost", Reason: cmp.Or(guest.Reason, guest.Verdict)}
			}
			add(&before, p.Verdict)
			add(&after, in.Verdict)
			if in.Verdict == p.Verdict {
				same++
				continue
			}
			d := difference{name, p.Verdict, in.Verdict, cmp.Or(in.Reason, p.Reason)}
			tell[d] = append(tell[d], p.ID)
		}
		for id, p := range inside {
			d := difference{name, "not there", p.Verdict, p.Reason}
			tell[d] = append(tell[d], id)
		}
	}
	fmt.Printf("%d files of %s, drawn with seed %d; %d more of the draw take the host over %s: %s\n\n", files, s.what,
		s.seed, len(slow), s.limit, strings.Join(slow, " "))
	fmt.Printf("| %d tests | pass | skipped | fail | not reached |\n| --- | --- | --- | --- | --- |\n", tests)
	fmt.Printf("| host | %d | %d | %d | |\n| guest | %d | %d | %d | %d |\n", before.pass, before.skip, before.fail,
		after.pass, after.skip, after.fail, after.lost)
	fmt.Printf(
		"| the same on both | %d (%.2f %%) | | | |\n\n| file | tests | host | guest | it says |\n| --- | --- | --- | --- "+
			"| --- |\n", same, 100*float64(same)/float64(max(tests, 1)))
	for _, d := range slices.SortedFunc(maps.Keys(tell), func(a, b difference) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.guest, b.guest), cmp.Compare(a.reason, b.reason))
	}) {
		ids := tell[d]
		slices.Sort(ids)
		first := cmp.Or(strings.TrimPrefix(ids[0], "test."+d.file+"."), "itself")
		if len(ids) > 1 {
			first = fmt.Sprintf("%s and %d more", first, len(ids)-1)
		}
		fmt.Printf("| %s | %s | %s | %s | %s |\n", d.file, first, d.host, d.guest,
			cut(strings.NewReplacer("|", `\|`, "`", "'", "\n", " ").Replace(d.reason)))
	}
}
