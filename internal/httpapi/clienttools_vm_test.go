package httpapi

import (
	"bufio"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// shop is a client's tool.
func shop(schema object) object {
	return object{"shop": []object{{"name": "total", "description": "Returns an order's total.", "inputSchema": schema}}}
}

var orderSchema = object{"type": "object", "required": []string{"number"},
	"properties": object{"number": object{"type": "integer"}}}

const shopping = `from unitask_tools import shop, ToolError
for number in (7, 8, "x"):
    try: print(shop.total(number=number), flush=True)
    except ToolError as e: print(e.code, e, flush=True)
`

// The code calls the tools of the run's client, which answers each call as long as the code waits.
func TestAttackClientToolsAnswers(t *testing.T) {
	a := newAPI(t, setup{vm: true, callers: []string{"alice", "mallory"}})
	body := python(shopping)
	body["clientTools"] = shop(orderSchema)
	alice := []string{"Authorization", "Bearer alice-token-0123456789"}
	res, text := a.send("POST", "/v1/runs?wait=false", body, alice...)
	var state runState
	if err := json.Unmarshal(text, &state); err != nil || res.StatusCode != 202 {
		t.Fatalf("%d %s", res.StatusCode, text)
	}
	at := "/v1/runs/" + state.RunID
	feed := a.do("GET", at+"/events", nil, alice)
	defer feed.Body.Close()
	events := bufio.NewScanner(feed.Body)
	out := ""
	for _, answer := range []object{{"result": object{"cents": 9007199254740993}}, {"error": "there is no order 8"}} {
		asked, text := until(t, events, "toolCall")
		out += text
		id := fmt.Sprint(asked.data["call"])
		if _, text := a.send("GET", at+"/calls", nil, alice...); !strings.Contains(string(text), `"call":"`+id+`"`) ||
			asked.data["server"] != "shop" || asked.data["tool"] != "total" {
			t.Errorf("the event %v, the list %s", asked, text)
		}
		res, _ := a.send("POST", at+"/calls/"+id, answer, "Authorization", "Bearer mallory-token-0123456789")
		attack.Check(t, "another caller answers a call of a tool", "404", fmt.Sprint(res.StatusCode))
		for _, status := range []int{204, 409} {
			if res, text := a.send("POST", at+"/calls/"+id, answer, alice...); res.StatusCode != status {
				t.Errorf("answer %s: %d %s, want %d", id, res.StatusCode, text, status)
			}
		}
	}
	_, rest := until(t, events, "end")
	out += rest
	const want = "{'cents': 9007199254740993}\ntool there is no order 8\narguments "
	if !strings.HasPrefix(out, want) {
		t.Errorf("got %q, want %q", out, want)
	}
	if _, text := a.send("GET", at+"/calls", nil, alice...); string(text) != "{\"calls\":[]}\n" {
		t.Errorf("%s", text)
	}
}

// All code of a session, and of its fork, calls the client's tools. Nobody else sees or answers the calls.
func TestAttackClientToolsSession(t *testing.T) {
	a := newAPI(t, setup{vm: true, callers: []string{"alice", "mallory"}})
	alice := []string{"Authorization", "Bearer alice-token-0123456789"}
	made := func(path string, body any) object {
		t.Helper()
		res, text := a.send("POST", path, body, alice...)
		var is object
		if err := json.Unmarshal(text, &is); err != nil || res.StatusCode >= 300 {
			t.Fatalf("%d %s", res.StatusCode, text)
		}
		return is
	}
	id := made("/v1/sessions", object{"language": "python", "clientTools": shop(orderSchema)})["id"].(string)
	at := "/v1/runs/" + id
	feed := a.do("GET", at+"/events", nil, alice)
	defer feed.Body.Close()
	events := bufio.NewScanner(feed.Body)
	fork := made("/v1/sessions/"+id+"/fork", object{})["sessions"].([]any)[0].(object)["id"].(string)
	for i, session := range []string{id, fork} {
		step := made("/v1/sessions/"+session+"/steps?wait=false",
			object{"code": fmt.Sprintf("from unitask_tools import shop\nshop.total(number=%d)['cents']", i+1)})
		asked, _ := until(t, events, "toolCall")
		answer := object{"result": object{"cents": 100 * asked.data["arguments"].(object)["number"].(float64)}}
		to := at + "/calls/" + fmt.Sprint(asked.data["call"])
		res, _ := a.send("POST", to, answer, "Authorization", "Bearer mallory-token-0123456789")
		attack.Check(t, "another caller answers a session's call", "404", fmt.Sprint(res.StatusCode))
		if res, text := a.send("POST", to, answer, alice...); res.StatusCode != 204 {
			t.Fatalf("%d %s", res.StatusCode, text)
		}
		_, text := a.send("GET", fmt.Sprintf("/v1/runs/%s/result?waitSeconds=30", step["runId"]), nil, alice...)
		if want := fmt.Sprintf(`"value":"%d`, 100*(i+1)); !strings.Contains(string(text), want) {
			t.Errorf("%s instead of %s", text, want)
		}
	}
	a.send("DELETE", "/v1/sessions/"+id, nil, alice...)
	until(t, events, "end")
}

// Tools that no code could call are refused before anything runs.
func TestAttackClientTools(t *testing.T) {
	a := newAPI(t, setup{})
	deep := object{"type": "object"}
	for range 200 {
		deep = object{"type": "object", "properties": object{"a": deep}}
	}
	for name, c := range map[string]struct {
		wait  string
		tools any
	}{
		"a client that waits for the result":    {"true", shop(orderSchema)},
		"a schema of no object":                 {"false", shop(object{"type": "array"})},
		"a schema that refers to another place": {"false", shop(object{"type": "object", "$ref": "http://localhost/x"})},
		"a schema that is none":                 {"false", shop(object{"type": "object", "properties": 1})},
		"a deep schema":                         {"false", shop(deep)},
		"a name that no code imports":           {"false", object{"class": []object{{"name": "x"}}}},
		"a name with a slash":                   {"false", object{"shop": []object{{"name": "../x"}}}},
		"two tools with one name":               {"false", object{"shop": []object{{"name": "x"}, {"name": "x"}}}},
	} {
		body := python("1")
		body["clientTools"] = c.tools
		res, text := a.send("POST", "/v1/runs?wait="+c.wait, body)
		attack.Check(t, "a client's tools: "+name, "422", fmt.Sprint(res.StatusCode))
		t.Logf("%s", text)
	}
}
