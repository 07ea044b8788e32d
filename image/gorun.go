package image

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// What `go run` has compiler and linker do for a file that imports nothing but the standard library is asked of it once, where the toolchain
// is vendored, and put beside it. The guest's program does the same then, without the go command.
const (
	goDirect     = goRoot + "/direct"
	goCommands   = goDirect + "/commands" // an argument a line: the compiler's, an empty line, the linker's
	goDirectRoot = "/usr/local/go/direct" // in the guest
)

// ensureGoRun asks `go run` where a part was taken by a version that did not.
func (s *Store) ensureGoRun(ctx context.Context, arch Arch) error {
	if !slices.Contains(s.payload.parts(arch), goPart) || !compilesGo(arch) {
		return nil
	}
	p, err := s.Part(arch, goPart)
	if err != nil || exists(p.path(goCommands)) {
		return err
	}
	return s.directGo(ctx, p.dir)
}

// directGo fills the goDirect of a part in a folder, whose cache has the standard library, in one step. Where `go run` can't be understood each program
// is compiled by the go command, which is slower.
func (s *Store) directGo(ctx context.Context, dir string) error {
	const prefix = ".direct-"
	for _, left := range append(glob(filepath.Join(dir, prefix+"*")), filepath.Join(dir, goDirect)) { // by who was killed
		if err := os.RemoveAll(left); err != nil {
			return err
		}
	}
	tmp, err := os.MkdirTemp(dir, prefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	made := filepath.Join(tmp, "direct")
	if err := os.Mkdir(made, 0o755); err != nil {
		return err
	}
	if err := askGoRun(ctx, filepath.Join(dir, goRoot), filepath.Join(dir, goCache), tmp, made); err != nil {
		if ctx.Err() == nil {
			s.logf("Go's programs are compiled by the go command, which takes longer: %v", err)
			return nil
		}
		return err
	}
	return os.Rename(made, filepath.Join(dir, goDirect))
}

// askGoRun writes what `go run` would do into a folder. What the go command writes beside that goes to tmp: to a cache of its own, too, of links to
// that of the part.
func askGoRun(ctx context.Context, root, cache, tmp, made string) error {
	own := filepath.Join(tmp, "cache")
	if err := os.CopyFS(own, os.DirFS(cache)); err != nil {
		return err
	}
	run := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, filepath.Join(root, "bin/go"), args...)
		cmd.Dir, cmd.Env = tmp, append(goEnv(root, own, tmp), "GOMAXPROCS=1")
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
	said, err := run("run", "-n", main)
	if err != nil {
		return err
	}
	commands, info, err := goRunCommands(said, root, main)
	if err != nil {
		return err
	}
	var every, importable strings.Builder // the linker's, and what programs may import
	for line := range strings.Lines(all) {
		name, file, _ := strings.Cut(strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "packagefile "), "=")
		entry, ok := strings.CutPrefix(file, own+"/")
		if _, err := os.Stat(filepath.Join(cache, entry)); !ok || err != nil {
			return fmt.Errorf("go list names %q for %s, which is not in its cache", file, name)
		}
		line = fmt.Sprintf("packagefile %s=/usr/local/go/cache/%s\n", name, entry)
		every.WriteString(line)
		if elements := strings.Split(name, "/"); !slices.Contains(elements, "internal") && elements[0] != "vendor" && elements[0] != "cmd" {
			importable.WriteString(line)
		}
	}
	for name, text := range map[string]string{"importcfg": importable.String(), "importcfg.link": every.String() + info, path.Base(goCommands): commands} {
		if err := os.WriteFile(filepath.Join(made, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// goRunWord is a word of what `go run -n` prints: some are quoted, in part.
var goRunWord = regexp.MustCompile(`(?:'[^']*'|"[^"]*"|[^ '"])+`)

var goBuildID = regexp.MustCompile(`^(-buildid=)?[A-Za-z0-9_-]{20}(?:/[A-Za-z0-9_-]{20})+$`)

// goRunCommands takes from what `go run -n` prints the commands of compiler and linker, as the guest's program reads them: $WORK, $FILE, $NAME
// and $ID are for its folder, the file, the file's name without .go, and a build id; and the line of importcfg.link that describes the program.
func goRunCommands(said, root, file string) (commands, info string, err error) {
	work, name, tools := "$WORK/b001/", strings.TrimSuffix(filepath.Base(file), ".go"), filepath.Join(root, "pkg/tool")+"/"
	var found [2][]string
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "modinfo ") {
			info = line
		}
		words := goRunWord.FindAllString(strings.TrimSpace(line), -1)
		for len(words) > 0 && strings.HasPrefix(words[0], "GOROOT=") { // the guest's program sets it
			words = words[1:]
		}
		if len(words) == 0 || !strings.HasPrefix(words[0], tools) {
			continue
		}
		tool := slices.Index([]string{"compile", "link"}, path.Base(words[0]))
		if tool < 0 || found[tool] != nil {
			return "", "", fmt.Errorf("go run -n prints another command than one of the compiler and one of the linker: %.200q", line)
		}
		for i, w := range words {
			w = strings.NewReplacer(`"`, "", "'", "").Replace(w)
			switch id := goBuildID.FindStringSubmatch(w); {
			case i == 0:
				w = "/usr/local/go/pkg/tool/" + strings.TrimPrefix(w, tools)
			case id != nil:
				w = id[1] + "$ID"
			case w == "./"+filepath.Base(file), w == file:
				w = "$FILE"
			case w == work+"exe/"+name:
				w = work + "exe/$NAME"
			case w == work+"importcfg", w == work+"importcfg.link":
				w = goDirectRoot + "/" + path.Base(w)
			}
			found[tool] = append(found[tool], w)
		}
	}
	for tool, must := range [][]string{{"$FILE", "$ID", work + "_pkg_.a", goDirectRoot + "/importcfg"}, {"-buildid=$ID", work + "_pkg_.a", work + "exe/$NAME", goDirectRoot + "/importcfg.link"}} {
		for _, w := range must {
			if !slices.Contains(found[tool], w) {
				return "", "", fmt.Errorf("go run -n prints commands that this version does not know: %s is not in %q", w, found[tool])
			}
		}
	}
	if info == "" {
		return "", "", fmt.Errorf("go run -n prints nothing of modinfo")
	}
	return strings.Join(found[0], "\n") + "\n\n" + strings.Join(found[1], "\n") + "\n", info, nil
}
