package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/unitask/unitask"
)

// packageTable lists the packages that were installed for runs.
func (a *app) packageTable(rt *unitask.Runtime) error {
	list, err := rt.Packages().List()
	if err != nil || len(list) == 0 {
		return err
	}
	var rows [][]string
	for _, l := range list {
		var locked []string
		for _, p := range l.Packages {
			locked = append(locked, p.Name+" "+p.Version)
		}
		rows = append(rows, []string{l.Key[:12], l.System + " " + safe(strings.Join(l.Asked, " ")), l.Runtime, l.Arch,
			short(strings.Join(locked, ", ")),
			mebibytes(l.Bytes), l.Built.Local().Format(time.DateTime)})
	}
	fmt.Fprintln(a.std.Stdout)
	a.ui.table("PACKAGES|ASKED FOR|FOR|ARCH|INSTALLED|SIZE|BUILT", rows)
	return nil
}

// ownTable lists the custom images.
func (a *app) ownTable(rt *unitask.Runtime) {
	var rows [][]string
	for _, o := range rt.Catalog().Customs() {
		var installed []string
		for _, p := range o.Packages {
			installed = append(installed, p.Name+" "+p.Version)
		}
		for _, d := range o.Debian {
			installed = append(installed, d.Name+" "+d.Version)
		}
		rows = append(rows, []string{o.Name, o.From, string(o.Arch), short(safe(strings.Join(installed, ", "))),
			short(safe(o.Description)), safe(o.File), o.Built.Local().Format(time.DateTime)})
	}
	if len(rows) > 0 {
		fmt.Fprintln(a.std.Stdout)
		a.ui.table("YOUR IMAGE|FROM|ARCH|PACKAGES|DESCRIPTION|FILE|BUILT", rows)
	}
}

// short returns the beginning of a text for a table.
func short(text string) string {
	const most = 60
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}
