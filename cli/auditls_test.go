package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/cli"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/testdir"
)

// Each filter of `audit ls` leaves out what it does not match, and together they leave what all match.
func TestAuditListFilters(t *testing.T) {
	home := testdir.Private(t)
	t.Setenv("UNITASK_HOME", home)
	now := time.Now()
	for _, e := range []audit.Entry{
		{Time: now.Add(-48 * time.Hour), Kind: audit.RunStarted, Run: "r1", Caller: "alice"},
		{Time: now.Add(-48 * time.Hour), Kind: audit.RunEnded, Run: "r1", Caller: "alice"},
		{Time: now.Add(-2 * time.Hour), Kind: audit.RunStarted, Run: "r2", Caller: "bob"},
		{Time: now.Add(-2 * time.Hour), Kind: audit.NetRefused, Run: "r2", Caller: "bob"},
		{Time: now.Add(-time.Hour), Kind: audit.RunStarted, Run: "r3", Caller: "alice"},
		{Time: now.Add(-time.Hour), Kind: audit.ImageAdded},
	} {
		if err := audit.In(home).Append(e); err != nil {
			t.Fatal(err)
		}
	}
	// A malformed line after those has a separate kind, and no time or owner.
	lines, err := os.OpenFile(filepath.Join(home, "audit", "log.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = lines.WriteString(`{"kind": "run.started", "caller": "alice", "time": 5}` + "\n"); err == nil {
		err = lines.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	day := now.Add(-3 * time.Hour).Format(time.RFC3339)
	for _, c := range []struct{ flags, want string }{
		{"", "[1 2 3 4 5 6 7]"}, {"--owner alice", "[1 2 5]"}, {"--owner alice --kind run.started", "[1 5]"},
		{"--owner alice --kind run.started --since 1d", "[5]"}, {"--since " + day, "[3 4 5 6]"},
		{"--since 100d --kind run.started --run r2", "[3]"}, {"--owner carol", "[]"}, {"--owner ali", "[]"},
		{"--kind malformed", "[7]"}, {"--kind malformed --since 100d", "[]"}, {"--kind policy.denied", "[]"},
		{"--owner alice --limit 1", "[5]"},
	} {
		var out, errs bytes.Buffer
		code := cli.Main(append([]string{"audit", "ls", "--json"}, strings.Fields(c.flags)...),
			cli.Streams{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs})
		var list []struct{ Line int }
		if err := json.Unmarshal(out.Bytes(), &list); err != nil || code != 0 || errs.Len() > 0 {
			t.Fatalf("audit ls %s: exit code %d, %s, %v", c.flags, code, &errs, err)
		}
		got := []int{}
		for _, e := range list {
			got = append(got, e.Line)
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("audit ls %s lists %v, want %s", c.flags, got, c.want)
		}
	}
}
