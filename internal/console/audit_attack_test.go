package console

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/record"
)

// The page of the audit log is bounded, shows text, and says that a line was changed.
func TestAttackConsoleAudit(t *testing.T) {
	const evil = "<script>alert(1)</script>\x1b]0;x\x07\u202e"
	c := testConsole(t, record.Open(testdir.Private(t)))
	c.Home = testdir.Private(t)
	log := audit.In(c.Home)
	entries := []audit.Entry{{Time: time.Now(), Kind: audit.RunRefused, Run: evil, Caller: "alice", Via: evil,
		Detail: map[string]any{evil: evil}}}
	for i := range auditAtOnce + 500 {
		entries = append(entries, audit.Entry{Time: time.Now(), Kind: audit.RunStarted, Run: strconv.Itoa(i),
			Caller: "bob"})
	}
	if err := log.Append(entries...); err != nil {
		t.Fatal(err)
	}
	get := func(of string) string { return asUser(c, "/audit?"+of, nil).Body.String() }
	page := get("kind=run.refused&owner=alice")
	got := "text"
	if strings.Contains(page, "<script>") || strings.ContainsAny(page, "\x1b\x07\u202e") ||
		strings.Count(page, "&lt;script") < 2 || strings.Contains(page, "bob") {
		got = page
	}
	attack.Check(t, "console: script in the audit log", "text", got)
	page = get("")
	attack.Check(t, "console: 2500 lines of the audit log", "100 rows, newest first, unverified", fmt.Sprintf(
		"%d rows, %s, %s", strings.Count(page, "<tr>")-1, map[bool]string{true: "newest first"}[strings.Index(page,
			">2499<") < strings.Index(page, ">2498<")], map[bool]string{true: "unverified"}[strings.Contains(page,
			"Not verified")]))
	if !strings.Contains(get("before=2401"), ">2399<") {
		t.Error("no older lines")
	}
	for _, of := range []string{"kind=evil", "owner=" + strings.Repeat("a", ownerBytes+1), "before=-1", "before=99999999",
		"before=x"} {
		attack.Check(t, fmt.Sprintf("console: the audit log, %.20q", of), "400",
			strconv.Itoa(asUser(c, "/audit?"+of, nil).Code))
	}
	verify := func() string {
		if w := asUser(c, "/audit", url.Values{}); w.Code != 303 {
			return w.Body.String()
		}
		page := get("")
		at := strings.Index(page, `id="proof"`)
		text, _, _ := strings.Cut(page[at:], "</p>")
		return text
	}
	if said := verify(); !strings.Contains(said, "2501 lines are as they were written") {
		t.Error(said)
	}
	name := filepath.Join(c.Home, "audit", "log.jsonl")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, bytes.Replace(text, []byte(`"2400"`), []byte(`"2401"`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "console: a changed line of the audit log", "true",
		strconv.FormatBool(strings.Contains(verify(), "Broken after 2401 lines")))
	c.slow.Lock()
	c.proven = nil
	if p := c.proof(log, 1); p != nil {
		t.Error("a short log is verified during another verification", p)
	}
	attack.Check(t, "console: a second verification at once", "503", strconv.Itoa(asUser(c, "/audit", url.Values{}).Code))
	c.slow.Unlock()
}

// Long lines of the audit log make no large page.
func TestAttackConsoleAuditDetail(t *testing.T) {
	c := testConsole(t, record.Open(testdir.Private(t)))
	c.Home = testdir.Private(t)
	entries := make([]audit.Entry, 200)
	for i := range entries {
		entries[i] = audit.Entry{Time: time.Now(), Kind: audit.NetRefused, Detail: strings.Repeat("ä<", 6000)}
	}
	for part := range slices.Chunk(entries, 50) {
		if err := audit.In(c.Home).Append(part...); err != nil {
			t.Fatal(err)
		}
	}
	page := asUser(c, "/audit", nil).Body.String()
	attack.Check(t, "console: 100 lines of 48 KB of the audit log", "100 true true", fmt.Sprint(
		strings.Count(page, "<tr>")-1, " ", len(page) < 2<<20, " ",
		utf8.ValidString(page) && !strings.Contains(page, "\ufffd")))
}

// Tables of this host are text and bounded, and doctor runs once at a time.
func TestAttackConsoleTables(t *testing.T) {
	const evil = "\"'><script>alert(1)</script>\x1b]0;x\x07"
	c := testConsole(t, record.Open(testdir.Private(t)))
	rows := make([][]string, 100_000)
	for i := range rows {
		rows[i] = []string{evil, "b"}
	}
	list := []Table{{Head: "A|B", Rows: rows, Note: evil}}
	begun, end := make(chan struct{}), make(chan struct{})
	tables := func(context.Context) ([]Table, error) { return list, fmt.Errorf("%s", evil) }
	c.Tables = map[string]func(context.Context) ([]Table, error){TablesImages: tables, TablesPool: tables,
		TablesDoctor: func(ctx context.Context) ([]Table, error) {
			close(begun)
			<-end
			return tables(ctx)
		}}
	look := func(path string) string {
		page := asUser(c, path, nil).Body.String()
		if strings.Contains(page, "<script>") || strings.ContainsAny(page, "\x1b\x07") || len(page) > 1<<20 ||
			strings.Count(page, "&lt;script") < shownRows {
			return fmt.Sprint(len(page))
		}
		return "bounded text"
	}
	attack.Check(t, "console: script in 100 000 rows of images", "bounded text", look("/store"))
	attack.Check(t, "console: script in the pool", "bounded text", look("/host"))
	first := doctor(c)
	<-begun
	attack.Check(t, "console: doctor, twice at once", "503", strconv.Itoa(asUser(c, "/doctor", url.Values{}).Code))
	close(end)
	if code := <-first; code != 303 {
		t.Error(code)
	}
	attack.Check(t, "console: script in what doctor found", "bounded text", look("/host"))
}

// doctor asks for doctor's page.
func doctor(c *Console) <-chan int {
	code := make(chan int, 1)
	go func() { code <- asUser(c, "/doctor", url.Values{}).Code }()
	return code
}
