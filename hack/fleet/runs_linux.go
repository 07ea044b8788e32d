package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/policy"
)

// broughtFile is a file that some runs bring.
const broughtFile = "brought"

// paddingBytes is the extra output of some runs: more than fits into a message.
const paddingBytes = 100 << 10

// bare begins the code of a run without a machine.
const bare = "# without a machine\n"

func runID(n int) string { return fmt.Sprintf("run-%06d", n) }

// kind describes a run.
type kind struct {
	machine bool
	once    bool // it has external effects
	large   bool // its output goes through the object store
	brings  bool // it brings a file, which also goes through the object store
}

func kindOf(n, runs, machines int) kind {
	return kind{machine: (n+1)*machines/runs > n*machines/runs, once: n%7 == 6, large: n%10 == 3, brings: n%10 == 5}
}

// request returns a run of that kind. Without a machine the runner does what the code says.
func (k kind) request(n int, dir string) unitask.Request {
	code := "drawn=$(cat /proc/sys/kernel/random/uuid)\n"
	if k.once {
		code += fmt.Sprintf("exec 3<>/dev/tcp/%s/9000; echo %s $drawn >&3; read -r noted <&3\n", gateway, runID(n))
	}
	code += fmt.Sprintf("echo %s $drawn\n", runID(n))
	if k.brings {
		code += "sha256sum < /brought | cut -c 1-64\n"
	}
	if k.large {
		code += fmt.Sprintf("printf %%%dd 0\n", paddingBytes)
	}
	req := unitask.Request{Language: "shell", Kernel: unitask.Linux, MemoryMB: 512, Code: code}
	if !k.machine {
		req.Code = bare + code
	}
	if k.once {
		req.AllowTCP = []string{gateway + ":9000"}
	}
	if k.brings {
		req.Files = []unitask.Mount{{Host: filepath.Join(dir, broughtFile), Guest: "/brought"}}
	}
	return req
}

// work is a worker: a real one for runs with machines, otherwise one without machines.
func work(args []string) error {
	n, err := parse(args[2:])
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	slots, room, machines := n[0], n[1], n[2]
	r := runner{}
	if machines > 0 {
		ceiling, err := policy.ParseCeiling("/worker.toml", []byte("memoryMb = 512\nallowTcp = [\""+gateway+":9000\"]\n"))
		if err != nil {
			return err
		}
		rt, err := unitask.Open(unitask.Options{Home: args[1], Ceiling: ceiling})
		if err != nil {
			return err
		}
		defer rt.Close()
		r.Runner = fleet.OnHost(rt, ceiling)
	}
	w, err := fleet.NewWorker(ctx, fleet.WorkerConfig{
		Config: fleet.Config{URL: args[0], Plain: true}, Replicas: 3, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Info: fleet.WorkerInfo{Slots: slots, MemoryMB: room*512 + slots, Arch: string(unitask.HostArch())},
	}, r)
	if err != nil {
		return err
	}
	defer w.Close()
	return w.Run(ctx)
}

// runner does without a machine what the code of such a run says.
type runner struct{ fleet.Runner }

func (r runner) MemoryMB(tenant string, req unitask.Request) int {
	if strings.HasPrefix(req.Code, bare) {
		return 1
	}
	return r.Runner.MemoryMB(tenant, req)
}

func (r runner) Run(ctx context.Context, job fleet.Job) (done fleet.Done, err error) {
	if !strings.HasPrefix(job.Request.Code, bare) {
		return r.Runner.Run(ctx, job)
	}
	line := job.ID + " " + rand.Text()
	if err := mark(ctx, line); err != nil {
		return done, err
	}
	select {
	case <-ctx.Done():
		return done, context.Cause(ctx)
	case <-time.After(time.Duration(mathrand.IntN(200)) * time.Millisecond):
	}
	out := line + "\n"
	if strings.Contains(job.Request.Code, "/brought") {
		text, err := os.ReadFile(filepath.Join(job.Folder, "brought"))
		if err != nil {
			return done, err
		}
		out += hexSum(text) + "\n"
	}
	if strings.Contains(job.Request.Code, "printf") {
		out += strings.Repeat(" ", paddingBytes-1) + "0"
	}
	if _, err := io.WriteString(job.Stdout, out); err != nil {
		return done, err
	}
	done.Result = &unitask.Result{RunID: job.ID, Outcome: unitask.OutcomeExited, Kernel: unitask.Linux}
	done.Left = func(add func(string, fs.FileMode, int64, io.Reader) error) error {
		return add("stdout", 0o600, int64(len(out)), strings.NewReader(out))
	}
	return done, nil
}

// mark reports a number to the counting process, and waits for its confirmation.
func mark(ctx context.Context, line string) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", gateway+":9000")
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := fmt.Fprintln(c, line); err != nil {
		return err
	}
	_, err = bufio.NewReader(c).ReadString('\n')
	return err
}

func hexSum(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// ending is the result of a run that a submitter received.
type ending struct {
	ID, Outcome, Error string
	Line               string // its first line of output
	Rest               string // the digest of the rest
	Retried            bool
	Took               time.Duration
}

// submit submits all runs in its own order, and reports how each has ended.
func submit(args []string) error {
	n, err := parse(args[3:])
	if err != nil {
		return err
	}
	runs, machines, atOnce := n[0], n[1], n[2]
	order, next := mathrand.Perm(runs), make(chan int)
	var mu sync.Mutex
	var all sync.WaitGroup
	fails := make(chan error, atOnce)
	for range atOnce {
		all.Go(func() {
			fails <- submitter(args[0], args[1], next, func(n int) unitask.Request {
				return kindOf(n, runs, machines).request(n,
					args[2])
			}, func(e ending) {
				text, _ := json.Marshal(e)
				mu.Lock()
				defer mu.Unlock()
				fmt.Println(string(text))
			})
		})
	}
	for _, n := range order {
		select {
		case next <- n:
		case err := <-fails:
			return fmt.Errorf("%s: %w", args[1], err)
		}
	}
	close(next)
	all.Wait()
	return nil
}

func submitter(urls, home string, next <-chan int, request func(int) unitask.Request, say func(ending)) error {
	client, err := fleet.Connect(fleet.Config{URL: urls, Plain: true})
	if err != nil {
		return err
	}
	defer client.Close()
	rt, err := unitask.Open(unitask.Options{Home: home, Fleet: client, StoreBytes: -1})
	if err != nil {
		return err
	}
	defer rt.Close()
	for n := range next {
		client.RunID = runID(n)
		began := time.Now()
		for {
			res, err := rt.Run(context.Background(), request(n), unitask.IO{})
			var busy *unitask.BusyError
			if errors.As(err, &busy) {
				time.Sleep(busy.After)
				continue
			}
			e := ending{ID: runID(n), Took: time.Since(began)}
			if res != nil {
				line, rest, _ := strings.Cut(string(res.Stdout), "\n")
				e.Line, e.Rest, e.Outcome, e.Retried = line, hexSum([]byte(rest)), string(res.Outcome), res.Retried != ""
			}
			if err != nil {
				e.Error = err.Error()
			}
			say(e)
			break
		}
	}
	return nil
}

func numbers(list ...int) (text []string) {
	for _, n := range list {
		text = append(text, strconv.Itoa(n))
	}
	return text
}

func parse(text []string) (list []int, err error) {
	for _, one := range text {
		n, err := strconv.Atoi(one)
		if err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	return list, nil
}
