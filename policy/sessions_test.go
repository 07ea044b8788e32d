package policy

import (
	"testing"
	"time"
)

// A session's limits are the requested ones, or the defaults, and never more than the ceiling and the ceilings above it
// allow.
func TestSessionLimits(t *testing.T) {
	usual := SessionLimits{Sessions: 8, CallerSessions: 4, PausedBytes: 1 << 30}
	full := SessionLimits{8, 4, 24 * time.Hour, 10 * time.Minute, 8, 8, 1 << 30}
	with := func(change func(*SessionLimits)) SessionLimits {
		l := full
		change(&l)
		return l
	}
	for _, row := range []struct {
		name, file string
		principal  string
		asked      SessionLimits
		want       SessionLimits
		denied     []string // key: reason
		bad        bool
	}{
		{name: "nothing is asked for", want: full},
		{name: "less is asked for", asked: SessionLimits{Life: time.Minute},
			want: with(func(l *SessionLimits) { l.Life = time.Minute })},
		{name: "more than there is", asked: SessionLimits{Life: 25 * time.Hour}, bad: true},
		{name: "less than there is", asked: SessionLimits{Life: time.Millisecond}, bad: true},
		{name: "a negative life", asked: SessionLimits{Life: -1}, bad: true},
		{name: "a default is cut, and nobody denied",
			file: "sessions = 2\nsessionLifeSeconds = 60\npausedBytes = 5\nsessionIdleSeconds = 5.5\nforwardedPorts = 3\n" +
				"backgroundCommands = 2\ncallerSessions = 1",
			want: SessionLimits{2, 1, time.Minute, 5500 * time.Millisecond, 3, 2, 5}},
		{name: "what was asked for is cut", file: "sessionLifeSeconds = 60", asked: SessionLimits{Life: time.Hour},
			want:   with(func(l *SessionLimits) { l.Life = time.Minute }),
			denied: []string{"sessionLifeSeconds: at most 60 s is allowed"}},
		{name: "none", file: "sessions = 0\nforwardedPorts = 0\nbackgroundCommands = 0\npausedBytes = 0",
			want: with(func(l *SessionLimits) {
				l.Sessions, l.ForwardedPorts, l.BackgroundCommands, l.PausedBytes = -1, -1, -1, -1
			})},
		{name: "a principal is narrowed", file: "sessions = 5\n[principals.p]\nsessions = 3\ncallerSessions = 1",
			principal: "p", want: with(func(l *SessionLimits) { l.Sessions, l.CallerSessions = 3, 1 })},
		{name: "a principal is not widened", file: "callerSessions = 2\n[principals.p]\ncallerSessions = 3", principal: "p",
			want: with(func(l *SessionLimits) { l.CallerSessions = 2 })},
		{name: "another is not narrowed", file: "sessions = 5\n[principals.p]\nsessions = 3", principal: "q",
			want: with(func(l *SessionLimits) { l.Sessions = 5 })},
	} {
		var c *Ceiling
		if row.file != "" {
			c = ceiling(t, row.file).For(row.principal)
		}
		got, denials, err := c.Sessions(row.asked, usual)
		if (err != nil) != row.bad || err == nil && got != row.want || len(denials) != len(row.denied) {
			t.Errorf("%s: %+v %v %v, want %+v %v", row.name, got, denials, err, row.want, row.denied)
			continue
		}
		for i, d := range denials {
			if d.Key+": "+d.Reason != row.denied[i] || d.Rule == "" {
				t.Errorf("%s: %+v", row.name, d)
			}
		}
	}
	for _, file := range []string{"sessions = -1", "sessions = \"all\"", "sessionLifeSeconds = 0",
		"sessionLifeSeconds = 86401", "pausedBytes = -1", "callersessions = 1", "sessionlife = 1"} {
		if c, err := ParseCeiling("test", []byte(file)); err == nil {
			t.Errorf("%s: %v", file, c)
		}
	}
	wide, narrow := ceiling(t, "sessions = 5"), ceiling(t, "sessions = 3")
	if got := wide.Beyond(narrow); len(got) != 1 || got[0].String() != "sessions 5" {
		t.Errorf("beyond: %v", got)
	}
	if got := narrow.Beyond(wide); len(got) != 0 {
		t.Errorf("beyond: %v", got)
	}
}
