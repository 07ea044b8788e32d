package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// module makes a module of files, and changes to its folder.
func module(t *testing.T, files map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755),
			os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
}

// go test's output for a real module with tests of every outcome.
func TestRun(t *testing.T) {
	module(t, map[string]string{
		"go.mod": "module x\ngo 1.26\n",
		"good/a_test.go": "package a\nimport \"testing\"\n" +
			"func TestGood(t *testing.T) { t.Run(\"sub\", func(*testing.T) {}) }\n" +
			"func TestSkipped(t *testing.T) { t.Log(\"first\"); t.Skip(\"wants a moon\") }\n",
		"bad/a_test.go": "package a\nimport (\"fmt\"; \"testing\")\n" +
			"func TestBad(t *testing.T) { fmt.Println(\"printed\"); " +
			"t.Run(\"inner\", func(t *testing.T) { t.Error(\"it is broken\") }) }\n",
		"panics/a_test.go": "package a\nimport \"testing\"\nfunc TestMain(*testing.M) { panic(\"no main\") }\n",
		"broken/a_test.go": "package a\nfunc TestBroken(t *testing.T) {}\n",
		"none/a.go":        "package none\n",
		// Fails the first time, and passes from then on; ./... excludes it.
		"_once/a_test.go": "package a\nimport (\"os\"; \"testing\")\n" +
			"func TestOnce(t *testing.T) { t.Run(\"a+b c\", func(t *testing.T) { if os.Mkdir(t.Name()[:8] + \".seen\", " +
			"0o700) == nil { t.Error(\"the first time\") } }) }\n",
		// Always fails, and has the name of a passing one.
		"_same/a_test.go": "package a\nimport \"testing\"\n" +
			"func TestGood(t *testing.T) { t.Run(\"sub\", func(t *testing.T) { t.Error(\"the second time, too\") }) }\n",
		"_once/again/a_test.go": "package a\nimport \"testing\"\nfunc TestGood(t *testing.T) {}\n",
		"_ends/a_test.go": "package a\nimport (\"os\"; \"testing\")\n" +
			"func TestMain(m *testing.M) { m.Run(); if os.Mkdir(\"seen\", 0o700) == nil { println(\"file too large\"); " +
			"os.Exit(1) } }\nfunc TestFine(*testing.T) {}\n",
		"_attack/a_test.go": "package a\nimport (\"os\"; \"testing\")\n" +
			"func TestAttackOnce(t *testing.T) { if os.Mkdir(t.Name() + \".seen\", " +
			"0o700) == nil { t.Error(\"the first time\") } }\n",
	})
	summary := filepath.Join(t.TempDir(), "summary")
	t.Setenv("REPORT_SUMMARY", summary)
	t.Setenv("REPORT_ATTACKS", "") // CI sets it
	for packages, want := range map[string]struct {
		status int
		says   []string
		last   string
	}{
		"./_once": {0, []string{"failed x/_once TestOnce/a+b_c", "again, alone: x/_once TestOnce/a+b_c",
			"UNSTEADY x/_once TestOnce/a+b_c", "the first time"}, "2 passed, 0 failed, 0 skipped"},
		"./_same ./good ./_once/again": {1, []string{"again, alone: x/_same TestGood/sub", "FAILED x/_same TestGood",
			"the second time, too"}, "3 passed, 2 failed, 1 skipped"},
		"./_attack": {1, []string{"FAILED x/_attack TestAttackOnce"}, "0 passed, 1 failed, 0 skipped"},
		"./_ends": {0, []string{"failed x/_ends", "again, alone: x/_ends\n", "UNSTEADY x/_ends: ",
			"file too large"}, "1 passed, 0 failed, 0 skipped"},
		"./good": {0, []string{"ok  \tx/good",
			"skipped x/good TestSkipped: a_test.go:4: first a_test.go:4: wants a moon", "what took longest:", " s x/good \n",
			" s x/good TestGood\n"}, "2 passed, 0 failed, 1 skipped"},
		"./bad": {1, []string{"FAIL\tx/bad", "FAILED x/bad TestBad\n", "printed",
			"FAILED x/bad TestBad/inner\n", "it is broken"}, "0 passed, 2 failed, 0 skipped"},
		"./panics": {1, []string{"FAILED x/panics\n", "no main"}, "0 passed, 1 failed, 0 skipped"},
		"./broken": {1, []string{"FAILED x/broken", "undefined: testing"}, "0 passed, 1 failed, 0 skipped"},
		"./none":   {1, nil, "0 passed, 0 failed, 0 skipped"},
		"./...": {1, []string{"ok  \tx/good", "it is broken", "no main", "undefined: testing"},
			"2 passed, 4 failed, 1 skipped"},
	} {
		var out, errs strings.Builder
		status := run(strings.Fields(packages), &out, &errs)
		if status != want.status {
			t.Errorf("%s: status %d", packages, status)
		}
		for _, text := range want.says {
			if !strings.Contains(out.String(), text) {
				t.Errorf("%s does not say %q", packages, text)
			}
		}
		if !strings.HasSuffix(out.String(), "\n"+want.last+"\n") {
			t.Errorf("%s does not end with %q", packages, want.last)
		}
		if t.Failed() {
			t.Fatalf("%s%s", out.String(), errs.String())
		}
	}
	said, err := os.ReadFile(summary)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"UNSTEADY x/_once TestOnce/a+b_c\n", "FAILED x/bad TestBad/inner\n", "it is broken",
		"undefined: testing", "0 passed, 2 failed, 0 skipped: go test ./bad\n"} {
		if !strings.Contains(string(said), text) {
			t.Errorf("the summary does not say %q:\n%s", text, said)
		}
	}
}

// The table of attacks is part of CI's output and verdict.
func TestReportAttacks(t *testing.T) {
	module(t, map[string]string{
		"go.mod": "module x\ngo 1.26\n",
		"held/a_test.go": "package a\nimport \"testing\"\n" +
			"func TestAttackX(t *testing.T) { t.Log(`attack: \"a door\" \"shut\" \"shut\"`) }\n",
		"open/a_test.go": "package a\nimport \"testing\"\n" +
			"func TestAttackX(t *testing.T) { t.Log(`attack: \"a door\" \"shut\" \"open\"`) }\n",
		"none/a_test.go": "package a\nimport \"testing\"\nfunc TestX(t *testing.T) {}\n",
		"late/a_test.go": "package a\nimport (\"os\"; \"testing\")\n" +
			"func TestX(t *testing.T) { if os.Mkdir(\"seen\", 0o700) == nil { t.Error(`attack: " +
			"\"a door\" \"shut\" \"open\"`) } }\n",
	})
	for packages, want := range map[string]struct {
		asked  string
		status int
		says   string
	}{
		"./held":        {"1", 0, "held  a door  shut      shut  \n1 attacks, 0 got through\n"},
		"./open":        {"1", 1, "GOT THROUGH\n1 attacks, 1 got through\n"},
		"./none":        {"1", 1, "0 attacks, 0 got through\n"},
		"./held ./none": {"", 0, "2 passed, 0 failed"},
		"./held ./open": {"", 1, "2 passed, 0 failed"},
		"./late":        {"", 1, "FAILED x/late TestX"}, // whatever its second run gives
	} {
		t.Setenv("REPORT_ATTACKS", want.asked)
		t.Setenv("REPORT_SUMMARY", "") // CI sets it
		var out, errs strings.Builder
		if status := run(strings.Fields(packages), &out, &errs); status != want.status ||
			!strings.Contains(out.String(), want.says) || (want.asked == "" && strings.Contains(out.String(), "got through")) {
			t.Errorf("%s: status %d\n%s%s", packages, status, out.String(), errs.String())
		}
	}
}
