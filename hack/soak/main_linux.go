// Command soak runs code many times. Meanwhile it kills processes of a run at random, fills the disk, or makes memory
// and descriptors scarce. It then checks what is left: processes, descriptors, files, records.
//
//	go run ./hack/soak [-sessions] [-n 10000] [-at-once 4] [-for 8h] [-seed N] [-home DIR]
//
// With -at-once that many soaks share the runs. Each is a process with its own home and seed, so none affects another
// one. Most of a run's time is waiting for a kill.
//
// It prints a table of disturbances and outcomes, and fails if something wrong was left. The seed determines the order
// and the kinds of disturbances; the exact time of a kill depends on the host.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	patience   = 2 * time.Minute         // for a run; a longer one hangs
	settling   = 40 * time.Second        // for the end of processes: the making of a template outlives its run
	between    = 50                      // runs between two checks of everything
	killWithin = 1500 * time.Millisecond // covers a run's start and its code
	runsSize   = 256 << 20               // bytes of the disk for records
	pausedSize = 1 << 30                 // bytes of it for paused sessions
	moreFiles  = 24                      // more descriptors that the daemon may have: for machines in the making
)

// soak is one session.
type soak struct {
	unitask, home string
	random        *rand.Rand
	full          bool // records and paused sessions have their own disks, which can be filled
	mounted       []string
	tally         map[string]*tally
	faults        []string
	kinds         []kind
	pools         bool // runs come from a pool
	daemonFiles   int  // the pool daemon's, at the first check
	sessionFiles  int  // the session daemon's
	started       time.Time
	adding        sync.Mutex // guards tally and faults if several soaks add to them
}

// tally is the result for one kind.
type tally struct {
	Ends  map[string]int
	Times []time.Duration
}

func main() {
	n := flag.Int("n", 10_000, "runs")
	most := flag.Duration("for", 0, "stop after so long; 0 for never")
	seed := flag.Uint64("seed", 0, "of the order; 0 for a random one")
	home := flag.String("home", os.Getenv("UNITASK_HOME"), "home whose parts and images are used (copied)")
	program := flag.String("unitask", "bin/unitask", "the program")
	sessions := flag.Bool("sessions", false, "sessions in place of runs")
	atOnce := flag.Int("at-once", 1, "soaks at once")
	report := flag.String("report", "", "file for what came of it, for the soak that started this one")
	flag.Parse()
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	fmt.Printf("seed %d\n", *seed)
	s := &soak{random: rand.New(rand.NewPCG(*seed, 0)), tally: map[string]*tally{}, started: time.Now()}
	if s.kinds, s.pools = kinds, true; *sessions {
		s.kinds, s.pools = sessionKinds, false
	}
	var err error
	if *atOnce > 1 {
		err = s.share(*atOnce, *n)
	} else {
		err = s.alone(*program, *home, *n, *most)
	}
	if *report == "" {
		s.print()
	} else if e := s.report(*report); err == nil {
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

// alone does n runs in its own home.
func (s *soak) alone(program, home string, n int, most time.Duration) error {
	err := s.open(program, home)
	if err == nil {
		err = s.all(n, most)
	}
	if e := s.close(); err == nil {
		err = e
	}
	return err
}

// open makes a new home, and a disk for its records if it has the permission.
func (s *soak) open(program, from string) (err error) {
	// Orphans become our children, so we find them.
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
	patterns := []string{"vendor/*/[^.]*", "cache/*.json"} // excludes unfinished files
	if s.pools {
		patterns = append(patterns, "images/[^.]*") // otherwise three are built: there may be many
	}
	for _, pattern := range patterns {
		found, err := filepath.Glob(filepath.Join(from, pattern))
		if err != nil {
			return err
		}
		for _, name := range found {
			to := filepath.Join(s.home, strings.TrimPrefix(filepath.Dir(name), from))
			if err := os.MkdirAll(to, 0o700); err != nil {
				return err
			}
			if out, err := exec.Command("cp", "-a", name, to).CombinedOutput(); err != nil {
				return fmt.Errorf("copy %s: %w: %s", name, err, out)
			}
		}
	}
	s.full = true
	for name, size := range map[string]int{"runs": runsSize, "sessions": pausedSize} {
		dir := filepath.Join(s.home, name)
		if err = os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV,
			fmt.Sprintf("size=%d,mode=0700", size)); err != nil {
			fmt.Printf("no full disk: mount a tmpfs: %v\n", err)
			s.full = false
			continue
		}
		s.mounted = append(s.mounted, dir)
	}
	if !s.pools {
		return s.warmSessions()
	}
	_, err = s.run("1", nil, nil, 0) // the image and the template
	return err
}

func (s *soak) close() error {
	if s.home == "" {
		return nil
	}
	for _, dir := range s.mounted {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			return err
		}
	}
	return os.RemoveAll(s.home)
}

// all does n runs, and checks everything from time to time. An interrupt ends it as its time limit does.
func (s *soak) all(n int, most time.Duration) error {
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	total := 0
	for _, k := range s.kinds {
		total += k.weight
	}
	for i := range n {
		if interrupted.Err() != nil || most > 0 && time.Since(s.started) > most {
			break
		}
		if i%between == 0 && i > 0 {
			if err := s.look(fmt.Sprintf("after %d runs", i)); err != nil {
				return err
			}
		}
		if i%(2*between) == 0 && s.pools { // the other half are clones of the template
			s.poolUp()
		}
		at := s.random.IntN(total)
		k := s.kinds[slices.IndexFunc(s.kinds, func(k kind) bool { at -= k.weight; return at < 0 })]
		if k.name == "a full disk" && !s.full {
			continue
		}
		start := time.Now()
		end, err := k.do(s)
		t := s.tally[k.name]
		if t == nil {
			t = &tally{Ends: map[string]int{}}
			s.tally[k.name] = t
		}
		t.Ends[end]++
		t.Times = append(t.Times, time.Since(start))
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

// command returns a unitask command, under another program if one is given.
func (s *soak) command(ctx context.Context, under []string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	line := append(append(slices.Clone(under), s.unitask), args...)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = append(os.Environ(), "UNITASK_HOME="+s.home)
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stderr = &out
	return cmd, &out
}

// unitaskDo runs another unitask command.
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

// print prints the table.
func (s *soak) print() {
	fmt.Println("\n| what happens to the run | runs | ends | p50 | most |\n| --- | --- | --- | --- | --- |")
	sum := 0
	for _, k := range s.kinds {
		t := s.tally[k.name]
		if t == nil {
			continue
		}
		slices.Sort(t.Times)
		var ends []string
		for _, end := range slices.Sorted(maps.Keys(t.Ends)) {
			ends = append(ends, fmt.Sprintf("%s: %d", end, t.Ends[end]))
		}
		sum += len(t.Times)
		fmt.Printf("| %s | %d | %s | %d ms | %d ms |\n", k.name, len(t.Times), strings.Join(ends, ", "),
			t.Times[len(t.Times)/2].Milliseconds(), t.Times[len(t.Times)-1].Milliseconds())
	}
	fmt.Printf("\n%d runs in %d s, %d faults\n", sum, int(time.Since(s.started).Seconds()), len(s.faults))
	for _, f := range s.faults {
		fmt.Println("FAULT:", f)
	}
}
