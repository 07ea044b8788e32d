package mcp_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/internal/testregistry"
	"github.com/unitask/unitask/mcp"
)

// The official conformance suite asks for tools, resources and prompts with certain names. They are added here to the
// real server, behind its real HTTP stack.

//lint:file-ignore SA1019 older revisions are tested too

var (
	pixel = []byte(
		"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x02\x00\x00\x00" +
			"\x90wS\xde\x00\x00\x00\x0cIDATx\x9cc\xf8\xcf\xc0\x00\x00\x03\x01\x01\x00" +
			"\xc9\xfe\x92\xef\x00\x00\x00\x00IEND\xaeB`\x82")
	silence = []byte(
		"RIFF\x26\x00\x00\x00WAVEfmt " +
			"\x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x80\x3e\x00\x00\x02\x00\x10\x00data\x02\x00\x00\x00\x00\x00")
)

func textContent(format string, args ...any) *sdk.TextContent {
	return &sdk.TextContent{Text: fmt.Sprintf(format, args...)}
}

func says(content ...sdk.Content) *sdk.CallToolResult { return &sdk.CallToolResult{Content: content} }

func embedded(uri, text string) *sdk.EmbeddedResource {
	return &sdk.EmbeddedResource{Resource: &sdk.ResourceContents{URI: uri, MIMEType: "text/plain", Text: text}}
}

// objectOf returns a schema of an object with these properties, all required.
func objectOf(properties ...string) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{}, Required: properties}
	for _, p := range properties {
		s.Properties[p] = &jsonschema.Schema{Type: "string"}
	}
	return s
}

// States of conversations with several rounds are signed.
var stateKey = []byte("conformance")

func sealed(state string) string {
	mac := hmac.New(sha256.New, stateKey)
	mac.Write([]byte(state))
	return state + "." + hex.EncodeToString(mac.Sum(nil))
}

func unsealed(text string) (string, error) {
	if text == "" {
		return "", nil
	}
	at := strings.LastIndex(text, ".")
	if at < 0 || sealed(text[:at]) != text {
		return "", &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "requestState was changed"}
	}
	return text[:at], nil
}

// given returns a field of an accepted form, "" without one.
func given(in sdk.InputResponseMap, key, field string) string {
	form, ok := in[key].(*sdk.ElicitResult)
	if !ok || form == nil || form.Action != "accept" {
		return ""
	}
	return fmt.Sprint(form.Content[field])
}

func accepted(in sdk.InputResponseMap, key string) bool {
	form, ok := in[key].(*sdk.ElicitResult)
	return ok && form != nil && form.Action == "accept"
}

func sampled(in sdk.InputResponseMap, key string) bool {
	answer, ok := in[key].(*sdk.CreateMessageWithToolsResult)
	return ok && answer != nil
}

func form(message string, fields ...string) *sdk.ElicitParams {
	return &sdk.ElicitParams{Message: message, RequestedSchema: objectOf(fields...)}
}

func question(text string) *sdk.CreateMessageParams {
	return &sdk.CreateMessageParams{MaxTokens: 50, Messages: []*sdk.SamplingMessage{{Role: "user",
		Content: textContent("%s", text)}}}
}

type tool = func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error)

// rounds are the tools that ask for input before they answer.
func rounds() map[string]tool {
	confirmed := func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		state, err := unsealed(req.Params.RequestState)
		if err != nil {
			return nil, err
		}
		if state == "confirming" && accepted(req.Params.InputResponses, "confirm") {
			return says(textContent("state-ok")), nil
		}
		return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"confirm": form("Go on?", "ok")},
			RequestState: sealed("confirming")}, nil
	}
	return map[string]tool{
		"elicitation": func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			if name := given(req.Params.InputResponses, "user_name", "name"); name != "" && name != "<nil>" {
				return says(textContent("Hello, %s", name)), nil
			}
			return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"user_name": form("Your name?", "name")}}, nil
		},
		"sampling": func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			if sampled(req.Params.InputResponses, "capital_question") {
				return says(textContent("sampled")), nil
			}
			return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"capital_question": question(
				"What is the capital of France?")}}, nil
		},
		"list_roots": func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			if roots, ok := req.Params.InputResponses["client_roots"].(*sdk.ListRootsResult); ok {
				return says(textContent("%d roots", len(roots.Roots))), nil
			}
			return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"client_roots": &sdk.ListRootsParams{}}}, nil
		},
		"request_state":  confirmed,
		"tampered_state": confirmed,
		"multiple_inputs": func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			in := req.Params.InputResponses
			if _, roots := in["client_roots"].(*sdk.ListRootsResult); roots && sampled(in, "greeting") &&
				accepted(in, "user_name") {
				return says(textContent("all three")), nil
			}
			return &sdk.CallToolResult{RequestState: sealed("asked"),
				InputRequests: sdk.InputRequestMap{"user_name": form("Your name?", "name"), "greeting": question("Greet"),
					"client_roots": &sdk.ListRootsParams{}}}, nil
		},
		"multi_round": func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			state, err := unsealed(req.Params.RequestState)
			in := req.Params.InputResponses
			switch {
			case err != nil:
				return nil, err
			case state == "":
				return &sdk.CallToolResult{RequestState: sealed("one"),
					InputRequests: sdk.InputRequestMap{"step1": form("Your name?", "name")}}, nil
			case state == "one":
				return &sdk.CallToolResult{RequestState: sealed("two " + given(in, "step1", "name")),
					InputRequests: sdk.InputRequestMap{"step2": form("Your colour?", "color")}}, nil
			}
			return says(textContent("%s likes %s", strings.TrimPrefix(state, "two "), given(in, "step2", "color"))), nil
		},
		"capabilities": func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			can, ask := req.ClientCapabilities(), sdk.InputRequestMap{}
			if can != nil && can.Elicitation != nil {
				ask["user_name"] = form("Your name?", "name")
			}
			if can != nil && can.Sampling != nil {
				ask["greeting"] = question("Greet")
			}
			if can != nil && can.RootsV2 != nil {
				ask["client_roots"] = &sdk.ListRootsParams{}
			}
			if len(req.Params.InputResponses) > 0 || len(ask) == 0 {
				return says(textContent("done")), nil
			}
			return &sdk.CallToolResult{InputRequests: ask}, nil
		},
	}
}

// fixturesRows are its tools.
func fixturesRows(server *sdk.Server) map[string]tool {
	rows := map[string]tool{
		"simple_text": func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return says(textContent("This is a simple text response for testing.")), nil
		},
		"image_content": func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return says(&sdk.ImageContent{Data: pixel, MIMEType: "image/png"}), nil
		},
		"audio_content": func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return says(&sdk.AudioContent{Data: silence, MIMEType: "audio/wav"}), nil
		},
		"embedded_resource": func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return says(embedded("test://embedded-resource", "embedded")), nil
		},
		"multiple_content_types": func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return says(textContent("mixed"), &sdk.ImageContent{Data: pixel, MIMEType: "image/png"},
				embedded("test://mixed-content-resource", "embedded")), nil
		},
		"error_handling": func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			res := says(textContent("This tool intentionally returns an error for testing"))
			res.IsError = true
			return res, nil
		},
		"tool_with_logging": func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			for _, what := range []string{"begun", "at work", "done"} {
				if err := req.Session.Log(ctx, &sdk.LoggingMessageParams{Level: "info", Data: what}); err != nil {
					return nil, err
				}
			}
			return says(textContent("logged")), nil
		},
		"tool_with_progress": func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			for _, done := range []float64{0, 50, 100} {
				if err := req.Session.NotifyProgress(ctx,
					&sdk.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: done,
						Total: 100}); err != nil {
					return nil, err
				}
			}
			return says(textContent("%v", req.Params.GetProgressToken())), nil
		},
		"logging_tool": func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return says(textContent("logged")), req.Session.Log(ctx, &sdk.LoggingMessageParams{Level: "info", Data: "logged"})
		},
		"streaming_elicitation": func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return says(textContent("nothing was asked")), nil
		},
	}
	maps.Copy(rows, moreFixturesRows(server))
	return rows
}

// moreFixturesRows are the other half.
func moreFixturesRows(server *sdk.Server) map[string]tool {
	return map[string]tool{
		"missing_capability": func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			if can := req.ClientCapabilities(); can != nil && can.Sampling != nil {
				return says(textContent("it samples")), nil
			}
			data, err := json.Marshal(
				sdk.MissingRequiredClientCapabilityData{
					RequiredCapabilities: &sdk.ClientCapabilities{Sampling: &sdk.SamplingCapabilities{}}})
			if err != nil {
				return nil, err
			}
			return nil, &jsonrpc.Error{Code: sdk.CodeMissingRequiredClientCapabilities, Message: "this tool samples", Data: data}
		},
		"trigger_tool_change": func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			server.AddTool(&sdk.Tool{Name: "test_changed", Description: "conformance", InputSchema: objectOf()},
				func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) { return says(), nil })
			return says(textContent("changed")), nil
		},
		"trigger_prompt_change": func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			server.AddPrompt(&sdk.Prompt{Name: "test_changed", Description: "conformance"},
				func(context.Context, *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
					return &sdk.GetPromptResult{}, nil
				})
			return says(textContent("changed")), nil
		},
		"reconnection": func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			if req.Extra != nil && req.Extra.CloseSSEStream != nil {
				req.Extra.CloseSSEStream(sdk.CloseSSEStreamArgs{RetryAfter: 10 * time.Millisecond})
			}
			time.Sleep(100 * time.Millisecond)
			return says(textContent("after the stream was closed")), nil
		},
		"sampling": func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			var in struct{ Prompt string }
			if err := json.Unmarshal(req.Params.Arguments, &in); err != nil {
				return nil, err
			}
			answer, err := req.Session.CreateMessage(ctx, question(in.Prompt))
			if err != nil {
				return nil, err
			}
			text, _ := answer.Content.(*sdk.TextContent)
			return says(textContent("LLM response: %s", text.Text)), nil
		},
		"elicitation": elicits(objectOf("username", "email")),
		"elicitation_sep1034_defaults": elicits(
			json.RawMessage(
				`{"type":"object","properties":{"name":{"type":"string","default":"John Doe"},"age":{"type":"integer",` +
					`"default":30},"score":{"type":"number","default":95.5},"status":{"type":"string","enum":["active","inactive",` +
					`"pending"],"default":"active"},"verified":{"type":"boolean","default":true}}}`)),
		"elicitation_sep1330_enums": elicits(json.RawMessage(enumsSchema)),
	}
}

// fixtures adds what the suite needs.
func fixtures(server *sdk.Server) {
	tools := fixturesRows(server)
	for name, t := range rounds() {
		tools["input_required_result_"+name] = t
	}
	for name, t := range tools {
		server.AddTool(&sdk.Tool{Name: "test_" + name, Description: "conformance",
			InputSchema: json.RawMessage(`{"type":"object"}`)}, t)
	}
	nothing := func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return says(textContent("called")), nil
	}
	server.AddTool(&sdk.Tool{Name: "test_x_mcp_header", Description: "conformance",
		InputSchema: json.RawMessage(
			`{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"level":{"type":"integer"}}}`)},
		nothing)
	server.AddTool(&sdk.Tool{Name: "json_schema_2020_12_tool", Description: "conformance",
		InputSchema: json.RawMessage(addressSchema)}, nothing)

	addResources(server)
}

// addResources adds resources and prompts.
func addResources(server *sdk.Server) {
	for uri, c := range map[string]*sdk.ResourceContents{
		"test://static-text":      {MIMEType: "text/plain", Text: "a text"},
		"test://static-binary":    {MIMEType: "image/png", Blob: pixel},
		"test://watched-resource": {MIMEType: "text/plain", Text: "watched"},
	} {
		server.AddResource(&sdk.Resource{URI: uri, Name: strings.TrimPrefix(uri, "test://"), Description: "conformance",
			MIMEType: c.MIMEType}, func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
			here := *c
			here.URI = uri
			return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{&here}}, nil
		})
	}
	server.AddResourceTemplate(&sdk.ResourceTemplate{URITemplate: "test://template/{id}/data", Name: "template",
		Description: "conformance", MIMEType: "application/json"},
		func(_ context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
			id := strings.TrimSuffix(strings.TrimPrefix(req.Params.URI, "test://template/"), "/data")
			return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: req.Params.URI, MIMEType: "application/json",
				Text: fmt.Sprintf(`{"id":%q}`, id)}}}, nil
		})

	prompt := func(name string, args []string, get func(map[string]string) []sdk.Content) {
		p := &sdk.Prompt{Name: name, Description: "conformance"}
		for _, a := range args {
			p.Arguments = append(p.Arguments, &sdk.PromptArgument{Name: a, Required: true})
		}
		server.AddPrompt(p, func(_ context.Context, req *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
			res := &sdk.GetPromptResult{}
			for _, c := range get(req.Params.Arguments) {
				res.Messages = append(res.Messages, &sdk.PromptMessage{Role: "user", Content: c})
			}
			return res, nil
		})
	}
	prompt("test_simple_prompt", nil, func(map[string]string) []sdk.Content {
		return []sdk.Content{textContent("This is a simple prompt for testing.")}
	})
	prompt("test_prompt_with_arguments", []string{"arg1", "arg2"}, func(a map[string]string) []sdk.Content {
		return []sdk.Content{textContent("arg1='%s', arg2='%s'", a["arg1"], a["arg2"])}
	})
	prompt("test_prompt_with_embedded_resource", []string{"resourceUri"}, func(a map[string]string) []sdk.Content {
		return []sdk.Content{embedded(a["resourceUri"], "embedded"), textContent("Look at it.")}
	})
	prompt("test_prompt_with_image", nil, func(map[string]string) []sdk.Content {
		return []sdk.Content{&sdk.ImageContent{Data: pixel, MIMEType: "image/png"}, textContent("Look at it.")}
	})
	server.AddPrompt(&sdk.Prompt{Name: "test_input_required_result_prompt", Description: "conformance"},
		func(_ context.Context, req *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
			if accepted(req.Params.InputResponses, "user_context") {
				return &sdk.GetPromptResult{Messages: []*sdk.PromptMessage{{Role: "user",
					Content: textContent("In the context of %s", given(req.Params.InputResponses, "user_context", "context"))}}}, nil
			}
			return &sdk.GetPromptResult{InputRequests: sdk.InputRequestMap{"user_context": form("In what context?", "context")}},
				nil
		})
}

// elicits asks an older client's user with its own request.
func elicits(schema any) tool {
	return func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		answer, err := req.Session.Elicit(ctx, &sdk.ElicitParams{Message: "Please fill in", RequestedSchema: schema})
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(answer.Content)
		return says(textContent("action=%s, content=%s", answer.Action, text)), err
	}
}

// node is the vendored Node, which runs the suite's tools.
func node(t *testing.T) string {
	t.Helper()
	testhome.Ready(t, base, image.Linux)
	return filepath.Join(base, "vendor", runtime.GOARCH, "node", "node")
}

// npm installs packages of npm, once, and returns their folder.
func npm(t *testing.T, name string, packages ...string) string {
	t.Helper()
	return testregistry.NPM(t, base, name, packages...)
}

// run runs a Node program of a package and returns its output.
func run(t *testing.T, dir string, env []string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, node(t), args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

var verdict = regexp.MustCompile(`(?m)^.*(?:✗|FAILURE|failed).*$`)

// baseline lists the scenarios that do not apply, by name and reason; see the file.
const baseline = "testdata/conformance-baseline.yml"

// TestConformance runs the official suite against the real stack with the fixtures. Scenarios that need no fixtures run
// against the real server alone.
func TestConformance(t *testing.T) {
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	newest := filepath.Join(npm(t, "conformance-0.2", "@modelcontextprotocol/conformance@0.2.0-alpha.12"),
		"node_modules/@modelcontextprotocol/conformance/dist/index.js")
	older := filepath.Join(npm(t, "conformance-0.1", "@modelcontextprotocol/conformance@0.1.16"),
		"node_modules/@modelcontextprotocol/conformance/dist/index.js")
	listed, err := filepath.Abs(baseline)
	if err != nil {
		t.Fatal(err)
	}
	withFixtures := func(t *testing.T) string {
		s := newServer(t, rt, mcp.Options{})
		fixtures(mcp.SDK(s))
		mcp.Watch(s, "test://watched-resource")
		return serve(t, s, mcp.HTTPOptions{}) + "/mcp"
	}
	suite := func(t *testing.T, program, url string, args ...string) {
		t.Helper()
		out, err := run(t, t.TempDir(), nil, append([]string{program, "server", "--url", url, "--expected-failures", listed},
			args...)...)
		if err != nil {
			t.Errorf("%v: %v\n%s", args, err, strings.Join(verdict.FindAllString(out, 60), "\n"))
			return
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		t.Log(strings.Join(lines[max(0, len(lines)-8):], "\n"))
	}
	t.Run("2026-07-28", func(t *testing.T) { suite(t, newest, withFixtures(t), "--requirements", "2026-07-28") })
	t.Run("2025-11-25", func(t *testing.T) { suite(t, older, withFixtures(t), "--spec-version", "2025-11-25") })
	t.Run("tasks", func(t *testing.T) {
		s := newServer(t, rt, mcp.Options{})
		taskFixtures(s)
		url := serve(t, s, mcp.HTTPOptions{}) + "/mcp"
		for _, scenario := range []string{"lifecycle", "capability-negotiation", "wire-fields", "request-state-removal",
			"mrtr-input", "request-headers", "dispatch-and-envelope", "required-task-error", "mrtr-composition"} {
			t.Run(scenario, func(t *testing.T) {
				t.Parallel()
				suite(t, newest, url, "--scenario", "tasks-"+scenario)
			})
		}
	})
	t.Run("the real server", func(t *testing.T) {
		url := serve(t, newServer(t, rt, mcp.Options{}), mcp.HTTPOptions{}) + "/mcp"
		for _, scenario := range []string{"tools-list", "dns-rebinding-protection", "caching", "http-header-validation",
			"resources-list", "prompts-list", "completion-complete", "sep-2164-resource-not-found"} {
			t.Run(scenario, func(t *testing.T) { suite(t, newest, url, "--spec-version", "2026-07-28", "--scenario", scenario) })
		}
	})
}
