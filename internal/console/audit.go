package console

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/policy"
)

const (
	auditRows = 100    // of a page
	auditRead = 20_000 // lines that are read for a page
	// auditAtOnce is how many lines are verified without a button.
	auditAtOnce = 2000
	ownerBytes  = 200 // of a filter
	// auditDetail bounds the detail of a row, in bytes. unitask audit shows the rest.
	auditDetail = 4 << 10
)

// auditRow is a line of the log.
type auditRow struct {
	audit.Line
	Said string
}

// proof is the result of a verification.
type proof struct {
	Time  time.Time
	Lines int64
	Error string
}

// audit shows the newest lines of the log that a filter selects, and the state of its proof.
func (c *Console) audit(w http.ResponseWriter, r *http.Request) {
	within(w, actionTime)
	log, q := audit.In(c.Home), r.URL.Query()
	f := audit.Filter{Kind: audit.Kind(q.Get("kind")), Owner: q.Get("owner")}
	if f.Kind != "" && !slices.Contains(audit.KindNames(), string(f.Kind)) || len(f.Owner) > ownerBytes {
		c.wrong(w, r, http.StatusBadRequest, errors.New("kind or owner: use the page's form"))
		return
	}
	n, err := log.Len()
	if err != nil {
		c.wrong(w, r, http.StatusInternalServerError, err)
		return
	}
	to := n
	if text := q.Get("before"); text != "" {
		if to, err = strconv.ParseInt(text, 10, 64); err != nil || to < 0 || to > n {
			c.wrong(w, r, http.StatusBadRequest, errors.New("before: use the page's link"))
			return
		}
	}
	from := max(0, to-auditRead)
	list, err := log.Last(f, from, to, auditRows)
	if err != nil {
		c.wrong(w, r, http.StatusInternalServerError, err)
		return
	}
	next := from
	if len(list) == auditRows {
		next = list[0].Line - 1
	}
	rows := make([]auditRow, 0, len(list))
	for _, line := range slices.Backward(list) {
		rows = append(rows, auditRow{line, bounded.Text(policy.PlainText(line.Detail), auditDetail)})
	}
	data := map[string]any{"Lines": n, "Rows": rows, "Kinds": audit.KindNames(), "Kind": string(f.Kind), "Owner": f.Owner,
		"Proof": c.proof(log, n)}
	if next > 0 {
		data["Next"] = "audit?" + url.Values{"kind": {string(f.Kind)}, "owner": {f.Owner},
			"before": {strconv.FormatInt(next, 10)}}.Encode()
	}
	c.show(w, r, "audit.html", data)
}

// proof returns the last verification; a short log is verified now, unless another verification is under way.
func (c *Console) proof(log audit.Log, lines int64) *proof {
	c.mu.Lock()
	last := c.proven
	c.mu.Unlock()
	if lines > auditAtOnce || last != nil && last.Lines == lines && time.Since(last.Time) < time.Minute ||
		!c.slow.TryLock() {
		return last
	}
	defer c.slow.Unlock()
	return c.prove(log)
}

func (c *Console) prove(log audit.Log) *proof {
	p := &proof{Time: time.Now()}
	n, err := log.Verify("", "")
	if p.Lines = n; err == nil {
		var lacks history.AuditLacks
		if lacks, err = history.FindAuditLacks(c.Home, time.Now()); err == nil && lacks.String() != "" {
			err = fmt.Errorf("it has no line of %s", lacks)
		}
	}
	if err != nil {
		p.Error = err.Error()
	}
	c.mu.Lock()
	c.proven = p
	c.mu.Unlock()
	return p
}

// verify verifies the whole log, which may take long: one at a time.
func (c *Console) verify(w http.ResponseWriter, r *http.Request) {
	within(w, actionTime)
	if !c.slow.TryLock() {
		c.wrong(w, r, http.StatusServiceUnavailable, errBusy)
		return
	}
	func() {
		defer c.slow.Unlock()
		c.prove(audit.In(c.Home))
	}()
	c.to(w, r, "audit")
}

var errBusy = errors.New("a verification or an examination is under way: load the page again later")
