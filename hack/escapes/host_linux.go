package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/offspring"
)

// host is the host that the payloads must not change.
type host struct {
	program, home, tmp string
	settling           time.Duration     // for the end of processes that were left
	mostMB             int               // MiB of memory for the whole run
	secrets            map[string]string // values that only the host has, by their origin
	canary             string
}

// open collects values that nobody in the guest can know.
func (h *host) open() error {
	h.canary = rand.Text()
	h.secrets = map[string]string{"a variable of unitask's environment": h.canary}
	if err := os.Mkdir(h.tmp, 0o700); err != nil {
		return err
	}
	for what, file := range map[string]string{
		"the host's machine id": "/etc/machine-id",
		"the host's boot id":    "/proc/sys/kernel/random/boot_id",
		"the host's kernel":     "/proc/sys/kernel/osrelease",
		"the host's name":       "/proc/sys/kernel/hostname",
	} {
		text, err := os.ReadFile(file)
		// Any program may print a name such as localhost or debian.
		if s := strings.TrimSpace(string(text)); err == nil && len(s) > 6 && s != "localhost" {
			h.secrets[what] = s
		}
	}
	memory, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return err
	}
	h.secrets["the host's memory"], _, _ = strings.Cut(string(memory), "\n")
	shadow, _ := os.ReadFile("/etc/shadow")
	for _, line := range strings.Split(string(shadow), "\n") {
		if fields := strings.Split(line, ":"); len(fields) > 1 && len(fields[1]) > 6 {
			h.secrets["a password of /etc/shadow"] = fields[1]
		}
	}
	return nil
}

// state returns the state of the host that must be the same afterwards.
func (h *host) state() (map[string]string, error) {
	s := map[string]string{}
	for _, file := range []string{"/etc/passwd", "/etc/shadow", "/etc/group", "/etc/hosts", "/etc/resolv.conf",
		"/proc/mounts", "/proc/sys/kernel/hostname"} {
		text, err := os.ReadFile(file)
		if err != nil {
			text = []byte(err.Error())
		}
		s[file] = string(text)
	}
	for _, dir := range []string{"/bin/", "/sbin/", "/etc", "/", "/dev", h.tmp} { // the first two may be links
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		var names strings.Builder
		for _, e := range entries {
			if info, err := e.Info(); err == nil {
				fmt.Fprintln(&names, e.Name(), info.Mode())
			}
		}
		s["the names in "+dir] = names.String()
	}
	return s, nil
}

// attempt runs a payload and checks its effects.
func (h *host) attempt(v *verdict, args []string) error {
	before, err := h.state()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	line := append([]string{"run", "--json", "--kernel", "linux", "--memory", strconv.Itoa(memoryMB), "--timeout",
		strconv.Itoa(limit)}, args...)
	cmd := exec.CommandContext(ctx, h.program, line...)
	cmd.Env = append(os.Environ(), "UNITASK_HOME="+h.home, "TMPDIR="+h.tmp, "ESCAPES_CANARY="+h.canary)
	cmd.WaitDelay = 5 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	peak := make(chan int)
	go func() { peak <- peakMB(ended) }()
	err = cmd.Wait()
	close(ended)
	through := func(format string, a ...any) { v.through = append(v.through, fmt.Sprintf(format, a...)) }
	if mb := <-peak; mb > h.mostMB {
		through("%d MiB of memory for a machine of %d", mb, memoryMB)
	}
	if ctx.Err() != nil {
		through("not ended after %v", patience)
	}
	var result struct {
		RunID, Outcome, Stdout, Stderr, Error string
		ExitCode                              int
	}
	if e := json.Unmarshal(stdout.Bytes(), &result); e != nil {
		return fmt.Errorf("no result: %w, %w: %.300s", e, err, stderr.Bytes())
	}
	v.outcome = fmt.Sprintf("%s %d", result.Outcome, result.ExitCode)
	if result.Outcome == "failed" {
		return errors.New(result.Error)
	}
	printed := result.Stdout + result.Stderr + result.Error
	v.claims = strings.Contains(printed, "ESCAPED")
	for what, text := range h.secrets {
		if strings.Contains(printed, text) {
			through("printed %s", what)
		}
	}
	if err := h.recorded(result.RunID, through); err != nil {
		return err
	}
	for late := time.Now().Add(h.settling); ; time.Sleep(50 * time.Millisecond) { // other processes may end
		left := children()
		if len(left) == 0 {
			break
		}
		if time.Now().After(late) {
			through("left processes: %v", left)
			break
		}
	}
	after, err := h.state()
	for what, text := range before {
		if after[what] != text {
			through("changed %s", what)
		}
	}
	return err
}

// recorded checks the record of the network and of the run's end.
func (h *host) recorded(id string, through func(string, ...any)) error {
	cmd := exec.Command(h.program, "inspect", "--json", id)
	cmd.Env = append(os.Environ(), "UNITASK_HOME="+h.home)
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("inspect %s: %w", id, err)
	}
	var record struct {
		Status string
		Netlog []struct{ Verdict, Host, Address string }
	}
	if err := json.Unmarshal(out, &record); err != nil {
		return fmt.Errorf("inspect %s: %w", id, err)
	}
	if record.Status != "done" {
		through("a record that is %s", record.Status)
	}
	for _, line := range record.Netlog {
		if strings.HasPrefix(line.Verdict, "allow") {
			through("a connection to %s%s", line.Host, line.Address)
		}
	}
	return nil
}

// children returns the names of our descendants, by their ids. It reaps those that have ended.
func children() map[int]string {
	for {
		if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 || err != nil {
			names := map[int]string{}
			for _, p := range offspring.All() {
				names[p.PID] = p.Name
			}
			return names
		}
	}
}

// peakMB returns the most memory, in MiB, that all our descendants had together.
func peakMB(ended chan struct{}) (most int) {
	tick := time.NewTicker(sampling)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return most
		case <-tick.C:
		}
		sum := 0
		for _, p := range offspring.All() {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p.PID))
			_, after, _ := bytes.Cut(text, []byte("\nPss:"))
			if fields := strings.Fields(string(after)); len(fields) > 0 {
				kb, _ := strconv.Atoi(fields[0])
				sum += kb
			}
		}
		most = max(most, sum>>10)
	}
}
