package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/record"
)

const (
	shownPictures = 24       // of a run
	pictureBytes  = 16 << 20 // of one that is shown inline
	// followBytes bounds one answer with new output; what is further behind than followBehind is left out.
	followBytes  = 64 << 10
	followBehind = 256 << 10
	sendPiece    = 1 << 20 // of a download: each has answerTime
)

// sandboxed is the policy of what code wrote: it has an origin of its own, and neither scripts nor requests.
const sandboxed = "sandbox; default-src 'none'; frame-ancestors 'none'"

// find returns the id of the run that a page is about.
func (c *Console) find(w http.ResponseWriter, r *http.Request) (id string, ok bool) {
	id, err := c.History.Records.Find(r.URL.Query().Get("id"))
	if err != nil {
		c.wrong(w, r, http.StatusNotFound, err)
	}
	return id, err == nil
}

func (c *Console) run(w http.ResponseWriter, r *http.Request) {
	id, ok := c.find(w, r)
	if !ok {
		return
	}
	in, err := c.History.Inspect(id, shownBytes)
	if err != nil {
		c.wrong(w, r, http.StatusInternalServerError, err)
		return
	}
	var pictures []string
	if in.Ended != nil {
		if len(in.Ended.Artifacts) > shownFiles {
			in.Ended.Artifacts = in.Ended.Artifacts[:shownFiles]
			in.Cut = append(in.Cut, "the list of files")
		}
		pictures = c.pictures(id, in.Ended.Artifacts)
	}
	live := in.Status == record.Running
	c.show(w, r, "run.html", map[string]any{"Run": in, "Live": live, "Pictures": pictures,
		"Own": live && c.liveRun(in.Record).Own, "Lines": c.heldBack(in),
		"Again": !live && in.Session == "" && in.Owner == unitask.LocalOwner(os.Geteuid())})
}

// rasters are the pictures that a page shows: their beginnings, and their types. SVG is a program.
var rasters = []struct{ begin, after, kind string }{
	{"\x89PNG\r\n\x1a\n", "", "image/png"},
	{"\xff\xd8\xff", "", "image/jpeg"},
	{"GIF87a", "", "image/gif"},
	{"GIF89a", "", "image/gif"},
	{"RIFF", "WEBP", "image/webp"},
}

// raster returns a picture's type by its beginning, "" if it is none that is shown.
func raster(head []byte) string {
	for _, one := range rasters {
		if bytes.HasPrefix(head, []byte(one.begin)) &&
			(one.after == "" || len(head) >= 12 && string(head[8:12]) == one.after) {
			return one.kind
		}
	}
	return ""
}

// NamesPicture reports whether a file has a picture's name. What it holds may be something else.
func NamesPicture(name string) bool {
	switch strings.ToLower(path.Ext(name)) {
	case ".png", ".jpg", ".jpeg", ".gif", ".webp":
		return true
	}
	return false
}

// pictures returns the names of artifacts to show inline.
func (c *Console) pictures(id string, list []record.Artifact) (names []string) {
	for _, a := range list {
		if !NamesPicture(a.Path) || a.Size > pictureBytes || len(names) == shownPictures {
			continue
		}
		f, err := c.History.Records.OpenArtifact(id, a.Path)
		if err != nil {
			continue
		}
		head := make([]byte, 12)
		if _, err := io.ReadFull(f, head); err == nil && raster(head) != "" {
			names = append(names, a.Path)
		}
		f.Close()
	}
	return names
}

// output answers with what a run printed since an offset, as JSON for the script.
func (c *Console) output(w http.ResponseWriter, r *http.Request) {
	id, ok := c.find(w, r)
	if !ok {
		return
	}
	rec, err := c.History.Records.Get(id)
	if err != nil {
		c.wrong(w, r, http.StatusNotFound, err)
		return
	}
	type part struct {
		Text string `json:"text"`
		Next int64  `json:"next"`
		Lost bool   `json:"lost,omitempty"` // there is text before it that the page does not have
	}
	said := struct {
		Live   bool `json:"live"`
		Stdout part `json:"stdout"`
		Stderr part `json:"stderr"`
	}{Live: rec.Status == record.Running}
	for name, p := range map[string]*part{record.StdoutFile: &said.Stdout, record.StderrFile: &said.Stderr} {
		at, err := strconv.ParseInt(r.URL.Query().Get(name), 10, 64)
		if err != nil || at < 0 {
			c.wrong(w, r, http.StatusBadRequest, fmt.Errorf("%s: want an offset in bytes", name))
			return
		}
		if st, err := os.Stat(c.History.Records.Path(id, name)); err == nil && st.Size()-at > followBehind {
			at, p.Lost = st.Size()-followBytes, true
		}
		text, more, err := c.History.Records.ReadFrom(id, name, at, followBytes)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.wrong(w, r, http.StatusInternalServerError, err)
			return
		}
		if said.Live || more {
			text = text[:bounded.Whole(text)]
		}
		p.Text, p.Next = plain(strings.ToValidUTF8(string(text), "\ufffd")), at+int64(len(text))
		said.Live = said.Live || more
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(said)
}

// file sends a file that code wrote: an artifact, or a stream. Pictures are for pages; all others are downloads.
func (c *Console) file(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", sandboxed)
	id, ok := c.find(w, r)
	if !ok {
		return
	}
	name := r.URL.Query().Get("path")
	f, err := c.History.Records.OpenArtifact(id, name)
	if of := r.URL.Query().Get("of"); of != "" {
		if of != record.StdoutFile && of != record.StderrFile {
			c.wrong(w, r, http.StatusNotFound, errors.New("of: want stdout or stderr"))
			return
		}
		name = of + ".txt"
		f, err = c.History.Records.OpenFile(id, of)
	}
	if err != nil {
		c.wrong(w, r, http.StatusNotFound, err)
		return
	}
	defer f.Close()
	head := make([]byte, 12)
	n, _ := io.ReadFull(f, head)
	kind := raster(head[:n])
	if kind == "" || name != r.URL.Query().Get("path") {
		kind = "application/octet-stream"
		h.Set("Content-Disposition", attached(path.Base(name)))
	}
	h.Set("Content-Type", kind)
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return
	}
	for { // a large file may take long, as long as it moves
		within(w, answerTime)
		if n, err := io.CopyN(w, f, sendPiece); err != nil || n == 0 {
			return
		}
	}
}

// attached is the header of a download; names that a header can't have get another.
func attached(name string) string {
	if value := mime.FormatMediaType("attachment", map[string]string{"filename": plain(name)}); value != "" {
		return value
	}
	return "attachment"
}
