package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// When the toolchain is vendored, `go run` is asked once for the compiler and linker commands that it uses for a file.
// The file imports only the standard library. The commands are stored beside the toolchain, and the guest's program
// runs them without the go command.
const (
	goDirect     = goRoot + "/direct"
	goCommands   = goDirect + "/commands" // an argument a line: the compiler's, an empty line, the linker's
	goDirectID   = goDirect + "/id"       // of goRunVersion and the other files
	goGuestRoot  = "/usr/local/go"        // the part's goRoot, in the guest
	goDirectRoot = goGuestRoot + "/direct"
)

// goRunVersion is the version of askGoRun's output: raise it when the output changes.
const goRunVersion = "1"

// goRunID returns the content of goDirectID, or "" if there is none of this version.
func goRunID(p Part) string {
	id, _ := os.ReadFile(p.path(goDirectID))
	if !strings.HasPrefix(string(id), goRunVersion+" ") {
		return ""
	}
	return string(id)
}

// ensureGoRun asks `go run` if the part was vendored by a version that did not ask, or asked differently.
func (ps Parts) ensureGoRun(ctx context.Context, arch Arch) error {
	if !slices.Contains(ps.images.payload.parts(arch), goPart) || !compilesGo(arch) {
		return nil
	}
	p, err := ps.Get(arch, goPart)
	if err != nil || goRunID(p) != "" {
		return err
	}
	return ps.directGo(ctx, p.dir)
}

// directGo fills a part's goDirect folder in one step. The part's cache has the standard library. If directGo fails,
// the go command compiles each program, which is slower. The caller holds the vendor lock.
func (ps Parts) directGo(ctx context.Context, dir string) error {
	err := func() error {
		tmp, err := os.MkdirTemp(filepath.Dir(dir), fetchPrefix) // removed with the next lock if this process is killed
		if err != nil {
			return err
		}
		defer os.RemoveAll(tmp)
		made := filepath.Join(tmp, "direct")
		if err := os.Mkdir(made, 0o755); err != nil {
			return err
		}
		if err := askGoRun(ctx, filepath.Join(dir, goRoot), filepath.Join(dir, goCache), tmp, made); err != nil {
			return err
		}
		if err := os.RemoveAll(filepath.Join(dir, goDirect)); err != nil { // of another version
			return err
		}
		return os.Rename(made, filepath.Join(dir, goDirect))
	}()
	if err != nil && ctx.Err() == nil {
		ps.images.logf("Go's programs are compiled by the go command, which takes longer: %v", err)
		return nil
	}
	return err
}

// askGoRun writes what `go run` would do into a folder. The go command's other output goes to tmp, including a copy of
// the part's cache.
func askGoRun(ctx context.Context, root, cache, tmp, made string) error {
	own := filepath.Join(tmp, "cache")
	if err := os.CopyFS(own, os.DirFS(cache)); err != nil {
		return err
	}
	run := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, filepath.Join(root, "bin/go"), args...)
		cmd.Dir, cmd.Env = "/", append(goEnv(root, own, tmp), "GOMAXPROCS=1",
			"GOWORK=off") // there may be modules below a home
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("go %s: %w: %s", args[0], err, lastLine(errs.String()))
		}
		return out.String() + errs.String(), nil
	}
	all, err := run("list", "-export", "-f", "{{if .Export}}packagefile {{.ImportPath}}={{.Export}}{{end}}", "std")
	if err != nil {
		return err
	}
	main := filepath.Join(tmp, "unitask.go")
	if err := os.WriteFile(main, []byte("package main\n\nfunc main() {}\n"), 0o644); err != nil {
		return err
	}
	module, err := run("env", "GOMOD")
	if err != nil {
		return err
	}
	if module = strings.TrimSpace(module); module != os.DevNull {
		return fmt.Errorf("%s is a module", module)
	}
	said, err := run("run", "-n", main)
	if err != nil {
		return err
	}
	commands, info, err := goRunCommands(said, root, main)
	if err != nil {
		return err
	}
	var every, importable strings.Builder // the linker's packages, and those that programs may import
	for line := range strings.Lines(all) {
		name, file, _ := strings.Cut(strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "packagefile "), "=")
		entry, ok := strings.CutPrefix(file, own+"/")
		if _, err := os.Stat(filepath.Join(cache, entry)); !ok || err != nil {
			return fmt.Errorf("go list names %q for %s, which is not in its cache", file, name)
		}
		line = fmt.Sprintf("packagefile %s=%s/cache/%s\n", name, goGuestRoot, entry)
		every.WriteString(line)
		if elements := strings.Split(name, "/"); !slices.Contains(elements, "internal") && elements[0] != "vendor" &&
			elements[0] != "cmd" {
			importable.WriteString(line)
		}
	}
	id := fmt.Sprintf("%s %x\n", goRunVersion, sha256.Sum256([]byte(commands+"\n"+info+importable.String()+"\n"+
		every.String())))
	for name, text := range map[string]string{
		"importcfg": importable.String(), "importcfg.link": every.String() + info, path.Base(goCommands): commands,
		path.Base(goDirectID): id,
	} {
		if err := os.WriteFile(filepath.Join(made, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// goRunWord matches a word of what `go run -n` prints, which may be quoted in part.
var goRunWord = regexp.MustCompile(`(?:'[^']*'|"[^"]*"|[^ '"])+`)

var goBuildID = regexp.MustCompile(`^(-buildid=)?[A-Za-z0-9_-]{20}(?:/[A-Za-z0-9_-]{20})+$`)

// goRunCommands extracts the commands of compiler and linker from the output of `go run -n`, in the form that the
// guest's program reads. $WORK, $FILE, $NAME and $ID stand for the build's folder, the file, the file's name without
// .go, and a build id. info is the line of importcfg.link that describes the program.
func goRunCommands(said, root, file string) (commands, info string, err error) {
	work, name, tools := "$WORK/b001/", strings.TrimSuffix(filepath.Base(file), ".go"), filepath.Join(root, "pkg/tool")+"/"
	var found [2][]string
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "modinfo ") {
			info = line
		}
		words := goRunWord.FindAllString(strings.TrimSpace(line), -1)
		for i, w := range words {
			words[i] = strings.NewReplacer(`"`, "", "'", "").Replace(w)
		}
		for len(words) > 0 && strings.HasPrefix(words[0], "GOROOT=") { // the guest's program sets it
			words = words[1:]
		}
		if len(words) == 0 || !strings.HasPrefix(words[0], tools) {
			continue
		}
		tool := slices.Index([]string{"compile", "link"}, path.Base(words[0]))
		if tool < 0 || found[tool] != nil {
			return "", "", fmt.Errorf("go run -n prints another command than one of the compiler and one of the linker: %.200q",
				line)
		}
		for i, w := range words {
			switch id := goBuildID.FindStringSubmatch(w); {
			case i == 0:
				w = goGuestRoot + "/pkg/tool/" + strings.TrimPrefix(w, tools)
			case id != nil:
				w = id[1] + "$ID"
			case strings.HasPrefix(w, "-X"):
				return "", "", fmt.Errorf("go run -n sets %.200q, which a file without a module has none of", w)
			case w == file:
				w = "$FILE"
			case w == work+"exe/"+name:
				w = work + "exe/$NAME"
			case w == work+"importcfg", w == work+"importcfg.link":
				w = goDirectRoot + "/" + path.Base(w)
			}
			found[tool] = append(found[tool], w)
		}
	}
	for tool, must := range [][]string{{"$FILE", "$ID", work + "_pkg_.a", goDirectRoot + "/importcfg"},
		{"-buildid=$ID", work + "_pkg_.a", work + "exe/$NAME", goDirectRoot + "/importcfg.link"}} {
		for _, w := range must {
			if !slices.Contains(found[tool], w) {
				return "", "", fmt.Errorf("go run -n prints commands that this version does not know: %s is not in %q", w,
					found[tool])
			}
		}
	}
	if info == "" || strings.Contains(info, "DefaultGODEBUG") {
		return "", "", fmt.Errorf("go run -n prints modinfo that a file without a module does not have: %.200q", info)
	}
	return strings.Join(found[0], "\n") + "\n\n" + strings.Join(found[1], "\n") + "\n", info, nil
}
