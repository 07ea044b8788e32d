// Command packages installs and imports packages of PyPI and npm, one by one, in real machines, and says which fail, by
// name and reason. It keeps the results, so that a run continues where an earlier one was stopped.
//
//	go run ./hack/packages                       all of list.txt, and the table of docs/fidelity.md
//	go run ./hack/packages -only 'pip:(numpy|pandas)$' -again
package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask"
)

//go:embed list.txt
var listText string

// The lines of the page around the table.
const (
	page  = "docs/fidelity.md"
	begin = "<!-- make packages: begin -->\n"
	end   = "<!-- make packages: end -->\n"
)

// outcome is the result for a package.
type outcome struct {
	Package string  `json:"package"`
	Reason  string  `json:"reason,omitempty"` // why it failed; "" if it did not
	Seconds float64 `json:"seconds"`
}

// item is a line of the list.
type item struct{ spec, use string }

func parseList(text string) (list []item) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		spec, use, _ := strings.Cut(line, " ")
		if use == "" {
			_, use, _ = strings.Cut(spec, ":")
		}
		list = append(list, item{spec, use})
	}
	return list
}

// request returns a run that imports a package, or that runs its command.
func (i item) request() unitask.Request {
	req := unitask.Request{Packages: []string{i.spec}, MemoryMB: 1536, Timeout: 5 * time.Minute}
	if strings.HasPrefix(i.spec, "pip:") {
		req.Language, req.Code = "python", "import importlib; importlib.import_module('"+i.use+"')"
		if command, ok := strings.CutPrefix(i.use, "$"); ok { // pip has it in bin, below the modules
			const start = "import os, subprocess, sys\nfor dir in sys.path: os.environ['PATH'] += ':' + dir + '/bin'\n" +
				"sys.exit(subprocess.run(%q, shell=True, stdout=subprocess.DEVNULL).returncode)"
			req.Code = fmt.Sprintf(start, command)
		}
		return req
	}
	req.Language, req.Kernel = "mjs", "linux"
	req.Code = fmt.Sprintf("await import(%q)", i.use)
	if command, ok := strings.CutPrefix(i.use, "$"); ok {
		const start = "import { execSync } from 'node:child_process'; execSync(%q, { stdio: " +
			"['ignore', 'ignore', 'inherit'] })"
		req.Code = fmt.Sprintf(start, "/node_modules/.bin/"+command)
	}
	return req
}

func try(ctx context.Context, rt *unitask.Runtime, i item) outcome {
	start := time.Now()
	res, err := rt.Run(ctx, i.request(), unitask.IO{})
	o := outcome{Package: i.spec, Seconds: time.Since(start).Round(time.Second).Seconds()}
	switch {
	case err != nil:
		o.Reason = err.Error()
	case res.Outcome != unitask.OutcomeExited:
		o.Reason = fmt.Sprint(res.Outcome, ": ", res.Error)
	case res.ExitCode != 0:
		o.Reason = errorLine(string(res.Stderr))
	}
	if list, err := rt.Packages().List(); err == nil { // one at a time: all together take many gigabytes
		for _, l := range list {
			if slices.Equal(l.Asked, []string{i.spec}) {
				_, _ = rt.Packages().Drop(l.Key)
			}
		}
	}
	return o
}

// errorLine returns the line of a trace with the error: Python's last line, or Node's first one that names an error.
func errorLine(stderr string) string {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	for _, l := range lines {
		if m := regexp.MustCompile(`^(?:\w*Error(?: \[\w+\])?: .+)`).FindString(strings.TrimSpace(l)); m != "" {
			return m
		}
	}
	return lines[len(lines)-1]
}

func main() {
	results := flag.String("results", "packages.jsonl", "`FILE` of what has been tried")
	only := flag.String("only", "", "try packages whose line matches the `EXPRESSION`")
	again := flag.Bool("again", false, "try those again that have been tried")
	atMost := flag.Duration("at-most", 0, "begin no package after `TIME`")
	jobs := flag.Int("jobs", 1, "try `N` at once")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *results, *only, *again, *atMost, *jobs); err != nil {
		fmt.Fprintln(os.Stderr, "packages:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, results, only string, again bool, atMost time.Duration, jobs int) error {
	match, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	tried, err := read(results)
	if err != nil {
		return err
	}
	rt, clean, err := open(results)
	if err != nil {
		return err
	}
	defer clean()
	kept, err := os.OpenFile(results, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer kept.Close()
	all := parseList(listText)
	todo := make(chan item)
	var wait sync.WaitGroup
	var mu sync.Mutex
	for range jobs {
		wait.Go(func() {
			for i := range todo {
				o := try(ctx, rt, i)
				if ctx.Err() != nil {
					continue
				}
				mu.Lock()
				tried[o.Package] = o
				line, _ := json.Marshal(o)
				fmt.Fprintf(kept, "%s\n", line)
				fmt.Printf("%-30s %4.0f s  %.160s\n", o.Package, o.Seconds, o.Reason)
				mu.Unlock()
			}
		})
	}
	start := time.Now()
	for _, i := range all {
		_, before := tried[i.spec]
		if before && !again || !match.MatchString(i.spec) || ctx.Err() != nil || atMost > 0 && time.Since(start) > atMost {
			continue
		}
		todo <- i
	}
	close(todo)
	wait.Wait()
	return write(all, tried)
}

// open returns a runtime. Its home has the user's parts and images, and an empty store of packages.
func open(results string) (*unitask.Runtime, func(), error) {
	base, err := unitask.DefaultHome()
	if err != nil {
		return nil, nil, err
	}
	home, err := filepath.Abs(results + ".home")
	if err != nil {
		return nil, nil, err
	}
	for _, shared := range []string{"vendor", "images", "locks", "cache", "templates"} {
		link := filepath.Join(home, shared)
		err := errors.Join(os.MkdirAll(home, 0o700), os.MkdirAll(filepath.Join(base, shared), 0o700))
		if err == nil {
			err = os.Symlink(filepath.Join(base, shared), link)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, nil, err
		}
	}
	rt, err := unitask.Open(unitask.Options{Home: home, Machines: unitask.Booted()})
	if err != nil {
		return nil, nil, err
	}
	return rt, func() { rt.Close(); os.RemoveAll(home) }, nil
}

// read returns the results of earlier runs; for each package the last one counts.
func read(results string) (map[string]outcome, error) {
	tried := map[string]outcome{}
	f, err := os.Open(results)
	if errors.Is(err, fs.ErrNotExist) {
		return tried, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var o outcome
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return nil, fmt.Errorf("read %s: %w", results, err)
		}
		tried[o.Package] = o
	}
	return tried, nil
}

// write puts the table into the page.
func write(all []item, tried map[string]outcome) error {
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(old), begin)
	_, after, also := strings.Cut(rest, end)
	if !ok || !also {
		return fmt.Errorf("%s has no place for the table", page)
	}
	return os.WriteFile(page, []byte(before+begin+table(all, tried)+end+after), 0o644)
}

func table(all []item, tried map[string]outcome) string {
	var b strings.Builder
	b.WriteString("| | in the list | tried | installed and imported |\n| --- | --- | --- | --- |\n")
	var failed []outcome
	for _, system := range []string{"pip", "npm"} {
		listed, seen, good := 0, 0, 0
		for _, i := range all {
			if !strings.HasPrefix(i.spec, system+":") {
				continue
			}
			listed++
			o, ok := tried[i.spec]
			switch {
			case ok && o.Reason == "":
				seen, good = seen+1, good+1
			case ok:
				seen, failed = seen+1, append(failed, o)
			}
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %d |\n", system, listed, seen, good)
	}
	if len(failed) == 0 {
		return b.String()
	}
	b.WriteString("\n| fails | reason |\n| --- | --- |\n")
	for _, o := range failed {
		fmt.Fprintf(&b, "| `%s` | %s |\n", o.Package, cell(o.Reason))
	}
	return b.String()
}

// addresses matches addresses of registries and other servers, which the page leaves out.
var addresses = regexp.MustCompile(`https?://[^\s;,)'"]*[^\s;,)'":]`)

// cell returns a reason as a cell of the table.
func cell(reason string) string {
	reason = addresses.ReplaceAllString(reason, "…")
	if _, after, ok := strings.Cut(reason, "can't be installed from …: "); ok {
		reason = after
	}
	reason, _, _ = strings.Cut(reason, " (`unitask inspect")
	if strings.Contains(reason, "it was refused the way to ") {
		reason = "its install script fetches the binary from another host than the registry"
	}
	reason = strings.Join(strings.Fields(strings.NewReplacer("|", "/", "`", "'", "<", "(", ">", ")").Replace(reason)), " ")
	if r := []rune(reason); len(r) > 200 {
		reason = string(r[:200]) + "…"
	}
	return reason
}
