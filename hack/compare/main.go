// Command compare runs the same jobs on unitask and on other ways to run untrusted code, in one loop on one machine. It
// prints a table in Markdown: the median and the 95th percentile of each job's time, and the memory that it took.
//
//	make compare COMPAREFLAGS="-n 5 -only quicksand"
//
// It needs Python with venv, and PyPI. Others' packages go into the folder -cache, which later calls use again. It
// leaves out systems that the host lacks, and says why.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

func main() {
	rounds := flag.Int("n", 5, "rounds")
	only := flag.String("only", "", "only systems whose name holds this")
	program := flag.String("unitask", "bin/unitask", "the binary")
	cache := flag.String("cache", filepath.Join(os.TempDir(), "unitask-compare"), "the folder for others' packages")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := compare(ctx, *program, *cache, *only, *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

// jobTime bounds one job of one system, and its preparation.
const jobTime = 10 * time.Minute

// place is where the jobs run.
type place struct {
	ctx   context.Context
	dir   string // a new folder with the jobs' files
	cache string
	env   []string
}

// shell runs a script, and returns what it printed to stdout.
func (p *place) shell(script string) (string, error) {
	ctx, cancel := context.WithTimeout(p.ctx, jobTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-euc", script)
	cmd.Dir, cmd.Env, cmd.WaitDelay = p.dir, p.env, time.Second
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if err != nil {
		text := strings.TrimSpace(said.String())
		return "", fmt.Errorf("%w: %s", err, text[max(0, len(text)-1000):])
	}
	return out.String(), nil
}

// cell is what one system took for one job.
type cell struct {
	times  []time.Duration
	memory int // MiB, the most of all rounds
	err    error
}

func compare(ctx context.Context, program, cache, only string, rounds int) error {
	if err := adopt(); err != nil {
		return err
	}
	program, err := filepath.Abs(program)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "unitask-compare-jobs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return err
	}
	p := &place{ctx: ctx, dir: dir, cache: cache, env: append(os.Environ(), "UNITASK="+program, "CACHE="+cache)}
	if err := os.CopyFS(dir, files()); err != nil {
		return err
	}
	var there []system
	for _, s := range systems {
		if !strings.Contains(s.name, only) {
			continue
		}
		fmt.Fprintln(os.Stderr, "compare: preparing", s.name)
		if _, err := p.shell(s.setup); err != nil {
			fmt.Fprintf(os.Stderr, "compare: left out: %s: %v\n", s.name, err)
			_, _ = p.shell(s.teardown)
			continue
		}
		defer p.shell(s.teardown)
		there = append(there, s)
	}
	cells := map[string]*cell{}
	for round := range rounds {
		for _, j := range jobs {
			for _, s := range there {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if s.scripts[j.name] == "" {
					continue
				}
				key := j.name + " " + s.name
				if cells[key] == nil {
					cells[key] = &cell{}
				}
				p.once(cells[key], s, j)
				fmt.Fprintf(os.Stderr, "compare: round %d, %s, %s: %s\n", round+1, j.name, s.name, cells[key].last())
			}
		}
	}
	fmt.Printf("%s, %d processors, %s/%s, %d rounds.\n\n", time.Now().Format(time.DateOnly), runtime.NumCPU(),
		runtime.GOOS, runtime.GOARCH, rounds)
	print(there, cells)
	return nil
}

// once runs a job on a system once. A system that failed at a job is not asked again.
func (p *place) once(c *cell, s system, j job) {
	if c.err != nil {
		return
	}
	if _, err := p.shell(s.before[j.name]); err != nil {
		c.err = err
		return
	}
	stop := watchMemory()
	began := time.Now()
	out, err := p.shell(s.scripts[j.name])
	took := time.Since(began)
	memory := stop()
	if err == nil && strings.Count(out, j.output) != j.times {
		err = fmt.Errorf("it printed %q, and not %d times %q", out[:min(len(out), 500)], j.times, j.output)
	}
	c.err = err
	if err == nil {
		c.times, c.memory = append(c.times, took), max(c.memory, memory)
	}
}

func (c *cell) last() string {
	if c.err != nil {
		return c.err.Error()
	}
	return c.times[len(c.times)-1].Round(time.Millisecond).String()
}

// percentile returns the time below which so many of a hundred rounds are.
func (c *cell) percentile(n int) time.Duration {
	sorted := slices.Sorted(slices.Values(c.times))
	return sorted[(len(sorted)-1)*n/100]
}

func (c *cell) String() string {
	switch {
	case c == nil:
		return "–"
	case c.err != nil:
		return "failed"
	}
	text := fmt.Sprintf("%.2f / %.2f s", c.percentile(50).Seconds(), c.percentile(95).Seconds())
	if c.memory > 0 { // a shorter one was not seen
		text += fmt.Sprintf(", %d MiB", c.memory)
	}
	return text
}

func print(there []system, cells map[string]*cell) {
	fmt.Print("| system |")
	for _, j := range jobs {
		fmt.Print(" ", j.title, " |")
	}
	fmt.Println(" between the code and the host |")
	fmt.Println("|" + strings.Repeat(" --- |", len(jobs)+2))
	for _, s := range there {
		fmt.Printf("| %s |", s.name)
		for _, j := range jobs {
			fmt.Print(" ", cells[j.name+" "+s.name], " |")
		}
		fmt.Println("", s.isolates, "|")
	}
}
