package mcp_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/doctor"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

var update = flag.Bool("update", false, "write what the server answers into testdata/wire")

// The revisions in which each request is sent.
var wireRevisions = []string{"2026-07-28", "2025-11-25"}

// TestWire sends the requests of testdata/wire/*.txtar, in both revisions of the protocol, and compares the exchanged
// messages. A file begins with a note. Each section "request NAME" is a JSON-RPC request without its envelope.
// "NAME/REVISION" is the answer: the status, and each message as it came, with volatile values replaced (normal). Files
// that begin with vm_ boot real machines. With -update the answers are written.
func TestWire(t *testing.T) {
	files, err := filepath.Glob("testdata/wire/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			home := bare
			dir := t.TempDir()
			opts := mcp.Options{Version: "1.2.3", Dir: dir, Prompts: filepath.Join(dir, "prompts")}
			if strings.HasPrefix(name, "vm_") {
				testhome.Ready(t, base, image.Linux)
				home = func(t *testing.T) *unitask.Runtime { return open(t, unitask.PoolSize{}) }
			} else {
				opts.Ceiling = noMachine()
			}
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			old := map[string]string{}
			out := &txtar.Archive{Comment: archive.Comment}
			var requests []txtar.File
			for _, f := range archive.Files {
				switch {
				case strings.HasPrefix(f.Name, "request "):
					requests = append(requests, f)
				case strings.HasPrefix(f.Name, "file "): // in the server's folder
					at := filepath.Join(dir, strings.TrimPrefix(f.Name, "file "))
					if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(at, f.Data, 0o600); err != nil {
						t.Fatal(err)
					}
					out.Files = append(out.Files, f)
				default:
					old[f.Name] = string(f.Data)
				}
			}
			if err := os.MkdirAll(opts.Prompts, 0o700); err != nil {
				t.Fatal(err)
			}
			wires := map[string]*wire{}
			for _, revision := range wireRevisions { // a separate server and record each: the answers are independent
				wires[revision] = newWire(t, home(t), opts, revision)
			}
			for _, r := range requests {
				out.Files = append(out.Files, r)
				for _, revision := range wireRevisions {
					section := strings.TrimPrefix(r.Name, "request ") + "/" + revision
					got := wires[revision].exchange(string(r.Data))
					out.Files = append(out.Files, txtar.File{Name: section, Data: []byte(got)})
					if want := old[section]; !*update && got != want {
						t.Errorf("%s (-update writes it)\n%s", file,
							diff.Diff(section+" expected", []byte(want), section+" seen", []byte(got)))
					}
					delete(old, section)
				}
			}
			for section := range old {
				if !*update {
					t.Errorf("%s: %s is the answer to no request", file, section)
				}
			}
			if *update {
				if err := os.WriteFile(file, txtar.Format(out), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// wire is a client that speaks one revision, and knows the volatile values.
type wire struct {
	t        *testing.T
	url      string
	revision string
	session  string
	ids      map[string]string // of runs, and the names that replace them
	dir      string
	n        int
}

// newWire serves a server with a fixed doctor. On a runtime without machines it also has a fixed record, run R1.
func newWire(t *testing.T, rt *unitask.Runtime, opts mcp.Options, revision string) *wire {
	t.Helper()
	s := newServer(t, rt, opts)
	mcp.SetDoctor(s, func(context.Context) *doctor.Report {
		return &doctor.Report{
			OK:      false,
			Verdict: "This host can't run code as it is.",
			Checks: []doctor.Check{{Name: "qemu", OK: true, Detail: "/usr/bin/qemu 10.0"},
				{Name: "records", Detail: "open " + opts.Dir + "/x: no space", Remedy: "make room"}},
			Accelerators: []doctor.AccelReport{{Accel: "kvm", Reason: "/dev/kvm: permission denied"},
				{Accel: "tcg", OK: true, BootMs: 1234}},
		}
	})
	w := &wire{t: t, url: serve(t, s, mcp.HTTPOptions{}) + "/mcp", revision: revision, ids: map[string]string{},
		dir: opts.Dir}
	if opts.Ceiling != nil {
		r, err := rt.Runs().Create(time.Now(), unitask.LocalOwner(os.Geteuid()), record.ViaHTTP, "code.js",
			[]byte("console.log('hello')\n"), policy.Request{MemoryMB: 4096})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(r.Stdout(), "hello")
		r.Netlog(map[string]any{"proto": "dns", "name": "evil.example", "verdict": "denied"})
		r.Effective = json.RawMessage(`{"memoryMb":512}`)
		r.Denials = json.RawMessage(
			`[{"field":"memoryMb","requested":"4096","reason":"at most 512 is allowed","rule":"/srv/.unitask.toml",` +
				`"key":"memoryMb"}]`,
		)
		r.Result = json.RawMessage(`{"runId":"` + r.ID +
			`","outcome":"exited","exitCode":0,"durationMs":{"total":7},"artifacts":[{"path":"a.txt","size":5,"mode":"0644",` +
			`"sha256":"aa"}]}`)
		out := filepath.Join(r.Dir(), record.ArtifactsDir)
		if err := os.Mkdir(out, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(out, "a.txt"), []byte("text\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		r.Status = record.Done
		if err := r.Finish(time.Now()); err != nil {
			t.Fatal(err)
		}
		w.ids[r.ID] = "R1"
	}
	if revision < "2026-07-28" {
		w.post(strings.Replace(initialize, "2025-11-25", revision, 1), "")
		w.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`, "")
	}
	return w
}

// exchange sends a request and returns the answer in the file's format.
func (w *wire) exchange(request string) string {
	w.t.Helper()
	for id, name := range w.ids {
		request = strings.ReplaceAll(request, name, id)
	}
	var call struct {
		Method string         `json:"method"`
		Params map[string]any `json:"params"`
	}
	if err := json.Unmarshal([]byte(request), &call); err != nil {
		w.t.Fatalf("%v in %s", err, request)
	}
	w.n++
	if call.Params == nil {
		call.Params = map[string]any{}
	}
	if w.revision >= "2026-07-28" {
		meta, _ := call.Params["_meta"].(map[string]any)
		if meta == nil {
			meta = map[string]any{}
		}
		meta["io.modelcontextprotocol/protocolVersion"], meta["io.modelcontextprotocol/clientCapabilities"] = w.revision,
			map[string]any{}
		call.Params["_meta"] = meta
	}
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": w.n, "method": call.Method, "params": call.Params})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.post(string(body), call.Method, fmt.Sprint(cmp.Or(call.Params["name"], call.Params["uri"], any(""))))
}

// post sends a body with the headers of the revision.
func (w *wire) post(body, method string, name ...string) string {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), "POST", w.url, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	switch {
	case w.session != "":
		r.Header.Set("Mcp-Session-Id", w.session)
		r.Header.Set("Mcp-Protocol-Version", w.revision)
	case w.revision >= "2026-07-28":
		r.Header.Set("Mcp-Protocol-Version", w.revision)
		r.Header.Set("Mcp-Method", method)
		if len(name) > 0 && name[0] != "" {
			if strings.ContainsFunc(name[0], unicode.IsControl) {
				name[0] = "=?base64?" + base64.StdEncoding.EncodeToString([]byte(name[0])) + "?="
			}
			r.Header.Set("Mcp-Name", name[0])
		}
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	if session := res.Header.Get("Mcp-Session-Id"); session != "" {
		w.session = session
	}
	out := fmt.Sprintf("%d %s\n", res.StatusCode, res.Header.Get("Content-Type"))
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		return out + w.normal(text)
	}
	for _, event := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
		for line := range strings.Lines(event) {
			if data, ok := strings.CutPrefix(strings.TrimSpace(line), "data:"); ok && strings.TrimSpace(data) != "" {
				out += w.normal([]byte(data))
			}
		}
	}
	return out
}

// Values that differ each time or on each machine, by the field: the text that replaces them.
var volatile = map[string]string{
	"durationMs": "MS", "created": "TIME", "finished": "TIME", "kernelVersion": "VERSION", "runtime": "VERSION",
	"qemu": "VERSION", "jail": "JAIL", "imageDigest": "DIGEST",
	"arch": "ARCH", "kernel": "KERNEL", "accelerator": "ACCELERATOR", "owner": "OWNER", "console": "CONSOLE",
	"networkDrops": "DROPS", "template": "TEMPLATE",
}

var milliseconds = regexp.MustCompile(`, \d+ ms`)

// normal returns a message with its fields in order and volatile values replaced.
func (w *wire) normal(text []byte) string {
	w.t.Helper()
	s := string(text)
	for _, id := range runID.FindAllString(s, -1) {
		if w.ids[id] == "" {
			w.ids[id] = fmt.Sprintf("R%d", len(w.ids)+1)
		}
		s = strings.ReplaceAll(s, id, w.ids[id])
	}
	s = strings.NewReplacer(w.dir, "DIR", string(image.HostArch()),
		"ARCH").Replace(milliseconds.ReplaceAllString(s, ", N ms"))
	dec := json.NewDecoder(strings.NewReader(s))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return s
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(w.replaced("", v)); err != nil {
		w.t.Fatal(err)
	}
	return b.String()
}

func (w *wire) replaced(key string, v any) any {
	if text := volatile[key]; text != "" && v != "" {
		return text
	}
	switch v := v.(type) {
	case map[string]any:
		if _, schema := v["$schema"]; schema || key == "properties" {
			return v
		}
		delete(v, "whySlow") // missing on a machine with hardware acceleration
		for k := range v {
			v[k] = w.replaced(k, v[k])
		}
		// A tool's text mostly repeats its structured content.
		if content, ok := v["content"].([]any); ok && len(content) == 1 && v["structuredContent"] != nil {
			text, _ := content[0].(map[string]any)
			if raw, ok := text["text"].(json.RawMessage); ok {
				var b bytes.Buffer
				enc := json.NewEncoder(&b)
				enc.SetEscapeHTML(false)
				enc.SetIndent("", "  ")
				if err := enc.Encode(v["structuredContent"]); err != nil {
					w.t.Fatal(err)
				}
				if strings.TrimSpace(b.String()) == string(raw) {
					text["text"] = "THE STRUCTURED CONTENT"
				}
			}
		}
	case []any:
		for i := range v {
			v[i] = w.replaced(key, v[i])
		}
	case string:
		if key == "text" && strings.HasPrefix(v, "{") { // a record as a resource, or a result as text
			return json.RawMessage(strings.TrimSpace(w.normal([]byte(v))))
		}
	}
	return v
}

// The files contain no path and no id of the machine that wrote them.
func TestWireFilesAreNormal(t *testing.T) {
	files, err := filepath.Glob("testdata/wire/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`/tmp/\S+|127\.0\.0\.1:\d{5}|\d{8}-\d{9}-\w{6}`).FindString(string(text))
		if found != "" {
			t.Errorf("%s holds %q", file, found)
		}
	}
}
