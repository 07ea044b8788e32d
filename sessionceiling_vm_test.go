package unitask_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/policy"
)

// ceilingUse is a use of a session that reads its ceiling again.
type ceilingUse struct {
	name string
	use  func() error
}

func ceilingUses(t *testing.T, s *unitask.Session) []ceilingUse {
	return []ceilingUse{
		{"fork", func() error {
			forks, err := s.Fork(t.Context(), 1)
			for _, f := range forks {
				f.Close()
			}
			return err
		}},
		{"extend", func() error { return s.Extend(t.Context(), time.Minute) }},
		{"resume", func() error {
			if err := s.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			_, err := s.Run(t.Context(), unitask.Step{Code: "true"})
			return err
		}},
	}
}

// A new ceiling file also applies, and so does one above the session's first one.
func TestAttackSessionCeilingAppears(t *testing.T) {
	needClones(t)
	for _, c := range []struct{ name, began, at, text, want string }{
		{"there was no file, and it grants less", "", policy.CeilingFile, "allowNet = []\n", "allowNet, changed true"},
		{"there was no file, and one above grants less", "", "../" + policy.CeilingFile, "memoryMb = 128\n",
			"memoryMb, changed true"},
		{"there was no file, and it grants all", "", policy.CeilingFile, "allowNet = [\"a.example\"]\n",
			"done, changed true"},
		{"there was one, and one above it grants less", "sessionLifeSeconds = 3600\n", "../" + policy.CeilingFile,
			"allowNet = []\n", "allowNet, changed true"},
	} {
		home, dir := newHome(t), filepath.Join(t.TempDir(), "project")
		mustDo(t, os.Mkdir(dir, 0o700))
		if c.began != "" {
			mustDo(t, os.WriteFile(filepath.Join(dir, policy.CeilingFile), []byte(c.began), 0o600))
		}
		held, err := policy.LoadForPeople(home, dir, "")
		if err != nil {
			t.Fatal(err)
		}
		rt := openRuntime(t, unitask.Options{Home: home})
		s, err := rt.NewSessionFor(t.Context(), unitask.Caller{Ceiling: held.Ceiling, Origin: held.Origin},
			unitask.SessionRequest{Request: unitask.Request{Language: "shell", AllowNet: []string{"a.example"}}})
		if err != nil {
			t.Fatal(err)
		}
		if s.CeilingChanged() {
			t.Errorf("%s: changed from the start", c.name)
		}
		file := filepath.Join(dir, c.at)
		for _, u := range ceilingUses(t, s) {
			mustDo(t, os.WriteFile(file, []byte(c.text), 0o600))
			got := "done"
			if err := u.use(); err != nil {
				got = fmt.Sprintf("%.300s", err)
				for _, short := range []string{"allowNet", "memoryMb"} {
					if strings.Contains(got, short+" ") && strings.Contains(got, "start another session") {
						got = short
						break
					}
				}
			}
			attack.Check(t, u.name+" of a session: "+c.name, c.want, fmt.Sprintf("%s, changed %v", got, s.CeilingChanged()))
			mustDo(t, os.Remove(file)) // and it continues
			if res, err := s.Run(t.Context(), unitask.Step{Code: "echo on"}); err != nil || string(res.Stdout) != "on\n" ||
				s.CeilingChanged() {
				t.Fatalf("%s, %s: %+v %v, changed %v", c.name, u.name, res, err, s.CeilingChanged())
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A session with functions of its program is not forked, extended or resumed when its ceiling forbids them by now.
func TestAttackSessionCeilingOwnTools(t *testing.T) {
	needClones(t)
	home, dir := newHome(t), t.TempDir()
	held, err := policy.LoadForPeople(home, dir, "")
	if err != nil {
		t.Fatal(err)
	}
	rt := openRuntime(t, unitask.Options{Home: home})
	s, err := rt.NewSessionFor(t.Context(), unitask.Caller{Ceiling: held.Ceiling, Origin: held.Origin},
		unitask.SessionRequest{Request: unitask.Request{Language: "shell"},
			OwnTools: map[string]*mcp.Server{"app": mcp.NewServer(&mcp.Implementation{Name: "app"}, nil)}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, policy.CeilingFile)
	for _, u := range ceilingUses(t, s) {
		mustDo(t, os.WriteFile(file, []byte("clientTools = false\n"), 0o600))
		err := u.use()
		attack.Check(t, u.name+" of a session with functions, which a file forbids by now", "refused true",
			fmt.Sprintf("refused %v", err != nil && strings.Contains(err.Error(), "clientTools ")))
		mustDo(t, os.Remove(file))
		if _, err := s.Run(t.Context(), unitask.Step{Code: "true"}); err != nil {
			t.Fatal(err)
		}
	}
}

// A paused session that started without a ceiling continues under a new one.
func TestAttackPausedCeilingAppears(t *testing.T) {
	needClones(t)
	home, dir := newHome(t), t.TempDir()
	held, err := policy.LoadForPeople(home, dir, "")
	if err != nil {
		t.Fatal(err)
	}
	rt := openRuntime(t, unitask.Options{Home: home})
	s, err := rt.NewSessionFor(t.Context(), unitask.Caller{Ceiling: held.Ceiling, Origin: held.Origin},
		unitask.SessionRequest{Request: unitask.Request{Language: "shell", AllowNet: []string{"a.example"}}})
	if err != nil {
		t.Fatal(err)
	}
	mustDo(t, s.Pause(t.Context()))
	mustDo(t, rt.Close())
	rt = openRuntime(t, unitask.Options{Home: home})
	goOn := func() string {
		p, err := paused.Find(home, s.ID)
		if err != nil {
			t.Fatal(err)
		}
		changed := p.CeilingChanged(home)
		ceiling, err := p.ReadCeiling(home)
		if err != nil {
			t.Fatal(err)
		}
		on, err := rt.Revive(t.Context(), unitask.Caller{Ceiling: ceiling, Origin: p.Origin}, s.ID, nil)
		if err != nil {
			return fmt.Sprintf("refused %v, changed %v", strings.Contains(err.Error(), "start another session"), changed)
		}
		mustDo(t, on.Close())
		return fmt.Sprintf("done, changed %v", changed)
	}
	file := filepath.Join(dir, policy.CeilingFile)
	mustDo(t, os.WriteFile(file, []byte("allowNet = []\n"), 0o600))
	attack.Check(t, "a paused session that began without a ceiling: a file grants less by now",
		"refused true, changed true", goOn())
	stale := unitask.Caller{Origin: held.Origin} // of a server that read the files at its start
	_, err = rt.Revive(t.Context(), stale, s.ID, nil)
	attack.Check(t, "a paused session goes on for who has read the ceiling before it changed", "refused true",
		fmt.Sprintf("refused %v", err != nil && strings.Contains(err.Error(), "start another session")))
	mustDo(t, os.Remove(file))
	attack.Check(t, "a paused session that began without a ceiling: there is none still", "done, changed false", goOn())
}

func mustDo(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A session whose ceiling file is now narrower can't be forked, extended or resumed; a wider file does no harm.
func TestAttackSessionCeilingChanges(t *testing.T) {
	needClones(t)
	home, dir := newHome(t), t.TempDir()
	file := filepath.Join(dir, policy.CeilingFile)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const began = "allowNet = [\"a.example\", \"b.example\"]\nsessionLifeSeconds = 3600\n"
	write(began)
	ceiling, err := policy.ReadCeiling(file)
	if err != nil {
		t.Fatal(err)
	}
	rt := openRuntime(t, unitask.Options{Home: home})
	s, err := rt.NewSessionFor(t.Context(), unitask.Caller{Ceiling: ceiling},
		unitask.SessionRequest{Request: unitask.Request{Language: "shell", AllowNet: []string{"a.example", "c.example"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	uses := ceilingUses(t, s)
	for _, c := range []struct{ name, text, want string }{
		{"as it was", began, "done, changed false"},
		{"another host", "allowNet = [\"b.example\"]\n", "allowNet, changed true"},
		{"hardware is required", began + "requireHardware = true\n", "requireHardware, changed true"},
		{"less memory", began + "memoryMb = 128\n", "memoryMb, changed true"},
		{"a bound on what is sent", began + "maxUploadBytes = 1000\n", "maxUploadBytes, changed true"},
		{"the audit log is required", began + "audit = \"required\"\n", "audit, changed true"},
		{"no file", "", "no file, changed true"},
		{"wider", "allowNet = [\"a.example\", \"b.example\", \"c.example\"]\n", "done, changed true"},
	} {
		write(c.text)
		if c.text == "" {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
		for _, u := range uses {
			got := "done"
			if err := u.use(); err != nil {
				got = fmt.Sprintf("%.300s", err)
				for _, short := range []string{"allowNet", "requireHardware", "memoryMb", "maxUploadBytes", "audit"} {
					if strings.Contains(got, short+" ") && strings.Contains(got, "start another session") {
						got = short
						break
					}
				}
				if strings.Contains(got, "no such file") {
					got = "no file"
				}
			}
			attack.Check(t, u.name+" of a session whose ceiling is another one by now: "+c.name, c.want,
				fmt.Sprintf("%s, changed %v", got, s.CeilingChanged()))
			write(began) // and it continues
			if res, err := s.Run(t.Context(), unitask.Step{Code: "echo on"}); err != nil || string(res.Stdout) != "on\n" {
				t.Fatalf("%s, %s: %+v %v", c.name, u.name, res, err)
			}
			write(c.text)
			if c.text == "" {
				_ = os.Remove(file)
			}
		}
	}
	write("allowNet = [\"a.example\"]\nsessionLifeSeconds = 60\n")
	if err := s.Extend(t.Context(), 2*time.Minute); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("longer than it may by now: %v", err)
	}
	if left := time.Until(s.Expires()); left > time.Minute {
		t.Errorf("it lives for %s more, and a minute in all is the most by now", left)
	}
}
