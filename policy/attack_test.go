package policy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

type attackRuleTextsRow struct{ field, text, want string }

// attackRuleTextsRows are the cases of TestAttackRuleTexts.
func attackRuleTextsRows(none, bad string) []attackRuleTextsRow {
	return append([]attackRuleTextsRow{
		// Names that resemble an allowed one.
		{"allowNet", "a.com", none},
		{"allowNet", "xa.com", none},
		{"allowNet", "a.com.evil.com", none},
		{"allowNet", "x.a.com.evil.com", none},
		{"allowNet", "evil.com?.a.com", bad},
		{"allowNet", "evil.com/.a.com", bad},
		{"allowNet", "evil.com#.a.com", bad},
		{"allowNet", "evil.com@x.a.com", bad},
		{"allowNet", `evil.com\.a.com`, bad},
		{"allowNet", "evil.com\x00.a.com", bad},
		{"allowNet", "evil.com\n.a.com", bad},
		{"allowNet", "evil.com .a.com", bad},
		{"allowNet", "evil.com%00.a.com", bad},
		{"allowNet", "x.a.com,evil.com", bad},
		{"allowNet", "x.a.com;evil.com", bad},
		{"allowNet", "{x,evil}.a.com", bad},
		{"allowNet", "x..a.com", bad},
		{"allowNet", ".a.com", bad},
		{"allowNet", "x.а.com", none}, // a Cyrillic а
		{"allowNet", "x.a.ｃｏｍ", "x.a.com"},
		{"allowNet", "X.A.COM.", "x.a.com"},
		{"allowNet", "x。a。com", "x.a.com"},
		{"allowNet", "x.a.com\u202e", bad},
		{"allowNet", "x\u00ad.a.com", "x.a.com"},
		{"allowNet", "_x.a.com", bad},
		// Wildcards.
		{"allowNet", "*", bad},
		{"allowNet", "*.", bad},
		{"allowNet", "*.com", bad},
		{"allowNet", "*.*.a.com", bad},
		{"allowNet", "x.*.a.com", bad},
		{"allowNet", "x*.a.com", bad},
		{"allowNet", "**.a.com", bad},
		{"allowNet", "*.x.a.com", "*.x.a.com"},
		{"allowNet", "*.b.com", none},
		{"allowNet", "*.evil-a.com", none},
		// Ports.
		{"allowNet", "x.a.com:22", none},
		{"allowNet", "x.a.com:443", "x.a.com:443"},
		{"allowNet", "b.com", none},
		{"allowNet", "b.com:8443", "b.com:8443"},
	}, moreAttackRuleTextsRows(none, bad)...)
}

// moreAttackRuleTextsRows are the other half.
func moreAttackRuleTextsRows(none, bad string) []attackRuleTextsRow {
	return []attackRuleTextsRow{
		{"allowNet", "b.com:08443", bad},
		{"allowNet", "b.com:8443:443", bad},
		{"allowNet", "b.com:+8443", bad},
		{"allowNet", "b.com:65537", bad},
		{"allowNet", "b.com:-1", bad},
		{"allowNet", "b.com:", bad},
		// Addresses.
		{"allowNet", "192.0.2.2", none},
		{"allowNet", "::ffff:192.0.2.1", "192.0.2.1"},
		{"allowNet", "3221225985", bad}, // 192.0.2.1
		{"allowNet", "0xc0000201", bad},
		{"allowNet", "192.0.513", bad},
		{"allowNet", "0300.0.2.1", bad},
		{"allowNet", "192.0.2.1.", bad},
		{"allowNet", "192.0.2.0/24", bad},
		{"allowNet", "[2001:db8::1%eth0]", bad},
		{"allowNet", "[2001:db8:0::1]:443", "[2001:db8::1]:443"},
		{"allowNet", "[::ffff:7f00:1]:80", none},
		// A raw TCP rule matches exactly its text.
		{"allowTcp", "127.0.0.1:5432", "127.0.0.1:5432"},
		{"allowTcp", "127.0.0.1:5433", none},
		{"allowTcp", "127.0.0.2:5432", none},
		{"allowTcp", "localhost:5432", none},
		{"allowTcp", "[::1]:5432", none},
		{"allowTcp", "[::ffff:127.0.0.1]:5432", "127.0.0.1:5432"},
		{"allowTcp", "0.0.0.0:5432", none},
		{"allowTcp", "127.0.0.1:5432:5432", bad},
		{"allowTcp", "127.0.0.1:00", bad},
		{"allowTcp", "[127.0.0.1]:5432", bad},
		{"allowTcp", "127.0.0.1:5432\u0000", bad},
		{"allowTcp", "db.a.com.:5432", "db.a.com:5432"},
		{"allowTcp", "DB.A.COM:5432", "db.a.com:5432"},
		{"allowTcp", "x.localhost:5432", none},
		{"allowTcp", "[::7f00:1]:5432", none},
		{"allowTcp", "[::ffff:7f00:1%lo]:5432", bad},
		{"allowTcp", "127.1:5432", bad},
		{"allowTcp", "0x7f.1:5432", bad},
		{"allowTcp", "2130706433:5432", bad},
		{"allowTcp", "x.a.com:443", none},
		{"allowTcp", "*.a.com:5432", bad},
		{"allowTcp", "db.a.com", bad},
		{"allowTcp", "db.a.com:5432", "db.a.com:5432"},
	}
}

// Rule texts that try to bypass a ceiling, and what is granted of each.
func TestAttackRuleTexts(t *testing.T) {
	const (
		none  = "denied"
		bad   = "not a rule"
		zoned = "allowNet = [\"*.a.com\", \"b.com:8443\", \"192.0.2.1\", \"2001:db8::1\"]\n" +
			"allowTcp = [\"127.0.0.1:5432\", \"db.a.com:5432\"]"
	)
	for _, row := range attackRuleTextsRows(none, bad) {
		c, err := ParseCeiling("test.toml", []byte(zoned))
		if err != nil {
			t.Fatal(err)
		}
		asked := Request{AllowNet: []string{row.text}}
		if row.field == "allowTcp" {
			asked = Request{AllowTCP: []string{row.text}}
		}
		e, denials, err := Resolve(asked, c)
		got := strings.TrimSpace(join(e.AllowNet) + " " + join(e.AllowTCP))
		switch {
		case errors.As(err, new(*FieldError)):
			got = bad
		case err != nil:
			got = err.Error()
		case got == "" && len(denials) == 1:
			got = none
		}
		attack.Check(t, "rule text: "+row.field+" "+row.text, row.want, got)
	}
}

// Texts in a ceiling's file with more than one reading.
func TestAttackCeilingTexts(t *testing.T) {
	const refused = "refused"
	for _, row := range []struct{ name, text string }{
		{"a key in capitals", `ALLOWNET = ["evil.com"]`},
		{"two keys that differ in case", "allowNet = []\nALLOWNET = [\"evil.com\"]"},
		{"two keys that differ in case, the other way", "ALLOWNET = [\"evil.com\"]\nallowNet = []"},
		{"a key with a long s", "\"ſecrets\" = [\"TOKEN\"]"},
		{"a key with a Kelvin sign", "\"\u212aernel\" = \"linux\""},
		{"a key with a blank", `"allowNet " = ["evil.com"]`},
		{"a key twice", "allowNet = []\nallowNet = [\"evil.com\"]"},
		{"a principal's key in capitals", "[principals.a]\nSECRETS = [\"TOKEN\"]"},
		{"two principals that differ in case", "[principals.a]\nsecrets = []\n[principals.A]\nsecrets = [\"TOKEN\"]"},
		{"a table over a key", "allowNet = []\n[allowNet]\nx = 1"},
		{"principals below a principal", "[principals.a.principals.b]\nmemoryMb = 4096"},
		{"a list that is a string", `secrets = "TOKEN"`},
		{"a number that is a string", `memoryMb = "64"`},
		{"a list with a list", `allowTcp = [["127.0.0.1:1"]]`},
		{"a rule that can't be parsed", `allowNet = ["evil.com", "*"]`},
		{"no number", "timeoutSeconds = nan"},
		{"endless time", "timeoutSeconds = inf"},
		{"a number beyond 64 bits", "outputBytes = 99999999999999999999"},
		{"a negative bound", "maxUploadBytes = -1"},
		{"a folder with a NUL byte", `filesUnder = ["/tmp\u0000/x"]`},
		{"an unknown key", "allowEverything = true"},
		{"principals as a list", "[[principals]]\nsecrets = []"},
		{"a principal that is a number", "principals.a = 1"},
		{"a principal's key with a dot in it", "\"principals.a\" = {secrets = [\"TOKEN\"]}"},
		{"a list of tables in a list", "allowNet = [{host = \"evil.com\"}]"},
		{"true for a number", "memoryMb = true"},
		{"a number for true", "allowNetAny = 1"},
		{"a date for a number", "timeoutSeconds = 1979-05-27"},
		{"time beyond 64 bits of nanoseconds", "timeoutSeconds = -9223372036854775808"},
		{"a part of a megabyte", "memoryMb = 512.5"},
		{"an empty folder", `filesUnder = [""]`},
		{"a secret with a star", `secrets = ["*"]`},
		{"a secret with a newline", `secrets = ["A\nB"]`},
		{"rules without number", "allowNet = [" + strings.Repeat("\"a.com\",", MaxRules+1) + "]"},
		{"a key behind a NUL", "\"a\\u0000llowNet\" = []"},
		{"a mark of byte order inside", "memoryMb = 512\n\ufeffsecrets = [\"TOKEN\"]"},
		{"no UTF-8", "secrets = [\"\xff\"]"},
		{"nested beyond reason", "secrets = " + strings.Repeat("[", 200_000)},
	} {
		got := refused
		if c, err := ParseCeiling("test.toml", []byte(row.text)); err == nil {
			got = fmt.Sprint("read ", c.most)
		}
		attack.Check(t, "ceiling text: "+row.name, refused, got)
	}
}

// Paths outside a folder, in every spelling.
func TestAttackFolders(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"data", "data2", "other"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c, err := ParseCeiling(filepath.Join(root, CeilingFile), []byte(`filesUnder = ["data"]`))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ name, real, want string }{
		{"inside", root + "/data/x", "granted"},
		{"a sibling with the same beginning", root + "/data2/x", "denied"},
		{"above", root, "denied"},
		{"dots", root + "/data/../other/x", "denied"},
		{"dots at the end", root + "/data/..", "denied"},
		{"two slashes", root + "//data/x", "denied"},
		{"relative", "data/x", "denied"},
		{"nothing", "", "denied"},
		{"another case", strings.ToUpper(root) + "/DATA/x", "denied"},
		{"a NUL byte", root + "/data\x00/x", "denied"},
	} {
		e, _, err := Resolve(Request{Files: []Mount{{Host: "/asked", Real: row.real, Guest: "/g"}}}, c)
		got := "denied"
		if err != nil {
			got = err.Error()
		} else if len(e.Files) > 0 {
			got = "granted"
		}
		attack.Check(t, "filesUnder: "+row.name, row.want, got)
	}
}
