package embedded

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	layout "github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/testwait"
)

// quick is how soon the tests' workers notice a lost one.
var quick = fleet.Times{Lease: 3 * time.Second}

// member is a host of the tests: a process with an embedded server and a worker.
type member struct {
	Home    string
	Cluster Cluster
	Log     string // each started run adds a line

	cmd *exec.Cmd
	mu  sync.Mutex
	err strings.Builder // its log
}

// The test's own binary acts as a host of the tests.
func TestMain(m *testing.M) {
	if text := os.Getenv("EMBEDDED_TEST_MEMBER"); text != "" {
		if err := memberProcess(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func memberProcess(text string) error {
	var m member
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return err
	}
	ctx, log := context.Background(), slog.New(slog.NewTextHandler(os.Stderr, nil))
	server, err := Start(ctx, m.Home, Options{Cluster: &m.Cluster, Log: log})
	if err != nil {
		return err
	}
	defer server.Close()
	config := fleet.WorkerConfig{Config: server.Config(), ReplicasNow: server.Replicas, Log: log,
		Info: fleet.WorkerInfo{Slots: 4, MemoryMB: 1 << 20, Arch: string(unitask.HostArch()), Embedded: true}}
	config.Times = quick
	w, err := fleet.NewWorker(ctx, config, runner{m.Log})
	if err != nil {
		return err
	}
	defer w.Close()
	if err := server.Announce(); err != nil {
		return err
	}
	go func() { // until the test closes it
		_, _ = io.Copy(io.Discard, os.Stdin)
		w.Drain()
	}()
	return w.Run(ctx)
}

// runner replaces machines: the code is the run's duration.
type runner struct{ log string }

func (runner) MemoryMB(string, unitask.Request) int { return 512 }

func (r runner) Run(ctx context.Context, job fleet.Job) (done fleet.Done, err error) {
	f, err := os.OpenFile(r.log, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return done, err
	}
	fmt.Fprintln(f, job.ID)
	f.Close()
	lasts, err := time.ParseDuration(job.Request.Code)
	if err != nil {
		return done, err
	}
	select {
	case <-time.After(lasts):
	case <-ctx.Done():
		return done, ctx.Err()
	}
	done.Result = &unitask.Result{RunID: "at-the-worker", Outcome: unitask.OutcomeExited, Kernel: unitask.Linux}
	done.Left = func(add func(string, fs.FileMode, int64, io.Reader) error) error {
		return add("stdout", 0o600, 5, strings.NewReader("done\n"))
	}
	return done, nil
}

// start starts the process.
func (m *member) start(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	about, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	m.cmd = exec.Command(self)
	m.cmd.Env = append(os.Environ(), "EMBEDDED_TEST_MEMBER="+string(about))
	m.cmd.Stderr = m
	if _, err := m.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(filepath.Join(layout.Dir(m.Home).Fleet(), file)) // of a killed process
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.kill)
}

// Write receives its log.
func (m *member) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err.Write(p)
}

func (m *member) said() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err.String()
}

// kill ends it without warning.
func (m *member) kill() {
	if m.cmd.ProcessState == nil {
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait()
	}
}

// config returns a client's configuration on that host, once the worker is ready.
func (m *member) config(t *testing.T) (c fleet.Config) {
	t.Helper()
	waitFor(t, "a worker in "+m.Home, func() (err error) {
		if c, err = Find(m.Home, fleet.Config{URL: Name, Times: quick}); err != nil {
			return fmt.Errorf("%w: %s", err, m.said())
		}
		return nil
	})
	return c
}

// waitFor waits until a condition holds.
func waitFor(t *testing.T, what string, holds func() error) {
	t.Helper()
	var err error
	if !testwait.Holds(2*time.Minute, func() bool { err = holds(); return err == nil }) {
		t.Fatalf("%s: %v", what, err)
	}
}
