package httpapi

import (
	"sync"
)

func (s *Server) listImages(c *call) (*answer, error) {
	leave, err := s.shared.Look(c.r.Context(), c.caller)
	if err != nil {
		return nil, err
	}
	defer leave()
	return &answer{Body: map[string]any{"images": s.rt.Catalog().List(c.r.Context(), c.caller.Ceiling)}}, nil
}

func (s *Server) doctor(c *call) (*answer, error) {
	report, err := s.shared.Doctor(c.r.Context(), c.caller)
	if err != nil {
		return nil, err
	}
	return &answer{Body: report}, nil
}

func (s *Server) followCaller(c *call) (*answer, error) {
	p, leave := s.feeds.follow(c.caller.Name)
	defer leave()
	return nil, followFrom(c, p, p.last()) // an earlier server's numbers mean nothing here
}

// feeds are what callers follow of all their runs. A caller has one while somebody follows it.
type feeds struct {
	mu  sync.Mutex
	all map[string]*feed // by caller
}

type feed struct {
	*progress
	followers int
}

// tell adds an event for those who follow a caller's runs.
func (fs *feeds) tell(caller, kind string, data any) {
	fs.mu.Lock()
	f := fs.all[caller]
	fs.mu.Unlock()
	if f != nil {
		f.add(kind, data)
	}
}

// follow returns a caller's feed until leave.
func (fs *feeds) follow(caller string) (p *progress, leave func()) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.all[caller]
	if f == nil {
		if fs.all == nil {
			fs.all = map[string]*feed{}
		}
		f = &feed{progress: newProgress(caller, nil)}
		fs.all[caller] = f
	}
	f.followers++
	return f.progress, func() {
		fs.mu.Lock()
		defer fs.mu.Unlock()
		if f.followers--; f.followers == 0 {
			delete(fs.all, caller)
		}
	}
}
