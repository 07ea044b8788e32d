package mcp_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/mcp"
)

// shopTools is a function of the client.
var shopTools = object{"shop": []object{{"name": "total", "description": "Returns an order's total.",
	"inputSchema": object{"type": "object", "required": []string{"number"},
		"properties": object{"number": object{"type": "integer"}}}}}}

// The code calls functions of its client, which answers by wait_command. Nobody else sees or answers the calls.
func TestAttackClientTools(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a real machine; not in -short")
	}
	s := newServer(t, open(t, unitask.PoolSize{}), mcp.Options{})
	url := serve(t, s, mcp.HTTPOptions{Auth: tokens(t, "alice", "mallory")})
	alice, mallory := connect(t, url, "alice-token-0123456789"), connect(t, url, "mallory-token-0123456789")
	_, begun, text := call(t, alice, "run_code", object{"language": "python", "background": true, "clientTools": shopTools,
		"code": `from concurrent.futures import ThreadPoolExecutor
from unitask_tools import shop, ToolError
def total(number):
    try: return shop.total(number=number)["cents"]
    except ToolError as e: return f"{e.code}: {e}"
print(total(7), flush=True)
with ThreadPoolExecutor() as pool: print(sorted(pool.map(total, (1, 2, 3))))
print(total(8), total("x")[:9])`})
	id, _ := begun["runId"].(string)
	if id == "" {
		t.Fatal(text)
	}
	wait := func(cs *sdk.ClientSession, answers ...object) (object, string) {
		args := object{"run": id, "waitSeconds": 30}
		if answers != nil {
			args["answers"] = answers
		}
		_, out, text := call(t, cs, "wait_command", args)
		return out, text
	}
	number := func(call any) int {
		n, _ := call.(object)["arguments"].(object)["number"].(float64)
		return int(n)
	}
	var output any
	var answers []object
	asked := 0
	for range 20 {
		out, text := wait(alice, answers...)
		calls, _ := out["calls"].([]any)
		if output = out["output"]; out["outcome"] != "running" || len(calls) == 0 {
			break
		}
		if asked == 0 {
			if !strings.Contains(text, `call 1 of your function shop.total waits for an element of answers: {"number":7}`) {
				t.Errorf("%s", text)
			}
			for _, given := range [][]object{nil, {{"call": "1", "result": object{"cents": 1}}}} {
				_, text := wait(mallory, given...)
				attack.Check(t, "another caller and a call", "true",
					fmt.Sprint(strings.Contains(text, "is not in the background")))
			}
			_, text = wait(alice, object{"call": "99", "result": 1})
			attack.Check(t, "an answer to a call that does not wait", "true",
				fmt.Sprint(strings.Contains(text, `no call "99" waits`)))
		}
		answers = nil
		for _, one := range calls {
			asked++
			answer := object{"call": one.(object)["call"], "result": object{"cents": 100 * number(one)}}
			if number(one) == 8 {
				answer = object{"call": answer["call"], "error": "there is no order 8"}
			}
			answers = append(answers, answer)
		}
	}
	if output != "700\n[100, 200, 300]\ntool: there is no order 8 arguments\n" || asked != 5 {
		t.Errorf("%d calls, %q", asked, output)
	}
}

// Functions that no code could call are refused before anything runs, as are answers that nothing asks for.
func TestAttackClientToolsRefused(t *testing.T) {
	cs := inMemory(t, newServer(t, bare(t), mcp.Options{}), nil)
	for name, c := range map[string]struct {
		tool, args, want string
	}{
		"without background": {"run_code", `{"clientTools":{"shop":[{"name":"x"}]}}`, "clientTools go with background"},
		"in a session": {"run_code", `{"clientTools":{"shop":[{"name":"x"}]},"background":true,"session":"new"}`,
			"background does not go with session"},
		"another key": {"run_code", `{"clientTools":{"shop":[{"name":"x","input_schema":{}}]},"background":true}`,
			"input_schema"},
		"no list": {"run_code", `{"clientTools":{"shop":{"name":"x"}},"background":true}`, "clientTools"},
		"a word of Python": {"run_code", `{"clientTools":{"class":[{"name":"x"}]},"background":true}`,
			"no name that code can import"},
		"two of one name": {"run_code", `{"clientTools":{"shop":[{"name":"x"},{"name":"x"}]},"background":true}`,
			"there are two"},
		"an array's schema": {"run_code",
			`{"clientTools":{"shop":[{"name":"x","inputSchema":{"type":"array"}}]},"background":true}`, "clientTools"},
		"answers to no run": {"wait_command", `{"run":"x","answers":[{"call":"1","result":1}]}`, "is not in the background"},
		"answers to nobody": {"wait_command", `{"run":"x","answers":[{"id":"1"}]}`, "answers"},
	} {
		args := object{"language": "python", "code": "1"}
		if c.tool != "run_code" {
			args = object{}
		}
		if err := json.Unmarshal([]byte(c.args), &args); err != nil {
			t.Fatal(err)
		}
		res, _, text := call(t, cs, c.tool, args)
		attack.Check(t, "a client's functions over MCP: "+name, "true true",
			fmt.Sprint(res.IsError, strings.Contains(text, c.want)))
		t.Log(text)
	}
}

// Too many functions are refused at once, and not after work whose time grows with the square of their number.
func TestAttackClientToolsMany(t *testing.T) {
	cs := inMemory(t, newServer(t, bare(t), mcp.Options{}), nil)
	many, groups := []object{}, object{}
	for i := range 40_000 {
		many = append(many, object{"name": fmt.Sprint("x", i)})
		groups[fmt.Sprint("x", i)] = []object{{"name": "x"}}
	}
	for name, functions := range map[string]object{"in a group": {"shop": many}, "groups": groups} {
		began := time.Now()
		res, _, text := call(t, cs, "run_code", object{"language": "python", "code": "1", "background": true,
			"clientTools": functions})
		attack.Check(t, "too many functions of a client: "+name, "true true true", fmt.Sprint(res.IsError,
			strings.Contains(text, "at most"), time.Since(began) < 5*time.Second))
		t.Logf("%s: %.200s", time.Since(began), text)
	}
}
