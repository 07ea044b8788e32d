package attack

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	var table Table
	for _, line := range []string{
		"    x_test.go:7: attack: \"a\\tb\\x1b[31m\" \"denied\" \"denied\"\n",
		"    x_test.go:8: attack: \"another, " + strings.Repeat("long", 30) + "\" \"denied\" \"let in\"\n",
		"    x_test.go:9: attack: \"half of one\" \"denied\"\n",
		"    x_test.go:9: no row \"a\" \"b\" \"c\"\n",
		"attack: says the code\n",
	} {
		table.Add("example.com/a/room", line)
	}
	var out strings.Builder
	table.Print(&out)
	const want = `ROOM  ATTACK                                                        EXPECTED  SEEN    
room  a\tb\x1b[31m                                                  denied    denied  
room  another, longlonglonglonglonglonglonglonglonglonglonglong...  denied    let in  GOT THROUGH
`
	if out.String() != want {
		t.Errorf("the table is\n%s", out.String())
	}
	if got := table.Counts(); got != "2 attacks, 1 got through" || table.Rows() != 2 || table.Through != 1 {
		t.Error(got)
	}
}
