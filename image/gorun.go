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

// directGo fills goDirect: env is for the part's own go command, whose cache has the standard library.
func directGo(ctx context.Context, dir, tmp string, env []string) error {
	root := filepath.Join(dir, goRoot)
	run := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, filepath.Join(root, "bin/go"), args...)
		cmd.Dir, cmd.Env = tmp, env
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
	all = strings.ReplaceAll(all, "="+root+"/", "=/usr/local/go/")
	commands, info, err := goRunCommands(said, root, main)
	if err != nil {
		return err
	}
	var own []string // what programs may import
	for line := range strings.Lines(all) {
		name, _, _ := strings.Cut(strings.TrimPrefix(line, "packagefile "), "=")
		if elements := strings.Split(name, "/"); !slices.Contains(elements, "internal") && elements[0] != "vendor" && elements[0] != "cmd" {
			own = append(own, line)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, goDirect), 0o755); err != nil {
		return err
	}
	for name, text := range map[string]string{goDirect + "/importcfg": strings.Join(own, ""), goDirect + "/importcfg.link": all + info, goCommands: commands} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
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

// lacksGoRun says that a part was taken by a version that did not ask `go run`, and can be taken again here.
func lacksGoRun(p Part, arch Arch) bool {
	return p.Name == goPart && !p.Bundled && compilesGo(arch) && !exists(p.path(goCommands))
}
