package unitask_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testarchive"
)

// Behavior of Python and the shell in machines that the differential tests do not compare.

type languagesRow struct {
	name   string
	req    unitask.Request
	stdout string // a regular expression
	exit   int
}

// languagesRows are the cases of TestLanguages.
func languagesRows(web *site) []languagesRow {
	bound := func(language string) unitask.Request {
		return unitask.Request{Language: language, AllowNet: []string{"good.example"}, CA: web.ca,
			Secrets: map[string]string{"KEY": "sk-Vn41xZp0Qw7eRt6y"}, SecretHosts: map[string][]string{"KEY": {"good.example"}}}
	}
	return []languagesRow{
		// Variables that are read only at the start.
		{
			name:   "python: a hash seed",
			req:    unitask.Request{Language: "python", Env: map[string]string{"PYTHONHASHSEED": "0"}},
			stdout: `4644417185603328019\n0 True\n`,
		},
		{
			name: "python: a path and no buffers",
			req: unitask.Request{Language: "python",
				Env: map[string]string{"PYTHONPATH": "/work/lib", "PYTHONUNBUFFERED": "1"}},
			stdout: `/work/lib True\n`,
		},
		{
			name:   "python: a locale",
			req:    unitask.Request{Language: "python", Env: map[string]string{"LC_ALL": "C.UTF-8"}},
			stdout: `0 utf-8 C.UTF-8 False\n`,
		},
		{
			name:   "python: a time zone",
			req:    unitask.Request{Language: "python", Env: map[string]string{"TZ": "Asia/Tokyo"}},
			stdout: `\('JST', 'JST'\) 9\n`,
		},
		{
			name:   "python: a process of its own",
			req:    unitask.Request{Language: "python", Args: []string{"ü", ""}, FreshProcess: true},
			stdout: `\['ü', ''\] /work/script.py\n`,
		},
		// Code without a file hides no module of the standard library from imports.
		{"python: modules that import code", unitask.Request{Language: "python"}, `once True True\n`, 0},
		{"python: the name of code's file", unitask.Request{Language: "python"}, `\[\] \['script.py'\]\n`, 0},
		// A write to a fixed file of the image gives the same error as on any machine, not a read-only error.
		{"python: its own library", unitask.Request{Kernel: image.Linux, Language: "python"},
			`(ENOENT EACCES EACCES EACCES\n){3}EACCES EACCES EPERM EACCES 0 True\n`, 0},
		{"shell: its programs", unitask.Request{Language: "shell"}, `0\ndrwxr-xr-x\n`, 0},
		// Certificates, and bound secrets.
		{"python: HTTPS and a bound secret", bound("python"), `with the key\n`, 0},
		{"python: HTTPS in a child", bound("python"), `with the key\n`, 0},
		{"shell: HTTPS and a bound secret", bound("shell"), `with the key`, 0},
		{"shell: no HTTPS without trust", unitask.Request{Language: "shell", AllowNet: []string{"good.example"}}, `60\n`, 0},
		// Hostile code. The machine ends, and the reported reason is correct.
		{"python: every descriptor is closed", unitask.Request{Language: "python"}, `x\n`, 3},
		{"python: words for the agent", unitask.Request{Language: "python"}, `\[3\]\non\n`, 0},
		{"python: its parent is killed", unitask.Request{Language: "python"}, `1\n1\nno\n`, 0},
		{"python: everything is killed", unitask.Request{Language: "python"}, `x\nalive\n`, 0},
		{"python: processes without end", unitask.Request{Language: "python"}, `True\n`, 0},
		{"python: memory without end", unitask.Request{Language: "python", MemoryMB: 256}, ``, unitask.ExitOOM},
		{"shell: processes are counted", unitask.Request{Language: "shell"}, `4096\n4096\n`, 1},
		{"shell: its parent is killed", unitask.Request{Language: "shell"}, `1\n1\non\n`, 0},
		{"shell: every descriptor is closed", unitask.Request{Language: "shell"}, `x\n`, 4},
		{"shell: what it leaves running", unitask.Request{Language: "shell"}, `(more\n)+`, 5},
		{"shell: a signal", unitask.Request{Language: "shell"}, ``, 138},
	}
}

func TestLanguages(t *testing.T) {
	needClones(t)
	web := newSite(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t), Upstream: web.upstream})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	programs := testarchive.Open(t, "testdata/languages.txtar")
	ending := map[string]string{"python": ".py", "shell": ".sh"}
	for _, c := range languagesRows(web) {
		c.req.Code = programs.Text(c.name + ending[c.req.Language])
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			slot(t)
			if c.req.Timeout == 0 {
				c.req.Timeout = time.Minute
			}
			res, err := rt.Run(t.Context(), c.req, unitask.IO{})
			if err != nil {
				t.Fatalf("%v %+v", err, res)
			}
			if !regexp.MustCompile(`\A(?:` + c.stdout + `)\z`).Match(res.Stdout) {
				t.Errorf("%q %q, want %s", res.Stdout, res.Stderr, c.stdout)
			}
			if res.ExitCode != c.exit {
				t.Errorf("exit %d, want %d: %s", res.ExitCode, c.exit, res.Stderr)
			}
		})
	}
}

// In each language, values that must differ between clones do: no two clones draw the same value.
func TestClonesOfLanguagesDiffer(t *testing.T) {
	needClones(t)
	const clones = 6
	programs := testarchive.Open(t, "testdata/clonesoflanguages.txtar")
	for _, c := range []struct {
		language string
		kernel   image.Kernel
		values   int
	}{
		{"python", image.Linux, 13},
		{"python", image.Nanos, 13},
		{"shell", image.Linux, 7},
	} {
		code := programs.Text(c.language)
		t.Run(c.language+"/"+string(c.kernel), func(t *testing.T) {
			if c.kernel == image.Nanos {
				needNanos(t, image.HostArch())
			}
			rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
			if err != nil {
				t.Fatal(err)
			}
			defer rt.Close()
			if _, err := rt.MakeTemplate(t.Context(), unitask.MachineClass{Kernel: c.kernel, Image: c.language}); err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			seen := map[string]int{}
			var group sync.WaitGroup
			for i := range clones {
				group.Go(func() {
					slots <- struct{}{}
					defer func() { <-slots }()
					begin := time.Now()
					res, err := rt.Run(t.Context(), unitask.Request{Language: c.language, Kernel: c.kernel, Code: code}, unitask.IO{})
					end := time.Now()
					var out map[string]any
					if err == nil {
						err = json.Unmarshal(res.Stdout, &out)
					}
					if err != nil {
						t.Errorf("clone %d: %v %+v", i, err, res)
						return
					}
					now := time.UnixMilli(int64(1000 * out["now"].(float64)))
					if now.Before(begin.Add(-50*time.Millisecond)) || now.After(end.Add(50*time.Millisecond)) {
						t.Errorf("clone %d: its clock says %s, between %s and %s", i, now, begin, end)
					}
					if out["sane"] != true {
						t.Errorf("clone %d: its clocks disagree", i)
					}
					delete(out, "now")
					delete(out, "sane")
					mu.Lock()
					defer mu.Unlock()
					for what, value := range out {
						key := fmt.Sprint(what, " ", value)
						if other, ok := seen[key]; ok {
							t.Errorf("clones %d and %d have the same %s", other, i, key)
						}
						seen[key] = i
					}
				})
			}
			group.Wait()
			if len(seen) != clones*c.values {
				t.Errorf("%d values of %d clones", len(seen), clones)
			}
		})
	}
}
