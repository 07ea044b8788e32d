package runlog

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testlack"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/run"
)

// Code fills the disk after its secrets went to many hosts with long names. The space reserved for the record's end is
// enough for the log entries.
func TestAttackAuditShort(t *testing.T) {
	home := testdir.Private(t)
	testlack.Disk(t, home, "size=1m")
	told := ""
	a := &Log{log: audit.In(home), tell: func(e run.Event) { told = e.Message }, used: map[string][]string{},
		refused: map[string]int{}, first: map[string]string{}}
	if err := os.Mkdir(filepath.Join(home, "audit"), 0o700); err != nil {
		t.Fatal(err)
	}
	a.Started(run.Policy{}, nil)
	for secret := range 8 {
		for host := range maxListed {
			a.Decided(netstack.Decision{Name: strings.Repeat("x.", 120) + fmt.Sprint(host), Verdict: netstack.Allowed,
				Secrets: []string{fmt.Sprint("KEY", secret)}})
		}
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(home, &st); err != nil {
		t.Fatal(err)
	}
	fill := make([]byte, int64(st.Bavail)*st.Bsize-64<<10)
	if err := os.WriteFile(filepath.Join(home, "fill"), fill, 0o600); err != nil {
		t.Fatal(err)
	}
	a.Shorten(fmt.Errorf("write record: %w", syscall.ENOSPC))
	a.Ended(&run.Result{Error: strings.Repeat("long ", 100_000)}, strings.Repeat("a", 64))
	got := ""
	if err := a.log.Read(func(_ int64, line []byte) error {
		var e struct {
			Kind   audit.Kind
			Detail struct{ Hosts map[string][]string }
		}
		err := json.Unmarshal(line, &e)
		got += fmt.Sprint(e.Kind, " ")
		if hosts := e.Detail.Hosts["KEY7"]; len(hosts) > 0 {
			got += fmt.Sprintf("of %d secrets, %s ", len(e.Detail.Hosts), hosts[len(hosts)-1])
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "secrets that went to many hosts before the disk was full",
		"run.started secret.used of 8 secrets, and more run.ended ", got)
	if told != "" {
		t.Error(told)
	}
}
