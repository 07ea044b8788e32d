package unitask_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testarchive"
	"github.com/unitask/unitask/machine"
)

func needClones(t *testing.T) {
	t.Helper()
	if !machine.CanClone {
		t.Skip("snapshots need Linux's memfd")
	}
	needVM(t)
}

// A runtime makes the template for its next run by itself.
func TestWarm(t *testing.T) {
	needClones(t)
	home := newHome(t)
	if err := os.Remove(filepath.Join(home, "templates")); err != nil { // the base home's templates
		t.Fatal(err)
	}
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	const value = "warm-secret-51c0a7"
	for _, cloned := range []bool{false, true} {
		req := unitask.Request{Code: `console.log("hi")`, Secrets: map[string]string{"KEY": value}}
		res, err := rt.Run(t.Context(), req, unitask.IO{})
		if err != nil || string(res.Stdout) != "hi\n" || res.Cloned != cloned {
			t.Fatalf("%v %+v", err, res)
		}
		rec, err := rt.Runs().Get(res.RunID)
		if err != nil || (rec.Machine.Template != "") != cloned || (rec.Machine.Rehearsed == 6) != cloned {
			t.Errorf("cloned %v: %v %+v", cloned, err, rec.Machine)
		}
		unitask.Settle(t.Context(), rt)
	}
	found := []string{}
	mustDo(t, filepath.WalkDir(filepath.Join(home, "templates"), func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && holds(t, name, value) {
			found = append(found, name)
		}
		return err
	}))
	attack.Check(t, "a secret's value in the template that its run has made", "[]", fmt.Sprint(found))
	// The template's rehearsals of server, client and fetch left nothing: no entry, no date.
	code := testarchive.Open(t, "testdata/templatesecrets.txtar").Text("rehearsals.js")
	res, err := rt.Run(t.Context(), unitask.Request{Code: code}, unitask.IO{})
	if err != nil || string(res.Stdout) != "0 true\n" || !res.Cloned {
		t.Errorf("%v %+v", err, res)
	}
}

// holds reports whether a file, which may be large, contains a text.
func holds(t *testing.T, name, text string) bool {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 4<<20)
	for kept := 0; ; {
		n, err := f.Read(buf[kept:])
		if bytes.Contains(buf[:kept+n], []byte(text)) {
			return true
		}
		if err != nil {
			return false
		}
		kept = copy(buf, buf[max(0, kept+n-len(text)):kept+n])
	}
}

// Two clones of a template differ in everything that must differ.
func TestClonesDiffer(t *testing.T) {
	needClones(t)
	clones := 12
	if long() {
		clones = 100
	}
	if n, err := strconv.Atoi(os.Getenv("UNITASK_TEST_CLONES")); err == nil {
		clones = n
	}
	for _, kernel := range kernels(t) {
		share, home := clones/len(kernels(t)), newHome(t) // one template for both
		t.Run(string(kernel), func(t *testing.T) {
			differ(t, home, unitask.Request{Kernel: kernel}, unitask.PoolSize{}, share*7/10)
		})
		t.Run(string(kernel)+"/pool", func(t *testing.T) {
			differ(t, home, unitask.Request{Kernel: kernel}, unitask.PoolSize{Min: 2, Max: 4}, max(2, share*2/10))
		})
	}
	t.Run("fresh process", func(t *testing.T) {
		differ(t, newHome(t), unitask.Request{Kernel: image.Linux, FreshProcess: true}, unitask.PoolSize{}, max(2, clones/10))
	})
}

// differ runs clones of a home's template, which it makes if necessary, and compares them.
func differ(t *testing.T, home string, req unitask.Request, pool unitask.PoolSize, clones int) {
	class := unitask.MachineClass{Kernel: req.Kernel, FreshProcess: req.FreshProcess}
	rt, err := unitask.Open(unitask.Options{Home: home, Machines: unitask.Pool(pool, class)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	if _, err := rt.MakeTemplate(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	req.Code = testarchive.Open(t, "testdata/clonesdiffer.txtar").Text("unique.js")
	var mu sync.Mutex
	seen, wire, same := map[string]int{}, map[string]map[uint32]bool{}, []string{}
	var group sync.WaitGroup
	next := make(chan int)
	for range cap(slots) {
		group.Go(func() {
			for i := range next {
				begin := time.Now()
				var capture bytes.Buffer
				res, err := rt.Run(t.Context(), req, unitask.IO{Capture: &capture})
				end := time.Now()
				if err != nil || !res.Cloned {
					t.Errorf("clone %d: %v %+v", i, err, res)
					continue
				}
				if n := announcements(capture.Bytes()); n > 0 {
					t.Errorf("clone %d: %d frames announce it", i, n)
				}
				out := randomValues(t, i, res, begin, end)
				mu.Lock()
				for what, value := range out {
					key := fmt.Sprint(what, " ", value)
					if other, ok := seen[key]; ok {
						same = append(same, fmt.Sprintf("%d and %d: %s", other, i, key))
					}
					seen[key] = i
				}
				for what, value := range wireValues(capture.Bytes()) {
					if wire[what] == nil {
						wire[what] = map[uint32]bool{}
					}
					wire[what][value] = true
				}
				mu.Unlock()
			}
		})
	}
	for i := range clones {
		next <- i
	}
	close(next)
	group.Wait()
	attack.Check(t, "random values that two clones of a template share, "+path.Base(t.Name()), "[]", fmt.Sprint(same))
	if len(seen) != clones*11 {
		t.Errorf("%d values of %d clones", len(seen), clones)
	}
	// Some of n random values of 15 or 16 bits are the same: at most n²/2^16 pairs are expected.
	enough := clones - 3 - clones*clones/(1<<15)
	for what, values := range wire {
		if what == "sequence number" && req.Kernel == image.Nanos {
			continue // it begins with the same value at every boot, and only this process receives it
		}
		if len(values) < enough {
			t.Errorf("%s: %d of %d clones differ", what, len(values), clones)
		}
	}
	if len(wire) != 4 {
		t.Errorf("on the wire there was %v", wire)
	}
}

// randomValues returns the random values of a clone that ran from begin to end, by name, and checks its clocks.
func randomValues(t *testing.T, clone int, res *unitask.Result, begin, end time.Time) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal(res.Stdout, &out); err != nil {
		t.Errorf("clone %d: %v: %s%s", clone, err, res.Stdout, res.Stderr)
		return nil
	}
	now := time.UnixMilli(int64(out["now"].(float64)))
	if now.Before(begin.Add(-50*time.Millisecond)) || now.After(end.Add(50*time.Millisecond)) {
		t.Errorf("clone %d: its clock says %s, between %s and %s", clone, now, begin, end)
	}
	// A clone's time begins with its run, not with its template.
	if origin := time.UnixMilli(int64(out["origin"].(float64))); origin.Before(begin.Add(-50*time.Millisecond)) ||
		origin.After(now) {
		t.Errorf("clone %d: its time began at %s, the run at %s", clone, origin, begin)
	}
	if out["sane"] != true {
		t.Errorf("clone %d: its clocks disagree", clone)
	}
	delete(out, "now")
	delete(out, "origin")
	delete(out, "sane")
	return out
}

// wireValues returns the values that a guest chose for its first packets of each kind, from a pcap.
func wireValues(pcap []byte) map[string]uint32 {
	values := map[string]uint32{}
	first := func(what string, v uint32) {
		if _, ok := values[what]; !ok {
			values[what] = v
		}
	}
	for rest := pcap[min(24, len(pcap)):]; len(rest) >= 16; {
		n := int(binary.BigEndian.Uint32(rest[8:]))
		frame := rest[16 : 16+n]
		rest = rest[16+n:]
		if len(frame) < 54 || frame[12] != 8 || frame[13] != 0 || frame[29] != 15 { // IPv4 from the guest
			continue
		}
		ip := frame[14:]
		segment := ip[int(ip[0]&15)*4:]
		switch {
		case ip[9] == 6 && segment[13]&0x12 == 2: // SYN without ACK
			first("TCP port", uint32(binary.BigEndian.Uint16(segment)))
			first("sequence number", binary.BigEndian.Uint32(segment[4:]))
		case ip[9] == 17 && binary.BigEndian.Uint16(segment[2:]) == 53:
			first("DNS id", uint32(binary.BigEndian.Uint16(segment[8:])))
			first("DNS port", uint32(binary.BigEndian.Uint16(segment)))
		}
	}
	return values
}

// announcements counts the frames that announce a migrated machine's place to its network: RARP from QEMU, and ARP of
// the guest for its own address.
func announcements(pcap []byte) (n int) {
	for rest := pcap[min(24, len(pcap)):]; len(rest) >= 16; {
		size := int(binary.BigEndian.Uint32(rest[8:]))
		frame := rest[16 : 16+size]
		rest = rest[16+size:]
		if len(frame) < 42 {
			continue
		}
		kind, arp := binary.BigEndian.Uint16(frame[12:]), frame[14:]
		if kind == 0x8035 || kind == 0x0806 && bytes.Equal(arp[14:18], arp[24:28]) {
			n++
		}
	}
	return n
}

// A changed template is dropped, and the run boots. The next template is a new one.
func TestAttackDamagedTemplate(t *testing.T) {
	needClones(t)
	class := unitask.MachineClass{Image: "shell"} // its template takes least
	home := newHome(t)
	templates := filepath.Join(home, "templates")
	mustDo(t, os.Remove(templates)) // the base home's
	rt := openRuntime(t, unitask.Options{Home: home, Machines: unitask.PoolDaemon(nil)})
	if made, err := rt.MakeTemplate(t.Context(), class); err != nil || !made {
		t.Fatal(made, err)
	}
	good := filepath.Join(t.TempDir(), "templates")
	mustDo(t, os.Rename(templates, good))
	for name, damage := range map[string]func(dir string) error{
		"memory edited": func(dir string) error { return edit(filepath.Join(dir, "memory"), 40<<20) },
		"used too often": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "uses"), bytes.Repeat([]byte("."), 1000), 0o600)
		},
		"a state of noise": noiseState, // with a correct digest: QEMU itself refuses it
	} {
		t.Run(name, func(t *testing.T) {
			mustDo(t, os.RemoveAll(templates))
			if out, err := exec.Command("cp", "-a", good, templates).CombinedOutput(); err != nil {
				t.Fatalf("%v %s", err, out)
			}
			dirs := globbed(t, filepath.Join(templates, "[0-9a-f]*"))
			if len(dirs) != 1 {
				t.Fatalf("%v", dirs)
			}
			mustDo(t, damage(dirs[0]))
			res, err := rt.Run(t.Context(), unitask.Request{Language: "shell", Code: "echo still"}, unitask.IO{})
			if err != nil {
				t.Fatal(err)
			}
			got := cloned(res) + ", " + strings.TrimSpace(string(res.Stdout))
			attack.Check(t, "a template that was changed: "+name, "booted, still", got)
			if left := globbed(t, dirs[0]); len(left) > 0 && name != "used too often" {
				t.Errorf("it is kept: %v", left)
			} else if len(left) > 0 {
				if made, err := rt.MakeTemplate(t.Context(), class); err != nil || !made {
					t.Errorf("it is not made anew: %v %v", made, err)
				}
			}
		})
	}
}

// A run that finds a template past half of its life makes a successor. That run and the next one are cloned.
func TestTemplateSuccession(t *testing.T) {
	if !long() {
		t.Skip("half of a template's life in clones is make long's (UNITASK_TEST_LONG=1)")
	}
	needClones(t)
	home := newHome(t)
	templates := filepath.Join(home, "templates")
	if err := os.Remove(templates); err != nil {
		t.Fatal(err)
	}
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	if made, err := rt.MakeTemplate(t.Context(), unitask.MachineClass{Kernel: image.Linux}); err != nil || !made {
		t.Fatal(made, err)
	}
	cloned := func() {
		t.Helper()
		if res, err := rt.Run(t.Context(), unitask.Request{Kernel: image.Linux, Code: `1`}, unitask.IO{}); err != nil ||
			!res.Cloned {
			t.Errorf("%v %+v", err, res)
		}
		unitask.Settle(t.Context(), rt)
	}
	one := func() (os.FileInfo, string) {
		t.Helper()
		dirs, _ := filepath.Glob(filepath.Join(templates, "[0-9a-f]*"))
		if len(dirs) != 1 {
			t.Fatalf("%v", dirs)
		}
		st, err := os.Stat(dirs[0])
		if err != nil {
			t.Fatal(err)
		}
		return st, filepath.Join(dirs[0], "uses")
	}
	first, uses := one()
	cloned()
	if st, _ := one(); !os.SameFile(st, first) {
		t.Error("a fresh template was replaced")
	}
	if err := os.WriteFile(uses, bytes.Repeat([]byte("."), 500), 0o600); err != nil {
		t.Fatal(err)
	}
	cloned()
	if st, _ := one(); os.SameFile(st, first) {
		t.Error("there is no successor")
	}
	cloned()
}

// cloned returns how the machine of a result was made.
func cloned(res *unitask.Result) string {
	if res.Cloned {
		return "cloned"
	}
	return "booted"
}

func edit(name string, at int64) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt([]byte("evil"), at)
	return err
}

// noiseState replaces the state by noise and its digest by the noise's digest.
func noiseState(dir string) error {
	noise := bytes.Repeat([]byte("noise"), 5000)
	if err := os.WriteFile(filepath.Join(dir, "state"), noise, 0o600); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(dir, "template.json"))
	if err != nil {
		return err
	}
	var info map[string]any
	if err := json.Unmarshal(text, &info); err != nil {
		return err
	}
	info["stateSha256"] = sha256Hex(noise)
	if text, err = json.Marshal(info); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "template.json"), text, 0o600)
}

// Two makers at once make one template.
func TestTemplateMakers(t *testing.T) {
	needClones(t)
	home := newHome(t)
	if err := os.Remove(filepath.Join(home, "templates")); err != nil {
		t.Fatal(err)
	}
	made := make(chan bool, 4)
	var group sync.WaitGroup
	for range cap(made) {
		group.Go(func() {
			rt, err := unitask.Open(unitask.Options{Home: home, Machines: unitask.PoolDaemon(nil)})
			if err != nil {
				t.Error(err)
				return
			}
			defer rt.Close()
			ok, err := rt.MakeTemplate(t.Context(), unitask.MachineClass{Image: "shell", MemoryMB: 256})
			if err != nil {
				t.Error(err)
			}
			made <- ok
		})
	}
	group.Wait()
	close(made)
	count := 0
	for ok := range made {
		if ok {
			count++
		}
	}
	if count != 1 {
		t.Errorf("%d were made", count)
	}
	if left, _ := filepath.Glob(filepath.Join(home, "templates", ".new-*")); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// In a fresh process all addresses differ from the last one's; in a clone all are the same.
func TestAttackFreshProcess(t *testing.T) {
	needClones(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	if _, err := rt.MakeTemplate(t.Context(), unitask.MachineClass{FreshProcess: true}); err != nil {
		t.Fatal(err)
	}
	layouts := map[bool]map[string]bool{true: {}, false: {}}
	for i := range 6 {
		fresh := i%2 == 0
		res, err := rt.Run(t.Context(), unitask.Request{Kernel: image.Linux, FreshProcess: fresh, Args: []string{"x"},
			Code: `console.log(require("fs").readFileSync("/proc/self/maps", ` +
				`"utf8").split("\n").filter((l) => / \S*(node|libc\S*|\[stack\])$/.test(l)).map((l) => l.split("-")[0]).join())`},
			unitask.IO{})
		if err != nil || !res.Cloned || res.Kernel != image.Linux || len(res.Stdout) < 30 {
			t.Fatalf("%v %+v", err, res)
		}
		layouts[fresh][string(res.Stdout)] = true
	}
	attack.Check(t, "layouts of memory in three runs with a fresh process", "3", fmt.Sprint(len(layouts[true])))
	if len(layouts[false]) != 1 {
		t.Errorf("%d layouts of 3 clones", len(layouts[false]))
	}
	_, err = rt.Run(t.Context(), unitask.Request{Kernel: image.Nanos, FreshProcess: true, Code: "1"}, unitask.IO{})
	if err == nil || !strings.Contains(err.Error(), "needs the linux kernel") {
		t.Errorf("on nanos: %v", err)
	}
}
