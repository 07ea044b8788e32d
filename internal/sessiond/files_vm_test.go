package sessiond

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testhome"
)

// A list of a folder is bounded in entries and bytes, whatever code named its files, and is there after a pause.
func TestAttackListedFiles(t *testing.T) {
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	testhome.Ready(t, base, image.Linux)
	home := testhome.New(t, base)
	serve(t, home, time.Hour)
	reach(t, home).Close()
	do := func(req Request) Answer {
		t.Helper()
		answer, err := Do(t.Context(), home, req, Streams{}, nil)
		if err != nil {
			t.Fatal(req.Op, err)
		}
		return answer
	}
	id := do(Request{Op: OpNew, New: &New{Request: unitask.Request{Image: "shell"}}}).Sessions[0].ID
	do(Request{Op: OpRun, Session: id, Step: &Step{Code: `
l=$(printf '\001%.0s' $(seq 200)); mkdir few many; cd many
touch $(seq 1100)
cd ../few; : > "$(printf 'a\nb')"; : > "<b>"; : > --help; mkfifo pipe; ln -s /etc/passwd link
cd ..; d=.; for i in $(seq 15); do d="$d/$l"; mkdir "$d"; done; cd "$d"
touch $(seq 900)`}})
	list := func(path string) string {
		answer := do(Request{Op: OpFiles, Session: id, Path: path})
		return fmt.Sprint(len(answer.Files), answer.More)
	}
	var kinds []string
	for _, f := range do(Request{Op: OpFiles, Session: id, Path: "few"}).Files {
		kinds = append(kinds, strings.TrimPrefix(f.Path, "/work/few/")+" "+f.Mode.Type().String())
	}
	attack.Check(t, "files: names and kinds",
		"--help ----------|<b> ----------|a\nb ----------|link L---------|pipe p---------",
		strings.Join(kinds, "|"))
	attack.Check(t, "files: a large folder", fmt.Sprint(maxListed, true), list("many"))
	deep := strings.Repeat("/"+strings.Repeat("\x01", 200), 15)[1:]
	answer := do(Request{Op: OpFiles, Session: id, Path: deep}) // 900 names, each of 18 kB as JSON
	attack.Check(t, "files: a deep folder, with names that JSON makes longer", "true",
		fmt.Sprint(len(answer.Files) > 50 && len(answer.Files) < 300 && answer.More))
	attack.Check(t, "files: a pipe and a link, as themselves", "1 false 1 false", list("few/pipe")+" "+list("few/link"))
	for _, path := range []string{"none", "\x00", strings.Repeat("a", 5000)} {
		_, err := Do(t.Context(), home, Request{Op: OpFiles, Session: id, Path: path}, Streams{}, nil)
		attack.Check(t, fmt.Sprintf("files: no folder, %.20q", path), "refused",
			map[bool]string{true: "refused", false: fmt.Sprint(err)}[err != nil && len(err.Error()) < 6000])
	}
	do(Request{Op: OpPause, Session: id})
	attack.Check(t, "files: of a paused session", "5 false", list("few"))
	do(Request{Op: OpEnd, Session: id})
}
