package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/record"
)

// Resources are a record at unitask://runs/{id}, its parts below, and its artifacts below artifacts/.
const runsURI = "unitask://runs/"

// imagesURI is the list of images.
const imagesURI = "unitask://images"

func (s *Server) listImages(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	text, err := json.MarshalIndent(s.rt.Catalog().List(ctx, s.caller(req.Extra).Ceiling), "", "  ")
	if err != nil {
		return nil, err
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: imagesURI, MIMEType: "application/json",
		Text: string(text)}}}, nil
}

// parts are the files of a record that are separate resources.
var parts = map[string]string{"code": "", "stdout": record.StdoutFile, "stderr": record.StderrFile,
	"netlog": record.NetlogFile, "console": record.ConsoleFile, "inlineFiles": record.InlineFilesFile,
	"neighbours": record.InlineFilesFile, // its old name, for this release
}

const (
	// artifactBytes bounds one read of an artifact.
	artifactBytes = 1 << 20
	// pageBytes bounds one read of a part of a record. With each byte escaped in JSON it stays below the 16 MiB that
	// clients accept for a message.
	pageBytes = 2 << 20
	// nextKey is the key of a page for the URI of the next one, under _meta.
	nextKey = "unitask/next"
	// totalKey is its key for the total number of bytes.
	totalKey = "unitask/total"
	// escapedByte bounds the size of a byte in JSON.
	escapedByte = 6
)

func artifactURI(id, name string) string {
	return runsURI + id + "/artifacts/" + (&url.URL{Path: name}).EscapedPath()
}

func (s *Server) addResources() {
	for _, t := range []*sdk.ResourceTemplate{
		{URITemplate: runsURI + "{id}", Name: "run", Title: "A run's record", MIMEType: "application/json",
			Description: "What a run was asked, what it was granted, how it ended and what it printed."},
		{URITemplate: runsURI + "{id}/{part}{?offset}", Name: "part", Title: "A part of a record", MIMEType: "text/plain",
			Description: fmt.Sprintf(
				"A run's code, stdout, stderr, netlog (a JSON object a line), console, "+
					"inlineFiles (the files beside the code, as JSON), or log (of a session: all of its steps). "+
					"Of one that is longer it is the first %d bytes, or those from offset on; "+
					"_meta[%q] is the URI of the next ones, and _meta[%q] the size of all.", pageBytes, nextKey, totalKey)},
		{URITemplate: runsURI + "{id}/artifacts/{+path}{?offset}", Name: "artifact", Title: "An artifact",
			Description: fmt.Sprintf(
				"A file that a run left in /out. Of a longer one it is the first %d bytes, or those from offset on; "+
					"_meta[%q] is the URI of the next ones, and _meta[%q] the size of all.", artifactBytes, nextKey, totalKey)},
	} {
		s.sdk.AddResourceTemplate(t, s.read)
	}
	s.sdk.AddResource(&sdk.Resource{URI: imagesURI, Name: "list_images", Title: "Images", MIMEType: "application/json",
		Description: "What run_code can run code in: " +
			"each image's name, its languages, what is in it, and whether it is ready."}, s.listImages)
	s.sdk.AddResource(&sdk.Resource{URI: statsURI, Name: "stats", Title: "Load and limits", MIMEType: "application/json",
		Description: "How many calls run and wait, your sessions, the limits of this server, and how busy the host is."},
		s.stats)
	s.sdk.AddReceivingMiddleware(s.apps, s.listResources, onlyURIs)
}

// Limits of URIs in a request.
const (
	maxURI           = 8 << 10 // bytes of a URI: an artifact's path has 1024, three times as many escaped
	maxSubscriptions = 100     // of one request; each needs to read a record
)

// onlyURIs answers a read of, or a subscription to, a text with other characters than printable ASCII. The SDK's
// own answer would quote the text, and be unreadable JSON.
func onlyURIs(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		var uris []string
		switch p := req.GetParams().(type) {
		case *sdk.ReadResourceParams:
			uris = []string{p.URI}
		case *sdk.SubscribeParams:
			uris = []string{p.URI}
		case *sdk.SubscriptionsListenParams:
			if p.Notifications != nil {
				uris = p.Notifications.ResourceSubscriptions
			}
		}
		if len(uris) > maxSubscriptions {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams,
				Message: fmt.Sprintf("a request may subscribe to at most %d resources", maxSubscriptions)}
		}
		for _, uri := range uris {
			switch {
			case len(uri) > maxURI:
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams,
					Message: fmt.Sprintf("the uri has more than %d bytes", maxURI)}
			case strings.ContainsFunc(uri, func(r rune) bool { return r <= ' ' || r > '~' }):
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams,
					Message: "the uri has other characters than printable ASCII: percent-encode them"}
			}
		}
		return next(context.WithValue(ctx, extraKey{}, req.GetExtra()), method, req)
	}
}

// extraKey is the key of a request's context for the data that arrived with it: the SDK passes on a subscription
// of subscriptions/listen without that.
type extraKey struct{}

func (s *Server) read(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	uri, caller := req.Params.URI, s.caller(req.Extra)
	if err := s.admitted(caller, s.queue.look(caller.Name)); err != nil {
		return nil, err
	}
	contents, err := s.resource(ctx, caller, uri)
	if errors.Is(err, record.ErrNotFound) {
		return nil, sdk.ResourceNotFoundError(uri)
	}
	if err != nil {
		return nil, s.tell(caller, err)
	}
	contents.URI = uri
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{contents}}, nil
}

func (s *Server) resource(ctx context.Context, caller unitask.Caller, uri string) (*sdk.ResourceContents, error) {
	id, rest, below := strings.Cut(strings.TrimPrefix(uri, runsURI), "/")
	if below && rest == "" {
		return nil, record.ErrNotFound
	}
	rec, err := s.rt.Runs().Get(id)
	if err != nil {
		return nil, err
	}
	if !sees(caller)(rec.Owner, rec.Via) {
		return nil, record.ErrNotFound
	}
	if rest == "" {
		in, err := s.inspection(ctx, caller, id)
		if err != nil {
			return nil, err
		}
		text, err := json.MarshalIndent(in, "", "  ")
		return &sdk.ResourceContents{MIMEType: "application/json", Text: string(text)}, err
	}
	rest, from, ok := cutOffset(rest)
	if !ok {
		return nil, record.ErrNotFound
	}
	if name, ok := strings.CutPrefix(rest, "artifacts/"); ok {
		if name, err = url.PathUnescape(name); err != nil {
			return nil, record.ErrNotFound
		}
		f, err := s.rt.Runs().OpenArtifact(id, name)
		if err != nil {
			return nil, err
		}
		return page(ctx, f, artifactURI(id, name), mimeType(name), from, artifactBytes)
	}
	if rest == logPart {
		return s.sessionLog(ctx, caller, rec, from)
	}
	file, ok := parts[rest]
	if rest == "code" {
		file = rec.CodeFile
	}
	if !ok {
		return nil, record.ErrNotFound
	}
	f, err := s.rt.Runs().OpenFile(id, file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, record.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return page(ctx, f, partURI(id, rest), "text/plain", from, pageBytes)
}

// cutOffset splits the offset query from a URI.
func cutOffset(text string) (rest string, from int64, ok bool) {
	rest, query, asks := strings.Cut(text, "?")
	if !asks {
		return rest, 0, true
	}
	number, ok := strings.CutPrefix(query, offsetQuery)
	n, err := strconv.ParseUint(number, 10, 40) // no record has a TiB
	return rest, int64(n), ok && err == nil
}

// offsetQuery begins the query of a read from an offset on.
const offsetQuery = "offset="

// page returns bytes of a file from an offset on, up to the end of a character; most is their maximum number. It closes
// the file. The page's memory is reserved before it is read.
func page(ctx context.Context, f *os.File, uri, kind string, from, most int64) (*sdk.ResourceContents, error) {
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	most = min(most, max(st.Size()-from, 0))
	if err := leaseOf(ctx).draw(ctx, most*escapedByte, budgetPatience); err != nil {
		return nil, err
	}
	data := make([]byte, most)
	n, err := f.ReadAt(data, from)
	if err != nil && err != io.EOF {
		return nil, err
	}
	data = data[:n]
	more := from+int64(n) < st.Size()
	if more {
		data = data[:bounded.Whole(data)]
	}
	contents := contentsOf(data, kind)
	if more {
		contents.Meta = sdk.Meta{nextKey: fmt.Sprintf("%s?%s%d", uri, offsetQuery, from+int64(len(data))),
			totalKey: st.Size()}
	}
	return contents, nil
}

// subscribe notifies a caller when a run that it may see has ended. There are no other notifications, and nothing
// else is stored.
func (s *Server) subscribe(ctx context.Context, req *sdk.SubscribeRequest) error {
	extra, _ := ctx.Value(extraKey{}).(*sdk.RequestExtra)
	caller, uri := s.caller(extra), req.Params.URI
	rec, err := s.rt.Runs().Get(strings.TrimPrefix(uri, runsURI))
	if err != nil && !errors.Is(err, record.ErrNotFound) {
		return s.tell(caller, err)
	}
	if err != nil || uri != runsURI+rec.ID || !sees(caller)(rec.Owner, rec.Via) {
		return sdk.ResourceNotFoundError(uri)
	}
	return nil
}

// contentsOf returns a text as text, other data as bytes. One of both is always present, also for an empty file:
// clients refuse contents without either, and the SDK leaves out empty text.
func contentsOf(data []byte, kind string) *sdk.ResourceContents {
	if len(data) > 0 && utf8.Valid(data) && !bytes.Contains(data, []byte{0}) && !strings.HasPrefix(kind, "image/") {
		return &sdk.ResourceContents{MIMEType: kind, Text: string(data)}
	}
	return &sdk.ResourceContents{MIMEType: kind, Blob: append([]byte{}, data...)}
}

// readPicture reads an artifact to show.
func (s *Server) readPicture(id, name string) ([]byte, error) {
	f, err := s.rt.Runs().OpenArtifact(id, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, imageBytes+1))
	if err == nil && len(data) > imageBytes {
		err = fmt.Errorf("artifact %s has more than %d bytes", name, imageBytes)
	}
	return data, err
}

// pageSize is the number of runs in a page of resources.
const pageSize = 100

// listResources lists runs, which change, beside the SDK's resources.
func (s *Server) listResources(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		params, ok := req.GetParams().(*sdk.ListResourcesParams)
		if method != "resources/list" || !ok {
			return next(ctx, method, req)
		}
		after, ours := "", false
		if params != nil {
			after, ours = strings.CutPrefix(params.Cursor, runsURI)
			if params.Cursor != "" && !ours {
				return next(ctx, method, req)
			}
			params.Cursor = "" // the first page is the SDK's, and the first of ours
		}
		res, err := next(ctx, method, req)
		list, ok := res.(*sdk.ListResourcesResult)
		if err != nil || !ok {
			return res, err
		}
		if ours {
			list.Resources = nil
		}
		caller := s.caller(req.GetExtra())
		leave, err := s.look(ctx, caller)
		if err != nil {
			return nil, err
		}
		defer leave()
		of := own(caller)
		of.Before, of.Limit = after, pageSize
		page, more, err := s.rt.History().Page(of)
		if err != nil {
			return nil, s.tell(caller, err)
		}
		if more != "" {
			list.NextCursor = runsURI + more
		}
		for _, run := range page {
			list.Resources = append(list.Resources, &sdk.Resource{URI: runsURI + run.ID, Name: run.ID,
				Title: run.State() + ": " + visible(run.Code), MIMEType: "application/json"})
		}
		return list, nil
	}
}

// complete completes ids and parts of resources.
func (s *Server) complete(ctx context.Context, req *sdk.CompleteRequest) (*sdk.CompleteResult, error) {
	const most = 100 // the protocol's limit
	out := &sdk.CompleteResult{Completion: sdk.CompletionResultDetails{Values: []string{}}}
	add := func(value string) {
		if out.Completion.Total++; len(out.Completion.Values) < most {
			out.Completion.Values = append(out.Completion.Values, value)
		}
	}
	ref, arg := req.Params.Ref, req.Params.Argument
	if ref != nil && strings.HasPrefix(ref.URI, runsURI) {
		switch arg.Name {
		case "id":
			caller := s.caller(req.Extra)
			leave, err := s.look(ctx, caller)
			if err != nil {
				return nil, err
			}
			defer leave()
			for id, err := range s.rt.Runs().Own(caller.Name, throughMCP, "", arg.Value) {
				if err != nil {
					return nil, s.tell(caller, err)
				}
				if add(id); out.Completion.Total > most { // the rest is not counted
					out.Completion.Total = 0
					out.Completion.HasMore = true
					return out, nil
				}
			}
		case "part":
			for _, name := range slices.Sorted(maps.Keys(parts)) {
				if strings.HasPrefix(name, arg.Value) {
					add(name)
				}
			}
		}
	}
	out.Completion.HasMore = out.Completion.Total > len(out.Completion.Values)
	return out, nil
}
