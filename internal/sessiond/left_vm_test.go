package sessiond

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/policy"
)

// Paused sessions of the user's other programs are listed, with their start. A model's session continues under the
// models' ceiling. A session with a ceiling from no file can't continue, and is removed.
func TestLeftByOthers(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("sessions are paused on Linux only")
	}
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	testhome.Ready(t, base, image.Linux)
	home, dir := testhome.New(t, base), t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, policy.CeilingFile), []byte("allowNet = [\"a.example\"]\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	models, err := policy.LoadForModels(home, dir, "", false)
	if err != nil {
		t.Fatal(err)
	}
	own, err := policy.ParseCeiling("a program's", []byte("memoryMb = 512"))
	if err != nil {
		t.Fatal(err)
	}
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	leave := func(caller unitask.Caller) View {
		t.Helper()
		s, err := rt.NewSessionFor(t.Context(), caller, unitask.SessionRequest{Request: unitask.Request{Image: "shell",
			AllowNet: []string{"a.example"}}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if began := time.Since(s.Began()); began < 0 || began > time.Minute {
			t.Errorf("began %s ago", began)
		}
		time.Sleep(time.Until(s.Began().Add(2 * time.Second))) // so that no other time equals its start, to the second
		if err := s.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Leave(); err != nil {
			t.Fatal(err)
		}
		return View{ID: s.ID, Began: s.Began().UTC().Truncate(time.Second)}
	}
	ofModels, ofProgram := leave(unitask.Caller{Via: unitask.ViaMCP,
		Ceiling: models.Ceiling.For(unitask.LocalOwner(os.Geteuid()))}), leave(unitask.Caller{Ceiling: own})
	lists := func(when, id, state string, began time.Time) {
		t.Helper()
		answer, err := Do(t.Context(), home, Request{Op: OpList}, Streams{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range answer.Sessions {
			if v.ID == id && v.State == state && v.Began.Equal(began) {
				return
			}
		}
		t.Errorf("%s: %+v; want %s, %s, of %s", when, answer.Sessions, id, state, began)
	}
	lists("nobody holds it", ofModels.ID, Paused, ofModels.Began)
	lists("nobody holds it", ofProgram.ID, Paused, ofProgram.Began)

	serve(t, home, time.Hour)
	reach(t, home).Close()
	exec := func(id string) (string, error) {
		var out bytes.Buffer
		_, err := Do(t.Context(), home, Request{Op: OpExec, Session: id, Command: &Command{Args: []string{"echo", "here"}}},
			Streams{Stdout: &out, Stderr: &out}, nil)
		return out.String(), err
	}
	goOnAsOthers(t, exec, ofModels, lists, rt, ofProgram, home)
}

// goOnAsOthers continues sessions that others left.
func goOnAsOthers(
	t *testing.T, exec func(id string) (string, error), ofModels View,
	lists func(when string, id string, state string, began time.Time), rt *unitask.Runtime, ofProgram View,
	home string,
) {
	t.Helper()
	if out, err := exec(ofModels.ID); out != "here\n" || err != nil {
		t.Errorf("%q %v", out, err)
	}
	lists("it goes on", ofModels.ID, Running, ofModels.Began)
	if err := rt.Approvals().SetPolicy(t.Context(), "", ofModels.ID,
		unitask.PolicyChange{DenyNet: []string{"a.example"}}); err != nil {
		t.Error(err)
	}
	if err := rt.Approvals().SetPolicy(t.Context(), "", ofModels.ID,
		unitask.PolicyChange{AllowNet: []string{"b.example"}}); err == nil ||
		!strings.Contains(err.Error(), "b.example is beyond the ceiling") {
		t.Errorf("beyond its ceiling: %v", err)
	}
	if rec, err := rt.Runs().Get(ofModels.ID); err != nil || rec.Via != unitask.ViaMCP {
		t.Errorf("%+v %v", rec, err)
	}
	if out, err := exec(ofProgram.ID); out != "" || err == nil ||
		!strings.Contains(err.Error(), `was made by the program that session `+ofProgram.ID) {
		t.Errorf("%q %v", out, err)
	}
	lists("it can't go on", ofProgram.ID, Paused, ofProgram.Began)
	for _, id := range []string{ofModels.ID, ofProgram.ID} {
		if _, err := Do(t.Context(), home, Request{Op: OpEnd, Session: id}, Streams{}, nil); err != nil {
			t.Error(err)
		}
	}
	if answer, err := Do(t.Context(), home, Request{Op: OpList}, Streams{}, nil); err != nil || len(answer.Sessions) != 0 {
		t.Errorf("%+v %v", answer, err)
	}
}
