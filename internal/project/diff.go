package project

import (
	"fmt"
	"io"
	"strings"

	"github.com/unitask/unitask/internal/changes"
)

// Status names what happened to a file.
type Status string

const (
	Added    Status = "added"
	Deleted  Status = "deleted"
	Modified Status = "modified"
	Renamed  Status = "renamed"
	Mode     Status = "mode" // only its executable bit
	Kind     Status = "kind" // a link instead of a file, or the reverse
)

// Status returns what happened to a change's file.
func (c *Change) Status() Status {
	switch {
	case c.Before == nil:
		return Added
	case c.After == nil:
		return Deleted
	case c.From != "":
		return Renamed
	case c.Before.Kind != c.After.Kind:
		return Kind
	case c.Before.Digest == c.After.Digest && c.Before.Link == c.After.Link:
		return Mode
	}
	return Modified
}

// maxShown bounds the texts of a diff, in bytes. Of later files it has only the sizes.
const maxShown = 16 << 20

// Shown is a change as a diff has it.
type Shown struct {
	Text           string // with a line end
	Added, Removed int    // lines
	Lines          bool   // the diff has lines: other files are binary, or too long
}

// Show returns each change as a part of a unified diff, in the form of git's. Code may have chosen texts and names, so
// what can't be seen is escaped (changes.Unified).
func (r *Report) Show(b *Manifest) (list []Shown, err error) {
	total := 0
	for i := range r.Changes {
		one, err := r.show(i, b, &total)
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, nil
}

func (r *Report) show(i int, b *Manifest, total *int) (Shown, error) {
	c := r.Changes[i]
	from, to := "a/"+c.Path, "b/"+c.Path
	if c.From != "" {
		from = "a/" + c.From
	}
	var head strings.Builder
	fmt.Fprintf(&head, "diff --git %s %s\n", changes.Visible(from), changes.Visible(to))
	switch {
	case c.Before == nil:
		fmt.Fprintf(&head, "new file mode %s\n", c.After.mode())
	case c.After == nil:
		fmt.Fprintf(&head, "deleted file mode %s\n", c.Before.mode())
	case c.Before.mode() != c.After.mode():
		fmt.Fprintf(&head, "old mode %s\nnew mode %s\n", c.Before.mode(), c.After.mode())
	}
	if c.From != "" {
		fmt.Fprintf(&head, "rename from %s\nrename to %s\n", changes.Visible(c.From), changes.Visible(c.Path))
	}
	if c.Before == nil {
		from = "/dev/null"
	}
	if c.After == nil {
		to = "/dev/null"
	}
	before, after, ok, err := r.Texts(i, b)
	*total += len(before) + len(after)
	switch {
	case err != nil:
		return Shown{}, err
	case c.Status() == Mode || c.Status() == Renamed || ok && before == after:
		return Shown{Text: head.String(), Lines: true}, nil
	case !ok || *total > maxShown:
		fmt.Fprintf(&head, "Not shown: %s and %s differ (%s, %s)\n", changes.Visible(from), changes.Visible(to),
			c.Before.size(), c.After.size())
		return Shown{Text: head.String()}, nil
	}
	text := changes.Unified(from, to, before, after)
	one := Shown{Text: head.String() + text, Lines: true}
	for n, line := range strings.Split(text, "\n") {
		switch {
		case n < 2 || line == "":
		case line[0] == '+':
			one.Added++
		case line[0] == '-':
			one.Removed++
		}
	}
	return one, nil
}

// Texts returns the texts of a change before and after; ok is false if they can't be shown as lines. A link's text is
// its target.
func (r *Report) Texts(i int, b *Manifest) (before, after string, ok bool, err error) {
	c := r.Changes[i]
	ok = true
	if old := c.Before; old != nil && old.Kind == IsLink {
		before = old.Link
	} else if old != nil {
		name := c.Path
		if c.From != "" {
			name = c.From
		}
		f := b.File(name)
		if f == nil {
			return "", "", false, errLies
		}
		var text []byte
		if text, ok, err = b.Text(f); err != nil {
			return "", "", false, err
		}
		before = string(text)
	}
	switch now := c.After; {
	case now == nil:
	case now.Kind == IsLink:
		after = now.Link
	case now.Kind == IsOther || now.Size > maxText || !c.Sent && now.Size > 0:
		ok = false
	case c.Sent:
		text, err := io.ReadAll(r.Text(i))
		if err != nil {
			return "", "", false, err
		}
		if !IsText(text) {
			ok = false
		}
		after = string(text)
	}
	return before, after, ok, nil
}

// mode returns a mode as git writes it.
func (s *State) mode() string {
	switch {
	case s.Kind == IsLink:
		return "120000"
	case s.Exec:
		return "100755"
	}
	return "100644"
}

func (s *State) size() string {
	if s == nil {
		return "no file"
	}
	return fmt.Sprintf("%d bytes", s.Size)
}
