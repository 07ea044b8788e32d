// Command soak runs code again and again while what takes part in a run is killed at
// random, the disk is full, or memory and descriptors are short. It then judges what is
// left: processes, descriptors, files, records.
//
//	go run ./hack/soak [-n 10000] [-for 8h] [-seed N] [-home DIR]
//
// It prints a table of what was done and seen, and fails if something was left wrong. The
// seed gives the order and the kinds of what is done; when exactly something is killed
// depends on the host.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	patience   = 2 * time.Minute         // for a run: what takes longer hangs
	settling   = 40 * time.Second        // for processes to go: making a template goes on behind a run
	between    = 50                      // runs from one look at everything to the next
	killWithin = 1500 * time.Millisecond // a run's start and its code lie in this
	runsSize   = 256 << 20               // bytes of the disk for records
	moreFiles  = 24                      // descriptors that the daemon may have beyond those it had: machines in the making
)

// soak is one session.
type soak struct {
	unitask, home string
	random        *rand.Rand
	full          bool // the disk for records is one of its own, so it can be filled
	tally         map[string]*tally
	faults        []string
	daemonFiles   int // of the pool's daemon when it was looked at first
	started       time.Time
}

// tally is what came of one kind.
type tally struct {
	ends  map[string]int
	times []time.Duration
}

// kind is something to be done to a run.
type kind struct {
	name   string
	weight int
	do     func(s *soak) (end string, err error)
}

var kinds = []kind{
	{"nothing", 40, func(s *soak) (string, error) { return s.expect(0, nil) }},
	{"boots", 3, func(s *soak) (string, error) { return s.expect(0, []string{"--cold"}) }},
	{"its own end", 5, func(s *soak) (string, error) { return s.run("process.exit(7)", nil, nil, 7) }},
	{"much output", 3, func(s *soak) (string, error) {
		return s.run("for (let i = 0; i < 400; i++) process.stdout.write('x'.repeat(65536))", nil, nil, 0)
	}},
	{"artifacts", 5, (*soak).artifacts},
	{"more memory than there is", 2, func(s *soak) (string, error) {
		return s.run("const a = []; for (;;) a.push(Buffer.alloc(8 << 20, 1))", nil, nil, 137)
	}},
	{"the time limit", 3, func(s *soak) (string, error) {
		return s.run("for (;;);", []string{"--timeout", "1s"}, nil, 124)
	}},
	{"unitask is killed", 10, func(s *soak) (string, error) {
		return s.run(long, nil, func(c *exec.Cmd) { _ = c.Process.Kill() }, -1)
	}},
	{"unitask is interrupted", 6, func(s *soak) (string, error) {
		return s.run(long, nil, func(c *exec.Cmd) { _ = c.Process.Signal(os.Interrupt) }, 130)
	}},
	{"QEMU is killed", 10, func(s *soak) (string, error) {
		return s.run(long, nil, func(*exec.Cmd) { s.killOne("qemu-system") }, 0, 125)
	}},
	{"the pool's daemon is killed", 4, func(s *soak) (string, error) {
		return s.run("setTimeout(() => {}, 500)", nil, func(*exec.Cmd) { s.killDaemon() }, 0, 125)
	}},
	{"a full disk", 5, (*soak).fullDisk},
	{"little address space", 2, func(s *soak) (string, error) { return s.short("--as=2147483648", 0, 125) }},
	{"few descriptors", 2, func(s *soak) (string, error) { return s.short("--nofile=24", 0, 125) }},
}

// long is code that is still there when something happens to it.
const long = "setTimeout(() => {}, 3000)"

func main() {
	n := flag.Int("n", 10_000, "runs")
	most := flag.Duration("for", 0, "stop after so long; 0 for never")
	seed := flag.Uint64("seed", 0, "of the order; 0 for a random one")
	home := flag.String("home", os.Getenv("UNITASK_HOME"), "home whose parts and images are used (copied)")
	program := flag.String("unitask", "bin/unitask", "the program")
	flag.Parse()
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	fmt.Printf("seed %d\n", *seed)
	s := &soak{random: rand.New(rand.NewPCG(*seed, 0)), tally: map[string]*tally{}, started: time.Now()}
	err := s.open(*program, *home)
	if err == nil {
		err = s.all(*n, *most)
	}
	s.print()
	if e := s.close(); err == nil {
		err = e
	}
	if err == nil && len(s.faults) > 0 {
		err = fmt.Errorf("%d faults", len(s.faults))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

// open makes a home of its own, and a disk for its records if it may.
func (s *soak) open(program, from string) (err error) {
	// Whoever is left behind becomes a child of ours, and is found.
	if err = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	if s.unitask, err = filepath.Abs(program); err != nil {
		return err
	}
	if from == "" {
		dir, err := os.UserHomeDir()
		if err != nil {
			return err
		}
		from = filepath.Join(dir, ".unitask")
	}
	if s.home, err = os.MkdirTemp("", "soak-"); err != nil {
		return err
	}
	for _, part := range []string{"vendor", "images", "cache"} {
		if out, err := exec.Command("cp", "-a", filepath.Join(from, part), s.home).CombinedOutput(); err != nil {
			return fmt.Errorf("copy %s: %w: %s", part, err, out)
		}
	}
	runs := filepath.Join(s.home, "runs")
	if err = os.Mkdir(runs, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", runs, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("size=%d,mode=0700", runsSize)); err == nil {
		s.full = true
	} else {
		fmt.Printf("no full disk: mount a tmpfs: %v\n", err)
	}
	_, err = s.run("1", nil, nil, 0) // the image and the template
	return err
}

func (s *soak) close() error {
	if s.home == "" {
		return nil
	}
	if s.full {
		if err := unix.Unmount(filepath.Join(s.home, "runs"), unix.MNT_DETACH); err != nil {
			return err
		}
	}
	return os.RemoveAll(s.home)
}

// all does n runs, and looks at everything now and then.
func (s *soak) all(n int, most time.Duration) error {
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	for i := range n {
		if most > 0 && time.Since(s.started) > most {
			break
		}
		if i%between == 0 && i > 0 {
			if err := s.look(fmt.Sprintf("after %d runs", i)); err != nil {
				return err
			}
		}
		if i%between == 0 {
			s.poolUp()
		}
		at := s.random.IntN(total)
		k := kinds[slices.IndexFunc(kinds, func(k kind) bool { at -= k.weight; return at < 0 })]
		if k.name == "a full disk" && !s.full {
			continue
		}
		start := time.Now()
		end, err := k.do(s)
		t := s.tally[k.name]
		if t == nil {
			t = &tally{ends: map[string]int{}}
			s.tally[k.name] = t
		}
		t.ends[end]++
		t.times = append(t.times, time.Since(start))
		if err != nil {
			s.fault("run %d, %s: %v", i, k.name, err)
		}
	}
	if err := s.look("at the end"); err != nil {
		return err
	}
	return s.empty()
}

func (s *soak) fault(format string, args ...any) {
	s.faults = append(s.faults, fmt.Sprintf(format, args...))
	fmt.Println("FAULT:", s.faults[len(s.faults)-1])
}

// command is unitask with arguments, under another program where one is given.
func (s *soak) command(ctx context.Context, under []string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	line := append(append(slices.Clone(under), s.unitask), args...)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = append(os.Environ(), "UNITASK_HOME="+s.home)
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stderr = &out
	return cmd, &out
}

// run runs code, does something to it meanwhile, and says how it ended: one of these
// codes is expected, -1 for any.
func (s *soak) run(code string, flags []string, meanwhile func(*exec.Cmd), codes ...int) (string, error) {
	end, _, err := s.runUnder(nil, code, flags, meanwhile, codes...)
	return end, err
}

func (s *soak) runUnder(under []string, code string, flags []string, meanwhile func(*exec.Cmd), codes ...int) (end, stdout string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd, stderr := s.command(ctx, under, append([]string{"run", "--kernel", "linux", "--code", code}, flags...)...)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		return "not started", "", err
	}
	var timer *time.Timer
	if meanwhile != nil {
		timer = time.AfterFunc(time.Duration(s.random.Int64N(int64(killWithin))), func() { meanwhile(cmd) })
		defer timer.Stop()
	}
	_ = cmd.Wait()
	got := cmd.ProcessState.ExitCode()
	end = "exit " + strconv.Itoa(got)
	if ctx.Err() != nil {
		return "hangs", "", errors.New("it hangs")
	}
	if got < 0 {
		end = "killed"
	}
	if !slices.Contains(codes, got) && !slices.Contains(codes, -1) {
		err = fmt.Errorf("%s, expected %v: %.300s", end, codes, stderr)
	}
	return end, out.String(), err
}

// expect runs code that prints something that only it knows.
func (s *soak) expect(code int, flags []string) (string, error) {
	word := strconv.FormatUint(s.random.Uint64(), 36)
	end, out, err := s.runUnder(nil, "console.log('"+word+"')", flags, nil, code)
	if err == nil && out != word+"\n" {
		err = fmt.Errorf("it printed %.80q, expected %s", out, word)
	}
	return end, err
}

func (s *soak) artifacts() (string, error) {
	dir, err := os.MkdirTemp("", "soak-out-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	end, err := s.run("for (let i = 0; i < 20; i++) require('fs').writeFileSync('/out/f' + i, 'y'.repeat(i * 1000))", []string{"--out", dir}, nil, 0)
	if err != nil {
		return end, err
	}
	for i := range 20 {
		if st, err := os.Stat(filepath.Join(dir, "f"+strconv.Itoa(i))); err != nil || st.Size() != int64(i*1000) {
			return end, fmt.Errorf("artifact %d: %v", i, err)
		}
	}
	return end, nil
}

// short runs with less of something; then again with enough.
func (s *soak) short(limit string, codes ...int) (string, error) {
	end, _, err := s.runUnder([]string{"prlimit", limit}, "1", []string{"--cold"}, nil, codes...)
	if err != nil {
		return end, err
	}
	_, err = s.expect(0, nil)
	return end, err
}

// fullDisk runs while there is no room for the record, or not for all of it; then again
// with room.
func (s *soak) fullDisk() (string, error) {
	filler := filepath.Join(s.home, "runs", ".filler")
	f, err := os.Create(filler)
	if err != nil {
		return "", err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return "", err
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, max(1, int64(fs.Bfree)*fs.Bsize-s.random.Int64N(64<<10))); err != nil {
		return "", err
	}
	f.Close()
	end, err := s.run("for (let i = 0; i < 40; i++) console.log('z'.repeat(4000))", nil, nil, 0, 125)
	if e := os.Remove(filler); err == nil {
		err = e
	}
	if err == nil {
		_, err = s.expect(0, nil)
	}
	return end, err
}

// process is one of those that came from us.
type process struct {
	pid  int
	name string
}

// descendants are all processes that came from us.
func descendants() (list []process) {
	parents, names := map[int]int{}, map[int]string{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
		if err != nil || open < 0 || end < open {
			continue
		}
		fields := strings.Fields(string(text[end+1:]))
		if fields[0] == "Z" {
			continue
		}
		parents[pid], _ = strconv.Atoi(fields[1])
		names[pid] = string(text[open+1 : end])
	}
	for pid := range parents {
		for at := parents[pid]; at > 1; at = parents[at] {
			if at == os.Getpid() {
				list = append(list, process{pid, names[pid]})
				break
			}
		}
	}
	slices.SortFunc(list, func(a, b process) int { return a.pid - b.pid })
	return list
}

// killOne kills one of our descendants by its name, at random.
func (s *soak) killOne(name string) {
	list := slices.DeleteFunc(descendants(), func(p process) bool { return !strings.HasPrefix(p.name, name) })
	if len(list) > 0 {
		_ = syscall.Kill(list[rand.IntN(len(list))].pid, syscall.SIGKILL)
	}
}

// daemon is the pool's daemon, 0 where there is none.
func daemon() int {
	for _, p := range descendants() {
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid)); err == nil && bytes.Contains(text, []byte("pool\x00serve")) {
			return p.pid
		}
	}
	return 0
}

func (s *soak) killDaemon() {
	if pid := daemon(); pid != 0 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// unitaskDo runs another command of unitask.
func (s *soak) unitaskDo(args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd, stderr := s.command(ctx, nil, args...)
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("unitask %s: %w: %.300s", strings.Join(args, " "), err, stderr)
	}
	return out, err
}

func (s *soak) poolUp() {
	if _, err := s.unitaskDo("pool", "up", "--kernel", "linux", "--size", "1:2"); err != nil {
		s.fault("%v", err)
	}
}

// reap takes in children of ours that have ended: those of others, who left them to us.
// No run is under way.
func reap() {
	for {
		if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
			return
		}
	}
}

// look judges what is there while no run is under way.
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
	left := descendants()
	for late := time.Now().Add(settling); len(left) > 0 && time.Now().Before(late); left = descendants() {
		time.Sleep(100 * time.Millisecond) // other processes' ends
		reap()
	}
	for _, p := range left {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
		s.fault("%s: process %d is left: %s %.200q", when, p.pid, p.name, line)
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
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
		if r.Status == "running" {
			s.fault("%s: record %s is still running", when, r.ID)
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
	return nil
}

// empty removes the records, and judges what files are left.
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

// print prints the table.
func (s *soak) print() {
	fmt.Println("\n| what happens to the run | runs | ends | p50 | most |\n| --- | --- | --- | --- | --- |")
	sum := 0
	for _, k := range kinds {
		t := s.tally[k.name]
		if t == nil {
			continue
		}
		slices.Sort(t.times)
		var ends []string
		for _, end := range slices.Sorted(maps.Keys(t.ends)) {
			ends = append(ends, fmt.Sprintf("%s: %d", end, t.ends[end]))
		}
		sum += len(t.times)
		fmt.Printf("| %s | %d | %s | %d ms | %d ms |\n", k.name, len(t.times), strings.Join(ends, ", "), t.times[len(t.times)/2].Milliseconds(), t.times[len(t.times)-1].Milliseconds())
	}
	fmt.Printf("\n%d runs in %d s, %d faults\n", sum, int(time.Since(s.started).Seconds()), len(s.faults))
	for _, f := range s.faults {
		fmt.Println("FAULT:", f)
	}
}
