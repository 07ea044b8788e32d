package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/unitask/unitask/internal/offspring"
)

// killOne kills a random descendant with a given name.
func (s *soak) killOne(name string) {
	list := slices.DeleteFunc(offspring.All(), func(p offspring.Process) bool { return !strings.HasPrefix(p.Name, name) })
	if len(list) > 0 {
		_ = syscall.Kill(list[rand.IntN(len(list))].PID, syscall.SIGKILL)
	}
}

// daemon returns the pool daemon, 0 if none runs.
func daemon() int { return serving("pool\x00serve") }

// serving returns the process with a command line, 0 if there is none.
func serving(line string) int {
	for _, p := range offspring.All() {
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID)); err == nil &&
			bytes.Contains(text, []byte(line)) {
			return p.PID
		}
	}
	return 0
}

func (s *soak) killDaemon() {
	if pid := daemon(); pid != 0 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// reap waits for orphans that were given to us and have ended. No run is in progress.
func reap() {
	for {
		if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
			return
		}
	}
}

// look checks everything while no run is in progress.
func (s *soak) look(when string) error {
	if pid := daemon(); pid != 0 {
		files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if s.daemonFiles == 0 {
			s.daemonFiles = len(files)
		}
		if err == nil && len(files) > s.daemonFiles+moreFiles {
			s.fault("%s: the pool's daemon has %d descriptors, and had %d", when, len(files), s.daemonFiles)
		}
		fmt.Printf("%s: the pool's daemon has %d descriptors; %d faults\n", when, len(files), len(s.faults))
	}
	if _, err := s.unitaskDo("pool", "down"); err != nil {
		s.fault("%s: %v", when, err)
	}
	if err := s.lookSessions(when); err != nil {
		return err
	}
	left := offspring.All()
	for late := time.Now().Add(settling); len(left) > 0 && time.Now().Before(late); left = offspring.All() {
		time.Sleep(100 * time.Millisecond) // for other processes to end
		reap()
	}
	for _, p := range left {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		s.fault("%s: process %d is left: %s %.200q", when, p.PID, p.Name, line)
		_ = syscall.Kill(p.PID, syscall.SIGKILL)
	}
	out, err := s.unitaskDo("runs", "ls", "--json", "--limit", "0")
	if err != nil {
		s.fault("%s: %v", when, err)
		return nil
	}
	var records []struct {
		ID     string
		Status string
	}
	if err := json.Unmarshal(out, &records); err != nil {
		s.fault("%s: runs ls: %v", when, err)
	}
	listed := map[string]bool{}
	for _, r := range records {
		listed[r.ID] = true
		if r.Status == "running" || r.Status == "paused" {
			s.fault("%s: record %s is still %s", when, r.ID, r.Status)
		}
	}
	entries, err := os.ReadDir(filepath.Join(s.home, "runs"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && !listed[e.Name()] {
			s.fault("%s: runs/%s is no record", when, e.Name())
		}
	}
	// The small disk of the records has room for the runs until the next look.
	if _, err := s.unitaskDo("runs", "prune", "--keep", "10"); err != nil {
		s.fault("%s: %v", when, err)
	}
	return nil
}

// empty removes the records, and checks which files are left.
func (s *soak) empty() error {
	out, err := s.unitaskDo("runs", "prune", "--keep", "0")
	if err != nil {
		s.fault("at the end: %v", err)
	}
	fmt.Printf("%s", out)
	for dir, may := range map[string]func(string) bool{
		"runs":      func(name string) bool { return name == ".size" },
		"templates": func(name string) bool { return !strings.HasPrefix(name, ".new-") },
		"":          func(name string) bool { return !strings.Contains(name, "tmp") },
	} {
		entries, err := os.ReadDir(filepath.Join(s.home, dir))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			if !may(e.Name()) {
				s.fault("at the end: %s is left", filepath.Join(dir, e.Name()))
			}
		}
	}
	for _, dir := range []string{os.TempDir(), "/dev/shm"} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if info, err := e.Info(); err == nil && strings.HasPrefix(e.Name(), "unitask") && info.ModTime().After(s.started) {
				fmt.Printf("%s is new, perhaps of another process\n", filepath.Join(dir, e.Name()))
			}
		}
	}
	return nil
}
