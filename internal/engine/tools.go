package engine

import (
	"context"
	"io"

	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/toolhost"
	"github.com/unitask/unitask/policy"
)

// openTools opens the service for the tools that the code may call, and gives the guest its clients.
func (x *Execution) openTools(ctx context.Context) error {
	cfg := toolhost.Config{Lists: toolhost.Store(home.Dir(x.engine.Home).Tools()), OwnLists: toolhost.Store(x.Rec.Dir()),
		Ask: x.askTool, Own: x.streams.Tools,
		Redact: func(text []byte) ([]byte, bool) {
			clean, fields := x.Redactor.JSON(text)
			return clean, len(fields) > 0
		}}
	cfg.Wrap = func(ctx context.Context, s *policy.ToolServer, stderr io.Writer) (*toolhost.Process, error) {
		return x.engine.WrapTools(ctx, x.Live.Ceiling, s, stderr)
	}
	if err := x.recordedTools(&cfg); err != nil {
		return failure.At("tools", err)
	}
	if len(x.Granted.Tools)+len(cfg.Own)+len(cfg.RecordedOwn) == 0 {
		return nil
	}
	servers := x.Live.Ceiling.ToolServers()
	for _, name := range x.Granted.Tools {
		if servers[name] == nil || servers[name].Pin == "" {
			return failure.At("tools", policy.Bad("tools", name,
				"no ceiling has a reviewed table [tools."+name+"]: unitask tools pin %s", name))
		}
		cfg.Servers = append(cfg.Servers, servers[name])
	}
	log, err := x.Rec.Tools()
	if err != nil {
		return failure.At("record", err)
	}
	cfg.Log = func(c toolhost.Call) { log(c) }
	service, err := toolhost.Open(ctx, cfg)
	if err != nil {
		return failure.At("tools", err)
	}
	x.Later(service.Close)
	files, err := service.Files()
	if err != nil {
		return failure.At("tools", err)
	}
	x.Rec.OwnTools = service.OwnLists()
	x.Code.AddTools(files, x.Image.Runtime)
	x.Config.Network.Tools = service.Serve
	x.Later(func() { x.audit.Note(audit.ToolsCalled, service.Tally()) })
	return nil
}

// recordedTools fills in the calls of a replayed run, and the lists of the program that embedded unitask then.
func (x *Execution) recordedTools(cfg *toolhost.Config) error {
	id := x.streams.ToolsOf
	if id == "" {
		return nil
	}
	rec, err := x.engine.History.Records.Get(id)
	if err != nil {
		return err
	}
	calls, err := x.engine.History.ToolCalls(id)
	if err != nil {
		return err
	}
	cfg.Recorded, cfg.Own = append([]toolhost.Call{}, calls...), nil // not nil: a replay starts no server
	cfg.RecordedOwn, cfg.RecordedLists = rec.OwnTools, toolhost.Store(x.engine.History.Records.Path(id, ""))
	return nil
}

func (x *Execution) askTool(ctx context.Context, q toolhost.Question) (allowed bool, why string) {
	return x.Asked.AskTool(ctx, q.Tool, q.Arguments, q.Rule)
}
