package fleet_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/policy"
)

// Runs in real machines of a worker: both ceilings, secrets, files, links to the worker's own files, cancellation.
func TestMachines(t *testing.T) {
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	testhome.Ready(t, base, image.Linux)
	ns := startNATS(t, nil)
	dir := t.TempDir()
	ceiling := func(name, text string) *policy.Ceiling {
		c, err := policy.ParseCeiling(filepath.Join(dir, name), []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	worker, err := unitask.Open(unitask.Options{Home: testhome.New(t, base)})
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Close()
	w := startWorker(t, workerConfig(ns.ClientURL(), 2),
		fleet.OnHost(worker,
			ceiling("worker.toml",
				"memoryMb = 512\nallowNet = [\"b.example\", \"c.example\"]\n[principals.default]\nsecrets = [\"KEY\"]\n")))
	client, err := fleet.Connect(fleet.Config{URL: ns.ClientURL()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t), Fleet: client}) // it has no images
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()

	t.Run("both ceilings, a secret, a folder, artifacts", func(t *testing.T) {
		runUnderBothCeilings(t, ceiling, rt, worker)
	})

	t.Run("what machines run on", func(t *testing.T) {
		res, err := rt.Run(t.Context(), unitask.Request{Code: "console.log(1)"}, unitask.IO{})
		if err != nil {
			t.Fatal(err)
		}
		waitFor(t, func() bool {
			workers, err := client.Workers(t.Context())
			return err == nil && len(workers) == 1 && workers[0].Accel != ""
		})
		workers, err := client.Workers(t.Context())
		if err != nil || workers[0].Accel != string(res.Accelerator) || workers[0].WhySlow != res.WhySlow {
			t.Errorf("%v: the worker says %q (%s), and a run has %q (%s)", err, workers[0].Accel, workers[0].WhySlow,
				res.Accelerator, res.WhySlow)
		}
	})

	t.Run("links to the worker's own files", func(t *testing.T) {
		followLinksOfWorker(t, dir, ns)
	})

	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		seen := writer(func(p []byte) { cancel() })
		res, err := rt.Run(ctx, unitask.Request{Code: `console.log("begun"); setInterval(() => {}, 1000)`,
			Kernel: unitask.Linux}, unitask.IO{Stdout: seen})
		if !errors.Is(err, context.Canceled) || res.Outcome != unitask.OutcomeCancelled {
			t.Errorf("%v %s", err, asJSON(res))
		}
		waitFor(t, func() bool { return w.Info().Running == 0 })
	})
	if info := w.Info(); info.UsedMB != 0 {
		t.Errorf("%d MiB are still reserved", info.UsedMB)
	}
}

// runUnderBothCeilings checks a run under the submitter's and the worker's ceiling.
func runUnderBothCeilings(
	t *testing.T, ceiling func(name string, text string) *policy.Ceiling, rt, worker *unitask.Runtime,
) {
	t.Helper()
	const secret = "correct-horse-battery"
	brings := t.TempDir()
	if err := os.WriteFile(filepath.Join(brings, "in.txt"), []byte("brought"), 0o600); err != nil {
		t.Fatal(err)
	}
	caller := unitask.Caller{Name: "alice", Via: unitask.ViaAPI,
		Ceiling: ceiling("submitter.toml", "allowNet = [\"a.example\", \"b.example\"]\ntimeoutSeconds = 50\n")}
	res, err := rt.RunFor(t.Context(), caller, unitask.Request{
		Code: `const fs = require("fs"); console.log(process.env.KEY, "OTHER" in process.env, ` +
			`fs.readFileSync("/in/in.txt", "utf8")); fs.writeFileSync("/out/made.txt", "made"); process.exitCode = 7`,
		Dirs: []unitask.Mount{{Host: brings, Guest: "/in"}}, AllowNet: []string{"a.example", "b.example", "c.example"},
		AllowTCP: []string{"127.0.0.1:5432"}, MemoryMB: 1024, Kernel: unitask.Linux,
		Secrets: map[string]string{"KEY": secret, "OTHER": "another-secret"},
	}, unitask.IO{})
	if err != nil {
		t.Fatal(err)
	}
	if out := string(res.Stdout); strings.Contains(out, secret) || !strings.Contains(out, "false brought") ||
		res.ExitCode != 7 {
		t.Errorf("%q %s", out, asJSON(res))
	}
	in, err := rt.History().Inspect(res.RunID, 0)
	if err != nil {
		t.Fatal(err)
	}
	var denials []policy.Denial
	if err := json.Unmarshal(in.Denials, &denials); err != nil {
		t.Fatal(err)
	}
	denied := map[string]string{}
	for _, d := range denials {
		denied[d.Field+" "+d.Requested] = d.Rule
	}
	for what, by := range map[string]string{"allowNet c.example": "submitter.toml", "allowNet a.example": "worker.toml",
		"allowTcp 127.0.0.1:5432": "worker's built-in", "memoryMb 1024": "worker.toml", "secrets OTHER": "worker.toml"} {
		if !strings.Contains(denied[what], by) {
			t.Errorf("%s is denied by %q, not by %s: %s", what, denied[what], by, in.Denials)
		}
	}
	var granted struct {
		MemoryMB  int      `json:"memoryMb"`
		AllowNet  []string `json:"allowNet"`
		TimeoutMS int      `json:"timeoutMs"`
	}
	if err := json.Unmarshal(in.Effective, &granted); err != nil || granted.MemoryMB != 512 ||
		strings.Join(granted.AllowNet, " ") != "b.example" || granted.TimeoutMS != 50_000 {
		t.Errorf("granted %s", in.Effective)
	}
	if in.Machine == nil || in.Machine.Kernel != "linux" || len(res.Artifacts) != 1 {
		t.Errorf("the record has machine %s, artifacts %s", asJSON(in.Machine), asJSON(res.Artifacts))
	}
	for _, home := range []string{rt.Images().Home(), worker.Images().Home()} {
		_ = filepath.WalkDir(filepath.Join(home, "runs"), func(path string, d os.DirEntry, err error) error {
			if text, _ := os.ReadFile(path); bytes.Contains(text, []byte(secret)) {
				t.Errorf("%s has the secret", path)
			}
			return err
		})
	}
}

// followLinksOfWorker checks that links lead to no files of the worker.
func followLinksOfWorker(t *testing.T, dir string, ns *server.Server) {
	t.Helper()
	own := filepath.Join(dir, "of-the-worker")
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(own, "key"), []byte("of-the-worker-itself"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, js := dial(t, ns.ClientURL())
	for _, row := range []struct {
		id   string
		at   map[string]string // links, by their names in the archive
		asks map[string]any
		says string
	}{
		{"mounted", map[string]string{"f.txt": filepath.Join(own, "key"), "d": own}, map[string]any{
			"files": []any{map[string]string{"host": own + "/key", "guest": "/f.txt"}},
			"dirs":  []any{map[string]string{"host": own, "guest": "/d"}}}, `"exitCode":0`},
		{"in a folder", map[string]string{"in/f.txt": filepath.Join(own, "key"), "in/d": own,
			"in/up": "../../../../../../../../../" + own}, map[string]any{
			"dirs": []any{map[string]string{"host": own, "guest": "/in"}}}, "leads out of the folder"},
	} {
		var archive bytes.Buffer
		tw := tar.NewWriter(&archive)
		for name, to := range row.at {
			if err := tw.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777}); err != nil {
				t.Fatal(err)
			}
		}
		tw.Close()
		row.asks["kernel"] = "linux"
		row.asks["code"] = `const fs = require("fs"); ` +
			`for (const f of ["/f.txt", "/d/key", "/in/f.txt", "/in/d/key", "/in/up/key"]) { try { console.log(f, ` +
			`fs.readFileSync(f, "utf8")) } catch (e) { console.log(f, e.code) } }`
		out := forge(t, js, strings.ReplaceAll(row.id, " ", "-"),
			map[string]any{"request": row.asks, "files": inlined(archive.String())})
		if strings.Contains(out, "of-the-worker-itself") {
			t.Errorf("%s: a tenant reads the worker's files: %s", row.id, out)
		}
		if !strings.Contains(out, row.says) {
			t.Errorf("%s: %s does not say %s", row.id, out, row.says)
		}
	}
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) { w(p); return len(p), nil }
