package toolhost

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/guest/tools"
	"github.com/unitask/unitask/internal/attack"
)

// oneTool returns a tool with a schema, or what is wrong with it.
func oneTool(t testing.TB, schema string) (*Tool, error) {
	t.Helper()
	list, err := ParseList([]byte(`[{"name":"x","inputSchema":` + schema + `}]`))
	if err != nil {
		t.Fatal(err)
	}
	return list.Tools[0], list.Tools[0].bad
}

// chain returns definitions d0 to dN, each of which says the same about the one before.
func chain(n int, format string) string {
	all := `"d0":{"type":"string"}`
	for i := 1; i <= n; i++ {
		one := fmt.Sprintf(`{"$ref":"#/$defs/d%d"}`, i-1)
		all += fmt.Sprintf(`,"d%d":%s`, i, strings.ReplaceAll(format, "X", one))
	}
	return fmt.Sprintf(`{"type":"object","properties":{"a":{"$ref":"#/$defs/d%d"}},"$defs":{%s}}`, n, all)
}

// No schema makes the check of arguments overflow the stack, or take much time or memory.
func TestAttackSchemaEffort(t *testing.T) {
	long := strings.Repeat("x", 20_000)
	for name, c := range map[string][2]string{
		"refers to itself": {`{"type":"object","$ref":"#"}`, `{}`},
		"in another case":  {`{"type":"object","ALLOF":[{"$ref":"#"}]}`, `{}`},
		"two refer to another": {`{"type":"object","allOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"not":{"$ref":"#"}}}}`,
			`{}`},
		"doubles in depth":      {chain(50, `{"allOf":[X,X]}`), `{"a":"x"}`},
		"doubles on failure":    {chain(50, `{"anyOf":[X,X]}`), `{"a":1}`},
		"tripled by conditions": {chain(50, `{"if":X,"then":X,"else":X}`), `{"a":"x"}`},
		"errors are copied": {strings.Replace(chain(200, `{"allOf":[X]}`), `"d0":{"type":"string"}`,
			`"d0":{"anyOf":[`+strings.Repeat(`{"type":"null"},`, 1000)+`{"type":"null"}]}`, 1), `{"a":"` + long + `"}`},
		"compares each with each": {`{"type":"object","properties":{"a":{"items":{"enum":[` +
			strings.Repeat("1,", 90_000) + `1]}}}}`, `{"a":[` + strings.Repeat("0,", 90_000) + `0]}`},
		"a slow expression": {`{"type":"object","properties":{"a":{"pattern":"(x?){900}y"}}}`,
			`{"a":"` + strings.Repeat("x", 900_000) + `"}`},
	} {
		tool, err := oneTool(t, c[0])
		if err != nil {
			t.Fatal(name, err)
		}
		var arguments map[string]any
		if err := json.Unmarshal([]byte(c[1]), &arguments); err != nil {
			t.Fatal(name, err)
		}
		got, begun := "checked", time.Now()
		if err := validate(tool, arguments); err != nil && strings.Contains(err.Error(), "takes too long") {
			got = "refused"
		}
		attack.Check(t, "a schema: "+name, "refused", got)
		t.Log(name, time.Since(begun))
	}
}

// Schemas whose effort is not known, and those with large regular expressions, are refused before they are prepared.
func TestAttackSchemaRefused(t *testing.T) {
	large := ""
	for i := range 10 {
		large += fmt.Sprintf(`,"a%d":{"pattern":"%s"}`, i, strings.Repeat("(.{900})", 20))
	}
	for name, schema := range map[string]string{
		"dynamic reference": `{"type":"object","$dynamicRef":"#x","$defs":{"a":{"$dynamicAnchor":"x"}}}`,
		"an id inside":      `{"type":"object","properties":{"a":{"$id":"http://x/","$ref":"#"}}}`,
		"an anchor":         `{"type":"object","$ref":"#x","$defs":{"a":{"$anchor":"x"}}}`,
		"an odd letter":     `{"type":"object","propertieſ":{}}`,
		"large expressions": `{"type":"object","properties":{"b":{}` + large + `}}`,
		"a long expression": `{"type":"object","patternProperties":{"` + strings.Repeat("x", 2001) + `":{}}}`,
	} {
		_, err := oneTool(t, schema)
		attack.Check(t, "a schema: "+name, "refused", map[bool]string{true: "refused", false: "taken"}[err != nil])
		t.Log(err)
	}
}

// Large arguments of ordinary schemas are checked.
func TestSchemaEffort(t *testing.T) {
	tree := `{"type":"object","properties":{"a":{"anyOf":[{"$ref":"#/$defs/Node"},{"type":"null"}]}},"$defs":{"Node":
		{"type":"object","required":["n"],"additionalProperties":false,"properties":{"n":{"type":"integer","minimum":1},
		"id":{"type":"string","pattern":"^[0-9a-f]{8}-[0-9a-f]{4}$","enum":["01234567-abcd","x"]},
		"list":{"type":"array","items":{"$ref":"#/$defs/Node"}}}}}}`
	tool, err := oneTool(t, tree)
	if err != nil {
		t.Fatal(err)
	}
	leaf := `{"n":1,"id":"01234567-abcd"}`
	some := `{"n":1,"list":[` + strings.Repeat(leaf+",", 100) + leaf + `]}`
	deep := strings.Repeat(`{"n":1,"list":[`, 25) + leaf + strings.Repeat("]}", 25)
	var arguments map[string]any
	text := `{"a":{"n":1,"list":[` + strings.Repeat(some+",", 200) + deep + `]}}`
	if err := json.Unmarshal([]byte(text), &arguments); err != nil {
		t.Fatal(err)
	}
	if err := validate(tool, arguments); err != nil {
		t.Errorf("%d bytes: %v", len(text), err)
	}
}

// Types of a tool with very many arguments are written in time.
func TestAttackToolTypes(t *testing.T) {
	var members, names strings.Builder
	for i := range 50_000 {
		fmt.Fprintf(&members, `"a%d":{},`, i)
		fmt.Fprintf(&names, `"a%d",`, i)
	}
	schema := `{"type":"object","properties":{` + members.String() + `"z":{}},"required":[` + names.String() + `"z"]}`
	tool, err := oneTool(t, schema)
	if err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "types of many arguments", "ended", within(20*time.Second, func() {
		_, _ = tools.Files(map[string][]tools.Tool{"a": {{Name: "x", Input: tool.Input}}}, []string{"a"})
	}))
}

// The $id of a whole schema changes nothing that a reference within it names.
func TestSchemaNamed(t *testing.T) {
	tool, err := oneTool(t, `{"$id":"https://example.com/order","type":"object","$defs":{"n":{"type":"integer"}},`+
		`"properties":{"number":{"$ref":"#/$defs/n"}}}`)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		number any
		fits   bool
	}{{7.0, true}, {"x", false}} {
		if err := validate(tool, map[string]any{"number": c.number}); (err == nil) != c.fits {
			t.Errorf("%v: %v", c.number, err)
		}
	}
}
