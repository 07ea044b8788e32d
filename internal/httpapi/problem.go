package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/mcp"
)

// Problem is an error in the form of RFC 9457. Code is stable; Detail is for people.
type Problem struct {
	Type      string `json:"type"` // about:blank
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Code      string `json:"code"`
	Detail    string `json:"detail"`
	Remedy    string `json:"remedy,omitempty"`
	Retryable bool   `json:"retryable"` // the same request may succeed later
	// RetryAfterMS tells when to try again, in milliseconds.
	RetryAfterMS int64 `json:"retryAfterMs,omitempty"`
}

func (p *Problem) Error() string { return p.Detail }

// statuses are the HTTP statuses of the codes of errors, with a remedy that fits this API.
var statuses = map[string]struct {
	status int
	remedy string
}{
	"usage":        {http.StatusUnprocessableEntity, ""},
	"busy":         {http.StatusTooManyRequests, ""},
	"session.gone": {http.StatusNotFound, "GET /v1/sessions lists yours"},
	"run.gone":     {http.StatusNotFound, "GET /v1/runs lists yours"},
	"jail":         {http.StatusServiceUnavailable, ""},
	"lost":         {http.StatusBadGateway, ""},
	"guest":        {http.StatusBadGateway, ""},
	"cancelled":    {http.StatusConflict, ""},
	"closing":      {http.StatusServiceUnavailable, ""},
	"host":         {http.StatusServiceUnavailable, ""},
	"file":         {http.StatusConflict, ""},
}

// problemOf returns the problem of an error.
func problemOf(err error) *Problem {
	if p := new(Problem); errors.As(err, &p) {
		return p
	}
	e := mcp.TypedError(err)
	p := &Problem{Code: e.Code, Detail: e.Message, Remedy: e.Remedy, Retryable: e.Retryable, RetryAfterMS: e.RetryAfterMS,
		Status: statuses[e.Code].status}
	if remedy := statuses[e.Code].remedy; remedy != "" {
		p.Remedy = remedy
	}
	if e.Code == "session.gone" { // the rest is for models
		p.Detail, _, _ = strings.Cut(p.Detail, "; session with op")
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		p.Status = http.StatusGatewayTimeout
	case e.Code == "file" && errors.Is(err, fs.ErrNotExist):
		p.Status = http.StatusNotFound
	case e.Code == "file" && errors.Is(err, fs.ErrPermission):
		p.Status = http.StatusForbidden
	case e.Code == "file" && errors.Is(err, syscall.ENOSPC):
		p.Status, p.Remedy = http.StatusInsufficientStorage, "remove files of the machine, or give a session more memoryMb"
	}
	return p
}

// maxDetail bounds a problem's detail, in bytes: it may quote the request.
const maxDetail = 1000

// writeProblem answers with a problem.
func writeProblem(w http.ResponseWriter, p *Problem) {
	shown := *p // others may have it, too
	p = &shown
	p.Type, p.Title = "about:blank", http.StatusText(p.Status)
	if p.Retryable && p.RetryAfterMS == 0 {
		p.RetryAfterMS = again.Milliseconds()
	}
	p.Detail = bounded.Text(p.Detail, maxDetail)
	if p.RetryAfterMS > 0 {
		w.Header().Set("Retry-After", strconv.FormatFloat(math.Ceil(float64(p.RetryAfterMS)/1000), 'f', 0, 64))
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

// levels are the parts of a place in a schema that are no members' names.
var levels = []string{"root", "properties", "allOf", "0", "$defs", "items", "additionalProperties"}

// validating matches what a schema's errors repeat for each level.
var validating = regexp.MustCompile(`validating (root|/[^:]*): `)

// maxPlain bounds a schema's error, which quotes the request, in bytes.
const maxPlain = 500

// plain returns a schema's error for people: the place, and what is wrong there.
func plain(err error) string {
	text := placed(err)
	for _, one := range inWords {
		text = one.from.ReplaceAllString(text, one.to)
	}
	if len(text) > maxPlain {
		text = strings.ToValidUTF8(text[:maxPlain], "") + "…"
	}
	return text
}

// inWords turns what a schema's errors say into words for people.
var inWords = []struct {
	from *regexp.Regexp
	to   string
}{
	{regexp.MustCompile(`unexpected additional properties \[(.*)\]$`), "it has unknown members: $1"},
	{regexp.MustCompile(`required: missing properties: \[(.*)\]$`), "it lacks $1"},
	{regexp.MustCompile(`type: (?s:.*) has type "(\w+)", want "(\w+)"$`), "the type is $1, and must be $2"},
	{regexp.MustCompile(`enum: (?s:.*) does not equal any of: \[(.*)\]$`), "use one of: $1"},
	{regexp.MustCompile(`minimum: \S+ is less than (\d+)\.?\d*$`), "the least is $1"},
	{regexp.MustCompile(`maximum: \S+ is greater than (\d+)\.?\d*$`), "the most is $1"},
	{regexp.MustCompile(`exclusiveMinimum: \S+ is less than or equal to (\d+)\.?\d*$`), "it must be more than $1"},
	{regexp.MustCompile(`minLength: (?s:.*) contains (\d+) Unicode code points, fewer than (\d+)$`),
		"it has $1 characters, and needs $2"},
	{regexp.MustCompile(`maxLength: (?s:.*) contains (\d+) Unicode code points, more than (\d+)$`),
		"it has $1 characters, and the most is $2"},
	{regexp.MustCompile(`propertyNames: pattern: ((?s:.*)) does not match regular expression "(.*)"$`),
		"the name $1 does not match $2"},
	{regexp.MustCompile(`pattern: (?s:.*) does not match regular expression "(.*)"$`), "it does not match $1"},
}

func placed(err error) string {
	text := err.Error()
	places := validating.FindAllStringSubmatch(text, -1)
	text = validating.ReplaceAllString(text, "")
	if len(places) == 0 {
		return text
	}
	text = strings.ReplaceAll(text, "<invalid reflect.Value>", "null")
	var at []string
	parts := strings.Split(places[len(places)-1][1], "/")
	for i, part := range parts {
		if part != "" && !slices.Contains(levels, part) && (i == 0 || parts[i-1] != "$defs") {
			at = append(at, part)
		}
	}
	if len(at) == 0 {
		return text
	}
	return strings.Join(at, ".") + ": " + text
}
