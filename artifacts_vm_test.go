package unitask_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/record"
)

// Files that the code leaves in /out come back, and nothing else does.
func TestArtifacts(t *testing.T) {
	needVM(t)
	const secret = "s3cret-value"
	const code = `
const fs = require("fs"), cp = require("child_process");
fs.mkdirSync("/out/a/b/c", { recursive: true });
fs.writeFileSync("/out/plot.svg", "<svg/>");
fs.writeFileSync("/out/a/b/c/deep.bin", Buffer.alloc(300000, 7));
fs.writeFileSync("/out/empty", "");
fs.writeFileSync("/out/tool.sh", "#!/bin/sh\n", { mode: 0o755 });
fs.writeFileSync("/out/" + process.env.KEY + ".txt", "it is " + process.env.KEY + "!");
if (require("os").type() === "Linux") fs.writeFileSync(Buffer.from([47, 111, 117, 116, 47, 0xff]), "x");
fs.symlinkSync("/etc/passwd", "/out/passwd");
fs.symlinkSync("..", "/out/up");
fs.mkdirSync("/out/nothing");
process.exit(3);`
	for _, kernel := range kernels(t) {
		t.Run(string(kernel), func(t *testing.T) {
			rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
			if err != nil {
				t.Fatal(err)
			}
			defer rt.Close()
			run := func(req unitask.Request) *unitask.Result {
				t.Helper()
				req.Kernel = kernel
				res, err := rt.Run(t.Context(), req, unitask.IO{})
				if err != nil || len(res.Stderr) > 0 {
					t.Fatalf("%v %s", err, res.Stderr)
				}
				return res
			}
			res := run(unitask.Request{Code: code, Secrets: map[string]string{"KEY": secret}})
			modes := map[string]string{}
			for _, a := range res.Artifacts {
				text, err := os.ReadFile(rt.Runs().Path(res.RunID, record.ArtifactsDir+"/"+a.Path))
				if err != nil || int64(len(text)) != a.Size || sha256Hex(text) != a.SHA256 ||
					strings.Contains(string(text), secret) {
					t.Errorf("%+v: %v", a, err)
				}
				modes[a.Path] = a.Mode
			}
			want := map[string]string{"plot.svg": "0644", "a/b/c/deep.bin": "0644", "empty": "0644", "tool.sh": "0755",
				record.Redacted + ".txt": "0644"}
			refused, wantRefused := map[string]string{}, map[string]string{"passwd": "is a link", "up": "is a link"}
			if kernel == image.Linux {
				wantRefused["\ufffd"] = "has a name that is no text"
			}
			for _, r := range res.ArtifactsRefused {
				refused[r.Path] = r.Reason
			}
			if fmt.Sprint(modes) != fmt.Sprint(want) || res.ExitCode != 3 || fmt.Sprint(refused) != fmt.Sprint(wantRefused) {
				t.Errorf("%v %v", modes, refused)
			}
			copyArtifacts(t, rt, res)

			boundArtifacts(t, run)
		})
	}
	t.Run("special files", func(t *testing.T) {
		res, err := unitask.Run(t.Context(), unitask.Request{Kernel: "linux", Code: `
require("child_process").execFileSync("/bin/busybox", ["mkfifo", "/out/p"]);
require("net").createServer().listen("/out/s", () => { require("fs").writeFileSync("/out/f", "x"); process.exit() });`},
			unitask.Options{Home: newHome(t)})
		if err != nil || len(res.Artifacts) != 1 || len(res.ArtifactsRefused) != 2 {
			t.Errorf("%v %+v %+v %s", err, res.Artifacts, res.ArtifactsRefused, res.Stderr)
		}
	})
}

// copyArtifacts checks that a copy of artifacts replaces a link and keeps modes.
func copyArtifacts(t *testing.T, rt *unitask.Runtime, res *unitask.Result) {
	t.Helper()
	to := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	if err := errors.Join(os.WriteFile(outside, []byte("mine"), 0o600), os.Symlink(outside, to+"/plot.svg")); err != nil {
		t.Fatal(err)
	}
	folder, err := record.OpenOut(to, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { folder.Close() })
	left, err := rt.Runs().CopyArtifacts(res.RunID, res.Artifacts, folder)
	if err != nil || len(left) != 0 {
		t.Errorf("%v %+v", err, left)
	}
	text, err := os.ReadFile(to + "/plot.svg")
	mine, _ := os.ReadFile(outside)
	if err != nil || string(text) != "<svg/>" || string(mine) != "mine" {
		t.Errorf("%q %v, %q", text, err, mine)
	}
	if st, err := os.Stat(to + "/tool.sh"); err != nil || st.Mode().Perm()&0o111 != 0 {
		t.Errorf("%v %v", st, err)
	}
}

// boundArtifacts checks the limits of artifacts.
func boundArtifacts(t *testing.T, run func(req unitask.Request) *unitask.Result) {
	t.Helper()
	var res *unitask.Result
	res = run(
		unitask.Request{Code: `const fs = require("fs"); ` +
			`for (const f of "ab") fs.writeFileSync("/out/" + f, Buffer.alloc(600)); console.log("done")`, MaxArtifacts: 1000})
	if len(res.Artifacts) != 1 || len(res.ArtifactsRefused) != 1 ||
		!strings.Contains(res.ArtifactsRefused[0].Reason, "beyond 1000 bytes") || string(res.Stdout) != "done\n" {
		t.Errorf("%+v %+v", res.Artifacts, res.ArtifactsRefused)
	}
	res = run(unitask.Request{Code: `require("fs").writeFileSync("/out/x", "x")`, MaxArtifacts: -1})
	if len(res.Artifacts)+len(res.ArtifactsRefused) != 0 {
		t.Errorf("%+v %+v", res.Artifacts, res.ArtifactsRefused)
	}
	res = run(
		unitask.Request{Code: `const fs = require("fs"); for (let i = 0; i < 1100; i++) fs.writeFileSync("/out/" + i, "x")`})
	if len(res.Artifacts) != 1000 || len(res.ArtifactsRefused) != 100 || res.Outcome != unitask.OutcomeUndelivered ||
		res.ExitCode != unitask.ExitUndelivered {
		t.Errorf("%d %s %+v", len(res.Artifacts), res.Outcome, res.ArtifactsRefused)
	}
	res = run(
		unitask.Request{Code: `const fs = require("fs"); let d = "/out"; for (let i = 0; i < 80; ` +
			`i++) fs.mkdirSync(d += "/d"); fs.writeFileSync(d + "/f", "x")`})
	if len(res.Artifacts) != 0 || len(res.ArtifactsRefused) == 0 {
		t.Errorf("%+v %+v", res.Artifacts, res.ArtifactsRefused)
	}
}
