package session

import (
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
)

// Elsewhere returns a session's request as a ceiling grants it (nil grants all), for another host with its own ceiling.
// denials lists what it does not grant. It refuses files and folders of this host.
func (req Request) Elsewhere(ceiling *policy.Ceiling) (out Request, denials []policy.Denial, err error) {
	if len(req.Files)+len(req.Dirs) > 0 {
		return out, nil, policy.Bad(
			"files",
			"of a session on a fleet",
			"do not go to another host: start the session and write them into it",
		)
	}
	limits, cut, err := ceiling.Sessions(
		policy.SessionLimits{Life: req.Life, Idle: req.Idle},
		usualSessions(machine.HostMemory()),
	)
	if err != nil {
		return out, nil, err
	}
	var none hostfiles.Set
	_, granted, denials, err := program.Resolve(catalog.Request{Request: req.Request}, ceiling, &none)
	if err == nil {
		err = engine.NotAsked(granted)
	}
	if err != nil {
		return out, nil, err
	}
	out = req
	out.Life, out.Idle, out.Events = limits.Life, limits.Idle, nil
	if out.Request, err = req.GrantedOnly(granted); err != nil {
		return out, nil, failure.Host("fleet", err)
	}
	return out, append(denials, cut...), nil
}
