package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/unitask/unitask/internal/attack"
)

// Arguments of another type are accepted if their meaning is clear, and are unchanged otherwise.
func TestFit(t *testing.T) {
	schema := inputSchema[runArgs](nil, nil)
	long := strings.Repeat("x", 2*maxUnwrapped)
	for sent, want := range map[string]string{
		`{"timeoutSeconds":"5"}`:                         `{"timeoutSeconds":5}`,
		`{"memoryMb":" 256 "}`:                           `{"memoryMb":256}`,
		`{"memoryMb":"many"}`:                            `{"memoryMb":"many"}`,
		`{"memoryMb":"\"5\""}`:                           `{"memoryMb":"\"5\""}`,
		`{"check":"true"}`:                               `{"check":true}`,
		`{"check":"yes"}`:                                `{"check":"yes"}`,
		`{"allowNet":"a.example"}`:                       `{"allowNet":["a.example"]}`,
		`{"allowNet":"[\"a.example\"]"}`:                 `{"allowNet":["a.example"]}`,
		`{"args":"[1"}`:                                  `{"args":["[1"]}`,
		`{"files":{"name":"a","content":"b"}}`:           `{"files":[{"name":"a","content":"b"}]}`,
		`{"args":["` + long + `"],"check":"true"}`:       `{"args":["` + long + `"],"check":true}`,
		`{"language":"Python"}`:                          `{"language":"Python"}`, // not an enum here
		`{"args":5}`:                                     `{"args":5}`,
		`{"args":"[1]"}`:                                 `{"args":["[1]"]}`,
		`{"secrets":true}`:                               `{"secrets":true}`,
		`{"args":"","env":"","memoryMb":"","stdin":""}`:  `{"stdin":""}`,
		`{"files":"{\"name\":\"a\",\"content\":\"b\"}"}`: `{"files":[{"name":"a","content":"b"}]}`,
		`{"args":["<<<<"],"check":"true"}`:               `{"args":["<<<<"],"check":true}`,
		`{"env":"{\"A\":\"b\"}"}`:                        `{"env":{"A":"b"}}`,
		`{"stdin":null,"code":"1"}`:                      `{"code":"1"}`,
		`{"code":"5","stdin":"[1]"}`:                     `{"code":"5","stdin":"[1]"}`,
		`{"code":""}`:                                    `{"code":""}`,
		`{"nosuch":"5"}`:                                 `{"nosuch":"5"}`,
		`[1]`:                                            `[1]`,
		`{`:                                              `{`,
	} {
		var got, expected any
		_ = json.Unmarshal(fit(json.RawMessage(sent), schema), &got)
		_ = json.Unmarshal([]byte(want), &expected)
		if !reflect.DeepEqual(got, expected) {
			t.Errorf("%s: got %v, want %s", sent, got, want)
		}
	}
}

// A word in a list of words may be in any case.
func TestFitWords(t *testing.T) {
	schema := inputSchema[runArgs](nil, func(p map[string]*jsonschema.Schema) {
		p["language"].Enum = anys([]string{"python", "js"})
	})
	for sent, want := range map[string]string{
		`{"language":"Python"}`: `{"language":"python"}`,
		`{"language":"cobol"}`:  `{"language":"cobol"}`,
		`{"language":"js"}`:     `{"language":"js"}`,
	} {
		if got := strings.TrimSpace(string(fit(json.RawMessage(sent), schema))); got != want {
			t.Errorf("%s: got %s, want %s", sent, got, want)
		}
	}
}

// JSON inside a text costs no more memory than the call has reserved.
func TestAttackFit(t *testing.T) {
	schema := inputSchema[runArgs](nil, nil)
	lists := json.RawMessage(`{"files":"[` + strings.Repeat("[],", 40_000) + `[]]"}`)
	got := fit(lists, schema)
	attack.Check(t, "40000 lists inside a text: lists unwrapped", "0", fmt.Sprint(bytes.Count(got, []byte("[]"))-40_001))
	attack.Check(t, "40000 lists inside a text: bytes more", "2", fmt.Sprint(len(bytes.TrimSpace(got))-len(lists)))
	for _, field := range []string{"allowNet", "allowHttp", "allowTcp", "secrets", "packages", "files", "dirs", "args"} {
		for _, value := range []string{"false", "true", "0", "1.5"} {
			sent := fmt.Sprintf(`{"%s":%s}`, field, value)
			attack.Check(t, "fitted: "+sent, sent, string(fit(json.RawMessage(sent), schema)))
		}
	}
	anything := inputSchema[struct {
		Value any `json:"value"`
	}](nil, nil)
	for _, sent := range []string{`{"value":"null"}`, `{"value":"\"quoted\""}`, `{"value":"hello"}`, `{"value":null}`} {
		attack.Check(t, "fitted where any type is wanted: "+sent, sent, string(fit(json.RawMessage(sent), anything)))
	}
	tags := json.RawMessage(`{"stdin":"` + strings.Repeat("<", 100_000) + `","check":"true"}`)
	attack.Check(t, "100000 tags: bytes more", "-2", fmt.Sprint(len(bytes.TrimSpace(fit(tags, schema)))-len(tags)))
}

// An error about arguments names the intended one, and all arguments of the tool.
func TestExplain(t *testing.T) {
	schema := inputSchema[runArgs](nil, nil)
	for sent, want := range map[string]string{
		`{"code":"1","timeout":5}`:       `run_code has no argument "timeout": did you mean timeoutSeconds?`,
		`{"code":"1","lang":"js"}`:       `run_code has no argument "lang": did you mean language?`,
		`{"code":"1","memory_mb":256}`:   `run_code has no argument "memory_mb": did you mean memoryMb?`,
		`{"code":"1","allow_net":["a"]}`: `run_code has no argument "allow_net": did you mean allowNet?`,
		`{"code":"1","zzzzzzzz":1}`:      `run_code has no argument "zzzzzzzz"` + "\n",
		`{"code":1}`:                     `validating "arguments"`,
	} {
		res := &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{
			Text: `validating "arguments": x`}}}
		explain(res, &sdk.CallToolParamsRaw{Name: "run_code", Arguments: json.RawMessage(sent)}, schema)
		got := res.Content[0].(*sdk.TextContent).Text
		if !strings.HasPrefix(got, want) || !strings.Contains(got,
			"\nrun_code takes: code, snippet, language, filename, image") {
			t.Errorf("%s: got %s, want %s", sent, got, want)
		}
	}
}

func FuzzFit(f *testing.F) {
	schema := inputSchema[runArgs](nil, nil)
	f.Add([]byte(`{"allowNet":"a","memoryMb":"5","files":{"name":"a"}}`))
	f.Fuzz(func(t *testing.T, sent []byte) {
		if got := fit(sent, schema); json.Valid(sent) && !json.Valid(got) {
			t.Errorf("%s became %s", sent, got)
		}
	})
}
