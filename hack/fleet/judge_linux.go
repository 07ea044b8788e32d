package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// judge returns what is wrong with a run's end.
func (f *load) judge() error {
	tally, faults := map[string]int{}, []string{}
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	byID := map[string][]ending{}
	var took []time.Duration
	for _, list := range f.ends {
		for _, e := range list {
			byID[e.ID] = append(byID[e.ID], e)
			took = append(took, e.Took)
		}
	}
	brought := hexSum(bytes.Repeat([]byte("brought\n"), 20_000)) + "\n"
	for n := range f.runs {
		id, k := runID(n), kindOf(n, f.runs, f.machines)
		both, marks := byID[id], f.marks[id]
		if len(both) != 2 {
			fault("%s: %d of 2 submitters were told of it", id, len(both))
			continue
		}
		e := both[0]
		if e.Outcome != both[1].Outcome || e.Outcome == "exited" && (e.Line != both[1].Line || e.Rest != both[1].Rest) {
			fault("%s ended in two ways: %+v", id, both)
		}
		marked := k.once || !k.machine // a run without a network can't report
		drawn, _ := strings.CutPrefix(e.Line, id+" ")
		want := ""
		if k.brings {
			want += brought
		}
		if k.large {
			want += strings.Repeat(" ", paddingBytes-1) + "0"
		}
		again := e.Retried || both[1].Retried
		switch {
		case k.once && len(marks) > 1:
			fault("%s may act once, and acted %d times", id, len(marks))
		case len(marks) > mostTimes:
			fault("%s was made %d times", id, len(marks))
		case e.Outcome == "lost" && !k.once && !strings.Contains(e.Error, "workers were lost while it ran"):
			fault("%s is lost, and may be made again: %s", id, e.Error)
		case e.Outcome != "exited" && e.Outcome != "lost":
			fault("%s ended as %s: %s", id, e.Outcome, e.Error)
		case e.Outcome == "exited" && (drawn == "" || marked && !slices.Contains(marks, drawn)):
			fault("%s printed %q, and told %q", id, e.Line, marks)
		case e.Outcome == "exited" && !again && marked && len(marks) != 1:
			fault("%s was made once, and told %q", id, marks)
		case e.Outcome == "exited" && e.Rest != hexSum([]byte(want)):
			fault("%s did not print what its code says", id)
		}
		what := e.Outcome
		if e.Outcome == "lost" && !k.once {
			what = "lost with three workers"
		}
		if k.machine {
			tally[what+" in a machine"]++
		} else {
			tally[what]++
		}
		if again {
			tally["made again"]++
		}
		if k.once && len(marks) == 1 {
			tally["acted once"]++
		}
	}
	for _, what := range f.left() {
		fault("%s is left", what)
	}
	for what, n := range f.kills {
		tally[what] = n
	}
	return f.report(tally, took, faults)
}

// report prints how the runs ended. The error counts the faults.
func (f *load) report(tally map[string]int, took []time.Duration, faults []string) error {
	fmt.Printf("%d runs submitted twice in %v, %d of them in machines\n", f.runs, f.took.Round(time.Second), f.machines)
	names := []string{}
	for what := range tally {
		names = append(names, what)
	}
	slices.Sort(names)
	for _, what := range names {
		fmt.Printf("%8d %s\n", tally[what], what)
	}
	if slices.Sort(took); len(took) > 0 {
		at := func(percent int) time.Duration { return took[len(took)*percent/100].Round(time.Millisecond) }
		fmt.Printf("from submit to result: p50 %v, p95 %v, p99 %v\n", at(50), at(95), at(99))
	}
	slices.Sort(faults)
	if log, err := os.ReadFile(filepath.Join(f.dir, "log")); err == nil && len(faults) > 0 {
		fmt.Printf("%s", log[max(0, len(log)-4000):])
	}
	for _, line := range faults[:min(len(faults), 40)] {
		fmt.Println(line)
	}
	if len(faults) > 0 {
		return fmt.Errorf("%d faults", len(faults))
	}
	return nil
}

// mostTimes is how often a run may start: it is repeated if a worker is lost, for up to two lost workers.
const mostTimes = 3
