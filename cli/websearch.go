package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/web"
)

func (a *app) webSearch() *cobra.Command {
	var in web.SearchRequest
	var policy string
	cmd := &cobra.Command{
		Use:   "search QUERY",
		Short: "List the results of a search backend",
		Long: `List the results of a search backend that config.toml of unitask's home has a table for,
as [search.searxng] with url, or [search.brave] with key. This host asks the backend, and
reads only its JSON. The audit log has the query.`,
		Example: `  unitask web search "unix domain sockets"
  unitask web search --since week --json release notes`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Query = strings.Join(args, " ")
			ceiling, err := a.findCeiling(policy)
			if err != nil {
				return err
			}
			rt, err := a.openWith(unitask.Options{Ceiling: ceiling})
			if err != nil {
				return err
			}
			defer rt.Close()
			f := web.Searcher{Home: rt.Images().Home(), Ceiling: ceiling,
				Note: func(kind audit.Kind, detail map[string]any) error {
					return rt.Audit().Append(audit.Entry{Time: time.Now(), Kind: kind, Via: string(unitask.ViaCLI), Detail: detail})
				}}
			found, err := f.Search(cmd.Context(), in)
			if err != nil {
				return asFlags(cmd, err)
			}
			return a.report(found, func() { a.printFound(found) })
		},
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringVar(&in.Backend, "backend", "", "the backend to ask (default the ceiling's first, else the first by name)")
	fl.StringVar(&in.Since, "since", "", "how old results may be: day, week, month or year (default any age)")
	fl.IntVar(&in.Limit, "limit", web.UsualResults, fmt.Sprintf("the most results, %d at most", web.MaxResults))
	fl.StringVar(&policy, "policy", "", "a policy file, as unitask run --policy has it")
	return cmd
}

// printFound prints results, each with its address and its text.
func (a *app) printFound(found *web.Found) {
	if len(found.Results) == 0 {
		a.ui.note("%s has no results", found.Backend)
	}
	for _, hit := range found.Results {
		title := safe(hit.Title)
		if hit.Date != "" {
			title += " (" + hit.Date + ")"
		}
		a.ui.line("%s", title)
		a.ui.line("  %s", safe(hit.URL))
		if hit.Text != "" {
			a.ui.line("  %s", safe(hit.Text))
		}
	}
}
