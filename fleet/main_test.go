package fleet_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testwait"
)

// quick has timings for tests that lose workers on purpose. The others use the defaults, so that a busy host loses
// none.
var quick = fleet.Times{Lease: 3 * time.Second}

// The test's own binary is the worker process in the tests that kill one.
func TestMain(m *testing.M) {
	if url := os.Getenv("FLEET_TEST_WORKER"); url != "" {
		os.Exit(workerProcess(url))
	}
	if load := os.Getenv("FLEET_TEST_SUBMIT"); load != "" {
		os.Exit(submitterProcess(load))
	}
	os.Exit(m.Run())
}

func workerProcess(url string) int {
	config := quickly(workerConfig(url, 4))
	config.Replicas, _ = strconv.Atoi(os.Getenv("FLEET_TEST_REPLICAS"))
	var runner fleet.Runner = script{os.Getenv("FLEET_TEST_LOG")}
	if home := os.Getenv("FLEET_TEST_HOME"); home != "" { // real machines, and sessions
		rt, err := unitask.Open(unitask.Options{Home: home})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer rt.Close()
		runner, config.SessionKey = fleet.OnHost(rt, nil), sessionKey
	}
	if tenants := os.Getenv("FLEET_TEST_TENANTS"); tenants != "" { // each with its name as user and password, and sessions
		for name := range strings.SplitSeq(tenants, ",") {
			config.Tenants = append(config.Tenants, fleet.Tenant{Name: name, User: name, Password: name})
		}
		rt, err := unitask.Open(unitask.Options{Home: os.Getenv("FLEET_TEST_EMPTY_HOME")})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer rt.Close()
		runner = fleet.WithSessions(runner, rt)
	}
	fleet.LimitMemory(config.Info.Slots)
	w, err := fleet.NewWorker(context.Background(), config, runner)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(w.Info().ID, os.Getpid())
	_ = w.Run(context.Background())
	w.Close()
	return 0
}

// sessionKey is the key of the tests' workers.
var sessionKey = []byte("0123456789abcdef0123456789abcdef")

func workerConfig(url string, slots int) fleet.WorkerConfig {
	return fleet.WorkerConfig{Config: fleet.Config{URL: url},
		Info: fleet.WorkerInfo{Slots: slots, MemoryMB: 1 << 20, Arch: string(unitask.HostArch())}}
}

func quickly(c fleet.WorkerConfig) fleet.WorkerConfig {
	c.Times = quick
	return c
}

// script is a Runner that replaces machines in tests of the fleet itself: the code is a list of commands. It records
// each start in a file.
type script struct{ log string }

func (s script) MemoryMB(_ string, req unitask.Request) int {
	if req.Env["READER"] == "dies" { // like a task that exhausts all memory when read
		os.Exit(1)
	}
	return max(req.MemoryMB, 512)
}

func (s script) Run(ctx context.Context, job fleet.Job) (done fleet.Done, err error) {
	if s.log != "" {
		if err := note(s.log, job.ID); err != nil {
			return done, err
		}
	}
	res := &unitask.Result{RunID: "on-the-worker", Outcome: unitask.OutcomeExited, Kernel: unitask.Linux}
	var out, errs, left []string
	print := func(to io.Writer, all *[]string, text string) {
		*all = append(*all, text)
		fmt.Fprint(to, text)
	}
	for line := range strings.Lines(job.Request.Code) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "out":
			print(job.Stdout, &out, rest+"\n")
		case "err":
			print(job.Stderr, &errs, rest+"\n")
		case "exit":
			res.ExitCode, _ = strconv.Atoi(rest)
		case "sleep":
			d, _ := time.ParseDuration(rest)
			select {
			case <-time.After(d):
			case <-ctx.Done():
			}
		case "wait": // for the file
			testwait.Holds(time.Hour, func() bool {
				_, err := os.Stat(rest)
				return err == nil || ctx.Err() != nil
			})
		case "stdin":
			text, err := io.ReadAll(job.Stdin)
			if err != nil {
				return done, err
			}
			print(job.Stdout, &out, string(text))
		case "secret":
			print(job.Stdout, &out, fmt.Sprintf("%d bytes\n", len(job.Request.Secrets[rest])))
			if want := os.Getenv("FLEET_TEST_SECRET"); want != "" && job.Request.Secrets[rest] != want {
				res.ExitCode = 9
			}
		case "file":
			text, err := os.ReadFile(filepath.Join(job.Folder, rest))
			if err != nil {
				return done, err
			}
			print(job.Stdout, &out, string(text))
		case "artifact":
			left = append(left, rest)
		}
		if ctx.Err() != nil {
			res.Outcome, res.ExitCode = unitask.OutcomeCancelled, unitask.ExitCancelled
			break
		}
	}
	done.Result = res
	done.Left = func(add func(string, fs.FileMode, int64, io.Reader) error) error {
		put := func(name, text string) error { return add(name, 0o644, int64(len(text)), strings.NewReader(text)) }
		if err := put("stdout", strings.Join(out, "")); err != nil {
			return err
		}
		if err := put("stderr", strings.Join(errs, "")); err != nil {
			return err
		}
		for _, name := range left {
			if err := put("out/"+name, "left in "+name); err != nil {
				return err
			}
		}
		return put("console", "the console\n")
	}
	return done, ctx.Err()
}

func note(name, line string) error {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(line + "\n")
	return err
}

// startNATS starts a server with JetStream for a test.
func startNATS(t testing.TB, change func(*server.Options)) *server.Server {
	t.Helper()
	opts := &server.Options{ServerName: "test", Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(),
		NoSigs: true, NoLog: true, MaxPayload: 1 << 20}
	if change != nil {
		change(opts)
	}
	opts.JetStreamMaxStore = 1 << 40 // independent of this disk's free space
	ns, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	if !ns.ReadyForConnections(time.Minute) {
		t.Fatal("NATS does not start")
	}
	return ns
}

// startWorker starts a worker in this process.
func startWorker(t testing.TB, config fleet.WorkerConfig, runner fleet.Runner) *fleet.Worker {
	t.Helper()
	w, err := fleet.NewWorker(t.Context(), config, runner)
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() { defer close(over); _ = w.Run(context.Background()) }()
	t.Cleanup(func() { w.Drain(); <-over; w.Close() })
	return w
}

// startProcess starts a worker in a separate process; kill ends it without warning.
func startProcess(t testing.TB, url, log string, env ...string) (id string, kill func()) {
	t.Helper()
	id, _, kill = startWorkerProcess(t, url, log, env...)
	return id, kill
}

func startWorkerProcess(t testing.TB, url, log string, env ...string) (id string, pid int, kill func()) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(append(os.Environ(), "FLEET_TEST_WORKER="+url, "FLEET_TEST_LOG="+log), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() { // both a test and its cleanup call this
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	if _, err := fmt.Fscan(out, &id, &pid); err != nil {
		t.Fatal(err)
	}
	return id, pid, kill
}

// submitter returns a runtime whose runs go to a fleet.
func submitter(t testing.TB, config fleet.Config) (*unitask.Runtime, *fleet.Client) {
	t.Helper()
	client, err := fleet.Connect(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t), Fleet: client})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	return rt, client
}

func asJSON(v any) string { text, _ := json.Marshal(v); return string(text) }
