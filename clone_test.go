package unitask_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/vmm"
)

func needClones(t *testing.T) {
	t.Helper()
	if !vmm.CanClone {
		t.Skip("snapshots need Linux's memfd")
	}
	needVM(t)
}

// No two clones of a template are alike in what must differ.
const unique = `
const c = require("crypto"), fs = require("fs"), net = require("net"), tls = require("tls");
const out = { random: Math.random(), random2: Math.random(), uuid: c.randomUUID(), bytes: c.randomBytes(16).toString("hex"),
  values: Buffer.from(crypto.getRandomValues(new Uint8Array(16))).toString("hex"), temp: fs.mkdtempSync("/tmp/x-"),
  key: c.generateKeyPairSync("x25519").publicKey.export({ type: "spki", format: "der" }).toString("hex"), now: Date.now() };
// A TLS client's random, as it goes over the wire.
const server = net.createServer((s) => s.once("data", (d) => { out.hello = d.subarray(11, 43).toString("hex"); s.destroy(); server.close(); console.log(JSON.stringify(out)) }))
  .listen(0, "127.0.0.1", () => tls.connect({ port: server.address().port, host: "127.0.0.1" }).on("error", () => {}));`

func TestClonesDiffer(t *testing.T) {
	needClones(t)
	clones := 100
	if n, err := strconv.Atoi(os.Getenv("UNITASK_TEST_CLONES")); err == nil {
		clones = n
	}
	for _, kernel := range kernels(t) {
		t.Run(string(kernel), func(t *testing.T) {
			rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
			if err != nil {
				t.Fatal(err)
			}
			defer rt.Close()
			var mu sync.Mutex
			seen := map[string]int{}
			var group sync.WaitGroup
			next := make(chan int)
			for range cap(slots) {
				group.Go(func() {
					for i := range next {
						begin := time.Now()
						res, err := rt.Run(t.Context(), unitask.Request{Kernel: kernel, Code: unique}, unitask.IO{})
						end := time.Now()
						if err != nil || !res.Cloned {
							t.Errorf("clone %d: %v %+v", i, err, res)
							continue
						}
						var out map[string]any
						if err := json.Unmarshal(res.Stdout, &out); err != nil {
							t.Errorf("clone %d: %v: %s%s", i, err, res.Stdout, res.Stderr)
							continue
						}
						now := time.UnixMilli(int64(out["now"].(float64)))
						if now.Before(begin.Add(-50*time.Millisecond)) || now.After(end.Add(50*time.Millisecond)) {
							t.Errorf("clone %d: its clock says %s, between %s and %s", i, now, begin, end)
						}
						delete(out, "now")
						mu.Lock()
						for what, value := range out {
							key := fmt.Sprint(what, " ", value)
							if other, ok := seen[key]; ok {
								t.Errorf("clones %d and %d have the same %s", other, i, key)
							}
							seen[key] = i
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
			if len(seen) != clones*8 {
				t.Errorf("%d values of %d clones", len(seen), clones)
			}
		})
	}
}

// A template that is not what it was is dropped, and the run boots.
func TestDamagedTemplate(t *testing.T) {
	needClones(t)
	for name, damage := range map[string]func(dir string) error{
		"memory edited": func(dir string) error { return edit(filepath.Join(dir, "memory"), 40<<20) },
		"used too often": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "uses"), bytes.Repeat([]byte("."), 1000), 0o600)
		},
		"a state of noise": noiseState, // with a right digest: QEMU itself refuses it
	} {
		t.Run(name, func(t *testing.T) {
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
			if made, err := rt.MakeTemplate(t.Context(), unitask.Shape{Kernel: image.Linux}); err != nil || !made {
				t.Fatal(made, err)
			}
			dirs, _ := filepath.Glob(filepath.Join(templates, "[0-9a-f]*"))
			if len(dirs) != 1 {
				t.Fatalf("%v", dirs)
			}
			if err := damage(dirs[0]); err != nil {
				t.Fatal(err)
			}
			res, err := rt.Run(t.Context(), unitask.Request{Kernel: image.Linux, Code: `console.log("still")`}, unitask.IO{})
			if err != nil || res.Cloned || string(res.Stdout) != "still\n" {
				t.Errorf("%v %+v", err, res)
			}
			if made, err := rt.MakeTemplate(t.Context(), unitask.Shape{Kernel: image.Linux}); err != nil || !made {
				t.Errorf("it is not made anew: %v %v", made, err)
			}
			if res, err := rt.Run(t.Context(), unitask.Request{Kernel: image.Linux, Code: `1`}, unitask.IO{}); err != nil || !res.Cloned {
				t.Errorf("%v %+v", err, res)
			}
		})
	}
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

// noiseState replaces the state by noise and its digest by the noise's.
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

// Two makers at once make one.
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
			rt, err := unitask.Open(unitask.Options{Home: home})
			if err != nil {
				t.Error(err)
				return
			}
			defer rt.Close()
			ok, err := rt.MakeTemplate(t.Context(), unitask.Shape{Kernel: image.Linux, MemoryMB: 256})
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
