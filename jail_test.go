package unitask_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
)

// The names in a policy are those of a machine's jail. If a required layer is inactive, no run starts. The jail of a
// real machine stops all attacks.
func TestAttackJailOfMachine(t *testing.T) {
	needVM(t)
	home := newHome(t)
	if err := os.WriteFile(filepath.Join(home, unitask.ConfigFile), []byte(`requireJail = ["no-new-privileges"]`),
		0o600); err != nil {
		t.Fatal(err)
	}
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	attempts, jail, err := rt.Attack(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(attempts) < 60 {
		t.Errorf("%d attempts", len(attempts))
	}
	through := []string{}
	for _, a := range attempts {
		if a.Through {
			through = append(through, a.Name+": "+a.Seen)
		}
	}
	attack.Check(t, "what gets through a real machine's jail, of all that is tried", "[]", fmt.Sprint(through))
	var names []string
	for _, h := range slices.Concat(jail.Layers, jail.Limits) {
		names = append(names, h.Name)
	}
	want := slices.Sorted(slices.Values(policy.JailNames))
	if slices.Sort(names); !slices.Equal(names, want) {
		t.Errorf("a jail has %q, policies know %q", names, want)
	}
	res, err := rt.Run(t.Context(), unitask.Request{Code: "console.log(1)", RequireJail: policy.JailNames}, unitask.IO{})
	missing := jail.Missing()
	switch lacks := (*unitask.JailError)(nil); {
	case len(missing) == 0 && (err != nil || res.ExitCode != 0):
		t.Errorf("%v", err)
	case len(missing) > 0 && (!errors.As(err, &lacks) || len(lacks.Lacks) != len(missing)):
		t.Errorf("%v, expected to be told of %+v", err, missing)
	}
	// A machine without a jail, although a layer is required.
	res, err = rt.Debug(t.Context(), unitask.Caller{},
		unitask.Request{Code: "console.log(1)", RequireJail: []string{"network"}}, unitask.IO{},
		unitask.DebugOptions{NoJail: true})
	lacks := (*unitask.JailError)(nil)
	if !errors.As(err, &lacks) {
		t.Fatal(err)
	}
	names = nil
	for _, lack := range lacks.Lacks {
		names = append(names, lack.Name)
	}
	attack.Check(t, "a machine without a jail, where the request and the home require a layer each",
		"[network no-new-privileges], 0 bytes printed", fmt.Sprintf("%v, %d bytes printed", names, len(res.Stdout)))
	if rec, err := rt.Runs().Get(res.RunID); err != nil || !strings.Contains(rec.Error, "network (") {
		t.Errorf("%+v %v", rec, err)
	}
}

// A home's requirement applies to every run there. If the requirement can't be read exactly, no run starts.
func TestRequireJailOfHome(t *testing.T) {
	home := testdir.Private(t)
	open := func() error {
		rt, err := unitask.Open(unitask.Options{Home: home})
		if err == nil {
			rt.Close()
		}
		return err
	}
	for text, want := range map[string]string{
		`requireJail = ["network", "seccomp"]`: "",
		`requireJail = ["moat"]`:               "moat",
		`requireJail = "network"`:              "requireJail",
	} {
		if err := os.WriteFile(filepath.Join(home, unitask.ConfigFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := open(); (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, expected %q", text, err, want)
		}
	}
	_, err := unitask.Open(unitask.Options{Home: testdir.Private(t), RequireJail: []string{"moat"}})
	if field := (*policy.FieldError)(nil); !errors.As(err, &field) || field.Field != "requireJail" {
		t.Errorf("%v", err)
	}
}
