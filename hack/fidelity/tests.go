package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
)

// guestRoot is the tests' folder in the guest.
const guestRoot = "/node/test"

// Time limits of one test. Under TCG a guest is about ten times slower.
const (
	hostLimit  = 20 * time.Second
	guestLimit = 10 * hostLimit
)

// host marks a result from the host, not from a kernel.
const host = "host"

// result is one line of the file of results.
type result struct {
	Test  string `json:"test"`
	Where string `json:"where"` // host, or a kernel
	// Verdict is pass, fail, timeout, skip (the test says that it does not apply) or crash. "" means none, for example if
	// the host failed: the result is not kept, and ends the tool with Reason.
	Verdict string `json:"verdict"`
	Reason  string `json:"reason,omitempty"`
	Millis  int64  `json:"ms"`
	Parts   []part `json:"parts,omitempty"` // for a file of many tests
}

type suite struct {
	options
	mu    sync.Mutex
	fault error                        // the first fault that is not a test's
	done  map[string]map[string]result // by place and test
	file  *os.File
	child map[string]bool // the results of needsChild
}

func runTests(ctx context.Context, o options) error {
	s := &suite{options: o, done: map[string]map[string]result{}, child: map[string]bool{}}
	names, err := s.candidates()
	if err != nil {
		return err
	}
	if o.only != "" {
		return s.again(ctx, names)
	}
	if err := s.load(); err != nil {
		return err
	}
	defer s.file.Close()
	ctx, cancel := context.WithTimeout(ctx, o.atMost)
	defer cancel()

	var sample []string
	next := 0
	for len(sample) < o.n && next < len(names) && (ctx.Err() == nil || s.done[host][names[next]].Test != "") {
		batch := names[next:min(len(names), next+8*o.jobs)]
		next += len(batch)
		s.each(ctx, batch, host, s.onHost)
		for _, name := range batch {
			if s.done[host][name].Verdict == "pass" && len(sample) < o.n {
				sample = append(sample, name)
			}
		}
	}
	for _, k := range o.kernels {
		s.each(ctx, sample, string(k), func(ctx context.Context, name string) result { return s.inGuest(ctx, name, k) })
	}
	s.print(sample)
	for _, k := range o.kernels {
		for _, name := range sample {
			if _, ok := s.done[string(k)][name]; !ok {
				return errUnfinished
			}
		}
	}
	if len(sample) < o.n && next < len(names) {
		return errUnfinished
	}
	return nil
}

// again runs the named tests even if they have results.
func (s *suite) again(ctx context.Context, names []string) error {
	for _, name := range names {
		if !strings.Contains(name, s.only) {
			continue
		}
		for _, k := range s.kernels {
			began := time.Now()
			res, err := s.run(ctx, name, k, true)
			if err != nil && res == nil {
				return err
			}
			fmt.Printf("== %s on %s: %s %d (%s) %s\n%s%s", name, k, res.Outcome, res.ExitCode,
				time.Since(began).Round(time.Millisecond), res.Error, res.Stdout, res.Stderr)
		}
	}
	return nil
}

// candidates returns the tests to draw from, in the order of the draw. They are single files that need neither flags of
// Node nor a special environment.
func (s *suite) candidates() ([]string, error) {
	var names []string
	for _, dir := range []string{"parallel", "sequential", "es-module", "async-hooks"} {
		found, err := filepath.Glob(filepath.Join(s.tests, dir, "test-*.*js"))
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			text, err := os.ReadFile(f)
			if err != nil {
				return nil, err
			}
			if !metadata.Match(text) && !neighbour.Match(text) {
				names = append(names, dir+"/"+filepath.Base(f))
			}
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s holds no tests: -tests names Node's folder test/", s.tests)
	}
	return s.draw(names), nil
}

// draw puts names into the order of the draw.
func (s *suite) draw(names []string) []string {
	slices.Sort(names)
	r := rand.New(rand.NewPCG(uint64(s.seed), 0))
	r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names
}

var (
	// metadata matches a test's declaration of flags or variables for Node's test runner.
	metadata = regexp.MustCompile(`(?m)^// (Flags|Env):`)
	// neighbour matches a file beside the test, or of another folder of tests.
	neighbour = regexp.MustCompile(
		`require\('\./|from '\./|require\('\.\./(addons|node-api|js-native-api|async-hooks|pummel)`)
	// others matches the names of tests that this one starts.
	others   = regexp.MustCompile(`\btest-[a-z0-9-]+\.[cm]?js\b`)
	fixtures = regexp.MustCompile(`fixtures|common/(crypto|tls|dns|wpt|sea|snapshot|http2|debugger|inspector)`)
	keys     = regexp.MustCompile(`readKey|common/(tls|crypto|http2|quic)|hasCrypto`)
	child    = regexp.MustCompile(
		`child_process|cluster|spawn(Promisified|Sync)|common/(child|debugger|inspector-helper|snapshot)|` +
			`startNewREPLServer|childShouldThrow|buildSnapshot|\brun\b.* from 'node:test'`)
)

// load reads the earlier results.
func (s *suite) load() error {
	var err error
	if s.file, err = os.OpenFile(s.results, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644); err != nil {
		return err
	}
	lines := bufio.NewScanner(s.file)
	lines.Buffer(nil, 16<<20) // a file of 10 000 tests
	for lines.Scan() {
		var r result
		if json.Unmarshal(lines.Bytes(), &r) == nil {
			s.note(r)
		}
	}
	return lines.Err()
}

func (s *suite) note(r result) {
	if s.done[r.Where] == nil {
		s.done[r.Where] = map[string]result{}
	}
	s.done[r.Where][r.Test] = r
}

// each runs the tests that have no result yet.
func (s *suite) each(ctx context.Context, names []string, where string, run func(context.Context, string) result) {
	work := make(chan string)
	var group sync.WaitGroup
	for range s.jobs {
		group.Go(func() {
			for name := range work {
				began := time.Now()
				r := run(ctx, name)
				if ctx.Err() != nil {
					continue
				}
				if r.Verdict == "" {
					s.mu.Lock()
					s.fault = cmp.Or(s.fault, fmt.Errorf("run %s (%s): %s", name, where, r.Reason))
					s.mu.Unlock()
					continue
				}
				r.Test, r.Where, r.Millis = name, where, time.Since(began).Milliseconds()
				line, _ := json.Marshal(r)
				s.mu.Lock()
				s.note(r)
				fmt.Fprintf(s.file, "%s\n", line)
				s.mu.Unlock()
			}
		})
	}
	for _, name := range names {
		s.mu.Lock()
		_, known := s.done[where][name]
		goesOn := s.fault == nil && ctx.Err() == nil
		s.mu.Unlock()
		if !known && goesOn {
			work <- name
		}
	}
	close(work)
	group.Wait()
}

func (s *suite) text(name string) string {
	text, _ := os.ReadFile(filepath.Join(s.tests, name))
	return string(text)
}

func (s *suite) needsChild(name string) bool {
	needs, known := s.child[name]
	if !known {
		needs = child.MatchString(s.text(name))
		s.child[name] = needs
	}
	return needs
}

func good(r result) bool { return r.Verdict == "pass" || r.Verdict == "skip" }

// environment returns the environment of a test. Tests write to /tmp.
func environment(dir string) map[string]string {
	return map[string]string{"NODE_TEST_DIR": dir, "NODE_SKIP_FLAG_CHECK": "1"}
}

func (s *suite) onHost(ctx context.Context, name string) result {
	dir, err := os.MkdirTemp("", "unitask-fidelity-")
	if err != nil {
		return result{Verdict: "fail", Reason: err.Error()}
	}
	defer os.RemoveAll(dir)
	timed, cancel := context.WithTimeout(ctx, hostLimit)
	defer cancel()
	cmd := exec.CommandContext(timed, s.node, filepath.Join("test", name))
	cmd.Dir = filepath.Dir(s.tests)
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir, "LANG=C.UTF-8"}
	for k, v := range environment(dir) {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.WaitDelay = time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	switch {
	case timed.Err() != nil:
		return result{Verdict: "timeout"}
	case err != nil:
		return result{Verdict: "fail", Reason: why(errs.String(), out.String())}
	}
	return result{Verdict: passed(out.String())}
}

// passed distinguishes a test that passed from one that does not apply here.
func passed(stdout string) string {
	if strings.HasPrefix(stdout, "1..0 # Skipped") {
		return "skip"
	}
	return "pass"
}

// run runs a test in a machine, with the fixtures that it names; with all, it runs whole with all fixtures.
func (s *suite) run(ctx context.Context, name string, kernel image.Kernel, whole bool) (*unitask.Result, error) {
	text := s.text(name)
	req := unitask.Request{Code: text, Path: guestRoot + "/" + name, Dir: filepath.Dir(guestRoot), Kernel: kernel,
		Timeout: guestLimit, Env: environment("/tmp"),
		Dirs: []unitask.Mount{s.mount(guestRoot, "common")}}
	for _, other := range others.FindAllString(text, -1) {
		if place := filepath.Join(filepath.Dir(name), other); place != name && exists(filepath.Join(s.tests, place)) {
			req.Files = append(req.Files, s.mount(guestRoot, place))
		}
	}
	switch {
	case !fixtures.MatchString(text):
	case whole:
		req.Dirs = append(req.Dirs, s.mount(guestRoot, "fixtures"))
	default:
		entries, err := os.ReadDir(filepath.Join(s.tests, "fixtures"))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			switch m := s.mount(guestRoot, "fixtures/"+e.Name()); {
			case !strings.Contains(text, e.Name()) && !(e.Name() == "keys" && keys.MatchString(text)):
			case e.IsDir():
				req.Dirs = append(req.Dirs, m)
			default:
				req.Files = append(req.Files, m)
			}
		}
	}
	return s.rt.Run(ctx, req, unitask.IO{})
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

func (s *suite) mount(root, name string) unitask.Mount {
	return unitask.Mount{Host: filepath.Join(s.tests, name), Guest: root + "/" + name}
}

// inGuest runs a test with the fixtures that it names. After a failure it tries again with all fixtures, because the
// test may need more than it names.
func (s *suite) inGuest(ctx context.Context, name string, kernel image.Kernel) result {
	r := verdict(s.run(ctx, name, kernel, false))
	if !good(r) && fixtures.MatchString(s.text(name)) && ctx.Err() == nil {
		r = verdict(s.run(ctx, name, kernel, true))
	}
	return r
}

func verdict(res *unitask.Result, err error) result {
	switch {
	case res == nil:
		return result{Verdict: "fail", Reason: err.Error()}
	case res.Outcome == unitask.OutcomeTimeout:
		return result{Verdict: "timeout", Reason: why(string(res.Stderr), string(res.Stdout))}
	case res.Outcome == unitask.OutcomeExited && res.ExitCode == 0:
		return result{Verdict: passed(string(res.Stdout))}
	case res.Outcome == unitask.OutcomeExited:
		return result{Verdict: "fail", Reason: why(string(res.Stderr), string(res.Stdout))}
	}
	return result{Verdict: string(res.Outcome), Reason: cmp.Or(res.Error, errorText(err))}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// The line of the error in a failed test's output.
var errorLine = regexp.MustCompile(
	`(?m)^\s*(?:\[?(?:Uncaught )?[A-Za-z]*(?:Error|Exception)\b.*|Mismatched .*|.*assert.*|error: .*)$`)

// why returns the most informative line of a test's output.
func why(texts ...string) string {
	for _, text := range texts {
		if m := errorLine.FindString(text); m != "" {
			return cut(strings.TrimSpace(m))
		}
	}
	for _, text := range texts {
		if text = strings.TrimSpace(text); text != "" {
			return cut(text[strings.LastIndexByte(text, '\n')+1:])
		}
	}
	return "says nothing"
}

func cut(s string) string {
	const most = 160
	if len(s) > most {
		s = s[:most] + "…"
	}
	return s
}

// print prints the table, in Markdown.
func (s *suite) print(sample []string) {
	fmt.Printf("%d of Node's tests, drawn with seed %d of those that pass on the host.\n\n| | tests |", len(sample),
		s.seed)
	for _, k := range s.kernels {
		fmt.Printf(" %s |", k)
	}
	fmt.Print("\n| --- | --- |" + strings.Repeat(" --- |", len(s.kernels)) + "\n")
	for _, row := range []struct {
		name string
		has  func(name string) bool
	}{
		{"all", func(string) bool { return true }},
		{"without those that need child processes", func(name string) bool { return !s.needsChild(name) }},
	} {
		tests := 0
		ran, passed := map[image.Kernel]int{}, map[image.Kernel]int{}
		for _, name := range sample {
			if !row.has(name) {
				continue
			}
			tests++
			for _, k := range s.kernels {
				if r, ok := s.done[string(k)][name]; ok {
					ran[k]++
					if good(r) {
						passed[k]++
					}
				}
			}
		}
		fmt.Printf("| %s | %d |", row.name, tests)
		for _, k := range s.kernels {
			fmt.Printf(" %d of %d (%.1f %%) |", passed[k], ran[k], 100*float64(passed[k])/float64(max(ran[k], 1)))
		}
		fmt.Println()
	}
	for _, k := range s.kernels {
		fmt.Printf("\n%s:\n\n| test | verdict | it says |\n| --- | --- | --- |\n", k)
		for _, name := range slices.Sorted(slices.Values(sample)) {
			r, ok := s.done[string(k)][name]
			if !ok || good(r) {
				continue
			}
			if s.needsChild(name) {
				name += " (child processes)"
			}
			fmt.Printf("| %s | %s | %s |\n", strings.TrimPrefix(name, "parallel/"), r.Verdict,
				strings.NewReplacer("|", `\|`, "`", "'").Replace(r.Reason))
		}
	}
}
