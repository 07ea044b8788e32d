package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/web"
)

func (a *app) webCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "web",
		Short: "Fetch pages in machines, and search",
	}, a.webFetch(), a.webSearch())
}

type webFlags struct {
	as, policy, ca string
	hosts          web.Hosts
	most           *size
}

func (a *app) webFetch() *cobra.Command {
	var f webFlags
	cmd := &cobra.Command{
		Use:   "fetch URL",
		Short: "Print a page as Markdown",
		Long: `Fetch prints a page as Markdown. A fresh machine, which reaches only the URL's host, fetches
the page and turns it into Markdown. So the page, which may be hostile, is never read on this
host. PDF becomes text. The run's record keeps the page (unitask inspect last).

A redirect to another host is followed if --allow-net, --allow-net-any or --ask has that host.`,
		Example: `  unitask web fetch https://example.com/
  unitask web fetch example.com/report.pdf --as text
  unitask web fetch https://example.com/logo.png --as raw > logo.png`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.fetchPage(cmd, args[0], &f) },
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringVar(&f.as, "as", web.Forms[0], "markdown, text, html (the page as it is), or raw (its bytes)")
	f.most = sizeVar(fl, "max-bytes", 1,
		fmt.Sprintf("the most to print, %d MiB at most (default %[1]d MiB)", web.MaxBytes>>20))
	fl.StringArrayVar(&f.hosts.AllowNet, "allow-net", nil,
		"a host that a redirect may lead to, as unitask run --allow-net has it; repeatable")
	fl.StringArrayVar(&f.hosts.Ask, "ask", nil,
		"a host that a redirect may lead to, as unitask run --ask has it; repeatable")
	fl.BoolVar(&f.hosts.Any, "allow-net-any", false, "a redirect may lead to every public host")
	fl.StringVar(&f.ca, "ca", "", "a PEM file of certificates to trust beside the usual ones")
	fl.StringVar(&f.policy, "policy", "", "a policy file, as unitask run --policy has it")
	return cmd
}

func (a *app) fetchPage(cmd *cobra.Command, url string, f *webFlags) error {
	ceiling, err := a.findCeiling(f.policy)
	if err != nil {
		return err
	}
	var rt *unitask.Runtime
	rt, err = a.openWith(unitask.Options{Ceiling: ceiling,
		Machines: unitask.PoolDaemon(func(sh unitask.MachineClass) { a.warmLater(rt.Images().Home(), sh) })})
	if err != nil {
		return err
	}
	defer rt.Close()
	caller := callerHere(ceiling)
	in := web.Request{URL: url, As: f.as, MaxBytes: int(min(f.most.n, web.MaxBytes+1))}
	if !strings.Contains(url, "://") {
		in.URL = "https://" + url
	}
	if f.ca != "" {
		text, err := os.ReadFile(f.ca)
		if err != nil {
			return usage(fmt.Errorf("--ca: %w", err))
		}
		in.CA = string(text)
	}
	approve := a.approver(runFlags{})
	fetcher := web.Fetcher{Ceiling: ceiling, Hosts: &f.hosts,
		Run: func(ctx context.Context, req unitask.Request) (*unitask.Result, error) {
			return rt.RunFor(ctx, caller, req, unitask.IO{Approve: approve})
		},
		Refused: func(err error, req unitask.Request) { rt.AuditRefusal(audit.RunRefused, caller, err, req) }}
	page, err := fetcher.Fetch(cmd.Context(), in)
	var denied *web.DeniedError
	if errors.As(err, &denied) && denied.Redirect && denied.Reason == "" {
		err = hint(err, "--allow-net "+denied.Host+" lets it follow")
	}
	if err != nil {
		a.code = unitask.ExitCode(nil, err)
		return asFlags(cmd, err)
	}
	return a.report(page, func() { a.printPage(page, f.as == "raw") })
}

// printPage prints a page's content, and on standard error what is odd about it.
func (a *app) printPage(page *web.Page, exactly bool) {
	out := a.output(a.std.Stdout, runFlags{})
	defer out.Close()
	switch {
	case page.Base64 != nil:
		_, _ = out.Write(page.Base64)
	case page.Text != "":
		fmt.Fprint(out, page.Text)
		if !exactly && !strings.HasSuffix(page.Text, "\n") {
			fmt.Fprintln(out)
		}
	default:
		a.ui.note("the page is empty")
	}
	if page.Status != 200 {
		a.ui.note("the server answered with status %d", page.Status)
	}
	if page.Truncated {
		a.ui.note("the page is longer: this is its beginning")
	}
}
