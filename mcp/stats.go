package mcp

import (
	"context"
	"encoding/json"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/session"
)

// statsURI is the resource with this server's load and limits.
const statsURI = "unitask://stats"

// serverStats is that resource. A caller over HTTP sees its own load only, and nothing of the host.
type serverStats struct {
	Queue    queueStats       `json:"queue"`
	Sessions *sessionStats    `json:"sessions,omitempty"` // nil with a fleet
	Defaults map[string]any   `json:"defaults"`           // of a run
	Host     *machine.HostUse `json:"host,omitempty"`
}

type sessionStats struct {
	Running int              `json:"running"`
	Paused  int              `json:"paused"`
	Limits  map[string]int64 `json:"limits"` // by their keys in a ceiling
}

// sessionLimits returns the limits of a caller's sessions. Those for all callers together depend on the host's memory,
// and are not for callers over HTTP.
func sessionLimits(caller unitask.Caller) map[string]int64 {
	most := session.Limits(caller.Ceiling)
	limits := map[string]int64{"callerSessions": int64(max(most.CallerSessions, 0)),
		"sessionLifeSeconds": int64(most.Life.Seconds()), "sessionIdleSeconds": int64(most.Idle.Seconds()),
		"forwardedPorts": int64(max(most.ForwardedPorts, 0)), "backgroundCommands": int64(max(most.BackgroundCommands, 0))}
	if !remote(caller) {
		limits["sessions"], limits["pausedBytes"] = int64(max(most.Sessions, 0)), max(most.PausedBytes, 0)
	}
	return limits
}

func (s *Server) stats(_ context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	caller := s.caller(req.Extra)
	if err := s.admitted(caller, s.queue.look(caller.Name)); err != nil {
		return nil, err
	}
	is := serverStats{Queue: s.queue.stats(caller.Name, !remote(caller)), Defaults: map[string]any{}}
	granted, _, err := policy.Resolve(policy.Request{}, caller.Ceiling)
	if err != nil {
		return nil, s.tell(caller, err)
	}
	is.Defaults["timeoutSeconds"], is.Defaults["memoryMb"] = granted.Timeout.Seconds(), granted.MemoryMB
	is.Defaults["cpus"], is.Defaults["maxProcesses"] = granted.CPUs, granted.MaxProcesses
	if s.rt.HasSessions() {
		is.Sessions = &sessionStats{Limits: sessionLimits(caller)}
		for _, one := range s.sessionsOf(caller).Sessions {
			if one.Paused {
				is.Sessions.Paused++
			} else {
				is.Sessions.Running++
			}
		}
	}
	if !remote(caller) {
		use := machine.UseOfHost(s.rt.Images().Home())
		is.Host = &use
	}
	text, err := json.MarshalIndent(is, "", "  ")
	if err != nil {
		return nil, err
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: statsURI, MIMEType: "application/json",
		Text: string(text)}}}, nil
}
