package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"regexp"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// shownBytes bounds each stream in a result, in bytes. Its own path has all of it.
const shownBytes = 512 << 10

// escapedByte bounds the JSON of a byte of output: escaped, or replaced and in base64.
const escapedByte = 8

// runResult is a result with the beginnings of the streams.
type runResult struct {
	run.ResultJSON
	Cut []string `json:"cut,omitempty"`
}

// resultOf returns a result with the recorded streams. If the budget has no memory for the streams, resultOf leaves
// them out, because the run has ended and can't be repeated. more is the size of the rest's JSON, in bytes: a call
// draws memory once.
func (s *Server) resultOf(ctx context.Context, res *unitask.Result, more int64) *runResult {
	var bytes int64
	files, sizes := map[string]*os.File{}, map[string]int64{}
	for _, name := range []string{record.StdoutFile, record.StderrFile} {
		f, err := s.rt.Runs().OpenFile(res.RunID, name)
		if err != nil {
			continue
		}
		defer f.Close()
		if st, err := f.Stat(); err == nil {
			files[name], sizes[name] = f, min(st.Size(), shownBytes+1)
			bytes += sizes[name]
		}
	}
	r := &runResult{}
	if s.shared.Draw(ctx, bytes*escapedByte+more) != nil {
		r.ResultJSON, r.Cut = res.JSON(), []string{"stdout", "stderr"}
		return r
	}
	for _, stream := range []struct {
		name, file string
		to         *[]byte
	}{{"stdout", record.StdoutFile, &res.Stdout}, {"stderr", record.StderrFile, &res.Stderr}} {
		f := files[stream.file]
		if f == nil {
			continue
		}
		text := make([]byte, sizes[stream.file])
		n, _ := f.ReadAt(text, 0)
		if *stream.to = text[:min(n, shownBytes)]; n > shownBytes {
			*stream.to = (*stream.to)[:bounded.Whole(*stream.to)]
			r.Cut = append(r.Cut, stream.name)
		}
	}
	r.ResultJSON = res.JSON()
	return r
}

// withoutOutput returns a result for the last event: the events before have the output.
func withoutOutput(res *unitask.Result) *runResult {
	only := *res
	only.Stdout, only.Stderr = nil, nil
	return &runResult{ResultJSON: only.JSON()}
}

// anyID matches the form of a run's id.
var anyID = regexp.MustCompile(`^\d{8}-\d{9}-[a-z0-9]{6}$`)

// noRun is the answer for a run that is another caller's, or does not exist.
func noRun() error {
	return &Problem{Status: http.StatusNotFound, Code: "run.gone", Detail: "there is no such run of yours",
		Remedy: "GET /v1/runs lists yours"}
}

// record returns the record of the run that a call names.
func (s *Server) record(c *call) (*record.Record, error) { return s.recordOf(c, c.text("id")) }

func (s *Server) recordOf(c *call, id string) (*record.Record, error) {
	if !anyID.MatchString(id) {
		return nil, noRun()
	}
	rec, err := s.shared.Record(c.r.Context(), c.caller, id)
	if errors.Is(err, record.ErrNotFound) {
		return nil, noRun()
	}
	return rec, err
}

func (s *Server) getRun(c *call) (*answer, error) {
	if !anyID.MatchString(c.text("id")) {
		return nil, noRun()
	}
	found, err := s.shared.Inspection(c.r.Context(), c.caller, c.text("id"))
	if errors.Is(err, record.ErrNotFound) {
		return nil, noRun()
	}
	if err != nil {
		return nil, err
	}
	return &answer{Body: found}, nil
}

// usualPage is the number of runs in a page.
const usualPage = 20

func (s *Server) listRuns(c *call) (*answer, error) {
	list, next, err := s.shared.Runs(c.r.Context(), c.caller, c.text("status"), c.text("before"),
		int(c.number("limit", usualPage)))
	if err != nil {
		return nil, err
	}
	return &answer{Body: struct {
		Runs []history.Summary `json:"runs"`
		Next string            `json:"next,omitempty"`
	}{list, next}}, nil
}

func (s *Server) getResult(c *call) (*answer, error) {
	rec, err := s.record(c)
	if err != nil {
		return nil, err
	}
	if seconds := c.number("waitSeconds", 0); rec.Status == record.Running && seconds > 0 {
		if p := s.progresses.find(rec.ID, c.caller.Name); p != nil {
			ctx, stop := context.WithTimeout(c.r.Context(), time.Duration(seconds*float64(time.Second)))
			p.wait(ctx)
			stop()
			if rec, err = s.record(c); err != nil {
				return nil, err
			}
		}
	}
	return s.resultAnswer(c, rec)
}

// again is when a client may ask again for the result of a run.
const again = time.Second

// resultAnswer answers with the result of a record.
func (s *Server) resultAnswer(c *call, rec *record.Record) (*answer, error) {
	var res unitask.Result
	switch {
	case rec.Status == record.Running || rec.Status == record.Paused:
		return nil, &Problem{Status: http.StatusConflict, Code: "run.running", Detail: "the run goes on",
			Remedy: "ask again, with waitSeconds", Retryable: true, RetryAfterMS: again.Milliseconds()}
	case rec.Result == nil || json.Unmarshal(rec.Result, &res) != nil:
		return nil, &Problem{Status: http.StatusConflict, Code: "run.interrupted",
			Detail: "the run has no result: its process ended before it did",
			Remedy: "GET /v1/runs/" + rec.ID + " has what is known; look whether it has had effects before it is run again"}
	}
	s.shared.HideResult(c.caller, &res)
	return &answer{Body: s.resultOf(c.r.Context(), &res, int64(len(rec.Result)))}, nil
}

func (s *Server) listArtifacts(c *call) (*answer, error) {
	rec, err := s.record(c)
	if err != nil {
		return nil, err
	}
	if err := s.shared.Draw(c.r.Context(), int64(len(rec.Result))); err != nil {
		return nil, err
	}
	res := unitask.Result{}
	if rec.Result != nil {
		_ = json.Unmarshal(rec.Result, &res)
	}
	s.shared.HideResult(c.caller, &res)
	return &answer{Body: struct {
		Artifacts []record.Artifact `json:"artifacts"`
		Refused   []record.Refusal  `json:"refused,omitempty"`
	}{append([]record.Artifact{}, res.Artifacts...), res.ArtifactsRefused}}, nil
}

// part returns the operation that serves a file of a run's record.
func (s *Server) part(name string) operation {
	return func(c *call) (*answer, error) {
		rec, err := s.record(c)
		if err != nil {
			return nil, err
		}
		f, err := s.rt.Runs().OpenFile(rec.ID, name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, &Problem{Status: http.StatusNotFound, Code: "file", Detail: "the run has none"}
		}
		if err != nil {
			return nil, err
		}
		kind := "application/octet-stream"
		if name == record.NetlogFile {
			kind = "application/x-ndjson"
		}
		serve(c, f, kind)
		return nil, nil
	}
}

func (s *Server) getArtifact(c *call) (*answer, error) {
	rec, err := s.record(c)
	if err != nil {
		return nil, err
	}
	f, err := s.rt.Runs().OpenArtifact(rec.ID, c.text("path"))
	if errors.Is(err, record.ErrNotFound) {
		return nil, &Problem{Status: http.StatusNotFound, Code: "file", Detail: "the run has no such artifact",
			Remedy: "GET /v1/runs/" + rec.ID + "/artifacts lists them"}
	}
	if err != nil {
		return nil, err
	}
	serve(c, f, "application/octet-stream")
	return nil, nil
}

// serve answers with a file, or ranges of it, and closes it. Hostile code may have written it: no browser shows it.
func serve(c *call, f *os.File, kind string) {
	defer f.Close()
	h := c.w.Header()
	h.Set("Content-Type", kind)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Disposition", "attachment")
	h.Set("Cache-Control", "no-store")
	http.ServeContent(&rangeWriter{ResponseWriter: c.w}, c.r, "", time.Time{}, f)
}

// rangeWriter answers a range that the file does not have with a problem.
type rangeWriter struct {
	http.ResponseWriter
	refused bool
}

func (w *rangeWriter) WriteHeader(status int) {
	if status == http.StatusRequestedRangeNotSatisfiable {
		w.refused = true
		w.Header().Del("Content-Disposition")
		writeProblem(w.ResponseWriter, &Problem{Status: status, Code: "range", Detail: "there is no such range of bytes",
			Remedy: "leave out Range, or send one within the size that Content-Range tells"})
		return
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *rangeWriter) Write(p []byte) (int, error) {
	if w.refused {
		return len(p), nil
	}
	return w.ResponseWriter.Write(p)
}
