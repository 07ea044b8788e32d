package unitask_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
)

// describe writes the file of a custom image.
func describe(t *testing.T, dir, name, text string) string {
	t.Helper()
	file := filepath.Join(dir, name+".toml")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	return file
}

// A named custom image: files, variables and memory over a bundled image.
func TestOwnImage(t *testing.T) {
	t.Parallel()
	needVM(t)
	home := newHome(t)
	rt, err := unitask.Open(unitask.Options{Home: home, Machines: unitask.Booted()})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	code := "const fs = require('node:fs'); let no; " +
		"try { fs.writeFileSync('/opt/words/new', '') } catch (e) { no = e.code }\n" +
		"console.log(fs.readFileSync('/opt/words/a.txt', 'utf8'), process.env.WHO, no)"
	var limit time.Duration // of the last run
	run := func(image string, change func(*unitask.Request)) (string, int, error) {
		req := unitask.Request{Code: code, Image: image}
		if change != nil {
			change(&req)
		}
		res, err := rt.Run(t.Context(), req, unitask.IO{})
		if err != nil {
			return "", 0, err
		}
		limit = res.Policy.Effective.Timeout
		return string(res.Stdout) + string(res.Stderr), res.MemoryMB, nil
	}
	if _, _, err := run("words", nil); err == nil || !strings.Contains(err.Error(), `image "words": use node`) {
		t.Errorf("nobody has described it: %v", err)
	}
	describe(t, filepath.Join(home, "environments"), "words",
		"from = 'base'\nmemoryMb = 300\ntimeoutSeconds = 45\ndescription = 'Words in /opt.'\n[files]\n"+
			"'/opt/words' = 'words'\n[env]\nWHO = 'me'\n")
	describe(t, filepath.Join(home, "environments"), "base", "from = 'node'\n[env]\nWHO = 'base'\n")
	if _, _, err := run("words", nil); err == nil || !strings.Contains(err.Error(),
		"and not built: `unitask image build words` does that") {
		t.Errorf("it is not built: %v", err)
	}
	if _, _, err := rt.BuildImage(t.Context(), "words", ""); err == nil ||
		!strings.Contains(err.Error(), "words: no such file") {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(home, "environments/words"), 0o700),
		os.WriteFile(filepath.Join(home, "environments/words/a.txt"), []byte("one"), 0o600)); err != nil {
		t.Fatal(err)
	}
	first, im, err := rt.BuildImage(t.Context(), "words", "")
	if err != nil || im.Base != "node" || im.Name != "words" {
		t.Fatal(im, err)
	}
	if out, memory, err := run("words", nil); err != nil || out != "one me EROFS\n" || memory != 300 ||
		limit != 45*time.Second {
		t.Errorf("%q %d %s %v", out, memory, limit, err)
	}

	// A built image stays the same until it is built again.
	rebuildImage(t, home, rt, first, im)

	// Lists, ceilings, and invalid requests.
	askForImage(t, rt, im, run)

	// The image's files are unchanged, or the image does not exist.
	damageImage(t, home, rt, im, run, first)

	if was, err := rt.Catalog().RemoveCustom(t.Context(), "words"); !was || err != nil {
		t.Error(was, err)
	}
	if left, _ := os.ReadDir(filepath.Join(home, "own")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	list, err := rt.Images().List()
	if err != nil || slices.ContainsFunc(list, func(i *image.Image) bool { return i.Name == "words" }) {
		t.Errorf("left: %v %v", list, err)
	}

	// A custom image takes precedence over a bundled one with its name.
	checkOwnEnvironment(t, rt)
}

// rebuildImage checks that an image changes with its description, and that the same text gives the same image.
func rebuildImage(t *testing.T, home string, rt *unitask.Runtime, first *unitask.CustomImage, im *image.Image) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(home, "environments/words/a.txt"), []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	second, _, err := rt.BuildImage(t.Context(), filepath.Join(home, "environments/words.toml"), "")
	if err != nil || second.Digest == first.Digest {
		t.Errorf("other files have the digest %s: %v", second.Digest, err)
	}
	if err := os.WriteFile(filepath.Join(home, "environments/words/a.txt"), []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	third, again, err := rt.BuildImage(t.Context(), "words", "")
	if err != nil || third.Digest != first.Digest || again.Digest != im.Digest {
		t.Errorf("the same files have the digests %s and %s: %v", third.Digest, first.Digest, err)
	}
	if left, _ := filepath.Glob(filepath.Join(home, "own/*/files")); len(left) != 1 {
		t.Errorf("kept: %v", left)
	}
	log, err := os.ReadFile(filepath.Join(home, "audit", "log.jsonl"))
	if n := strings.Count(string(log), `"kind":"image.added"`); err != nil || n != 3 ||
		!strings.Contains(string(log), `"names":["words"]`) {
		t.Errorf("the audit log has %d builds: %v", n, err)
	}
}

// askForImage checks who may see and who may run an image.
func askForImage(
	t *testing.T, rt *unitask.Runtime, im *image.Image,
	run func(image string, change func(*unitask.Request)) (string, int, error),
) {
	t.Helper()
	strict, err := policy.ParseCeiling("test.toml", []byte(`images = ["words"]`))
	if err != nil {
		t.Fatal(err)
	}
	if got := rt.Catalog().AllowedImages(strict); !slices.Equal(got, []string{"words"}) {
		t.Errorf("allowed: %v", got)
	}
	if list := rt.Catalog().List(t.Context(), nil); !slices.ContainsFunc(list,
		func(i catalog.ImageInfo) bool { return i.Name == "words" && i.Ready && i.About == "Words in /opt." }) {
		t.Errorf("listed: %+v", list)
	}
	if about := strings.Join(rt.Catalog().AboutLanguages(strict), " "); !strings.Contains(about,
		"image words: Words in /opt)") || strings.Contains(about, "node:") {
		t.Errorf("about: %s", about)
	}
	other, err := policy.ParseCeiling("test.toml", []byte(`images = ["node"]`))
	if err != nil {
		t.Fatal(err)
	}
	if res, err := rt.RunFor(t.Context(), unitask.Caller{Ceiling: other}, unitask.Request{Code: "1", Image: "words"},
		unitask.IO{}); err == nil || !strings.Contains(err.Error(), "images") {
		t.Errorf("it is not allowed: %+v %v", res, err)
	}
	for says, change := range map[string]func(*unitask.Request){
		"does not run images of one's own": func(r *unitask.Request) { r.Kernel = "nanos" },
		"is not what the image words was built for": func(r *unitask.Request) {
			if r.Arch = "arm64"; im.Arch == "arm64" {
				r.Arch = "amd64"
			}
		},
	} {
		if _, _, err := run("words", change); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}

// damageImage checks that changed files of an image are noticed, and built again.
func damageImage(
	t *testing.T, home string, rt *unitask.Runtime, im *image.Image,
	run func(image string, change func(*unitask.Request)) (string, int, error), first *unitask.CustomImage,
) {
	t.Helper()
	var third *unitask.CustomImage
	var err error
	kept, _ := filepath.Glob(filepath.Join(home, "own/*/files/opt/words/a.txt"))
	if len(kept) != 1 {
		t.Fatal(kept)
	}
	if err := os.WriteFile(kept[0], []byte("evil"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := rt.Images().Remove(im.Digest); err != nil {
		t.Fatal(err)
	}
	if _, _, err := run("words", nil); err == nil || !strings.Contains(err.Error(),
		"what the image words brings is not whole") {
		t.Errorf("files that were changed: %v", err)
	}
	if third, _, err = rt.BuildImage(t.Context(), "words", ""); err != nil || third.Digest != first.Digest {
		t.Errorf("built again: %v", err)
	}
}

// checkOwnEnvironment checks the order of variables of an image and of a run.
func checkOwnEnvironment(t *testing.T, rt *unitask.Runtime) {
	t.Helper()
	if _, _, err := rt.BuildImage(t.Context(), describe(t, t.TempDir(), "node", "from = 'node'\nenv = {WHO = 'mine'}\n"),
		""); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ given, want string }{{"", "mine\n"}, {"theirs", "theirs\n"}} {
		req := unitask.Request{Code: "console.log(process.env.WHO)"}
		if c.given != "" {
			req.Env = map[string]string{"WHO": c.given}
		}
		if res, err := rt.Run(t.Context(), req, unitask.IO{}); err != nil || string(res.Stdout) != c.want {
			t.Errorf("%+v %v", res, err)
		}
	}
}

// Invalid contents of a file, found before anything is built.
func TestOwnImageRefused(t *testing.T) {
	home := testdir.Private(t)
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	for text, says := range map[string]string{
		"from = 'node'\npip = ['requests']":                 "pip: \"pip:requests\" is not for js",
		"from = 'shell'\npip = ['requests']":                "is not for shell",
		"from = 'python'\npip = ['--index-url=http://h/']":  "is no package of pip",
		"from = 'python'\npip = ['*']":                      "is no package",
		"from = 'python'\npip = ['git+https://h/x']":        "is no package of pip",
		"from = 'node'\nwarm = ['zod']":                     "warm is for images with Python",
		"from = 'python'\nmemoryMb = 1":                     "memoryMb",
		"from = 'python'\nfiles = {'/etc/passwd' = 'x'}":    "/etc/passwd is not where an image can have files",
		"from = 'python'\nfiles = {'/usr/lib/x' = 'x'}":     "is not where an image can have files",
		"from = 'python'\nfiles = {'/work/x' = 'x'}":        "is not where an image can have files",
		"from = 'python'\nfiles = {'/out/x' = 'x'}":         "is not where an image can have files",
		"from = 'node'\nfiles = {'/node_modules/x' = 'x'}":  "is not where an image can have files",
		"from = 'python'\nfiles = {'/home/user/x' = 'x'}":   "is not where an image can have files",
		"from = 'python'\nfiles = {'/o p t/x' = 'x'}":       "is not where an image can have files",
		"from = 'python'\nfiles = {'/unitask/lib/x' = 'x'}": "is not where an image can have files",
		"from = 'python'\nfiles = {" + manyTops(17) + "}":   "lie in 17 folders",
		"from = 'python'\nnoSuchKey = 1":                    "unknown key",
	} {
		_, _, err := rt.BuildImage(t.Context(), describe(t, t.TempDir(), "x", text), "")
		var field *policy.FieldError
		if !errors.As(err, &field) || field.Field != "image" || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, name := range []string{"nosuch", "../x", "container"} {
		describe(t, home, "container", "from = 'node'\n")
		if _, _, err := rt.BuildImage(t.Context(), filepath.Join(home, name)+".toml", ""); err == nil {
			t.Errorf("%s was built", name)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(home, "own")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	// A lock file from a repository is data: no part of it becomes an option of the tool.
	for text, says := range map[string]string{
		`{"schema":9}`: "has schema 9", `{`: "without the file versions are chosen anew", `[]`: "cannot unmarshal",
		`{"schema":1,"builds":[{"packages":[{"name":"x\n--index-url=http://h/",` +
			`"version":"1"}]}]}`: "has a package",
		`{"schema":1,"builds":[{"packages":[{"name":"x","version":"1",` +
			`"digest":"sha256-ab\n--index-url=http://h/"}]}]}`: "has a package",
		`{"schema":1,"builds":[{"packages":[{"name":"x","version":"1",` +
			`"digest":"sha256-ab --index-url=http://h/"}]}]}`: "has a package",
		`{"schema":1,"builds":[{"packages":[` + strings.Repeat(`{"name":"x","version":"1"},`, 5000) +
			`{"name":"x"}]}]}`: "has 5001 packages",
	} {
		file := describe(t, t.TempDir(), "x", "from = 'python'\npip = ['x']\n")
		if err := os.WriteFile(strings.TrimSuffix(file, ".toml")+".lock.json", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := rt.BuildImage(t.Context(), file, ""); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.80s: %v", text, err)
		}
	}
}

func manyTops(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("'/top" + strings.Repeat("x", i) + "/f' = 'f',")
	}
	return strings.TrimSuffix(b.String(), ",")
}

// failsToBuild checks that an image can't be built, and that the error says why.
func failsToBuild(ctx context.Context, t *testing.T, rt *unitask.Runtime, file, says string) {
	t.Helper()
	if _, _, err := rt.BuildImage(ctx, file, ""); err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("build %s: got %v, want an error with %q", filepath.Base(file), err, says)
	}
}

// Packages of an image are installed in a machine as the lock file says. Another home gets the same packages from it.
func TestOwnImagePackages(t *testing.T) {
	needVM(t)
	if !long() {
		t.Skip("pip takes half a minute in a machine that is emulated: make long")
	}
	r := newRegistry(t)
	r.put("good-1.2-py3-none-any.whl", wheel(t, "good", "1.2", "import random\nNAME = 'good'\nDRAWN = random.random()\n"))
	dir := t.TempDir()
	file := describe(t, dir, "report", "from = 'python'\npip = ['good']\nwarm = ['good', 'csv']\n")
	open := func() (*unitask.Runtime, string) {
		home := newHome(t)
		rt, err := unitask.Open(unitask.Options{Home: home, Machines: unitask.Booted()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { rt.Close() })
		return rt, home
	}
	rt, home := open()
	clean := func(want int) {
		t.Helper()
		left, _ := os.ReadDir(filepath.Join(home, "own"))
		if len(left) != want {
			t.Errorf("kept: %v", left)
		}
	}
	missing := describe(t, dir, "missing", "from = 'python'\npip = ['nosuch']\n")
	failsToBuild(t.Context(), t, rt, missing, "No matching distribution found for nosuch")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	failsToBuild(ctx, t, rt, file, "cancelled")
	clean(0)
	var wait sync.WaitGroup
	digests := make([]string, 2)
	for i := range digests {
		wait.Go(func() {
			own, _, err := rt.BuildImage(t.Context(), file, "")
			if err != nil {
				t.Error(err)
				return
			}
			digests[i] = own.Digest
		})
	}
	wait.Wait()
	clean(2)
	if digests[0] != digests[1] {
		t.Error(digests)
	}
	runOwnPackage(t, rt)

	// Another home installs the same locked versions although there is a newer one.
	r.put("good-2.0-py3-none-any.whl", wheel(t, "good", "2.0", "NAME = 'newer'\n"))
	rt, home = open()
	own, _, err := rt.BuildImage(t.Context(), file, "")
	if err != nil || own.Digest != digests[0] || own.Packages[0].Version != "1.2" {
		t.Errorf("from the lock: %+v %v", own, err)
	}
	clean(2)
	// A registry with other contents for that version is refused, and the built image stays.
	r.put("good-1.2-py3-none-any.whl", wheel(t, "good", "1.2", "NAME = 'evil'\n"))
	rt, home = open()
	failsToBuild(t.Context(), t, rt, file, "HASHES")
	clean(0)
	// Without the lock, the newest version is taken. A module that can't be preloaded is reported.
	if err := os.Remove(filepath.Join(dir, "report.lock.json")); err != nil {
		t.Fatal(err)
	}
	describe(t, dir, "report", "from = 'python'\npip = ['good>=2']\nwarm = ['bad']\n")
	failsToBuild(t.Context(), t, rt, file, "ModuleNotFoundError: No module named 'bad'")
	clean(0)
}

// runOwnPackage runs code with a package of its image.
func runOwnPackage(t *testing.T, rt *unitask.Runtime) {
	t.Helper()
	req := unitask.Request{Code: "import good, sys\nprint(good.NAME, good.__file__)", Image: "report"}
	if res, err := rt.Run(t.Context(), req, unitask.IO{}); err != nil ||
		string(res.Stdout) != "good /usr/local/lib/python3.13/dist-packages/good/__init__.py\n" {
		t.Errorf("%+v %v", res, err)
	}
	req.Packages = []string{"pip:good"}
	if _, err := rt.Run(t.Context(), req, unitask.IO{}); err == nil ||
		!strings.Contains(err.Error(), "which has packages of its own") {
		t.Errorf("packages over packages: %v", err)
	}
}

// The same for npm, whose packages' install scripts run in the machine. Another home builds the same from the lock. A
// lock or a registry with other contents is refused.
func TestOwnImageNpm(t *testing.T) {
	needVM(t)
	if !long() {
		t.Skip("npm takes half a minute in a machine that is emulated: make long")
	}
	fetchTools(t)
	r := newRegistry(t)
	box := func(text string) []byte {
		return tgz(t,
			[2]string{"package/package.json",
				`{"name": "box", "version": "1.0.0", "scripts": {"postinstall": ` +
					`"echo module.exports=require\\(\\'os\\'\\).platform\\(\\) > made.js"}}`},
			[2]string{"package/index.js", text})
	}
	r.put("box-1.0.0.tgz", box("exports.name = 'box'; exports.made = require('./made.js')\n"))
	dir := t.TempDir()
	file, lock := describe(t, dir, "tools", "from = 'node'\nnpm = ['box@^1']\nmemoryMb = 300\n"),
		filepath.Join(dir, "tools.lock.json")
	build := func() (*unitask.Runtime, *catalog.Custom, error) {
		rt, err := unitask.Open(unitask.Options{Home: newHome(t), Machines: unitask.Booted()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { rt.Close() })
		own, _, err := rt.BuildImage(t.Context(), file, "")
		return rt, own, err
	}
	rt, first, err := build()
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range []string{"const b = require('box'); console.log(b.name, b.made)",
		"import b from 'box'; console.log(b.name, b.made)"} {
		if res, err := rt.Run(t.Context(), unitask.Request{Code: code, Image: "tools"}, unitask.IO{}); err != nil ||
			string(res.Stdout) != "box linux\n" || res.MemoryMB != 300 {
			t.Errorf("%+v %v", res, err)
		}
	}
	if _, second, err := build(); err != nil || second.Digest != first.Digest {
		t.Errorf("from the lock: %+v, want %s: %v", second, first.Digest, err)
	}
	// A lock with a false digest, and a registry with a false package.
	text, err := os.ReadFile(lock)
	if err != nil {
		t.Fatal(err)
	}
	r.put("box-1.0.0.tgz", box("exports.name = 'evil'; exports.made = 1\n"))
	if _, own, err := build(); err == nil || !strings.Contains(err.Error(), "EINTEGRITY") {
		t.Errorf("a registry that lies: %+v %v", own, err)
	}
	if err := os.WriteFile(lock, []byte(strings.Replace(string(text), `"name": "box"`, `"name": "box\u001b[31m"`, 1)),
		0o600); err != nil {
		t.Fatal(err)
	}
	if _, own, err := build(); err == nil || !strings.Contains(err.Error(), "tools.lock.json") {
		t.Errorf("a lock with a name for terminals: %+v %v", own, err)
	}
}
