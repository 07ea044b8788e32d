// Command bench compares the ways of starting a run with references that run in the same loop, and prints the ratios of
// the medians. One reference is the same image booted by a bare QEMU command line, without record, network, agent or
// jail. The other is the vendored node as a process of the host.
//
//	go build -o bin/unitask ./cli/unitask
//	go run ./hack/bench [-suite programs|languages|sessions|sandboxes|images] [-kernel nanos,linux] [-n 20] [-check]
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/vmm"
)

func main() {
	rounds := flag.Int("n", 20, "rounds")
	check := flag.Bool("check", false, "fail where a ratio is more than its target")
	program := flag.String("unitask", "bin/unitask", "the binary")
	kernels := flag.String("kernel", "", "linux, nanos, or both with a comma (default those that are vendored)")
	only := flag.String("only", "", "only rows whose name holds this")
	which := flag.String("suite", "starts", "starts, ways of starting a run; programs, what runs take that do more than "+
		"hello; languages, what others take than Node; sessions, machines that stay; sandboxes, sessions by E2B's API; "+
		"or images, their sizes and how long they take")
	flag.Parse()
	if !slices.Contains([]string{"starts", "programs", "languages", "sessions", "sandboxes", "images"}, *which) {
		fmt.Fprintf(os.Stderr, "bench: -suite is not %q, but what -help lists\n", *which)
		os.Exit(2)
	}
	ok, err := bench(context.Background(), *program, *kernels, *only, *which, *rounds)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	if *check && !ok {
		fmt.Fprintln(os.Stderr, "bench: a target was missed")
		os.Exit(1)
	}
}

// row is one line of the table: a way to start, and its reference.
type row struct {
	name      string
	target    float64
	subject   func() error
	reference func() error
	against   string
	setup     func() error // once
	// subjectTook and referenceTook replace subject and reference, and return the time themselves.
	subjectTook, referenceTook func() (time.Duration, error)
	before                     func() error // each round, not timed
	after                      func() bool  // once; takes other measurements
	rounds                     int
}

// defaultMemory is a machine's memory, in MiB.
const defaultMemory = 512

// hello is the code that every subject and reference runs, and its output.
const hello = `console.log("hello from", process.platform, process.arch)`

type suite struct {
	ctx     context.Context
	program string
	dir     string
	home    string
	rt      *unitask.Runtime
	node    string
	script  string
}

func bench(ctx context.Context, program, kernels, only, which string, rounds int) (ok bool, err error) {
	dir, err := os.MkdirTemp("", "unitask-bench-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	rt, err := unitask.Open(unitask.Options{Accel: vmm.TCG})
	if err != nil {
		return false, err
	}
	defer rt.Close()
	if kernels == "" {
		kernels = "linux"
		if which != "languages" && which != "images" && rt.Images().Best(image.HostArch()) == image.Nanos {
			kernels = "nanos,linux"
		}
	}
	s := &suite{ctx: ctx, program: program, dir: dir, home: rt.Images().Home(), rt: rt,
		script: filepath.Join(dir, "hello.js")}
	s.node = filepath.Join(s.home, "vendor", string(image.HostArch()), "node", "node")
	if err := os.WriteFile(s.script, []byte(hello), 0o600); err != nil {
		return false, err
	}
	ok = true
	measure := s.kernel
	switch which {
	case "programs":
		measure = s.programs
	case "languages":
		measure = s.languages
	case "sessions":
		measure = s.sessions
	case "sandboxes":
		measure = s.sandboxes
	case "images":
		measure = s.images
	}
	if which != "programs" {
		fmt.Println(
			"| path | reference | p50 | p95 | reference p50 | ratio | target |\n| --- | --- | --- | --- | --- | --- | --- |")
	}
	for _, k := range strings.Split(kernels, ",") {
		good, err := measure(image.Kernel(k), only, rounds)
		if err != nil {
			return false, err
		}
		ok = ok && good
	}
	return ok, nil
}

// kernel measures every row of one kernel.
func (s *suite) kernel(kernel image.Kernel, only string, rounds int) (ok bool, err error) {
	im, err := s.rt.Images().Ensure(s.ctx, kernel, image.HostArch())
	if err != nil {
		return false, err
	}
	qemu, err := vmm.FindQEMU(s.ctx, vmm.Arch(im.Arch), nil)
	if err != nil {
		return false, err
	}
	direct, whole, wholeName, cloneTarget := linuxCommand(qemu.Path, im), []string(nil), "the image booted by bare QEMU",
		0.10
	whole = direct
	if kernel == image.Nanos {
		disk := filepath.Join(s.dir, "disk")
		if err := nanosDisk(im, disk); err != nil {
			return false, err
		}
		direct = machine(qemu.Path, "ioapic2=off", disk, im.Path(image.KernelFile))
		whole, wholeName, cloneTarget = biosCommand(qemu.Path, disk), "the image booted from disk by BIOS, bare QEMU", 0.15
	}
	class := unitask.MachineClass{Kernel: kernel}
	if _, err := s.rt.MakeTemplate(s.ctx, class); err != nil {
		return false, err
	}
	run := []string{s.program, "run", "--kernel", string(kernel), "--accel", "tcg", "--code-file", s.script}
	pool := "4:4"
	pooled, err := unitask.Open(unitask.Options{Accel: vmm.TCG,
		Machines: unitask.Pool(unitask.PoolSize{Min: 4, Max: 4}, class)})
	if err != nil {
		return false, err
	}
	defer pooled.Close()
	client, leave, err := s.serve(pooled, kernel)
	if err != nil {
		return false, err
	}
	defer leave()
	command := func(argv []string) func() error { return func() error { return s.command(argv) } }
	node := command([]string{s.node, s.script})
	rows := []row{
		{name: "run --cold", target: 1.15, subject: command(append(slices.Clone(run), "--cold")),
			reference: command(direct), against: "the image booted by bare QEMU"},
		{name: "run, a clone", target: cloneTarget, subject: command(run), reference: command(whole), against: wholeName},
		{name: "20 runs by 4 callers, clones", target: 0.30, subject: func() error { return s.many(kernel, false) },
			reference: func() error { return s.many(kernel, true) }, against: "the same, cold", rounds: 2},
		{name: "MCP run_code, pool", target: 1.0, subject: func() error { return s.call(client) }, reference: node,
			against: "node on the host",
			before:  func() error { return full(pooled.Pool, 4) }},
		{name: "run, pool daemon", target: 2.0, subject: command(run), reference: node, against: "node on the host",
			setup:  func() error { leave(); pooled.Close(); return s.up(kernel, pool) },
			before: func() error { return full(s.daemon, 4) }, after: func() bool { return s.down(kernel) }},
	}
	for name, code := range map[string]string{"python": "print('hello from python')", "shell": "echo hello from shell"} {
		if kernel != image.Linux && name == "shell" { // it starts processes
			continue
		}
		if _, err := s.rt.MakeTemplate(s.ctx, unitask.MachineClass{Image: name, Kernel: kernel}); err != nil {
			return false, err
		}
		argv := []string{s.program, "run", "--kernel", string(kernel), "--accel", "tcg", "--lang", name, "--code", code}
		rows = append(rows, row{name: "run " + name + ", a clone", target: 1.0, subject: command(argv),
			reference: command(run), against: "run, a clone (Node)"})
	}
	return s.rows(kernel, rows, only, rounds)
}

// rows measures the rows whose name contains a text.
func (s *suite) rows(kernel image.Kernel, rows []row, only string, rounds int) (ok bool, err error) {
	ok = true
	for _, r := range rows {
		if !strings.Contains(r.name, only) {
			continue
		}
		if r.setup != nil {
			if err := r.setup(); err != nil {
				return false, err
			}
		}
		if r.rounds == 0 {
			r.rounds = rounds
		}
		good, err := s.row(kernel, r)
		if r.after != nil {
			good = r.after() && good
		}
		if err != nil {
			return false, fmt.Errorf("%s, %s: %w", kernel, r.name, err)
		}
		ok = ok && good
	}
	return ok, nil
}

// row measures subject and reference in turns.
func (s *suite) row(kernel image.Kernel, r row) (bool, error) {
	if r.subjectTook == nil {
		r.subjectTook = func() (time.Duration, error) { return timed(r.subject) }
	}
	if r.referenceTook == nil {
		r.referenceTook = func() (time.Duration, error) { return timed(r.reference) }
	}
	var subjects, references []time.Duration
	for i := range r.rounds + 1 {
		if r.before != nil {
			if err := r.before(); err != nil {
				return false, err
			}
		}
		a, err := r.subjectTook()
		if err != nil {
			return false, err
		}
		if r.before != nil { // the machine must not refill its pool now
			if err := r.before(); err != nil {
				return false, err
			}
		}
		b, err := r.referenceTook()
		if err != nil {
			return false, err
		}
		if i > 0 { // the page cache is now warm
			subjects, references = append(subjects, a), append(references, b)
		}
	}
	ratio := float64(quantile(subjects, 50)) / float64(quantile(references, 50))
	fmt.Printf("| %s: %s | %s | %s | %s | %s | %.2f | %.2f |\n", kernel, r.name, r.against, ms(quantile(subjects, 50)),
		ms(quantile(subjects, 95)),
		ms(quantile(references, 50)), ratio, r.target)
	return ratio <= r.target, nil
}

func ms(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

// up starts the pool daemon of the home.
func (s *suite) up(kernel image.Kernel, size string) error {
	out, err := exec.CommandContext(s.ctx, s.program, "pool", "up", "--kernel", string(kernel), "--size",
		size).CombinedOutput()
	if err != nil {
		return fmt.Errorf("pool up: %w: %s", err, out)
	}
	return nil
}

func (s *suite) daemon() unitask.PoolStats {
	st, err := unitask.PoolDaemonStatus(s.home)
	if err != nil {
		return unitask.PoolStats{}
	}
	return st.PoolStats
}

// full waits until a pool has its number of clones.
func full(stats func() unitask.PoolStats, size int) error {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(250 * time.Millisecond) {
		if st := stats(); st.Idle == size && st.Spare == 1 && st.Making == 0 {
			return nil
		}
	}
	return fmt.Errorf("the pool does not fill: %+v", stats())
}

// down measures the daemon's memory and ends it.
func (s *suite) down(kernel image.Kernel) bool {
	ok := s.memory(kernel)
	_ = exec.Command(s.program, "pool", "down").Run()
	return ok
}

// memory measures the proportional memory of the daemon's idle clones.
func (s *suite) memory(kernel image.Kernel) bool {
	if err := full(s.daemon, 4); err != nil {
		fmt.Println(err)
		return false
	}
	st := s.daemon()
	each := float64(st.MemoryMB) / float64(st.Idle)
	ratio := each / defaultMemory
	fmt.Printf(
		"| %s: proportional memory of an idle clone, %d of them | its --memory | %.0f MiB | | %d MiB | %.2f | 0.20 |\n",
		kernel, st.Idle, each, defaultMemory, ratio)
	return ratio <= 0.20
}

// serve serves MCP over a pair of pipes, as over stdin and stdout, and connects a client.
func (s *suite) serve(rt *unitask.Runtime, kernel image.Kernel) (client *sdk.ClientSession, leave func(), err error) {
	name := string(kernel)
	ceiling, err := policy.ParseCeiling("bench.toml", fmt.Appendf(nil, "kernel = %q", name))
	if err != nil {
		return nil, nil, err
	}
	server, err := mcp.New(rt, mcp.Options{Dir: s.dir, Ceiling: ceiling})
	if err != nil {
		return nil, nil, err
	}
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	go func() { _ = server.ServeStdio(s.ctx, in, out) }()
	client, err = sdk.NewClient(&sdk.Implementation{Name: "bench", Version: "1"}, nil).Connect(s.ctx,
		&sdk.IOTransport{Reader: fromServer, Writer: toServer}, nil)
	return client, sync.OnceFunc(func() { client.Close(); server.Close() }), err
}

func (s *suite) call(client *sdk.ClientSession) error {
	res, err := client.CallTool(s.ctx, &sdk.CallToolParams{Name: "run_code",
		Arguments: map[string]any{"language": "js", "code": hello}})
	if err != nil {
		return err
	}
	got, _ := res.StructuredContent.(map[string]any)
	if got["pooled"] != true {
		return fmt.Errorf("not from the pool: %+v", got)
	}
	return said(fmt.Sprint(got["stdout"]))
}

// many does 20 runs for each of 4 callers.
func (s *suite) many(kernel image.Kernel, cold bool) error {
	next, failed := make(chan int), make(chan error, 20)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range next {
				res, err := s.rt.Run(s.ctx, unitask.Request{Kernel: kernel, Code: hello, Cold: cold}, unitask.IO{})
				if err == nil {
					err = said(string(res.Stdout))
				}
				if err == nil && res.Cloned == cold {
					err = fmt.Errorf("cloned: %v", res.Cloned)
				}
				failed <- err
			}
		})
	}
	for i := range 20 {
		next <- i
	}
	close(next)
	group.Wait()
	for range 20 {
		if err := <-failed; err != nil {
			return err
		}
	}
	return nil
}

func (s *suite) command(argv []string) error {
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	if said(string(out)) != nil {
		return fmt.Errorf("%s: %w: %s", argv[0], err, out)
	}
	return nil
}

func said(out string) error {
	if !strings.Contains(out, "hello from") && !strings.Contains(out, "rehearsal") {
		return fmt.Errorf("it said %q", out)
	}
	return nil
}

func timed(f func() error) (time.Duration, error) {
	start := time.Now()
	err := f()
	return time.Since(start), err
}

func quantile(d []time.Duration, percent int) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[min(len(s)*percent/100, len(s)-1)]
}

// machine returns the part of the command line that both kernels share.
func machine(qemu, options, disk, kernel string) []string {
	return []string{qemu, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-accel", "tcg,tb-size=128",
		"-cpu", "max", "-m", "512",
		"-M", "microvm,rtc=on,isa-serial=on," + options, "-global", "virtio-mmio.force-legacy=false",
		"-device", fmt.Sprintf("isa-debug-exit,iobase=%#x,iosize=4", contract.DebugExitPort), "-kernel", kernel,
		"-drive", "id=d,format=raw,readonly=on,if=none,file=" + disk, "-device", "virtio-blk-device,drive=d",
		"-netdev", "user,id=n,restrict=on", "-device", "virtio-net-device,netdev=n", "-serial", "stdio"}
}

// linuxCommand boots the image to the end of one script, with nothing else.
func linuxCommand(qemu string, im *image.Image) []string {
	args := []string{"console=ttyS0", "no_timer_check", "quiet", "reboot=t", "panic=-1", "cryptomgr.notests",
		"ipv6.disable_ipv6=1", "lsm=landlock", "audit=0", "init_on_alloc=0", "cgroup_disable=memory,pressure",
		"tsc_early_khz=" + strconv.Itoa(vmm.HostTSCKHz()), contract.BootDirect + contract.Rehearsal}
	return append(machine(qemu, "acpi=on,pit=off,pic=off", im.Path(image.DiskFile), im.Path(image.KernelFile)),
		"-initrd", im.Path(image.InitrdFile), "-append", strings.Join(args, " "))
}

// biosCommand boots a disk as any PC does.
func biosCommand(qemu, disk string) []string {
	return []string{qemu, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-accel", "tcg,tb-size=128",
		"-cpu", "max", "-m", "512", "-M", "q35",
		"-device", fmt.Sprintf("isa-debug-exit,iobase=%#x,iosize=4", contract.DebugExitPort), "-drive",
		"id=d,format=raw,if=none,snapshot=on,file=" + disk, "-device", "virtio-blk-pci,drive=d,bootindex=1",
		"-netdev", "user,id=n,restrict=on", "-device", "virtio-net-pci,netdev=n", "-serial", "stdio"}
}
