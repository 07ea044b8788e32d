package mcp

import (
	"context"
	"errors"
	"slices"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/console"
	"github.com/unitask/unitask/record"
)

// MCP Apps: a client that declares the extension shows a run's page beside the result of run_code. Other clients see no
// difference.
const (
	appExtension = "io.modelcontextprotocol/ui"
	appType      = "text/html;profile=mcp-app"
	appURI       = "ui://unitask/run"   // shows the page of the run that a result names
	appRunsURI   = "ui://unitask/runs/" // and an id: that page
)

const (
	appBytes     = 64 << 10 // of each part of a record on a page
	appPictures  = 4
	pictureBytes = 512 << 10 // of each
)

// takesApps reports whether the client of a request has declared the extension.
func takesApps(req sdk.Request) bool {
	r, ok := req.(capable)
	if !ok {
		return false
	}
	can := r.ClientCapabilities()
	if can == nil {
		return false
	}
	_, ok = can.Extensions[appExtension]
	return ok
}

// apps answers for the pages, and names one beside run_code.
func (s *Server) apps(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		if p, ok := req.GetParams().(*sdk.ReadResourceParams); ok && method == "resources/read" &&
			(p.URI == appURI || strings.HasPrefix(p.URI, appRunsURI)) {
			return s.readApp(ctx, req, p.URI)
		}
		res, err := next(ctx, method, req)
		list, ok := res.(*sdk.ListToolsResult)
		if err != nil || !ok || !takesApps(req) {
			return res, err
		}
		own := *list
		own.Tools = slices.Clone(list.Tools)
		for i, t := range own.Tools {
			if t.Name != "run_code" {
				continue
			}
			shown := *t
			shown.Meta = sdk.Meta{"ui": map[string]any{"resourceUri": appURI}}
			for k, v := range t.Meta {
				shown.Meta[k] = v
			}
			own.Tools[i] = &shown
		}
		return &own, nil
	}
}

func (s *Server) readApp(ctx context.Context, req sdk.Request, uri string) (sdk.Result, error) {
	caller := s.caller(req.GetExtra())
	if err := s.admitted(caller, s.queue.look(caller.Name)); err != nil {
		return nil, err
	}
	text, err := "", error(nil)
	if uri == appURI {
		text, err = console.AppPage()
	} else {
		text, err = s.runPage(ctx, caller, strings.TrimPrefix(uri, appRunsURI))
	}
	if errors.Is(err, record.ErrNotFound) {
		return nil, sdk.ResourceNotFoundError(uri)
	}
	if err != nil {
		return nil, s.tell(caller, err)
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: uri, MIMEType: appType, Text: text,
		Meta: sdk.Meta{"ui": map[string]any{"prefersBorder": true}}}}}, nil
}

// runPage returns the page of a run that the caller may see.
func (s *Server) runPage(ctx context.Context, caller unitask.Caller, id string) (string, error) {
	rec, err := s.rt.Runs().Get(id)
	if err != nil {
		return "", err
	}
	if !sees(caller)(rec.Owner, rec.Via) {
		return "", record.ErrNotFound
	}
	const most = 8*appBytes + appPictures*pictureBytes // as text of JSON, and once more while it is made
	if err := leaseOf(ctx).draw(ctx, most*escapedByte, budgetPatience); err != nil {
		return "", err
	}
	in, err := s.rt.History().Inspect(id, appBytes)
	if err != nil {
		return "", err
	}
	if remote(caller) {
		s.hider.inspection(in)
		if in.Ended != nil {
			s.hider.result(in.Ended)
		}
	}
	var pictures []console.Picture
	if in.Ended != nil {
		for _, a := range in.Ended.Artifacts {
			if !console.NamesPicture(a.Path) || a.Size > pictureBytes || len(pictures) == appPictures {
				continue
			}
			if data, err := s.readPicture(id, a.Path); err == nil && len(data) <= pictureBytes {
				pictures = append(pictures, console.Picture{Name: a.Path, Data: data})
			}
		}
	}
	return console.RunPage(in, pictures)
}
