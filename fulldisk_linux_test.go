package unitask_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testlack"
	"github.com/unitask/unitask/policy"
)

// If the disk fills up while an image is built, nothing of the image is left.
func TestImportOnFullDisk(t *testing.T) {
	needVM(t) // the image consists of its parts
	home := testdir.Private(t)
	testlack.Disk(t, home, "size=1m")
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	_, err = rt.Catalog().Import(t.Context(), boxImage(t, "test/box:1", nil), "", "")
	if err == nil || !strings.Contains(err.Error(), "no space left on device") ||
		!strings.Contains(err.Error(), "image.tar") {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(home, "containers")); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// If the host's disk has no room for a step's files in /out, that is an error. The files are not lost: they come back
// once there is room.
func TestSessionOutOnFullDisk(t *testing.T) {
	needVM(t)
	home := newHome(t)
	runs := filepath.Join(home, "runs")
	if err := os.Mkdir(runs, 0o700); err != nil {
		t.Fatal(err)
	}
	testlack.Disk(t, runs, "size=3m")
	rt := openRuntime(t, unitask.Options{Home: home})
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Language: "shell"}})
	res, err := s.Run(t.Context(), unitask.Step{Code: "head -c 4000000 /dev/urandom > /out/much; echo done"})
	if host := (*unitask.HostError)(nil); !errors.As(err, &host) || !errors.Is(err, syscall.ENOSPC) ||
		len(res.Artifacts) > 0 {
		t.Errorf("%v, %+v", err, res)
	}
	testlack.Grow(t, runs, "size=30m")
	if res, err = s.Run(t.Context(), unitask.Step{Code: "true"}); err != nil ||
		cameBack(t, rt, res) != "much=4000000 bytes" {
		t.Errorf("%v, %q", err, cameBack(t, rt, res))
	}
}

// smallStore is a home whose records and audit log share a small disk.
func smallStore(t *testing.T, size string) (home string) {
	t.Helper()
	home = newHome(t)
	runs := filepath.Join(home, "runs")
	if err := os.Mkdir(runs, 0o700); err != nil {
		t.Fatal(err)
	}
	testlack.Disk(t, runs, size)
	there := filepath.Join(runs, ".audit")
	if err := errors.Join(os.Mkdir(there, 0o700), os.Symlink(there, filepath.Join(home, "audit"))); err != nil {
		t.Fatal(err)
	}
	return home
}

// auditKinds returns the kinds of a run's entries.
func auditKinds(t *testing.T, rt *unitask.Runtime, run string) (kinds []audit.Kind) {
	t.Helper()
	if err := rt.Audit().Read(func(_ int64, line []byte) error {
		var e audit.Entry
		err := json.Unmarshal(line, &e)
		if e.Run == run {
			kinds = append(kinds, e.Kind)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return kinds
}

// Code fills the disk of its record. The record's end and the audit log report this.
func TestAttackFullDisk(t *testing.T) {
	needVM(t)
	const fill = "yes 0123456789012345678901234567890123456789 | head -c 6000000"
	for name, codes := range map[string][]string{
		"stdout": {fill}, "stderr": {fill + " >&2"}, "artifacts": {fill + " > /out/much"},
		"two at once": {fill, fill + " >&2"},
	} {
		t.Run(name, func(t *testing.T) {
			rt := openRuntime(t, unitask.Options{Home: smallStore(t, "size=2m")})
			var all sync.WaitGroup
			got := make([]string, len(codes))
			for i, code := range codes {
				all.Go(func() {
					res, err := rt.Run(t.Context(), unitask.Request{Language: "shell", Code: code}, unitask.IO{})
					if res == nil {
						got[i] = fmt.Sprint(err)
						return
					}
					rec, e := rt.Runs().Get(res.RunID)
					if e != nil {
						got[i] = e.Error()
						return
					}
					full := errors.Is(err, syscall.ENOSPC) && strings.Contains(rec.Error, "no space left") &&
						!strings.Contains(rec.Error, "QEMU")
					got[i] = fmt.Sprint("record ", rec.Status, ", says that the disk is full: ", full, ", in the log: ",
						slices.Contains(auditKinds(t, rt, res.RunID), audit.RunEnded))
					if _, e := os.Lstat(rt.Runs().Path(res.RunID, "reserve")); !errors.Is(e, os.ErrNotExist) {
						t.Errorf("the reserve is still there: %v", e)
					}
				})
			}
			all.Wait()
			for i, is := range got {
				attack.Check(t, fmt.Sprintf("a run fills the disk of its record: %s, %d", name, i),
					"record failed, says that the disk is full: true, in the log: true", is)
			}
		})
	}
}

// A ceiling with audit = "required" refuses runs whose entries can't be written. Without it the run continues, and
// reports this.
func TestAttackAuditRequired(t *testing.T) {
	needVM(t)
	for name, lack := range map[string]func(t *testing.T, dir string){
		"its disk is full": func(t *testing.T, dir string) {
			testlack.Disk(t, dir, "size=16k")
			if err := os.WriteFile(filepath.Join(dir, "much"), make([]byte, 16<<10), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"it has reached its bound": func(t *testing.T, dir string) {
			const bound = 2 << 30
			log := filepath.Join(dir, "log.jsonl")
			err := errors.Join(os.WriteFile(log, nil, 0o600), os.Truncate(log, bound),
				os.WriteFile(filepath.Join(dir, "index"), binary.BigEndian.AppendUint64(nil, bound), 0o600),
				os.WriteFile(filepath.Join(dir, "hashes"), make([]byte, 32), 0o600))
			if err != nil {
				t.Fatal(err)
			}
		},
		"its folder is a file": func(t *testing.T, dir string) {
			if err := errors.Join(os.Remove(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			home := newHome(t)
			dir := filepath.Join(home, "audit")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			lack(t, dir)
			for _, required := range []bool{true, false} {
				text := ""
				if required {
					text = `audit = "required"`
				}
				ceiling, err := policy.ParseCeiling(policy.CeilingFile, []byte(text))
				if err != nil {
					t.Fatal(err)
				}
				told := false
				rt := openRuntime(t, unitask.Options{Home: home,
					Events: func(e unitask.Event) { told = told || e.Kind == unitask.EventStore }})
				var out strings.Builder
				res, err := rt.RunFor(t.Context(), unitask.Caller{Ceiling: ceiling},
					unitask.Request{Language: "shell", Code: "echo ran"}, unitask.IO{Stdout: &out})
				var host *unitask.HostError
				refused := errors.As(err, &host) && host.Op == "audit" && res != nil && res.ExitCode == unitask.ExitHost
				want := "refused false, told true, it printed ran\n"
				if required {
					want = "refused true, told true, it printed "
				}
				attack.Check(t, fmt.Sprintf("a run whose audit log can't be written: %s, required %v", name, required), want,
					fmt.Sprintf("refused %v, told %v, it printed %s", refused, told, out.String()))
			}
		})
	}
}

// If a session's end can't be written to the audit log and the ceiling requires the log, the session ends with an
// error.
func TestAttackAuditRequiredSession(t *testing.T) {
	needVM(t)
	for _, required := range []bool{true, false} {
		home := newHome(t)
		dir := filepath.Join(home, "audit")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		testlack.Disk(t, dir, "size=200k")
		text := ""
		if required {
			text = `audit = "required"`
		}
		ceiling, err := policy.ParseCeiling(policy.CeilingFile, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		rt := openRuntime(t, unitask.Options{Home: home})
		s, err := rt.NewSessionFor(t.Context(), unitask.Caller{Ceiling: ceiling},
			unitask.SessionRequest{Request: unitask.Request{Language: "shell"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "much"), make([]byte, 200<<10), 0o600); !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		var host *unitask.HostError
		res, err := s.Run(t.Context(), unitask.Step{Code: "echo ran"})
		got := "ran"
		if errors.As(err, &host) && host.Op == "audit" && res == nil {
			got = "refused"
		} else if err != nil {
			got = err.Error()
		}
		attack.Check(t, fmt.Sprintf("a step of a session whose use can't be logged, required %v", required),
			map[bool]string{true: "refused", false: "ran"}[required], got)
		host, err = nil, s.Close()
		attack.Check(t, fmt.Sprintf("the end of a session that can't be logged, required %v", required),
			fmt.Sprintf("told %v", required),
			fmt.Sprintf("told %v", errors.As(err, &host) && host.Op == "audit"))
	}
}

// Code that has filled the disk of its netlog can't connect any more, because no line would record it.
func TestAttackFullDiskNetwork(t *testing.T) {
	needVM(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var reached atomic.Int32
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			reached.Add(1)
			_, _ = io.WriteString(c, "there\n")
			c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	rt := openRuntime(t, unitask.Options{Home: smallStore(t, "size=2m")})
	const times = 20
	code := fmt.Sprintf(
		"connect() { read -r x 2>/dev/null < /dev/tcp/127.0.0.1/%s; }; connect; yes 0123456789 | head -c 6000000; "+
			"for i in {1..%d}; do connect; done", port, times)
	res, err := rt.Run(t.Context(), unitask.Request{Language: "shell", Code: code, AllowTCP: []string{l.Addr().String()}},
		unitask.IO{})
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	cut := false
	if err := rt.Audit().Read(func(_ int64, line []byte) error {
		cut = cut || strings.Contains(string(line), "the log can't be written: the network is cut") &&
			strings.Contains(string(line), res.RunID)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	n := reached.Load()
	attack.Check(t, "code fills the disk of its netlog, and goes on with its network",
		"it is cut, and that is logged: true",
		map[bool]string{true: "it is cut, and that is logged: ",
			false: fmt.Sprintf("it reached the host %d times, logged: ", n)}[n >= 1 && n < times]+fmt.Sprint(cut))
}
