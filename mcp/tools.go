package mcp

import (
	"context"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/policy"
)

func (s *Server) addTools() {
	yes, no := true, false
	addTool(s, &sdk.Tool{
		Name: "run_code", Title: "Run code",
		Description: "Run code in a fresh virtual machine that is destroyed afterwards: " +
			strings.Join(s.rt.Catalog().AboutLanguages(s.opts.Ceiling), "; ") + ". " +
			"Returns stdout, stderr and the exit code. Files that the code leaves in /out come back as artifacts.",
		InputSchema: s.codeSchema(),
		OutputSchema: outputSchema[ran](map[string]string{
			"runId": "names the record: inspect_run, and the resource unitask://runs/{runId}",
			"outcome": "exited (by itself), signaled, timeout, oom, undelivered (it ended with 0, but a file of /out did " +
				"not come back), cancelled, crashed, failed, busy (nothing ran), lost (it may have had effects), running",
			"exitCode":  "the code's own when outcome is exited",
			"cut":       "the streams of which only the beginning and the end are here, and what has all of them",
			"policy":    "what was asked for and not given",
			"artifacts": "files that it left in /out: the resource unitask://runs/{runId}/artifacts/{path}",
		}),
		// The tool runs any code, but in a separate machine, which the code can't leave.
		Annotations: &sdk.ToolAnnotations{ReadOnlyHint: false, DestructiveHint: &no, IdempotentHint: false,
			OpenWorldHint: &yes},
	}, told(s, s.runCode))
	addTool(s, &sdk.Tool{
		Name:  "inspect_run",
		Title: "Inspect a run",
		Description: "Show the record of a run: what was asked and granted, how it ended, what it printed, and every " +
			"network connection it tried.",
		InputSchema:  inputSchema[inspectArgs](nil, nil),
		OutputSchema: &jsonschema.Schema{Type: "object"},
		Annotations:  &sdk.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: &no},
	}, told(s, s.inspectRun))
	addTool(s, &sdk.Tool{
		Name: "list_runs", Title: "List runs", Description: "List earlier runs, the newest first.",
		InputSchema: inputSchema[listArgs](nil, func(p map[string]*jsonschema.Schema) {
			p["status"].Description += ": " + strings.Join(history.States(), ", ")
			p["limit"].Minimum, p["limit"].Maximum = float(1), float(maxListed)
		}),
		OutputSchema: outputSchema[listResult](nil),
		Annotations:  &sdk.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: &no},
	}, told(s, s.listRuns))
	addTool(s, &sdk.Tool{
		Name: "unitask_doctor", Title: "Check the installation",
		Description: "Check everything that a run needs on this host, and boot a machine. It takes some seconds.",
		InputSchema: inputSchema[struct{}](nil, nil), OutputSchema: &jsonschema.Schema{Type: "object"},
		Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: &no},
	}, told(s, s.doctor))
	if s.rt.HasSessions() {
		s.addSessionTools()
	}
	s.addWebFetch()
	s.addWebSearch()
	s.sdk.AddReceivingMiddleware(s.fitArguments, typeErrors)
}

// codeSchema is the schema of run_code's arguments, as far as this server has them.
func (s *Server) codeSchema() *jsonschema.Schema {
	code := inputSchema[runArgs](runDescriptions, func(p map[string]*jsonschema.Schema) {
		if !s.rt.HasSessions() {
			delete(p, "session")
			delete(p, "background")
			delete(p, "clientTools")
		}
		if len(s.opts.Ceiling.ToolServers()) == 0 {
			delete(p, "tools")
		}
		if len(s.snippets)+len(s.skills) == 0 {
			delete(p, "snippet")
		}
		p["language"].Enum = anys(slices.Sorted(slices.Values(s.rt.Catalog().AllowedLanguages(s.opts.Ceiling))))
		p["image"].Enum = anys(s.rt.Catalog().AllowedImages(s.opts.Ceiling))
		if listed := s.opts.Ceiling.ContainerImages(); len(listed) > 0 { // which may be patterns
			p["image"].Description += ": one of " + strings.Join(s.rt.Catalog().AllowedImages(s.opts.Ceiling), ", ") +
				", or a container image of " + strings.Join(listed, ", ")
			p["image"].Enum = nil
		}
		_, longest := policy.FieldOf("timeoutMs").Bounds()
		least, most := policy.FieldOf("memoryMb").Bounds()
		p["timeoutSeconds"].ExclusiveMinimum, p["timeoutSeconds"].Maximum = float(0), &longest
		p["memoryMb"].Minimum, p["memoryMb"].Maximum = &least, &most
		fewest, all := policy.FieldOf("maxProcesses").Bounds()
		p["maxProcesses"].Minimum, p["maxProcesses"].Maximum = &fewest, &all
		boundMaxOutput(p)
		if functions := p["clientTools"]; functions != nil {
			*functions = jsonschema.Schema{Type: "object", Description: functions.Description}
		}
	})
	if len(s.snippets)+len(s.skills) == 0 { // with a snippet neither is given
		code.Required = []string{"code", "language"}
	}
	return code
}

// told converts a tool's errors to what the caller may see, and reserves the memory of the answer before it
// becomes JSON.
func told[In, Out any](s *Server, tool sdk.ToolHandlerFor[In, Out]) sdk.ToolHandlerFor[In, Out] {
	return func(ctx context.Context, req *sdk.CallToolRequest, in In) (*sdk.CallToolResult, Out, error) {
		l := s.lease(req.Extra)
		l.decoded()
		l = l.part()
		ctx, end := traced(withLease(ctx, l), req)
		res, out, err := tool(ctx, req, in)
		if err == errTask {
			end(nil, nil)
			return nil, *new(Out), err
		}
		if err == nil {
			err = l.draw(ctx, callSize(res, out), budgetPatience)
		}
		end(res, err)
		if err != nil {
			return nil, *new(Out), s.tell(s.caller(req.Extra), err)
		}
		return res, out, nil
	}
}
