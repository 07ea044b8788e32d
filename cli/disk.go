package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/console"
	"github.com/unitask/unitask/internal/disuse"
	layout "github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
)

// keptUnused is how long image prune keeps unused items.
const keptUnused = 7 * 24 * time.Hour

// pruned counts what image prune removes, by kind.
type pruned struct {
	Templates disuse.Freed `json:"templates"`
	Images    disuse.Freed `json:"images"`
	Packages  disuse.Freed `json:"packages"`
	Programs  disuse.Freed `json:"programs"`
	Bytes     int64        `json:"bytes"`
	DryRun    bool         `json:"dryRun"`
}

func prune(ctx context.Context, rt *unitask.Runtime, rule disuse.Rule) (p pruned, err error) {
	var errs [4]error
	p.Images, errs[0] = rt.Catalog().Prune(ctx, rule)
	p.Packages.Count, p.Packages.Bytes, errs[1] = rt.RemovePackages(ctx, rule.Since, rule.DryRun)
	p.Programs, errs[2] = rt.Compiled().Prune(rule)
	p.Templates, errs[3] = rt.Templates().PruneUnused(rule)
	p.Bytes, p.DryRun = p.Images.Bytes+p.Packages.Bytes+p.Programs.Bytes+p.Templates.Bytes, rule.DryRun
	return p, errors.Join(errs[:]...)
}

func (p pruned) String() string {
	done := "removed"
	if p.DryRun {
		done = "would be removed"
	}
	return fmt.Sprintf("%s, %s, %s and %s %s: %s", count(p.Templates.Count, "template"), count(p.Images.Count, "image"),
		count(p.Packages.Count, "set")+" of packages", count(p.Programs.Count, "compiled program"), done,
		mebibytes(p.Bytes))
}

func (a *app) imagePrune() *cobra.Command {
	var all, dry bool
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove templates, compiled programs, packages and images that were not used for a week",
		Long: `Remove the templates, compiled programs and packages that were not used for a week, and
the images of that age that no run needs any more. --all removes what was used this week,
too. What a run under way or a paused session has always stays.`,
		Args: cobra.NoArgs,
		RunE: a.withRuntime(func(cmd *cobra.Command, _ []string, rt *unitask.Runtime) error {
			rule := disuse.Rule{Since: time.Now().Add(-keptUnused), DryRun: dry}
			if all {
				rule.Since = time.Time{}
			}
			p, err := prune(cmd.Context(), rt, rule)
			if err != nil && a.asJSON {
				a.done = p
				return err
			}
			return errors.Join(a.report(p, func() { a.ui.line("%s", p) }), err)
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "also what was used this week")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "say what would be removed, and remove nothing")
	return cmd
}

func (a *app) imageRemove() *cobra.Command {
	return &cobra.Command{
		Use:   "rm IMAGE...",
		Short: "Remove images from the store",
		Long: `Remove every image of a NAME, the one of a container image's reference, or
by the beginning of a digest. An image that a run under way or a paused session has is refused.`,
		Args: cobra.MinimumNArgs(1),
		RunE: a.withRuntime(func(cmd *cobra.Command, args []string, rt *unitask.Runtime) error {
			return a.removeEach(args, func(name string) ([]string, error) {
				removed, err := rt.Catalog().Remove(cmd.Context(), name, containerNamed(rt, name))
				if field := new(policy.FieldError); errors.As(err, &field) {
					err = usage(errors.New(field.Reason + language.Nearest(name, a.imageNames(cmd.Context()))))
				}
				if errors.Is(err, catalog.ErrInUse) {
					err = hint(usage(err), "unitask runs ls --status running and unitask session ls show which")
				}
				return removed, err
			})
		}),
	}
}

// stored describes the disk space of one part of the home.
type stored struct {
	Kind      string `json:"kind"`
	Items     int    `json:"items"`
	Bytes     int64  `json:"bytes"`
	Prunable  int64  `json:"prunableBytes"`
	PrunedBy  string `json:"prunedBy,omitempty"` // the command that removes unneeded items
	directory []string
	folders   bool // the items are folders; files beside them are locks and logs
}

// storedKinds returns the parts of a home, one per row.
func storedKinds(dir layout.Dir) []stored {
	const imagePrune = "image prune"
	return []stored{
		{Kind: "images", PrunedBy: imagePrune, directory: []string{dir.Images()}},
		{Kind: "container images", PrunedBy: imagePrune, directory: []string{dir.Containers()}},
		{Kind: "images of your own", PrunedBy: "image rm", directory: []string{dir.Custom(), dir.Layers()}},
		{Kind: "templates", PrunedBy: imagePrune, directory: []string{dir.Templates()}},
		{Kind: "packages", PrunedBy: imagePrune, directory: []string{dir.Packages()}},
		{Kind: "compiled programs", PrunedBy: imagePrune, directory: []string{dir.Compiled()}},
		{Kind: "parts", directory: []string{dir.Vendor(""), dir.Cache()}},
		{Kind: "records", PrunedBy: "runs prune", directory: []string{dir.Runs()}},
		{Kind: "paused sessions", PrunedBy: "session rm", directory: []string{dir.Sessions()}, folders: true},
		{Kind: "changes to files", directory: []string{dir.Changes()}, folders: true},
		{Kind: "audit log", directory: []string{dir.Audit()}},
	}
}

func (a *app) diskCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "df",
		Short: "Show what takes room on the disk, and what removes it",
		Long: `Show how much of the disk each part of the home takes. UNUSED is what image prune would
free now: what was not used for a week.`,
		Args: cobra.NoArgs,
		RunE: a.withRuntime(func(cmd *cobra.Command, _ []string, rt *unitask.Runtime) error {
			list, t, err := diskTable(cmd.Context(), rt)
			if err != nil {
				a.ui.note("what is not used can't be told: %s", safe(err.Error()))
			}
			return a.report(list, func() { a.ui.table(t.Head, t.Rows) })
		}),
	}
}

// diskTable measures the parts of the home. The error is about what is not used; the table is there in any case.
func diskTable(ctx context.Context, rt *unitask.Runtime) (list []stored, t console.Table, err error) {
	p, err := prune(ctx, rt, disuse.Rule{Since: time.Now().Add(-keptUnused), DryRun: true})
	unused := map[string]int64{"images": p.Images.Bytes, "templates": p.Templates.Bytes,
		"packages": p.Packages.Bytes, "compiled programs": p.Programs.Bytes}
	list = storedKinds(layout.Dir(rt.Images().Home()))
	t.Head = "KIND|ITEMS|SIZE|UNUSED|REMOVED BY"
	var total int64
	for i := range list {
		s := &list[i]
		s.measure()
		s.Prunable = unused[s.Kind]
		total += s.Bytes
		t.Rows = append(t.Rows, []string{s.Kind, fmt.Sprint(s.Items), mebibytes(s.Bytes), mebibytes(s.Prunable),
			cmp.Or(s.PrunedBy, "-")})
	}
	t.Rows = append(t.Rows, []string{"all", "", mebibytes(total), mebibytes(p.Bytes), ""})
	return list, t, err
}

// measure counts the items and the size of the folders.
func (s *stored) measure() {
	for _, dir := range s.directory {
		entries, _ := os.ReadDir(dir) // a missing folder has no items
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), ".") && (e.IsDir() || !s.folders) {
				s.Items++
			}
		}
		if real, err := filepath.EvalSymlinks(dir); err == nil { // a folder may be on another disk
			dir = real
		}
		s.Bytes += disuse.Size(dir)
	}
}
