package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	anthropic "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/tools/agenttoolset"
)

const (
	callTime = 110 * time.Second // of a command; the SDK ends a call after 120
	killTime = 10 * time.Second
)

// machineTool is one of the agent toolset's six tools. Its name, description and schema are the SDK's, and it works in
// the machine.
type machineTool struct {
	anthropic.BetaTool
	m  *machine
	do func(context.Context, *machine, json.RawMessage) (string, error)
}

// tools returns the six tools of a machine. The first one ends the machine when it is closed.
func tools(m *machine) []anthropic.BetaTool {
	does := map[string]func(context.Context, *machine, json.RawMessage) (string, error){
		"read": readFile, "write": writeFile, "edit": editFile, "glob": glob, "grep": grep,
	}
	var list []anthropic.BetaTool
	for _, t := range agenttoolset.BetaAgentToolset20260401(&agenttoolset.AgentToolContext{}) {
		if t.Name() == "bash" {
			list = append(list, &bashTool{machineTool: machineTool{BetaTool: t, m: m}})
		} else if do := does[t.Name()]; do != nil {
			list = append(list, &machineTool{t, m, do})
		}
	}
	return list
}

// Execute runs the tool. Its errors are for the model.
func (t *machineTool) Execute(ctx context.Context, input json.RawMessage) ([]block, error) {
	if err := t.m.wait(ctx); err != nil {
		return nil, err
	}
	text, err := t.do(ctx, t.m, input)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.Name(), err)
	}
	return textBlock(text), nil
}

// block is a part of a tool's result.
type block = anthropic.BetaToolResultBlockParamContentUnion

func textBlock(text string) []block {
	return []block{{OfText: &anthropic.BetaTextBlockParam{Text: strings.ToValidUTF8(text, "\uFFFD")}}}
}

// bashTool is the tool bash: a shell that keeps its state. The runner makes one call at a time.
type bashTool struct {
	machineTool
	shell *shell
}

// Execute runs a command in the shell. After a time limit the next call has a new shell.
func (t *bashTool) Execute(ctx context.Context, input json.RawMessage) ([]block, error) {
	if err := t.m.wait(ctx); err != nil {
		return nil, err
	}
	var in struct {
		Command   string `json:"command"`
		Restart   bool   `json:"restart"`
		TimeoutMS int64  `json:"timeout_ms"`
	}
	switch err := json.Unmarshal(input, &in); {
	case err != nil:
		return nil, fmt.Errorf("bash: %w", err)
	case in.Restart:
		t.endShell()
		if in.Command == "" {
			return textBlock("the shell is a new one"), nil
		}
	case in.Command == "":
		return nil, errors.New("bash: command is missing")
	}
	text, err := t.run(ctx, in.Command, in.TimeoutMS)
	if err != nil {
		return nil, err
	}
	return textBlock(text), nil
}

func (t *bashTool) run(ctx context.Context, command string, limitMS int64) (string, error) {
	limit := callTime
	if limitMS > 0 {
		limit = time.Duration(min(limitMS, callTime.Milliseconds())) * time.Millisecond
	}
	bounded, stop := context.WithTimeout(ctx, limit)
	defer stop()
	if t.shell == nil {
		var err error
		if t.shell, err = t.m.startShell(bounded); err != nil {
			return "", fmt.Errorf("bash: %w", err)
		}
	}
	text, code, err := t.shell.run(bounded, command)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		t.endShell()
		return "", fmt.Errorf("%s\n[timed out; the next command has a new shell]", text)
	case err != nil:
		t.endShell()
		return "", fmt.Errorf("%s\nbash: %w; the next command has a new shell", text, err)
	case code != 0:
		return "", fmt.Errorf("%s\nexit code: %d", text, code)
	}
	return text, nil
}

// endShell kills the shell's process group.
func (t *bashTool) endShell() {
	if t.shell != nil {
		t.shell.end()
		t.shell = nil
	}
}

// Close ends the machine.
func (t *bashTool) Close() error { return t.m.close() }

// quote makes one word of the shell from a text.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// at returns the place of a file in the machine. A relative path begins in the working folder.
func (m *machine) at(name string) (string, error) {
	switch {
	case name == "":
		return "", errors.New("file_path is missing")
	case strings.ContainsRune(name, 0):
		return "", fmt.Errorf("%.200q: a path has no NUL", name)
	case path.IsAbs(name):
		return path.Clean(name), nil
	}
	return path.Join(m.dir, name), nil
}
