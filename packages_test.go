package unitask

import (
	"archive/tar"
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/egress"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/packages"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// What a run has of the store stays there until the run is over, however much others want its room.
func TestPackagesHeld(t *testing.T) {
	var b bytes.Buffer
	to := tar.NewWriter(&b)
	if err := to.WriteHeader(&tar.Header{Name: "a.py", Mode: 0o644, Size: 3}); err != nil {
		t.Fatal(err)
	}
	if _, err := to.Write([]byte("x=1")); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	store := &packages.Store{Dir: t.TempDir(), MaxMany: 1}
	add := func(key string) (*packages.Lock, error) {
		l := &packages.Lock{Key: key}
		return l, store.Add(l, bytes.NewReader(b.Bytes()))
	}
	lock, err := add("one")
	if err != nil {
		t.Fatal(err)
	}
	x := &execution{code: &program.Program{Language: language.OfSystem(policy.Pip)}, image: &image.Image{Runtime: "3.11"}}
	if err := x.bring(store, lock); err != nil || x.code.Inputs.Count() == 0 {
		t.Fatal(err)
	}
	if _, err := add("two"); err == nil || !strings.Contains(err.Error(), "wait until some have ended") {
		t.Errorf("what a run has made room: %v", err)
	}
	x.code.Close()
	if _, err := add("two"); err != nil {
		t.Error(err)
	}
	if err := (&execution{code: &program.Program{Language: x.code.Language}, image: x.image}).bring(store, lock); err == nil {
		t.Error("what has gone is brought")
	}
}

// The machine that installs packages for a run is held to what the ceiling of the run's caller says of the network.
func TestPackagesReach(t *testing.T) {
	c, err := policy.ParseCeiling("c.toml", []byte("allowNet = []\nmaxConnections = 3\nmaxUploadBytes = 5\nmaxDownloadBytes = 7\n[[net.rule]]\nhost = \"pypi.example\"\nmethod = \"GET\"\npath = \"/simple/**\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	x := &execution{code: &program.Program{Language: language.OfSystem(policy.Pip)}, live: &egress.LiveRules{Ceiling: c}, rec: &record.Run{}, image: &image.Image{Runtime: "3.11"}}
	x.rec.Owner, x.rec.Via = "alice", record.ViaFleet
	b := x.builder()
	granted, denials, err := policy.Resolve(policy.Request{AllowNet: []string{"pypi.example:443"}, MemoryMB: buildMemory}, b.caller.Ceiling)
	if err != nil || len(denials) > 0 || b.caller.Name != "alice" || b.caller.Via != record.ViaFleet {
		t.Fatalf("%+v %v %v", b.caller, denials, err)
	}
	if got := fmt.Sprint(granted.AllowNet, granted.AllowHTTP, granted.MaxConnections, granted.MaxUpload, granted.MaxDownload); got != "[pypi.example:443] [1: GET pypi.example/simple/**] 3 5 7" {
		t.Error(got)
	}
}

// What a tool says of why it failed: the first cause comes before what came of it.
func TestToolWords(t *testing.T) {
	for name, c := range map[string]struct{ said, begins string }{
		"a plain error": {"ERROR: No matching distribution found for x\n", "No matching distribution found for x"},
		"a pip within pip": {"  error: subprocess-exited-with-error\n  \n  × pip subprocess to install build dependencies did not run successfully.\n  │ exit code: 1\n  ╰─> [5 lines of output]\n" +
			"      WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by 'SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] self-signed'))': /simple/setuptools/\n" +
			"      ERROR: Could not find a version that satisfies the requirement setuptools\n      [end of output]\n", "no connection: SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] self-signed')); Could not find a version"},
		"no compiler for Python": {"  error: command 'x86_64-linux-gnu-gcc' failed: No such file or directory\n  ERROR: Failed building wheel for x\n", "it has no wheel or prebuilt binary"},
		"no compiler for npm":    {"npm error code 1\nnpm error gyp ERR! find Python\n", "it has no wheel or prebuilt binary"},
		"no make":                {"npm error sh: 1: make: not found\n", "it has no wheel or prebuilt binary"},
		"npm":                    {"npm error 404 Not Found\nnpm error A complete log of this run can be found in: /x\n", "404 Not Found"},
		"nothing":                {"Collecting x\n", ""},
	} {
		got := toolWords(c.said)
		if !strings.HasPrefix(got, c.begins) || c.begins == "" && got != "" || len(got) > 710 {
			t.Errorf("%s: %q", name, got)
		}
	}
}
