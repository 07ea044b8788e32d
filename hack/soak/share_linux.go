package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
)

// results are what a soak reports to the process that started it.
type results struct {
	Tally  map[string]*tally
	Faults []string
}

func (s *soak) report(file string) error {
	text, err := json.Marshal(results{Tally: s.tally, Faults: s.faults})
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// share divides n runs among several soaks, and adds up their results. They get our command line, with flags at its end
// that override earlier ones. The terminal sends an interrupt to them directly; we end when they have ended.
func (s *soak) share(soaks, n int) error {
	dir, err := os.MkdirTemp("", "soak-shared-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	signal.Ignore(os.Interrupt)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	failed := make([]error, soaks)
	var all sync.WaitGroup
	for i := range soaks {
		file := filepath.Join(dir, strconv.Itoa(i))
		part := n / soaks
		if i < n%soaks {
			part++
		}
		cmd := exec.Command(self, append(os.Args[1:], "-at-once=1", "-n="+strconv.Itoa(part), "-report="+file,
			"-seed="+strconv.FormatUint(s.random.Uint64()>>1|1, 10))...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		all.Go(func() {
			failed[i] = s.partial(cmd, file, i)
		})
	}
	all.Wait()
	return errors.Join(failed...)
}

// partial runs one of them, and adds its results. It counts their faults separately.
func (s *soak) partial(cmd *exec.Cmd, file string, number int) error {
	ended := cmd.Run()
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("soak %d: %w", number, errors.Join(ended, err))
	}
	var r results
	if err := json.Unmarshal(text, &r); err != nil {
		return fmt.Errorf("soak %d: %w", number, err)
	}
	if ended != nil && len(r.Faults) == 0 {
		return fmt.Errorf("soak %d: %w", number, ended)
	}
	s.adding.Lock()
	defer s.adding.Unlock()
	s.faults = append(s.faults, r.Faults...)
	for name, more := range r.Tally {
		t := s.tally[name]
		if t == nil {
			s.tally[name] = more
			continue
		}
		for end, count := range more.Ends {
			t.Ends[end] += count
		}
		t.Times = append(t.Times, more.Times...)
	}
	return nil
}
