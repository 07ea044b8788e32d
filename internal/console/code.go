package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

const (
	ownRuns = 4 // that the console has started, at once
	// beginTime is how long a form waits for its run to have a record: parts of an image may be fetched first.
	beginTime = 90 * time.Second
)

// languages returns each language that a page offers by one name.
func languages() []string { return slices.Sorted(slices.Values(unitask.Languages())) }

func sessionImages() []string { return unitask.SessionImages() }

func (c *Console) code(w http.ResponseWriter, r *http.Request) {
	usual, _, err := unitask.Resolve(unitask.Request{}, nil)
	if err != nil {
		c.wrong(w, r, http.StatusInternalServerError, err)
		return
	}
	c.show(w, r, "code.html", map[string]any{"Languages": languages(), "Timeout": int(usual.Timeout / time.Second),
		"Memory": usual.MemoryMB})
}

// number reads a field of a form; an empty one is 0, for the default.
func number(r *http.Request, name string) (int, error) {
	text := strings.TrimSpace(r.PostForm.Get(name))
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 || n > 1<<27 { // fits a time.Duration in minutes
		return 0, fmt.Errorf("%s: %.40q is no number above 0", name, text)
	}
	return n, nil
}

// asked returns the request of the form.
func asked(r *http.Request) (req unitask.Request, err error) {
	req.Code, req.Language = r.PostForm.Get("code"), r.PostForm.Get("language")
	req.Code = strings.ReplaceAll(req.Code, "\r\n", "\n") // as browsers send a form's lines
	if strings.TrimSpace(req.Code) == "" {
		return req, errors.New("code: there is none")
	}
	if !slices.Contains(unitask.Languages(), req.Language) {
		return req, fmt.Errorf("language: %.40q is none of the page's", req.Language)
	}
	split := func(name string) []string {
		return strings.FieldsFunc(r.PostForm.Get(name), func(c rune) bool { return strings.ContainsRune(", \t\r\n", c) })
	}
	req.AllowNet, req.Ask, req.Packages = split("hosts"), split("ask"), split("packages")
	if req.InlineFiles, err = dropped(r); err != nil {
		return req, err
	}
	seconds, err := number(r, "timeout")
	if err != nil {
		return req, err
	}
	req.Timeout = time.Duration(seconds) * time.Second
	req.MemoryMB, err = number(r, "memory")
	return req, err
}

// dropped returns the files of the form, which are beside the code.
func dropped(r *http.Request) (list []unitask.InlineFile, err error) {
	if r.MultipartForm == nil {
		return nil, nil
	}
	for _, sent := range r.MultipartForm.File["files"] {
		if sent.Filename == "" { // nothing was chosen
			continue
		}
		f, err := sent.Open()
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(f) // the form is bounded
		f.Close()
		if err == nil && !utf8.Valid(text) {
			err = fmt.Errorf("files: %.100q is not text: unitask run --file brings any file", sent.Filename)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, unitask.InlineFile{Name: sent.Filename, Content: string(text)})
	}
	return list, nil
}

// start runs the form's code under the home's ceiling, and redirects to the run's page once it has a record.
func (c *Console) start(w http.ResponseWriter, r *http.Request) {
	within(w, actionTime)
	req, err := asked(r)
	if err != nil {
		c.wrong(w, r, http.StatusBadRequest, err)
		return
	}
	c.launch(w, r, req, "")
}

// launch starts a run, and redirects to its page. toolsOf is a recorded run whose calls of tools are answered again.
func (c *Console) launch(w http.ResponseWriter, r *http.Request, req unitask.Request, toolsOf string) {
	held, err := c.Policy()
	if err != nil {
		c.wrong(w, r, http.StatusConflict, err)
		return
	}
	c.mu.Lock()
	if c.begun >= ownRuns || c.ctx.Err() != nil {
		c.mu.Unlock()
		c.wrong(w, r, http.StatusServiceUnavailable, fmt.Errorf("%d runs of this console are under way", ownRuns))
		return
	}
	ctx, cancel := context.WithCancel(c.ctx)
	c.begun++
	id, failed := make(chan string, 1), make(chan error, 1)
	c.going.Add(1)
	c.mu.Unlock()
	go func() {
		defer c.going.Done()
		defer cancel()
		var has string
		events := func(e unitask.Event) {
			if e.Kind == unitask.EventRecord && has == "" {
				has = e.Message
				c.mu.Lock()
				c.own[has] = cancel
				c.mu.Unlock()
				id <- has
			}
		}
		caller := unitask.Caller{Via: unitask.ViaCLI, Ceiling: held.Ceiling, Origin: held.Origin}
		_, err := c.Run(ctx, caller, req, unitask.IO{Stdout: io.Discard, Stderr: io.Discard, Events: events,
			ToolsOf: toolsOf})
		c.mu.Lock()
		c.begun--
		delete(c.own, has)
		c.mu.Unlock()
		failed <- err
	}()
	c.await(w, r, id, failed)
}

// await redirects to the page of a run that has begun, or shows why it has not begun.
func (c *Console) await(w http.ResponseWriter, r *http.Request, id chan string, failed chan error) {
	select {
	case id := <-id:
		c.to(w, r, "run?id="+id)
	case err := <-failed:
		select {
		case id := <-id: // its page says what happened
			c.to(w, r, "run?id="+id)
			return
		default:
		}
		status := http.StatusInternalServerError
		var field *policy.FieldError
		if errors.As(err, &field) {
			status = http.StatusBadRequest
		}
		if err == nil {
			err = errors.New("the run left no record")
		}
		c.wrong(w, r, status, err)
	case <-time.After(beginTime):
		c.to(w, r, "live")
	case <-r.Context().Done():
	}
}
