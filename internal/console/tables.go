package console

import (
	"context"
	"net/http"
	"strings"
	"time"
)

// Names of what Options.Tables has.
const (
	TablesImages = "images"
	TablesDisk   = "disk"
	TablesPool   = "pool"
	TablesFleet  = "fleet" // none without a fleet
	TablesDoctor = "doctor"
)

const (
	shownRows = 1000             // of a table
	tableTime = 30 * time.Second // to make those of a page
)

// Table is a table as the command line prints it.
type Table struct {
	Head string // the names of its columns, with | between them; "" if there is only a note
	Rows [][]string
	Note string
}

// Names returns the names of the columns.
func (t Table) Names() []string { return strings.Split(t.Head, "|") }

// Title is the name of the first column.
func (t Table) Title() string { return strings.ToLower(t.Names()[0]) }

// part is a part of a page.
type part struct {
	Title  string
	Tables []Table
	Error  string
}

// tables makes a part. What can't be made is said there: the other parts are shown.
func (c *Console) tables(ctx context.Context, title, name string) part {
	p := part{Title: title}
	if c.Tables[name] == nil {
		return p
	}
	list, err := c.Tables[name](ctx)
	if err != nil {
		p.Error = err.Error()
	}
	for _, t := range list {
		if len(t.Rows) > shownRows {
			t.Rows, t.Note = t.Rows[:shownRows], t.Note+" There are more rows."
		}
		p.Tables = append(p.Tables, t)
	}
	return p
}

// store shows the images and what takes room on the disk.
func (c *Console) store(w http.ResponseWriter, r *http.Request) {
	within(w, actionTime)
	ctx, cancel := context.WithTimeout(r.Context(), tableTime)
	defer cancel()
	c.show(w, r, "parts.html", map[string]any{"Title": "Images and disk", "Parts": []part{
		c.tables(ctx, "Images", TablesImages), c.tables(ctx, "Disk", TablesDisk)}})
}

// hostPage shows the pool, the fleet if there is one, and what doctor found last.
func (c *Console) hostPage(w http.ResponseWriter, r *http.Request) {
	within(w, actionTime)
	ctx, cancel := context.WithTimeout(r.Context(), tableTime)
	defer cancel()
	parts := []part{c.tables(ctx, "Pool", TablesPool)}
	if fleet := c.tables(ctx, "Fleet", TablesFleet); fleet.Tables != nil || fleet.Error != "" {
		parts = append(parts, fleet)
	}
	c.mu.Lock()
	if c.examined != nil {
		parts = append(parts, *c.examined)
	}
	c.mu.Unlock()
	c.show(w, r, "parts.html", map[string]any{"Title": "Host", "Parts": parts, "Doctor": true})
}

// doctor examines the host, which boots a machine: one at a time.
func (c *Console) doctor(w http.ResponseWriter, r *http.Request) {
	within(w, actionTime)
	if !c.slow.TryLock() {
		c.wrong(w, r, http.StatusServiceUnavailable, errBusy)
		return
	}
	c.examine(r.Context())
	c.to(w, r, "host")
}

// examine keeps what doctor finds. The caller has locked slow.
func (c *Console) examine(ctx context.Context) {
	defer c.slow.Unlock()
	ctx, cancel := context.WithTimeout(ctx, actionTime-answerTime)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	p := c.tables(ctx, "Doctor, at "+clock(time.Now()), TablesDoctor)
	c.mu.Lock()
	c.examined = &p
	c.mu.Unlock()
}
